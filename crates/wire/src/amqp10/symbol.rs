//! Symbols: the ASCII names of the protocol, one or several at a time.
//!
//! Owns the symbol type and the "multiple" fields of the specification, in which nothing, one symbol and an array of
//! symbols are three spellings of a list. Values come in checked; iteration goes out. It must never give a symbol a
//! meaning. Rules: AMQP 1.0 part 1, sections 1.6.21 (symbol) and 1.4 (multiple).

use super::composite::Field;
use super::error::DecodeError;
use super::generated::format;
use super::value::{Array, Value};
use super::writer::len32;

/// One symbol, told apart from a string by its type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Symbol<'a>(pub &'a str);

impl std::fmt::Display for Symbol<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// A list of symbols as a field holds it: read from the wire, or lent by whoever encodes.
#[derive(Clone, Copy, Debug)]
pub enum Symbols<'a> {
    /// A bare symbol.
    One(Symbol<'a>),
    /// An array read from the wire, known to hold symbols only.
    Wire(Array<'a>),
    /// Symbols to encode; an empty slice is the same as an absent field.
    Slice(&'a [Symbol<'a>]),
}

impl<'a> Symbols<'a> {
    /// No symbols: the field is absent.
    pub const NONE: Self = Self::Slice(&[]);

    /// The symbols in order.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'a>> + use<'a> {
        let (one, wire, slice) = match *self {
            Self::One(symbol) => (Some(symbol), None, &[][..]),
            Self::Wire(array) => (None, Some(array), &[][..]),
            Self::Slice(slice) => (None, None, slice),
        };
        let wire = wire.into_iter().flat_map(|array| array.iter());
        let wire = wire.filter_map(|value| value.as_symbol().map(Symbol));
        one.into_iter().chain(wire).chain(slice.iter().copied())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Whether `symbol` is among them.
    pub fn contains(&self, symbol: Symbol<'_>) -> bool {
        self.iter().any(|item| item == symbol)
    }
}

impl Default for Symbols<'_> {
    fn default() -> Self {
        Self::NONE
    }
}

impl PartialEq for Symbols<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a> Field<'a> for Symbols<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        match value {
            Value::Symbol(symbol) => Ok(Self::One(Symbol(symbol))),
            Value::Array(array) if array.is_empty() || array.holds_symbols() => Ok(Self::Wire(array)),
            _ => Err(DecodeError::Type),
        }
    }

    /// Writes an array, whatever the count: not every peer takes a bare symbol.
    fn put(&self, out: &mut Vec<u8>) {
        let bytes: usize = self.iter().map(|symbol| symbol.0.len() + 1).sum();
        let count = self.iter().count();
        if bytes + 2 <= 255 {
            out.extend_from_slice(&[format::ARRAY8, (bytes + 2) as u8, count as u8, format::SYM8]);
            for symbol in self.iter() {
                out.push(symbol.0.len() as u8);
                out.extend_from_slice(symbol.0.as_bytes());
            }
            return;
        }
        let bytes: usize = self.iter().map(|symbol| symbol.0.len() + 4).sum();
        out.push(format::ARRAY32);
        out.extend_from_slice(&len32(bytes + 5).to_be_bytes());
        out.extend_from_slice(&len32(count).to_be_bytes());
        out.push(format::SYM32);
        for symbol in self.iter() {
            out.extend_from_slice(&len32(symbol.0.len()).to_be_bytes());
            out.extend_from_slice(symbol.0.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp10::Reader;

    fn round_trip(symbols: &[Symbol<'_>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Symbols::Slice(symbols).put(&mut bytes);
        let mut reader = Reader::new(&bytes);
        let read = Symbols::from_value(reader.read().unwrap()).unwrap();
        assert_eq!(read, Symbols::Slice(symbols));
        assert!(reader.is_empty());
        bytes
    }

    #[test]
    fn symbols_travel_as_one_array() {
        assert_eq!(round_trip(&[Symbol("PLAIN")]), b"\xe0\x08\x01\xa3\x05PLAIN");
        assert_eq!(round_trip(&[Symbol("a"), Symbol("bc")]), b"\xe0\x07\x02\xa3\x01a\x02bc");
        let long = "x".repeat(300);
        assert_eq!(round_trip(&[Symbol(&long), Symbol("y")])[0], format::ARRAY32);
    }

    #[test]
    fn a_bare_symbol_and_an_empty_array_are_lists_too() {
        let one = Symbols::from_value(Value::Symbol("queue")).unwrap();
        assert!(one.contains(Symbol("queue")) && !one.contains(Symbol("topic")));
        let mut empty = Reader::new(b"\xe0\x02\x00\xa3");
        let none = Symbols::from_value(empty.read().unwrap()).unwrap();
        assert!(none.is_empty() && none == Symbols::NONE);
    }

    #[test]
    fn an_array_of_something_else_is_refused() {
        let mut strings = Reader::new(b"\xe0\x04\x01\xa1\x01a");
        assert_eq!(Symbols::from_value(strings.read().unwrap()), Err(DecodeError::Type));
    }
}
