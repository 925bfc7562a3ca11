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

    fn check(&self, depth: u32) -> Result<(), DecodeError> {
        let mut reader = Reader::new(self.items);
        for _ in 0..self.count {
            self.element(&mut reader)?.check(depth)?;
        }
        if reader.is_empty() { Ok(()) } else { Err(DecodeError::Count) }
    }
}

impl PartialEq for Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl std::fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
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
