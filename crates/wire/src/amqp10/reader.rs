//! The cursor that reads AMQP 1.0 values from bytes.
//!
//! Owns the format codes: bytes come in, values and descriptors go out, each checked whole before it is handed over, in
//! one pass whose cost is bounded by the bytes that are really there. Counts and sizes that promise more are refused,
//! and nesting stops at `DEPTH_MAX`. It must never allocate. Rules: AMQP 1.0 part 1, sections 1.2 to 1.6.

use super::error::DecodeError;
use super::generated::{DESCRIPTOR_SYMBOL_BYTES_MAX, code_of_symbol, format};
use super::value::{Array, DEPTH_MAX, Described, List, Map, Value, ZERO_WIDTH_COUNT_MAX};

/// A position in encoded values.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads one value and checks all that is inside it.
    #[inline]
    pub fn read(&mut self) -> Result<Value<'a>, DecodeError> {
        self.read_within(DEPTH_MAX)
    }

    /// Steps over one value by its size, without looking inside.
    pub fn skip(&mut self) -> Result<(), DecodeError> {
        self.skip_within(DEPTH_MAX)
    }

    /// Reads the constructor of a described value up to the value itself, if its descriptor is a known one.
    pub fn descriptor(&mut self) -> Result<u64, DecodeError> {
        match self.octet()? {
            format::DESCRIBED => {}
            other => return Err(DecodeError::FormatCode(other)),
        }
        let symbol_bytes = match self.octet()? {
            format::SMALLULONG => return Ok(self.octet()?.into()),
            format::ULONG => return Ok(u64::from_be_bytes(self.chunk()?)),
            format::SYM8 => self.octet()?.into(),
            format::SYM32 => self.size32()?,
            _ => return Err(DecodeError::Descriptor),
        };
        if symbol_bytes > DESCRIPTOR_SYMBOL_BYTES_MAX {
            return Err(DecodeError::Descriptor);
        }
        let symbol = ascii(self.take(symbol_bytes)?)?;
        code_of_symbol(symbol).ok_or(DecodeError::Descriptor)
    }

    /// The descriptor that comes next, without moving.
    pub fn peek_descriptor(&self) -> Result<u64, DecodeError> {
        let mut ahead = *self;
        ahead.descriptor()
    }

    pub(super) fn read_within(&mut self, depth: u32) -> Result<Value<'a>, DecodeError> {
        let value = self.read_shallow()?;
        value.check(depth)?;
        Ok(value)
    }

    /// Reads one value without checking what is inside it.
    #[inline]
    pub(super) fn read_shallow(&mut self) -> Result<Value<'a>, DecodeError> {
        let code = self.octet()?;
        self.read_body(code)
    }

    /// Reads what follows the format code `code`.
    pub(super) fn read_body(&mut self, code: u8) -> Result<Value<'a>, DecodeError> {
        Ok(match code {
            format::DESCRIBED => return self.described(),
            format::NULL => Value::Null,
            format::TRUE => Value::Bool(true),
            format::FALSE => Value::Bool(false),
            format::BOOLEAN => match self.octet()? {
                0 => Value::Bool(false),
                1 => Value::Bool(true),
                _ => return Err(DecodeError::Boolean),
            },
            format::UBYTE => Value::Ubyte(self.octet()?),
            format::USHORT => Value::Ushort(u16::from_be_bytes(self.chunk()?)),
            format::UINT => Value::Uint(u32::from_be_bytes(self.chunk()?)),
            format::SMALLUINT => Value::Uint(self.octet()?.into()),
            format::UINT0 => Value::Uint(0),
            format::ULONG => Value::Ulong(u64::from_be_bytes(self.chunk()?)),
            format::SMALLULONG => Value::Ulong(self.octet()?.into()),
            format::ULONG0 => Value::Ulong(0),
            format::BYTE => Value::Byte(i8::from_be_bytes(self.chunk()?)),
            format::SHORT => Value::Short(i16::from_be_bytes(self.chunk()?)),
            format::INT => Value::Int(i32::from_be_bytes(self.chunk()?)),
            format::SMALLINT => Value::Int(i8::from_be_bytes(self.chunk()?).into()),
            format::LONG => Value::Long(i64::from_be_bytes(self.chunk()?)),
            format::SMALLLONG => Value::Long(i8::from_be_bytes(self.chunk()?).into()),
            format::FLOAT => Value::Float(f32::from_be_bytes(self.chunk()?)),
            format::DOUBLE => Value::Double(f64::from_be_bytes(self.chunk()?)),
            format::DECIMAL32 => Value::Decimal32(u32::from_be_bytes(self.chunk()?)),
            format::DECIMAL64 => Value::Decimal64(u64::from_be_bytes(self.chunk()?)),
            format::DECIMAL128 => Value::Decimal128(self.chunk()?),
            format::CHAR => {
                let scalar = u32::from_be_bytes(self.chunk()?);
                Value::Char(char::from_u32(scalar).ok_or(DecodeError::Char)?)
            }
            format::TIMESTAMP => Value::Timestamp(i64::from_be_bytes(self.chunk()?)),
            format::UUID => Value::Uuid(self.chunk()?),
            format::VBIN8 | format::VBIN32 => Value::Binary(self.sized(code)?),
            format::STR8 | format::STR32 => {
                Value::String(str::from_utf8(self.sized(code)?).map_err(|_| DecodeError::Utf8)?)
            }
            format::SYM8 | format::SYM32 => Value::Symbol(ascii(self.sized(code)?)?),
            format::LIST0 => Value::List(List::default()),
            format::LIST8 | format::LIST32 => {
                let (count, body) = self.counted(code)?;
                Value::List(List { count, body })
            }
            format::MAP8 | format::MAP32 => match self.counted(code)? {
                (count, body) if count % 2 == 0 => Value::Map(Map { count, body }),
                _ => return Err(DecodeError::Count),
            },
            format::ARRAY8 | format::ARRAY32 => return self.array(code),
            other => return Err(DecodeError::FormatCode(other)),
        })
    }

    /// Steps over what follows the format code `code` and returns those bytes.
    pub(super) fn skip_body(&mut self, code: u8) -> Result<&'a [u8], DecodeError> {
        let start = self.rest;
        self.skip_body_within(code, DEPTH_MAX)?;
        Ok(&start[..start.len() - self.rest.len()])
    }

    fn skip_within(&mut self, depth: u32) -> Result<(), DecodeError> {
        let code = self.octet()?;
        self.skip_body_within(code, depth)
    }

    /// The high half of a format code tells how many bytes follow it.
    fn skip_body_within(&mut self, code: u8, depth: u32) -> Result<(), DecodeError> {
        let bytes = match code >> 4 {
            0x4 => 0,
            0x5 => 1,
            0x6 => 2,
            0x7 => 4,
            0x8 => 8,
            0x9 => 16,
            0xa | 0xc | 0xe => self.octet()?.into(),
            0xb | 0xd | 0xf => self.size32()?,
            _ if code == format::DESCRIBED => {
                let depth = depth.checked_sub(1).ok_or(DecodeError::Depth)?;
                self.skip_within(depth)?;
                return self.skip_within(depth);
            }
            _ => return Err(DecodeError::FormatCode(code)),
        };
        self.take(bytes)?;
        Ok(())
    }

    fn described(&mut self) -> Result<Value<'a>, DecodeError> {
        let descriptor = self.extent()?;
        let code = self.octet()?;
        let data = self.skip_body(code)?;
        Ok(Value::Described(Described { descriptor, code, data }))
    }

    fn array(&mut self, code: u8) -> Result<Value<'a>, DecodeError> {
        let mut inner = Self::new(self.sized(code)?);
        let count = if code == format::ARRAY8 { inner.octet()?.into() } else { inner.size32()? as u32 };
        let (mut code, mut descriptor) = (inner.octet()?, &[][..]);
        if code == format::DESCRIBED {
            descriptor = inner.extent()?;
            code = inner.octet()?;
        }
        let items = inner.rest;
        let fits = match code >> 4 {
            0x0 => return Err(DecodeError::FormatCode(code)),
            0x4 => count <= ZERO_WIDTH_COUNT_MAX,
            _ => count as usize <= items.len(),
        };
        if !fits {
            return Err(DecodeError::Count);
        }
        Ok(Value::Array(Array { count, code, descriptor, items }))
    }

    /// The bytes of the next value, whatever it is.
    fn extent(&mut self) -> Result<&'a [u8], DecodeError> {
        let start = self.rest;
        self.skip()?;
        Ok(&start[..start.len() - self.rest.len()])
    }

    /// The bytes after a size of one or four octets, as the format code says.
    #[inline]
    fn sized(&mut self, code: u8) -> Result<&'a [u8], DecodeError> {
        let bytes = if code & 0x10 == 0 { self.octet()?.into() } else { self.size32()? };
        self.take(bytes)
    }

    /// The count and the bytes of a list or map; each value takes a byte at least.
    fn counted(&mut self, code: u8) -> Result<(u32, &'a [u8]), DecodeError> {
        let mut inner = Self::new(self.sized(code)?);
        let count = if code & 0x10 == 0 { inner.octet()?.into() } else { inner.size32()? as u32 };
        if count as usize > inner.rest.len() {
            return Err(DecodeError::Count);
        }
        Ok((count, inner.rest))
    }

    #[inline]
    fn size32(&mut self) -> Result<usize, DecodeError> {
        Ok(u32::from_be_bytes(self.chunk()?) as usize)
    }

    #[inline]
    pub(super) fn octet(&mut self) -> Result<u8, DecodeError> {
        let (first, rest) = self.rest.split_first().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*first)
    }

    #[inline]
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (chunk, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*chunk)
    }

    #[inline]
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(bytes).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

fn ascii(bytes: &[u8]) -> Result<&str, DecodeError> {
    match str::from_utf8(bytes) {
        Ok(text) if text.is_ascii() => Ok(text),
        _ => Err(DecodeError::Ascii),
    }
}
