//! Values to bytes, always in the shortest encoding.
//!
//! Owns the encoding of primitives and of compounds whose size is not known before they are written: a compound is
//! opened with one-octet size and count, and widened only if it outgrows them. Values come in, bytes are appended to
//! the caller's buffer. It must never fail or read back what it wrote. Rules: AMQP 1.0 part 1, section 1.6.

use super::composite::Field;
use super::generated::format;
use super::value::{Array, List, Map, Value};

/// A length as the wire has it.
pub(super) fn len32(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("one AMQP value is below 4 GiB")
}

pub fn put_null(out: &mut Vec<u8>) {
    out.push(format::NULL);
}

#[inline]
pub fn put_bool(out: &mut Vec<u8>, flag: bool) {
    out.push(if flag { format::TRUE } else { format::FALSE });
}

pub fn put_ubyte(out: &mut Vec<u8>, n: u8) {
    out.extend_from_slice(&[format::UBYTE, n]);
}

pub fn put_ushort(out: &mut Vec<u8>, n: u16) {
    put_fixed(out, format::USHORT, n.to_be_bytes());
}

#[inline]
pub fn put_uint(out: &mut Vec<u8>, n: u32) {
    match u8::try_from(n) {
        Ok(0) => out.push(format::UINT0),
        Ok(small) => out.extend_from_slice(&[format::SMALLUINT, small]),
        Err(_) => put_fixed(out, format::UINT, n.to_be_bytes()),
    }
}

#[inline]
pub fn put_ulong(out: &mut Vec<u8>, n: u64) {
    match u8::try_from(n) {
        Ok(0) => out.push(format::ULONG0),
        Ok(small) => out.extend_from_slice(&[format::SMALLULONG, small]),
        Err(_) => put_fixed(out, format::ULONG, n.to_be_bytes()),
    }
}

pub fn put_int(out: &mut Vec<u8>, n: i32) {
    match i8::try_from(n) {
        Ok(small) => put_fixed(out, format::SMALLINT, small.to_be_bytes()),
        Err(_) => put_fixed(out, format::INT, n.to_be_bytes()),
    }
}

pub fn put_long(out: &mut Vec<u8>, n: i64) {
    match i8::try_from(n) {
        Ok(small) => put_fixed(out, format::SMALLLONG, small.to_be_bytes()),
        Err(_) => put_fixed(out, format::LONG, n.to_be_bytes()),
    }
}

pub fn put_timestamp(out: &mut Vec<u8>, milliseconds: i64) {
    put_fixed(out, format::TIMESTAMP, milliseconds.to_be_bytes());
}

#[inline]
pub fn put_binary(out: &mut Vec<u8>, bytes: &[u8]) {
    put_sized(out, format::VBIN8, bytes);
}

pub fn put_str(out: &mut Vec<u8>, text: &str) {
    put_sized(out, format::STR8, text.as_bytes());
}

pub fn put_symbol(out: &mut Vec<u8>, text: &str) {
    put_sized(out, format::SYM8, text.as_bytes());
}

/// Starts a described value: the caller appends the value next.
pub fn put_descriptor(out: &mut Vec<u8>, code: u64) {
    out.push(format::DESCRIBED);
    put_ulong(out, code);
}

/// Appends any value.
pub fn put_value(out: &mut Vec<u8>, value: &Value<'_>) {
    match *value {
        Value::Null => put_null(out),
        Value::Bool(flag) => put_bool(out, flag),
        Value::Ubyte(n) => put_ubyte(out, n),
        Value::Ushort(n) => put_ushort(out, n),
        Value::Uint(n) => put_uint(out, n),
        Value::Ulong(n) => put_ulong(out, n),
        Value::Byte(n) => put_fixed(out, format::BYTE, n.to_be_bytes()),
        Value::Short(n) => put_fixed(out, format::SHORT, n.to_be_bytes()),
        Value::Int(n) => put_int(out, n),
        Value::Long(n) => put_long(out, n),
        Value::Float(n) => put_fixed(out, format::FLOAT, n.to_be_bytes()),
        Value::Double(n) => put_fixed(out, format::DOUBLE, n.to_be_bytes()),
        Value::Decimal32(bits) => put_fixed(out, format::DECIMAL32, bits.to_be_bytes()),
        Value::Decimal64(bits) => put_fixed(out, format::DECIMAL64, bits.to_be_bytes()),
        Value::Decimal128(bits) => put_fixed(out, format::DECIMAL128, bits),
        Value::Char(c) => put_fixed(out, format::CHAR, u32::from(c).to_be_bytes()),
        Value::Timestamp(milliseconds) => put_timestamp(out, milliseconds),
        Value::Uuid(bytes) => put_fixed(out, format::UUID, bytes),
        Value::Binary(bytes) => put_binary(out, bytes),
        Value::String(text) => put_str(out, text),
        Value::Symbol(text) => put_symbol(out, text),
        Value::List(List { count: 0, .. }) => out.push(format::LIST0),
        Value::List(List { count, body }) => put_counted(out, format::LIST8, count, &[body]),
        Value::Map(Map { count, body }) => put_counted(out, format::MAP8, count, &[body]),
        Value::Array(Array { count, code, descriptor: [], items }) => {
            put_counted(out, format::ARRAY8, count, &[&[code], items]);
        }
        Value::Array(Array { count, code, descriptor, items }) => {
            let parts = [&[format::DESCRIBED], descriptor, &[code], items];
            put_counted(out, format::ARRAY8, count, &parts);
        }
        Value::Described(described) => {
            out.push(format::DESCRIBED);
            out.extend_from_slice(described.descriptor);
            out.push(described.code);
            out.extend_from_slice(described.data);
        }
    }
}

#[inline]
fn put_fixed<const N: usize>(out: &mut Vec<u8>, code: u8, bytes: [u8; N]) {
    out.push(code);
    out.extend_from_slice(&bytes);
}

/// Every wide format code is its narrow one with this bit set.
const WIDE: u8 = 0x10;

#[inline]
fn put_sized(out: &mut Vec<u8>, narrow: u8, bytes: &[u8]) {
    match u8::try_from(bytes.len()) {
        Ok(len) => out.extend_from_slice(&[narrow, len]),
        Err(_) => put_fixed(out, narrow | WIDE, len32(bytes.len()).to_be_bytes()),
    }
    out.extend_from_slice(bytes);
}

fn put_counted(out: &mut Vec<u8>, narrow: u8, count: u32, parts: &[&[u8]]) {
    let bytes: usize = parts.iter().map(|part| part.len()).sum();
    match (u8::try_from(bytes + 1), u8::try_from(count)) {
        (Ok(size), Ok(count)) => out.extend_from_slice(&[narrow, size, count]),
        _ => {
            put_fixed(out, narrow | WIDE, len32(bytes + 4).to_be_bytes());
            out.extend_from_slice(&count.to_be_bytes());
        }
    }
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// A list or map being written. Nulls at the end of a list are left out, as omitted fields are.
#[must_use = "a compound is complete only after finish"]
pub struct Compound<'v> {
    out: &'v mut Vec<u8>,
    start: usize,
    count: u32,
    nulls: u32,
}

/// Bytes of a narrow compound before its first value: format code, size, count.
const NARROW_BYTES: usize = 3;
/// The same with size and count of four octets.
const WIDE_BYTES: usize = 9;

impl<'v> Compound<'v> {
    /// Opens a list at the end of `out`.
    pub fn list(out: &'v mut Vec<u8>) -> Self {
        Self::open(out, format::LIST8)
    }

    /// Opens a map: keys and values are written in turn, and a null is a value like any other.
    pub fn map(out: &'v mut Vec<u8>) -> Self {
        Self::open(out, format::MAP8)
    }

    #[inline]
    fn open(out: &'v mut Vec<u8>, code: u8) -> Self {
        let start = out.len();
        out.extend_from_slice(&[code, 0, 0]);
        Self { out, start, count: 0, nulls: 0 }
    }

    /// Whether nothing was appended yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends what `put` writes, which must be exactly one value.
    #[inline]
    pub fn item(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        for _ in 0..self.nulls {
            self.out.push(format::NULL);
        }
        self.count += self.nulls + 1;
        self.nulls = 0;
        put(self.out);
    }

    /// Appends a value.
    pub fn value(&mut self, value: &Value<'_>) {
        self.item(|out| put_value(out, value));
    }

    /// Appends a field that must be there.
    #[inline]
    pub fn field<'a>(&mut self, field: &impl Field<'a>) {
        self.item(|out| field.put(out));
    }

    /// Appends a field, or a null that is left out if nothing follows.
    #[inline]
    pub fn optional<'a, T: Field<'a>>(&mut self, field: Option<&T>) {
        match field {
            Some(field) => self.field(field),
            None => self.nulls += 1,
        }
    }

    /// Appends a field unless it has its default, which a null stands for.
    #[inline]
    pub fn unless<'a, T: Field<'a> + PartialEq>(&mut self, field: &T, default: &T) {
        self.optional(Some(field).filter(|field| *field != default));
    }

    /// Fills in size and count.
    #[inline]
    pub fn finish(self) {
        let Self { out, start, count, .. } = self;
        let body_bytes = out.len() - start - NARROW_BYTES;
        if count == 0 && out[start] == format::LIST8 {
            out.truncate(start);
            out.push(format::LIST0);
            return;
        }
        match (u8::try_from(body_bytes + 1), u8::try_from(count)) {
            (Ok(size), Ok(count)) => {
                out[start + 1] = size;
                out[start + 2] = count;
            }
            _ => widen(out, start, count),
        }
    }
}

/// Moves the body up to make room for a size and a count of four octets.
#[cold]
fn widen(out: &mut Vec<u8>, start: usize, count: u32) {
    let body = start + NARROW_BYTES..out.len();
    let size = len32(body.len() + 4);
    out.resize(out.len() + WIDE_BYTES - NARROW_BYTES, 0);
    out.copy_within(body, start + WIDE_BYTES);
    out[start] |= WIDE;
    out[start + 1..start + 5].copy_from_slice(&size.to_be_bytes());
    out[start + 5..start + 9].copy_from_slice(&count.to_be_bytes());
}

/// An owned map under construction, lent to whatever holds a `Map`.
#[derive(Clone, Debug, Default)]
pub struct MapBuf {
    count: u32,
    body: Vec<u8>,
}

impl MapBuf {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a pair.
    pub fn put(&mut self, key: Value<'_>, value: Value<'_>) -> &mut Self {
        self.put_with(key, |out| put_value(out, &value))
    }

    /// Appends a pair whose value `put` writes, which must be exactly one value.
    pub fn put_with(&mut self, key: Value<'_>, put: impl FnOnce(&mut Vec<u8>)) -> &mut Self {
        put_value(&mut self.body, &key);
        put(&mut self.body);
        self.count += 2;
        self
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The map so far.
    pub fn as_map(&self) -> Map<'_> {
        Map { count: self.count, body: &self.body }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp10::Reader;

    #[test]
    fn nulls_at_the_end_of_a_list_are_left_out() {
        let mut out = Vec::new();
        let mut list = Compound::list(&mut out);
        list.optional::<u32>(None);
        list.field(&5_u32);
        list.unless(&false, &false);
        list.optional::<&str>(None);
        list.finish();
        assert_eq!(out, b"\xc0\x04\x02\x40\x52\x05");
        out.clear();
        let mut list = Compound::list(&mut out);
        list.optional::<u32>(None);
        list.finish();
        assert_eq!(out, b"\x45");
    }

    #[test]
    fn compounds_nest_and_widen_only_when_they_must() {
        for (text_bytes, code) in [(249, format::LIST8), (250, format::LIST32)] {
            let text = "x".repeat(text_bytes);
            let mut out = b"before".to_vec();
            let mut list = Compound::list(&mut out);
            list.value(&Value::String(&text));
            list.item(|out| {
                let map = Compound::map(out);
                map.finish();
            });
            list.finish();
            assert_eq!(out[6], code);
            let mut reader = Reader::new(&out[6..]);
            let list = reader.read().unwrap().as_list().unwrap();
            assert!(reader.is_empty());
            assert!(list.iter().eq([Value::String(&text), Value::Map(Map::default())]));
        }
    }

    #[test]
    fn many_small_values_widen_the_count() {
        let mut out = Vec::new();
        let mut list = Compound::list(&mut out);
        for _ in 0..300 {
            list.value(&Value::Bool(true));
        }
        list.finish();
        assert_eq!(out[..9], *b"\xd0\x00\x00\x01\x30\x00\x00\x01\x2c");
        assert_eq!(Reader::new(&out).read().unwrap().as_list().unwrap().len(), 300);
    }

    #[test]
    fn a_map_is_built_pair_by_pair() {
        let mut map = MapBuf::new();
        assert!(map.is_empty());
        map.put(Value::Symbol("a"), Value::Null).put_with(Value::Symbol("b"), |out| put_str(out, "c"));
        let mut out = Vec::new();
        put_value(&mut out, &Value::Map(map.as_map()));
        assert_eq!(out, b"\xc1\x0b\x04\xa3\x01a\x40\xa3\x01b\xa1\x01c");
        assert_eq!(Reader::new(&out).read(), Ok(Value::Map(map.as_map())));
    }
}
