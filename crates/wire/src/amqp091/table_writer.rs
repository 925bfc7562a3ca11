//! Writing field tables and arrays.
//!
//! Owns the lengths: a table or an array is filled by a closure and its length put in front afterwards, so nothing is
//! built in between. Values come in, bytes are appended to the caller's buffer. It must never refuse: what it is given
//! comes from this process, and a key too long for the wire is cut as every short string is. Rules as in `table.rs`.

use super::cursor::Writer;
use super::table::Value;

/// Appends the entries of one table; `write` puts the length in front.
pub struct TableWriter<'o> {
    out: &'o mut Vec<u8>,
}

/// Appends the items of one array.
pub struct ArrayWriter<'o> {
    out: &'o mut Vec<u8>,
}

impl TableWriter<'_> {
    /// Appends a length-prefixed table holding what `fill` puts in.
    pub fn write(out: &mut Vec<u8>, fill: impl FnOnce(&mut TableWriter<'_>)) {
        prefixed(out, |out| fill(&mut TableWriter { out }));
    }

    /// Any value, one borrowed from another table included.
    pub fn value(&mut self, key: &[u8], value: Value<'_>) {
        value.write(&mut self.key(key));
    }

    /// The entries of another table, as they are.
    pub fn raw(&mut self, entries: &[u8]) {
        self.out.extend_from_slice(entries);
    }

    /// A long string, the type for text.
    pub fn str(&mut self, key: &[u8], value: &[u8]) {
        self.value(key, Value::LongString(value));
    }

    /// A truth value.
    pub fn bool(&mut self, key: &[u8], value: bool) {
        self.value(key, Value::Bool(value));
    }

    /// A number, in the widest integer type.
    pub fn i64(&mut self, key: &[u8], value: i64) {
        self.value(key, Value::I64(value));
    }

    /// A table inside this one.
    pub fn table(&mut self, key: &[u8], fill: impl FnOnce(&mut TableWriter<'_>)) {
        self.key(key).u8(b'F');
        TableWriter::write(self.out, fill);
    }

    /// An array inside this table.
    pub fn array(&mut self, key: &[u8], fill: impl FnOnce(&mut ArrayWriter<'_>)) {
        self.key(key).u8(b'A');
        prefixed(self.out, |out| fill(&mut ArrayWriter { out }));
    }

    fn key(&mut self, key: &[u8]) -> Writer<'_> {
        let mut w = Writer::new(self.out);
        w.short(key);
        w
    }
}

impl ArrayWriter<'_> {
    /// Any value, one borrowed from another array included.
    pub fn value(&mut self, value: Value<'_>) {
        value.write(&mut Writer::new(self.out));
    }

    /// A long string, the type for text.
    pub fn str(&mut self, value: &[u8]) {
        self.value(Value::LongString(value));
    }

    /// A table as an item.
    pub fn table(&mut self, fill: impl FnOnce(&mut TableWriter<'_>)) {
        self.out.push(b'F');
        TableWriter::write(self.out, fill);
    }

    /// An array as an item.
    pub fn array(&mut self, fill: impl FnOnce(&mut ArrayWriter<'_>)) {
        self.out.push(b'A');
        prefixed(self.out, |out| fill(&mut ArrayWriter { out }));
    }
}

fn prefixed(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let mark = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let len = (out.len() - mark - 4) as u32;
    out[mark..mark + 4].copy_from_slice(&len.to_be_bytes());
}

impl Value<'_> {
    fn write(self, w: &mut Writer<'_>) {
        match self {
            Self::Bool(value) => w.raw(&[b't', value.into()]),
            Self::I8(value) => w.tagged(b'b', &value.to_be_bytes()),
            Self::U8(value) => w.tagged(b'B', &value.to_be_bytes()),
            Self::I16(value) => w.tagged(b's', &value.to_be_bytes()),
            Self::U16(value) => w.tagged(b'u', &value.to_be_bytes()),
            Self::I32(value) => w.tagged(b'I', &value.to_be_bytes()),
            Self::U32(value) => w.tagged(b'i', &value.to_be_bytes()),
            Self::I64(value) => w.tagged(b'l', &value.to_be_bytes()),
            Self::F32(value) => w.tagged(b'f', &value.to_be_bytes()),
            Self::F64(value) => w.tagged(b'd', &value.to_be_bytes()),
            Self::Timestamp(seconds) => w.tagged(b'T', &seconds.to_be_bytes()),
            Self::Decimal { scale, value } => {
                w.tagged(b'D', &[scale]);
                w.raw(&value.to_be_bytes());
            }
            Self::LongString(bytes) => w.tagged_long(b'S', bytes),
            Self::Bytes(bytes) => w.tagged_long(b'x', bytes),
            Self::Array(array) => w.tagged_long(b'A', array.raw()),
            Self::Table(table) => w.tagged_long(b'F', table.raw()),
            Self::Void => w.u8(b'V'),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::Table;
    use super::*;

    #[test]
    fn a_table_is_built_with_nested_parts_and_read_back() {
        let mut out = b"before".to_vec();
        TableWriter::write(&mut out, |t| {
            t.str(b"product", b"weft");
            t.table(b"capabilities", |t| t.bool(b"basic.nack", true));
            t.array(b"x-death", |a| {
                a.table(|t| {
                    t.i64(b"count", 3);
                    t.array(b"routing-keys", |a| a.str(b"a.b"));
                });
                a.value(Value::Void);
            });
        });
        let (len, raw) = out[b"before".len()..].split_first_chunk::<4>().unwrap();
        assert_eq!(u32::from_be_bytes(*len) as usize, raw.len());
        let table = Table::parse(raw).unwrap();
        assert_eq!(table.get(b"product").and_then(|v| v.as_bytes()), Some(&b"weft"[..]));
        let Some(Value::Table(capabilities)) = table.get(b"capabilities") else { panic!("{table:?}") };
        assert_eq!(capabilities.get(b"basic.nack").and_then(|v| v.as_bool()), Some(true));
        let Some(Value::Array(deaths)) = table.get(b"x-death") else { panic!("{table:?}") };
        let deaths: Vec<_> = deaths.iter().collect();
        let [Value::Table(death), Value::Void] = deaths[..] else { panic!("{deaths:?}") };
        assert_eq!(death.get(b"count").and_then(|v| v.as_i64()), Some(3));
        let Some(Value::Array(keys)) = death.get(b"routing-keys") else { panic!("{death:?}") };
        assert!(keys.iter().eq([Value::LongString(b"a.b")]));
    }
}
