//! Composite types: described lists whose fields have names, types and defaults.
//!
//! Owns how fields are taken from a list and put into one; which fields a type has is generated. Values come in, typed
//! fields go out, or the name of the field at fault: a short list is filled up with defaults, a long one refused.
//! It must never know a particular composite. Rules: AMQP 1.0 part 1, section 1.4.

use super::error::DecodeError;
use super::generated::format;
use super::reader::Reader;
use super::symbol::Symbol;
use super::value::{DEPTH_MAX, List, Map, Timestamp, Value};
use super::writer::{self, Compound, put_descriptor};

/// A type that a field of a composite can have.
pub trait Field<'a>: Sized {
    /// Takes a value that was read before and is not null, or says `DecodeError::Type`.
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError>;

    /// Reads what follows the format code `code`, which is not null; types on the hot path skip the detour by `Value`.
    #[inline]
    fn read(code: u8, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let value = reader.read_body(code)?;
        value.check(DEPTH_MAX)?;
        Self::from_value(value)
    }

    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
}

/// A described list.
pub trait Composite<'a>: Sized {
    /// The numeric descriptor.
    const CODE: u64;

    /// Takes all fields in order.
    fn decode_fields(fields: &mut Fields<'a>) -> Result<Self, DecodeError>;

    /// Appends all fields in order.
    fn encode_fields(&self, list: &mut Compound<'_>);

    /// Reads one composite that fills `bytes`.
    fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        if reader.descriptor()? != Self::CODE {
            return Err(DecodeError::Descriptor);
        }
        let composite = Self::from_list(reader.list()?)?;
        if reader.is_empty() { Ok(composite) } else { Err(DecodeError::Trailing) }
    }

    /// Takes the fields from a list and refuses any that are left.
    #[inline]
    fn from_list(list: List<'a>) -> Result<Self, DecodeError> {
        let mut fields = Fields { left: list.count, reader: Reader::new(list.body) };
        let composite = Self::decode_fields(&mut fields)?;
        fields.finish()?;
        Ok(composite)
    }

    /// Appends descriptor and list.
    #[inline]
    fn encode(&self, out: &mut Vec<u8>) {
        put_descriptor(out, Self::CODE);
        let mut list = Compound::list(out);
        self.encode_fields(&mut list);
        list.finish();
    }
}

impl<'a, T: Composite<'a>> Field<'a> for T {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        match described_list(value)? {
            (code, list) if code == Self::CODE => Self::from_list(list),
            _ => Err(DecodeError::Type),
        }
    }

    fn read(code: u8, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        match reader.described_list(code)? {
            (code, list) if code == Self::CODE => Self::from_list(list),
            _ => Err(DecodeError::Type),
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        self.encode(out);
    }
}

/// The descriptor and the fields of a value that is a composite.
pub(super) fn described_list(value: Value<'_>) -> Result<(u64, List<'_>), DecodeError> {
    let described = value.as_described().ok_or(DecodeError::Type)?;
    let list = described.value().as_list().ok_or(DecodeError::Type)?;
    Ok((described.code().ok_or(DecodeError::Descriptor)?, list))
}

/// The fields of a composite that have not been taken yet.
pub struct Fields<'a> {
    left: u32,
    reader: Reader<'a>,
}

impl<'a> Fields<'a> {
    /// Takes a field that must be there.
    #[inline]
    pub fn required<T: Field<'a>>(&mut self, name: &'static str) -> Result<T, DecodeError> {
        self.optional(name)?.ok_or(DecodeError::FieldMissing(name))
    }

    /// Takes a field that has a default.
    #[inline]
    pub fn or<T: Field<'a>>(&mut self, name: &'static str, default: T) -> Result<T, DecodeError> {
        Ok(self.optional(name)?.unwrap_or(default))
    }

    /// Takes a field that may be null or left out.
    #[inline]
    pub fn optional<T: Field<'a>>(&mut self, name: &'static str) -> Result<Option<T>, DecodeError> {
        let Some(left) = self.left.checked_sub(1) else {
            return Ok(None);
        };
        self.left = left;
        let code = self.reader.octet()?;
        if code == format::NULL {
            return Ok(None);
        }
        match T::read(code, &mut self.reader) {
            Ok(field) => Ok(Some(field)),
            Err(DecodeError::Type) => Err(DecodeError::FieldType(name)),
            Err(error) => Err(error),
        }
    }

    fn finish(&self) -> Result<(), DecodeError> {
        match (self.left, self.reader.is_empty()) {
            (0, true) => Ok(()),
            (0, false) => Err(DecodeError::Count),
            _ => Err(DecodeError::FieldExtra),
        }
    }
}

/// A field type that is one variant of `Value`, with its own way in (if there is one) and out.
macro_rules! primitive_field {
    ($($type:ty, $pattern:pat => $taken:expr, $put:expr $(, $read:expr)?;)*) => {$(
        impl<'a> Field<'a> for $type {
            fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
                match value {
                    $pattern => Ok($taken),
                    _ => Err(DecodeError::Type),
                }
            }

            $(#[inline]
            fn read(code: u8, reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
                $read(reader, code)
            })?

            #[inline]
            fn put(&self, out: &mut Vec<u8>) {
                let put: fn(&mut Vec<u8>, &Self) = $put;
                put(out, self);
            }
        }
    )*};
}

primitive_field! {
    bool, Value::Bool(flag) => flag, |out, flag| writer::put_bool(out, *flag), Reader::boolean;
    u8, Value::Ubyte(n) => n, |out, n| writer::put_ubyte(out, *n), Reader::ubyte;
    u16, Value::Ushort(n) => n, |out, n| writer::put_ushort(out, *n);
    u32, Value::Uint(n) => n, |out, n| writer::put_uint(out, *n), Reader::uint;
    u64, Value::Ulong(n) => n, |out, n| writer::put_ulong(out, *n);
    Timestamp, Value::Timestamp(n) => Self(n), |out, at| writer::put_timestamp(out, at.0);
    &'a str, Value::String(text) => text, |out, text| writer::put_str(out, text), Reader::string;
    &'a [u8], Value::Binary(bytes) => bytes, |out, bytes| writer::put_binary(out, bytes), Reader::binary;
    Symbol<'a>, Value::Symbol(text) => Self(text), |out, symbol| writer::put_symbol(out, symbol.0);
    Map<'a>, Value::Map(map) => map, |out, map| writer::put_value(out, &Value::Map(*map));
}
