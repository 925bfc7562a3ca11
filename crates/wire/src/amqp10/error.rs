//! Why bytes are not the AMQP 1.0 value or composite they should be.
//!
//! Owns the one error type of the decoders and its translation into the error condition a peer is told. Errors are
//! small copies that name the field at fault and carry no bytes of the peer. It must never decide what happens next:
//! whether a connection closes is for the session to say. Rules: AMQP 1.0 part 2, section 2.8.15 (amqp-error).

use super::generated::condition;
use super::symbol::Symbol;

/// What is wrong with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A value goes on past the end of the bytes.
    Truncated,
    /// Bytes are left after the last value.
    Trailing,
    /// No type has this format code, or not in this place.
    FormatCode(u8),
    /// A string is not UTF-8.
    Utf8,
    /// A symbol is not ASCII.
    Ascii,
    /// A char is not a Unicode scalar value.
    Char,
    /// A boolean octet is neither 0 nor 1.
    Boolean,
    /// A count disagrees with the bytes it counts.
    Count,
    /// Values are nested deeper than `DEPTH_MAX`.
    Depth,
    /// The descriptor is unknown, or not one allowed here.
    Descriptor,
    /// A value has another type than this place asks for.
    Type,
    /// A field has another type than the composite asks for, or a value outside its range.
    FieldType(&'static str),
    /// A mandatory field is absent.
    FieldMissing(&'static str),
    /// A composite has more fields than it is defined with.
    FieldExtra,
}

impl DecodeError {
    /// The error condition to send to the peer that made this mistake.
    pub fn condition(self) -> Symbol<'static> {
        match self {
            Self::FieldType(_) | Self::FieldMissing(_) | Self::FieldExtra => condition::INVALID_FIELD,
            _ => condition::DECODE_ERROR,
        }
    }
}

impl std::fmt::Display for DecodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Truncated => f.write_str("a value goes on past the end of its bytes"),
            Self::Trailing => f.write_str("bytes are left after the last value"),
            Self::FormatCode(code) => write!(f, "format code 0x{code:02x} is not allowed here"),
            Self::Utf8 => f.write_str("a string is not UTF-8"),
            Self::Ascii => f.write_str("a symbol is not ASCII"),
            Self::Char => f.write_str("a char is not a Unicode scalar value"),
            Self::Boolean => f.write_str("a boolean octet is neither 0 nor 1"),
            Self::Count => f.write_str("a count disagrees with the bytes it counts"),
            Self::Depth => f.write_str("values are nested too deep"),
            Self::Descriptor => f.write_str("the descriptor is not one known here"),
            Self::Type => f.write_str("a value has the wrong type"),
            Self::FieldType(name) => write!(f, "field {name} has the wrong type or value"),
            Self::FieldMissing(name) => write!(f, "mandatory field {name} is missing"),
            Self::FieldExtra => f.write_str("there are more fields than the type has"),
        }
    }
}

impl std::error::Error for DecodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_errors_are_invalid_fields_and_the_rest_decode_errors() {
        assert_eq!(DecodeError::FieldMissing("handle").condition().0, "amqp:invalid-field");
        assert_eq!(DecodeError::FieldExtra.condition().0, "amqp:invalid-field");
        assert_eq!(DecodeError::Utf8.condition().0, "amqp:decode-error");
        assert_eq!(DecodeError::FieldMissing("handle").to_string(), "mandatory field handle is missing");
    }
}
