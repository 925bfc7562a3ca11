//! Every AMQP 1.0 value as a small copy that borrows from the bytes it was read from.
//!
//! Owns the primitive types and the lazy views of lists, maps, arrays and described values: a view is a count and the
//! bytes behind it, walked only when asked. Views come from a `Reader`, which checks them whole, so iterating one finds
//! no surprise; were the bytes bad all the same, it would stop. It must never know a composite type by name.
//! Rules: AMQP 1.0 part 1, sections 1.2 to 1.6.

use super::error::DecodeError;
use super::generated::{code_of_symbol, format};
use super::reader::Reader;

/// How deep lists, maps, arrays and described values may nest.
pub const DEPTH_MAX: u32 = 32;
/// How many elements an array may claim whose elements take no bytes at all.
pub(super) const ZERO_WIDTH_COUNT_MAX: u32 = 255;

/// Milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// One value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Null,
    Bool(bool),
    Ubyte(u8),
    Ushort(u16),
    Uint(u32),
    Ulong(u64),
    Byte(i8),
    Short(i16),
    Int(i32),
    Long(i64),
    Float(f32),
    Double(f64),
    /// IEEE 754 decimal bits, as they came.
    Decimal32(u32),
    /// IEEE 754 decimal bits, as they came.
    Decimal64(u64),
    /// IEEE 754 decimal bits, as they came.
    Decimal128([u8; 16]),
    Char(char),
    Timestamp(i64),
    Uuid([u8; 16]),
    Binary(&'a [u8]),
    String(&'a str),
    Symbol(&'a str),
    List(List<'a>),
    Map(Map<'a>),
    Array(Array<'a>),
    Described(Described<'a>),
}

impl<'a> Value<'a> {
    /// The number, if the value is any unsigned or a non-negative signed integer.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Ubyte(n) => Some(n.into()),
            Self::Ushort(n) => Some(n.into()),
            Self::Uint(n) => Some(n.into()),
            Self::Ulong(n) => Some(n),
            _ => self.as_i64().and_then(|n| n.try_into().ok()),
        }
    }

    /// The number, if the value is an integer that an `i64` holds.
    pub fn as_i64(&self) -> Option<i64> {
        match *self {
            Self::Ubyte(n) => Some(n.into()),
            Self::Ushort(n) => Some(n.into()),
            Self::Uint(n) => Some(n.into()),
            Self::Ulong(n) => n.try_into().ok(),
            Self::Byte(n) => Some(n.into()),
            Self::Short(n) => Some(n.into()),
            Self::Int(n) => Some(n.into()),
            Self::Long(n) => Some(n),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(flag) => Some(flag),
            _ => None,
        }
    }

    /// The text of a string or a symbol.
    pub fn as_str(&self) -> Option<&'a str> {
        match *self {
            Self::String(text) | Self::Symbol(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_symbol(&self) -> Option<&'a str> {
        match *self {
            Self::Symbol(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_binary(&self) -> Option<&'a [u8]> {
        match *self {
            Self::Binary(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub fn as_list(&self) -> Option<List<'a>> {
        match *self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<Map<'a>> {
        match *self {
            Self::Map(map) => Some(map),
            _ => None,
        }
    }

    pub fn as_described(&self) -> Option<Described<'a>> {
        match *self {
            Self::Described(described) => Some(described),
            _ => None,
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Reads everything inside the value once: the only pass that sees unchecked bytes.
    pub(super) fn check(&self, depth: u32) -> Result<(), DecodeError> {
        let inner = |depth: u32| depth.checked_sub(1).ok_or(DecodeError::Depth);
        match *self {
            Self::List(List { count, body }) | Self::Map(Map { count, body }) => {
                let (depth, mut reader) = (inner(depth)?, Reader::new(body));
                for _ in 0..count {
                    reader.read_within(depth)?;
                }
                if reader.is_empty() { Ok(()) } else { Err(DecodeError::Count) }
            }
            Self::Array(array) => array.check(inner(depth)?),
            Self::Described(described) => described.check(inner(depth)?),
            _ => Ok(()),
        }
    }
}

/// A list of values.
#[derive(Clone, Copy, Default)]
pub struct List<'a> {
    pub(super) count: u32,
    pub(super) body: &'a [u8],
}

impl<'a> List<'a> {
    /// How many values there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The values in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let mut reader = Reader::new(self.body);
        (0..self.count).map_while(move |_| reader.read_shallow().ok())
    }
}

impl PartialEq for List<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl std::fmt::Debug for List<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Pairs of values in the order they were written; two maps in another order are not equal.
#[derive(Clone, Copy, Default)]
pub struct Map<'a> {
    /// Keys and values together: twice the number of pairs.
    pub(super) count: u32,
    pub(super) body: &'a [u8],
}

impl<'a> Map<'a> {
    /// How many pairs there are.
    pub fn len(&self) -> usize {
        self.count as usize / 2
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (Value<'a>, Value<'a>)> + use<'a> {
        let mut reader = Reader::new(self.body);
        (0..self.count / 2).map_while(move |_| {
            let key = reader.read_shallow().ok()?;
            Some((key, reader.read_shallow().ok()?))
        })
    }

    /// The value under a string or symbol key.
    pub fn get(&self, key: &str) -> Option<Value<'a>> {
        self.iter().find(|(name, _)| name.as_str() == Some(key)).map(|(_, value)| value)
    }
}

impl PartialEq for Map<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl std::fmt::Debug for Map<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Values of one type, whose constructor is written once before them.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    pub(super) count: u32,
    /// Format code of every element.
    pub(super) code: u8,
    /// The encoded descriptor of every element; empty if they are not described.
    pub(super) descriptor: &'a [u8],
    pub(super) items: &'a [u8],
}

impl<'a> Array<'a> {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (array, mut reader) = (*self, Reader::new(self.items));
        (0..array.count).map_while(move |_| array.element(&mut reader).ok())
    }

    pub(super) fn holds_symbols(&self) -> bool {
        self.descriptor.is_empty() && matches!(self.code, format::SYM8 | format::SYM32)
    }

    fn element(&self, reader: &mut Reader<'a>) -> Result<Value<'a>, DecodeError> {
        if self.descriptor.is_empty() {
            return reader.read_body(self.code);
        }
        let data = reader.skip_body(self.code)?;
        Ok(Value::Described(Described { descriptor: self.descriptor, code: self.code, data }))
    }

    /// Every element has the same descriptor, so that checking or comparing it once is enough, and once for each
    /// would let a long descriptor cost its length times the count.
    fn descriptor(&self) -> Value<'a> {
        Reader::new(self.descriptor).read_shallow().unwrap_or(Value::Null)
    }

    fn undescribed(&self) -> Self {
        Self { descriptor: &[], ..*self }
    }

    fn check(&self, depth: u32) -> Result<(), DecodeError> {
        self.descriptor().check(depth)?;
        let mut reader = Reader::new(self.items);
        // Elements without bytes are all alike.
        let distinct = if self.items.is_empty() { self.count.min(1) } else { self.count };
        for _ in 0..distinct {
            reader.read_body(self.code)?.check(depth)?;
        }
        if reader.is_empty() { Ok(()) } else { Err(DecodeError::Count) }
    }
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.descriptor() == other.descriptor() && self.undescribed().iter().eq(other.undescribed().iter())
    }
}

impl std::fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if !self.descriptor.is_empty() {
            write!(f, "{:?} ", self.descriptor())?;
        }
        f.debug_list().entries(self.undescribed().iter()).finish()
    }
}

/// A value with a descriptor that says what it means.
#[derive(Clone, Copy)]
pub struct Described<'a> {
    /// The encoded descriptor.
    pub(super) descriptor: &'a [u8],
    /// The format code of the value, and the bytes that follow it.
    pub(super) code: u8,
    pub(super) data: &'a [u8],
}

impl<'a> Described<'a> {
    /// The descriptor itself, a ulong or a symbol in all types defined so far.
    pub fn descriptor(&self) -> Value<'a> {
        Reader::new(self.descriptor).read_shallow().unwrap_or(Value::Null)
    }

    /// The numeric descriptor, translated from the symbolic form if that is known.
    pub fn code(&self) -> Option<u64> {
        match self.descriptor() {
            Value::Ulong(code) => Some(code),
            Value::Symbol(symbol) => code_of_symbol(symbol),
            _ => None,
        }
    }

    /// The value behind the descriptor.
    pub fn value(&self) -> Value<'a> {
        Reader::new(self.data).read_body(self.code).unwrap_or(Value::Null)
    }

    fn check(&self, depth: u32) -> Result<(), DecodeError> {
        Reader::new(self.descriptor).read_within(depth)?;
        Reader::new(self.data).read_body(self.code)?.check(depth)
    }
}

impl PartialEq for Described<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.descriptor() == other.descriptor() && self.value() == other.value()
    }
}

impl std::fmt::Debug for Described<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Described").field(&self.descriptor()).field(&self.value()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp10::writer::put_value;

    /// Reads `bytes` as one value and expects it to be written back as `compact`.
    fn value_of<'a>(bytes: &'a [u8], compact: &[u8]) -> Value<'a> {
        let mut reader = Reader::new(bytes);
        let value = reader.read().unwrap();
        assert!(reader.is_empty());
        let mut written = Vec::new();
        put_value(&mut written, &value);
        assert_eq!(written, compact, "{value:?}");
        for cut in 0..bytes.len() {
            assert_eq!(Reader::new(&bytes[..cut]).read(), Err(DecodeError::Truncated));
        }
        value
    }

    #[test]
    fn every_fixed_type_has_its_specified_bytes() {
        let uuid = *b"0123456789abcdef";
        let samples: &[(&[u8], Value<'_>)] = &[
            (b"\x40", Value::Null),
            (b"\x41", Value::Bool(true)),
            (b"\x42", Value::Bool(false)),
            (b"\x50\xc8", Value::Ubyte(200)),
            (b"\x60\x12\x34", Value::Ushort(0x1234)),
            (b"\x43", Value::Uint(0)),
            (b"\x52\xff", Value::Uint(255)),
            (b"\x70\x00\x00\x01\x2c", Value::Uint(300)),
            (b"\x44", Value::Ulong(0)),
            (b"\x53\x05", Value::Ulong(5)),
            (b"\x80\x00\x00\x00\x00\x00\x00\x01\x2c", Value::Ulong(300)),
            (b"\x51\xfe", Value::Byte(-2)),
            (b"\x61\xff\xfe", Value::Short(-2)),
            (b"\x54\x80", Value::Int(-128)),
            (b"\x71\xff\xff\xfe\xd4", Value::Int(-300)),
            (b"\x55\x7f", Value::Long(127)),
            (b"\x81\xff\xff\xff\xff\xff\xff\xfe\xd4", Value::Long(-300)),
            (b"\x72\x3f\xc0\x00\x00", Value::Float(1.5)),
            (b"\x82\xc0\x02\x00\x00\x00\x00\x00\x00", Value::Double(-2.25)),
            (b"\x74\x00\x00\x00\x07", Value::Decimal32(7)),
            (b"\x84\x00\x00\x00\x00\x00\x00\x00\x07", Value::Decimal64(7)),
            (b"\x940123456789abcdef", Value::Decimal128(uuid)),
            (b"\x73\x00\x00\x20\xac", Value::Char('€')),
            (b"\x83\x00\x00\x01\x8b\xcf\xe5\x68\x00", Value::Timestamp(1_700_000_000_000)),
            (b"\x980123456789abcdef", Value::Uuid(uuid)),
            (b"\xa0\x02ab", Value::Binary(b"ab")),
            (b"\xa1\x03h\xc3\xa9", Value::String("hé")),
            (b"\xa3\x03sym", Value::Symbol("sym")),
            (b"\x45", Value::List(List::default())),
        ];
        for (bytes, value) in samples {
            assert_eq!(value_of(bytes, bytes), *value);
        }
    }

    #[test]
    fn wide_encodings_are_read_and_written_back_short() {
        assert_eq!(value_of(b"\x56\x01", b"\x41"), Value::Bool(true));
        assert_eq!(value_of(b"\x70\0\0\0\x05", b"\x52\x05"), Value::Uint(5));
        assert_eq!(value_of(b"\x80\0\0\0\0\0\0\0\0", b"\x44"), Value::Ulong(0));
        assert_eq!(value_of(b"\x71\xff\xff\xff\xff", b"\x54\xff"), Value::Int(-1));
        assert_eq!(value_of(b"\x81\0\0\0\0\0\0\0\x01", b"\x55\x01"), Value::Long(1));
        assert_eq!(value_of(b"\xb0\0\0\0\x01a", b"\xa0\x01a"), Value::Binary(b"a"));
        assert_eq!(value_of(b"\xb1\0\0\0\x01a", b"\xa1\x01a"), Value::String("a"));
        assert_eq!(value_of(b"\xb3\0\0\0\x01a", b"\xa3\x01a"), Value::Symbol("a"));
        value_of(b"\xd0\0\0\0\x05\0\0\0\x01\x41", b"\xc0\x02\x01\x41");
        value_of(b"\xd1\0\0\0\x04\0\0\0\0", b"\xc1\x01\x00");
        value_of(b"\xf0\0\0\0\x07\0\0\0\x02\x50\x01\x02", b"\xe0\x04\x02\x50\x01\x02");
    }

    #[test]
    fn a_long_text_and_a_long_list_are_written_wide() {
        let text = "x".repeat(256);
        let mut bytes = Vec::new();
        put_value(&mut bytes, &Value::String(&text));
        assert_eq!(bytes[..5], *b"\xb1\x00\x00\x01\x00");
        assert_eq!(value_of(&bytes, &bytes).as_str(), Some(text.as_str()));
        let body = [0x41; 255];
        bytes.clear();
        put_value(&mut bytes, &Value::List(List { count: 255, body: &body }));
        assert_eq!(bytes[..9], *b"\xd0\x00\x00\x01\x03\x00\x00\x00\xff");
        assert_eq!(value_of(&bytes, &bytes).as_list().unwrap().len(), 255);
    }

    #[test]
    fn lists_and_maps_are_walked_in_order() {
        let bytes = b"\xc0\x0b\x04\x55\x01\xa1\x01a\x40\xc0\x02\x01\x41";
        let list = value_of(bytes, bytes).as_list().unwrap();
        let values: Vec<_> = list.iter().collect();
        assert_eq!(values[..3], [Value::Long(1), Value::String("a"), Value::Null]);
        assert_eq!(values[3].as_list().unwrap().iter().next(), Some(Value::Bool(true)));
        let bytes = b"\xc1\x0a\x04\xa3\x01k\x53\x01\xa1\x01s\x40";
        let map = value_of(bytes, bytes).as_map().unwrap();
        assert_eq!(map.len(), 2);
        assert_eq!((map.get("k"), map.get("s")), (Some(Value::Ulong(1)), Some(Value::Null)));
        assert_eq!(map.get("x"), None);
    }

    #[test]
    fn arrays_share_one_constructor() {
        let bytes = b"\xf0\0\0\0\x11\0\0\0\x03\x71\0\0\0\x01\0\0\0\x02\xff\xff\xff\xfd";
        let array = Reader::new(bytes).read().unwrap();
        let Value::Array(array) = array else { panic!("{array:?}") };
        assert!(array.iter().eq([Value::Int(1), Value::Int(2), Value::Int(-3)]));
        let bytes = b"\xe0\x0b\x02\x00\xa3\x01d\xa1\x01a\x02bc";
        let Value::Array(array) = value_of(bytes, bytes) else { panic!("no array") };
        let texts = array.iter().map(|item| item.as_described().unwrap());
        let texts: Vec<_> = texts.map(|item| (item.descriptor(), item.value())).collect();
        let d = Value::Symbol("d");
        assert_eq!(texts, [(d, Value::String("a")), (d, Value::String("bc"))]);
    }

    #[test]
    fn descriptors_are_known_by_code_and_by_symbol() {
        let by_symbol = b"\x00\xa3\x21apache.org:selector-filter:string\xa1\x05a > 1";
        let described = value_of(by_symbol, by_symbol).as_described().unwrap();
        assert_eq!(described.code(), Some(crate::amqp10::filter::SELECTOR));
        assert_eq!(described.value(), Value::String("a > 1"));
        let by_code = b"\x00\x80\x00\x00\x46\x8c\x00\x00\x00\x04\xa1\x00";
        assert_eq!(value_of(by_code, by_code).as_described().unwrap().code(), described.code());
    }

    #[test]
    fn equality_looks_at_values_and_not_at_their_encoding() {
        let short = Reader::new(b"\xc0\x03\x01\x52\x05").read().unwrap();
        let wide = Reader::new(b"\xd0\0\0\0\x09\0\0\0\x01\x70\0\0\0\x05").read().unwrap();
        assert_eq!(short, wide);
        let other = Reader::new(b"\xc0\x03\x01\x52\x06").read().unwrap();
        assert_ne!(short, other);
    }

    #[test]
    fn numbers_are_asked_for_by_meaning() {
        assert_eq!((Value::Byte(-1).as_u64(), Value::Byte(-1).as_i64()), (None, Some(-1)));
        assert_eq!((Value::Long(7).as_u64(), Value::Ubyte(7).as_i64()), (Some(7), Some(7)));
        assert_eq!((Value::Ulong(u64::MAX).as_u64(), Value::Ulong(u64::MAX).as_i64()), (Some(u64::MAX), None));
        assert_eq!((Value::Null.as_u64(), Value::Bool(true).as_bool()), (None, Some(true)));
    }
}
