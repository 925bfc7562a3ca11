//! Field tables and arrays: the self-describing values of AMQP 0-9-1.
//!
//! Owns reading and checking them; `table_writer.rs` writes them. `Table::parse` walks the bytes once and vouches for
//! them; what it returns is a view that is decoded again only where somebody looks. It must never allocate for reading,
//! recurse without bound, or give a key a meaning. Rules: AMQP 0-9-1 section 4.2.5.5, with the type letters as RabbitMQ
//! reads them.

use std::fmt;

use super::WireError;
use super::cursor::Reader;
pub use super::table_writer::{ArrayWriter, TableWriter};

/// How deep tables and arrays may nest: far more than any client does, and a bound for the checker's stack.
pub const TABLE_DEPTH_MAX: usize = 32;

/// The content of a table, without its length.
#[derive(Clone, Copy, PartialEq)]
pub struct Table<'a>(&'a [u8]);

/// The content of an array, without its length.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a>(&'a [u8]);

/// One value of a table or an array.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value<'a> {
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    F32(f32),
    F64(f64),
    Decimal {
        scale: u8,
        value: i32,
    },
    LongString(&'a [u8]),
    /// Type 'x', which no specification lists and many clients send for binary values.
    Bytes(&'a [u8]),
    Array(Array<'a>),
    /// Seconds since 1970.
    Timestamp(u64),
    Table(Table<'a>),
    Void,
}

impl<'a> Table<'a> {
    /// The table without entries.
    pub const EMPTY: Self = Self(&[]);

    /// Vouches for `raw`: every value complete, every type known, nesting within `TABLE_DEPTH_MAX`.
    #[inline]
    pub fn parse(raw: &'a [u8]) -> Result<Self, WireError> {
        check_table(raw, TABLE_DEPTH_MAX)?;
        Ok(Self(raw))
    }

    /// A view of bytes that `parse` has seen before. Reading other bytes is harmless: it ends where they make no sense.
    #[inline]
    pub const fn trusted(raw: &'a [u8]) -> Self {
        Self(raw)
    }

    /// The bytes, without the length in front.
    #[inline]
    pub const fn raw(&self) -> &'a [u8] {
        self.0
    }

    /// Whether there is no entry.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries in the order they were written.
    #[inline]
    pub fn iter(&self) -> Entries<'a> {
        Entries(Reader::new(self.0))
    }

    /// The first entry called `key`.
    pub fn get(&self, key: &[u8]) -> Option<Value<'a>> {
        self.iter().find_map(|(name, value)| (name == key).then_some(value))
    }
}

impl<'a> Array<'a> {
    /// The bytes, without the length in front.
    #[inline]
    pub const fn raw(&self) -> &'a [u8] {
        self.0
    }

    /// The items in the order they were written.
    #[inline]
    pub fn iter(&self) -> Items<'a> {
        Items(Reader::new(self.0))
    }
}

/// Iterator over a table; ends at the first malformed byte.
pub struct Entries<'a>(Reader<'a>);

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a [u8], Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.0.short().and_then(|key| Ok((key, value(&mut self.0)?)));
        entry.inspect_err(|_| self.0 = Reader::new(&[])).ok()
    }
}

/// Iterator over an array; ends at the first malformed byte.
pub struct Items<'a>(Reader<'a>);

impl<'a> Iterator for Items<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        value(&mut self.0).inspect_err(|_| self.0 = Reader::new(&[])).ok()
    }
}

fn check_table(raw: &[u8], depth_left: usize) -> Result<(), WireError> {
    let mut r = Reader::new(raw);
    while !r.is_empty() {
        r.short()?;
        check_nested(value(&mut r)?, depth_left)?;
    }
    Ok(())
}

fn check_nested(value: Value<'_>, depth_left: usize) -> Result<(), WireError> {
    let depth_below = || depth_left.checked_sub(1).ok_or(WireError::TooDeep);
    match value {
        Value::Table(Table(raw)) => check_table(raw, depth_below()?),
        Value::Array(Array(raw)) => {
            let depth_left = depth_below()?;
            let mut r = Reader::new(raw);
            while !r.is_empty() {
                check_nested(self::value(&mut r)?, depth_left)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// One value with its type letter; the inside of a table or an array is left unread.
#[inline]
fn value<'a>(r: &mut Reader<'a>) -> Result<Value<'a>, WireError> {
    Ok(match r.u8()? {
        b't' => Value::Bool(r.u8()? != 0),
        b'b' => Value::I8(r.array().map(i8::from_be_bytes)?),
        b'B' => Value::U8(r.u8()?),
        b's' => Value::I16(r.array().map(i16::from_be_bytes)?),
        b'u' => Value::U16(r.u16()?),
        b'I' => Value::I32(r.array().map(i32::from_be_bytes)?),
        b'i' => Value::U32(r.u32()?),
        // The specification's 'L' is signed as well; some clients send it, RabbitMQ itself writes 'l'.
        b'l' | b'L' => Value::I64(r.array().map(i64::from_be_bytes)?),
        b'f' => Value::F32(r.array().map(f32::from_be_bytes)?),
        b'd' => Value::F64(r.array().map(f64::from_be_bytes)?),
        b'D' => Value::Decimal { scale: r.u8()?, value: r.array().map(i32::from_be_bytes)? },
        b'S' => Value::LongString(r.long()?),
        b'x' => Value::Bytes(r.long()?),
        b'A' => Value::Array(Array(r.long()?)),
        b'T' => Value::Timestamp(r.u64()?),
        b'F' => Value::Table(Table(r.long()?)),
        b'V' => Value::Void,
        tag => return Err(WireError::BadTag(tag)),
    })
}

impl<'a> Value<'a> {
    /// Any integer, whatever its width; a timestamp is not one.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::I8(value) => Some(value.into()),
            Self::U8(value) => Some(value.into()),
            Self::I16(value) => Some(value.into()),
            Self::U16(value) => Some(value.into()),
            Self::I32(value) => Some(value.into()),
            Self::U32(value) => Some(value.into()),
            Self::I64(value) => Some(value),
            _ => None,
        }
    }

    /// A long string or a binary value.
    pub fn as_bytes(&self) -> Option<&'a [u8]> {
        match *self {
            Self::LongString(bytes) | Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// A truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }
}

/// Prints the entries, unless the bytes never passed `parse`: nesting without bound must not reach the printer.
impl fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::parse(self.0) {
            Ok(table) => {
                f.debug_map().entries(table.iter().map(|(key, value)| (key.escape_ascii().to_string(), value))).finish()
            }
            Err(error) => write!(f, "<{} bytes: {error}>", self.0.len()),
        }
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match check_nested(Value::Array(*self), TABLE_DEPTH_MAX) {
            Ok(()) => f.debug_list().entries(self.iter()).finish(),
            Err(error) => write!(f, "<{} bytes: {error}>", self.0.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every type with the bytes it is written as.
    const EVERY_TYPE: &[(Value<'static>, &[u8])] = &[
        (Value::Bool(true), b"t\x01"),
        (Value::Bool(false), b"t\0"),
        (Value::I8(-2), b"b\xFE"),
        (Value::U8(254), b"B\xFE"),
        (Value::I16(-2), b"s\xFF\xFE"),
        (Value::U16(0xFFFE), b"u\xFF\xFE"),
        (Value::I32(-2), b"I\xFF\xFF\xFF\xFE"),
        (Value::U32(0xFFFF_FFFE), b"i\xFF\xFF\xFF\xFE"),
        (Value::I64(-2), b"l\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE"),
        (Value::F32(1.5), b"f\x3F\xC0\0\0"),
        (Value::F64(-1.5), b"d\xBF\xF8\0\0\0\0\0\0"),
        (Value::Decimal { scale: 2, value: -314 }, b"D\x02\xFF\xFF\xFE\xC6"),
        (Value::LongString(b"text"), b"S\0\0\0\x04text"),
        (Value::Bytes(b"\0\xFF"), b"x\0\0\0\x02\0\xFF"),
        (Value::Array(Array(b"t\x01V")), b"A\0\0\0\x03t\x01V"),
        (Value::Timestamp(0x0102_0304_0506_0708), b"T\x01\x02\x03\x04\x05\x06\x07\x08"),
        (Value::Table(Table(b"\x01kV")), b"F\0\0\0\x03\x01kV"),
        (Value::Void, b"V"),
    ];

    fn written(fill: impl FnOnce(&mut TableWriter<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        TableWriter::write(&mut out, fill);
        let (len, content) = out.split_first_chunk::<4>().unwrap();
        assert_eq!(u32::from_be_bytes(*len) as usize, content.len());
        content.to_vec()
    }

    fn all_types() -> Vec<u8> {
        written(|t| {
            for (index, (value, _)) in EVERY_TYPE.iter().enumerate() {
                t.value(format!("key-{index}").as_bytes(), *value);
            }
        })
    }

    /// Tables, or arrays, one inside the other; `depth` zero is a flat table.
    fn nested(tag: u8, depth: usize) -> Vec<u8> {
        let per_level = if tag == b'F' { 6 } else { 5 };
        let mut raw = vec![0];
        for below in (0..depth).rev() {
            raw.push(tag);
            raw.extend_from_slice(&((below * per_level) as u32).to_be_bytes());
            if tag == b'F' && below > 0 {
                raw.push(0);
            }
        }
        if depth == 0 { Vec::new() } else { raw }
    }

    #[test]
    fn every_type_has_its_bytes_and_reads_back() {
        for (value, bytes) in EVERY_TYPE {
            let raw = written(|t| t.value(b"k", *value));
            assert_eq!(raw, [b"\x01k", *bytes].concat(), "{value:?}");
            assert_eq!(Table::parse(&raw).unwrap().get(b"k"), Some(*value));
        }
        let raw = all_types();
        let table = Table::parse(&raw).unwrap();
        assert!(table.iter().map(|(_, value)| value).eq(EVERY_TYPE.iter().map(|(value, _)| *value)));
    }

    #[test]
    fn the_other_letter_for_a_long_integer_is_understood() {
        let table = Table::parse(b"\x01kL\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE").unwrap();
        assert_eq!(table.get(b"k"), Some(Value::I64(-2)));
    }

    #[test]
    fn every_letter_without_a_meaning_is_refused() {
        let known = b"tbBsuIilLfdDSxATFV";
        for tag in (0..=u8::MAX).filter(|tag| !known.contains(tag)) {
            let raw = [1, b'k', tag, 0, 0, 0, 0, 0, 0, 0, 0];
            assert_eq!(Table::parse(&raw), Err(WireError::BadTag(tag)));
            assert_eq!(Table::trusted(&raw).iter().count(), 0);
        }
    }

    #[test]
    fn a_table_cut_anywhere_but_between_entries_is_short() {
        let raw = all_types();
        let mut whole_entries = 0;
        for len in 0..raw.len() {
            let cut = Table::trusted(&raw[..len]);
            match Table::parse(cut.raw()) {
                Ok(_) => {
                    assert_eq!(cut.iter().count(), whole_entries);
                    whole_entries += 1;
                }
                Err(error) => {
                    assert_eq!(error, WireError::Short, "{len} bytes");
                    assert_eq!(cut.iter().count(), whole_entries - 1);
                }
            }
        }
        assert_eq!(whole_entries, EVERY_TYPE.len());
    }

    #[test]
    fn a_nested_value_is_checked_as_strictly_as_the_outermost() {
        assert_eq!(Table::parse(b"\x01kF\0\0\0\x03\x01k?"), Err(WireError::BadTag(b'?')));
        assert_eq!(Table::parse(b"\x01kA\0\0\0\x02S\0"), Err(WireError::Short));
        assert_eq!(Table::parse(b"\x01kF\0\0\0\x09\x01kV"), Err(WireError::Short));
    }

    #[test]
    fn nesting_is_bounded() {
        for tag in *b"FA" {
            assert!(Table::parse(&nested(tag, TABLE_DEPTH_MAX)).is_ok());
            for depth in [TABLE_DEPTH_MAX + 1, 100_000] {
                let bomb = nested(tag, depth);
                assert_eq!(Table::parse(&bomb), Err(WireError::TooDeep));
                let printed = format!("{:?}", Table::trusted(&bomb));
                assert!(printed.ends_with("nested too deeply>"), "{printed}");
            }
        }
    }

    #[test]
    fn bytes_nobody_checked_are_read_without_panic() {
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        let alphabet = b"tbBsuIilLfdDSxATFV\0\0\0\x01\x02\x05\xFF";
        for _ in 0..20_000 {
            let raw: [u8; 24] = std::array::from_fn(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                alphabet[(state >> 32) as usize % alphabet.len()]
            });
            let table = Table::trusted(&raw);
            let read = table.iter().map(|(key, value)| 2 + key.len() + usize::from(value != Value::Void));
            assert!(read.sum::<usize>() <= raw.len());
            let rewritten = written(|t| table.iter().for_each(|(key, value)| t.value(key, value)));
            if let Ok(parsed) = Table::parse(&raw) {
                assert_eq!(rewritten.len(), raw.len());
                assert_eq!(parsed.iter().count(), Table::parse(&rewritten).unwrap().iter().count());
            }
        }
    }

    #[test]
    fn the_first_of_two_equal_keys_wins_and_a_missing_one_is_none() {
        let raw = written(|t| {
            t.i64(b"k", 1);
            t.i64(b"k", 2);
        });
        let table = Table::parse(&raw).unwrap();
        assert_eq!(table.get(b"k"), Some(Value::I64(1)));
        assert_eq!(table.get(b"absent"), None);
        assert!(!table.is_empty());
        assert!(Table::EMPTY.is_empty() && Table::EMPTY.iter().next().is_none());
    }

    #[test]
    fn integers_of_any_width_are_integers_and_nothing_else_is() {
        let integers = EVERY_TYPE.iter().filter_map(|(value, _)| value.as_i64());
        assert!(integers.eq([-2, 254, -2, 0xFFFE, -2, 0xFFFF_FFFE, -2]));
    }
}
