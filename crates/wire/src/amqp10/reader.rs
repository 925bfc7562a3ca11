//! The cursor that reads AMQP 1.0 values from bytes.
//!
//! Owns the format codes: bytes come in, values and descriptors go out, each checked whole before it is handed over, in
//! one pass whose cost is bounded by the bytes that are really there. Counts and sizes that promise more are refused,
//! and nesting stops at `DEPTH_MAX`. It must never allocate. Rules: AMQP 1.0 part 1, sections 1.2 to 1.6.

use super::error::DecodeError;
use super::generated::{DESCRIPTOR_SYMBOL_BYTES_MAX, code_of_symbol, format};
use super::value::{Array, DEPTH_MAX, Described, List, Map, Value, ZERO_WIDTH_COUNT_MAX};

#[cfg(debug_assertions)]
thread_local!(static VALUES_READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });

/// How many values this thread has read: tests see by it how deep a message was looked into.
#[cfg(debug_assertions)]
pub fn values_read() -> u64 {
    VALUES_READ.get()
}

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
    #[inline]
    pub fn descriptor(&mut self) -> Result<u64, DecodeError> {
        match self.octet()? {
            format::DESCRIBED => self.descriptor_body(),
            other => Err(DecodeError::FormatCode(other)),
        }
    }

    /// Reads a descriptor after the octet that announces it.
    #[inline]
    fn descriptor_body(&mut self) -> Result<u64, DecodeError> {
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
        #[cfg(debug_assertions)]
        VALUES_READ.set(VALUES_READ.get() + 1);
        Ok(match code {
            format::DESCRIBED => return self.described(),
            format::NULL => Value::Null,
            format::TRUE | format::FALSE | format::BOOLEAN => Value::Bool(self.boolean(code)?),
            format::UBYTE => Value::Ubyte(self.octet()?),
            format::USHORT => Value::Ushort(u16::from_be_bytes(self.chunk()?)),
            format::UINT | format::SMALLUINT | format::UINT0 => Value::Uint(self.uint(code)?),
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
            format::VBIN8 | format::VBIN32 => Value::Binary(self.binary(code)?),
            format::STR8 | format::STR32 => Value::String(self.string(code)?),
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

    #[inline]
    pub(super) fn boolean(&mut self, code: u8) -> Result<bool, DecodeError> {
        match code {
            format::TRUE => Ok(true),
            format::FALSE => Ok(false),
            format::BOOLEAN => match self.octet()? {
                0 => Ok(false),
                1 => Ok(true),
                _ => Err(DecodeError::Boolean),
            },
            _ => Err(DecodeError::Type),
        }
    }

    #[inline]
    pub(super) fn ubyte(&mut self, code: u8) -> Result<u8, DecodeError> {
        if code == format::UBYTE { self.octet() } else { Err(DecodeError::Type) }
    }

    #[inline]
    pub(super) fn uint(&mut self, code: u8) -> Result<u32, DecodeError> {
        match code {
            format::UINT => Ok(u32::from_be_bytes(self.chunk()?)),
            format::SMALLUINT => Ok(self.octet()?.into()),
            format::UINT0 => Ok(0),
            _ => Err(DecodeError::Type),
        }
    }

    #[inline]
    pub(super) fn binary(&mut self, code: u8) -> Result<&'a [u8], DecodeError> {
        match code {
            format::VBIN8 | format::VBIN32 => self.sized(code),
            _ => Err(DecodeError::Type),
        }
    }

    #[inline]
    pub(super) fn string(&mut self, code: u8) -> Result<&'a str, DecodeError> {
        match code {
            format::STR8 | format::STR32 => str::from_utf8(self.sized(code)?).map_err(|_| DecodeError::Utf8),
            _ => Err(DecodeError::Type),
        }
    }

    /// Reads a list without checking what is inside it.
    #[inline]
    pub(super) fn list(&mut self) -> Result<List<'a>, DecodeError> {
        match self.octet()? {
            format::LIST0 => Ok(List::default()),
            code @ (format::LIST8 | format::LIST32) => {
                let (count, body) = self.counted(code)?;
                Ok(List { count, body })
            }
            _ => Err(DecodeError::Type),
        }
    }

    /// Reads the descriptor and the list of a composite, whose first format code was `code`.
    #[inline]
    pub(super) fn described_list(&mut self, code: u8) -> Result<(u64, List<'a>), DecodeError> {
        if code != format::DESCRIBED {
            return Err(DecodeError::Type);
        }
        Ok((self.descriptor_body()?, self.list()?))
    }

    /// Steps over what follows the format code `code` and returns those bytes.
    #[inline]
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
    #[inline]
    fn counted(&mut self, code: u8) -> Result<(u32, &'a [u8]), DecodeError> {
        let mut inner = Self::new(self.sized(code)?);
        let count = if code & 0x10 == 0 { inner.octet()?.into() } else { inner.size32()? as u32 };
        if count as usize > inner.rest.len() {
            return Err(DecodeError::Count);
        }
        Ok((count, inner.rest))
    }

    /// Steps over `prefix` if it comes next.
    #[inline]
    pub(super) fn skip_prefix(&mut self, prefix: &[u8]) -> bool {
        let Some(rest) = self.rest.strip_prefix(prefix) else {
            return false;
        };
        self.rest = rest;
        true
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn refused(bytes: &[u8]) -> DecodeError {
        Reader::new(bytes).read().unwrap_err()
    }

    /// A list in a list in a list …, each wide, as deep as asked.
    fn nested(depth: usize) -> Vec<u8> {
        let mut bytes = vec![format::LIST0];
        for _ in 1..depth {
            let size = (bytes.len() + 4) as u32;
            let open = [&[format::LIST32][..], &size.to_be_bytes(), &1_u32.to_be_bytes()].concat();
            bytes.splice(..0, open);
        }
        bytes
    }

    #[test]
    fn nesting_ends_at_the_limit() {
        let deepest = DEPTH_MAX as usize;
        assert!(Reader::new(&nested(deepest)).read().is_ok());
        assert_eq!(refused(&nested(deepest + 1)), DecodeError::Depth);
    }

    #[test]
    fn bombs_are_refused_before_they_cost_anything() {
        let described = vec![format::DESCRIBED; 1 << 20];
        let lists = nested(2_000);
        let bombs: &[(&[u8], DecodeError)] = &[
            (&described, DecodeError::Depth),
            (&lists, DecodeError::Depth),
            (b"\xf0\0\0\0\x05\xff\xff\xff\xff\x40", DecodeError::Count),
            (b"\xf0\0\0\0\x05\xff\xff\xff\xff\x45", DecodeError::Count),
            (b"\xf0\0\0\0\x06\xff\xff\xff\xff\x50\x00", DecodeError::Count),
            (b"\xf0\0\0\0\x08\0\0\x01\x00\x00\x53\x01\x40", DecodeError::Count),
            (b"\xd0\0\0\0\x05\xff\xff\xff\xff\x40", DecodeError::Count),
            (b"\xd1\0\0\0\x05\xff\xff\xff\xfe\x40", DecodeError::Count),
            (b"\xd0\xff\xff\xff\xff\0\0\0\x01\x40", DecodeError::Truncated),
        ];
        for (bomb, error) in bombs {
            let start = Instant::now();
            assert_eq!(refused(bomb), *error);
            assert!(start.elapsed() < Duration::from_millis(250));
        }
    }

    #[test]
    fn a_shared_descriptor_is_checked_once() {
        let mut descriptor = vec![format::LIST32];
        descriptor.extend_from_slice(&100_004_u32.to_be_bytes());
        descriptor.extend_from_slice(&100_000_u32.to_be_bytes());
        descriptor.resize(9 + 100_000, format::NULL);
        let mut bytes = vec![format::ARRAY32];
        bytes.extend_from_slice(&(descriptor.len() as u32 + 100_006).to_be_bytes());
        bytes.extend_from_slice(&100_000_u32.to_be_bytes());
        bytes.push(format::DESCRIBED);
        bytes.extend_from_slice(&descriptor);
        bytes.push(format::UBYTE);
        bytes.resize(bytes.len() + 100_000, 7);
        let start = Instant::now();
        let array = Reader::new(&bytes).read().unwrap();
        assert_eq!(array, array);
        assert!(start.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn a_few_elements_without_bytes_are_fine() {
        let Ok(Value::Array(array)) = Reader::new(b"\xe0\x02\x03\x41").read() else {
            panic!("no array");
        };
        assert!(array.iter().eq([Value::Bool(true); 3]));
    }

    #[test]
    fn values_that_lie_are_refused() {
        assert_eq!(refused(b"\xa1\x02\xc3\x28"), DecodeError::Utf8);
        assert_eq!(refused(b"\xa3\x02\xc3\xa9"), DecodeError::Ascii);
        assert_eq!(refused(b"\x73\x00\x00\xd8\x00"), DecodeError::Char);
        assert_eq!(refused(b"\x56\x02"), DecodeError::Boolean);
        assert_eq!(refused(b"\x3f"), DecodeError::FormatCode(0x3f));
        assert_eq!(refused(b"\x4f"), DecodeError::FormatCode(0x4f));
        assert_eq!(refused(b"\xc1\x04\x03\x41\x41\x41"), DecodeError::Count);
        assert_eq!(refused(b"\xc0\x03\x01\x41\x41"), DecodeError::Count);
        assert_eq!(refused(b"\xc0\x03\x02\x41\x52"), DecodeError::Truncated);
        assert_eq!(refused(b"\xc0\x00"), DecodeError::Truncated);
        assert_eq!(refused(b"\xe0\x04\x01\x50\x01\x02"), DecodeError::Count);
        assert_eq!(refused(b"\xe0\x05\x01\x00\x53\x01\x00"), DecodeError::FormatCode(0));
        assert_eq!(refused(b"\xc0\x05\x01\xa1\x02\xc3\x28"), DecodeError::Utf8);
    }

    #[test]
    fn descriptors_come_in_four_encodings() {
        let forms: [&[u8]; 4] = [
            b"\x00\x53\x24\x45",
            b"\x00\x80\0\0\0\0\0\0\0\x24\x45",
            b"\x00\xa3\x12amqp:accepted:list\x45",
            b"\x00\xb3\0\0\0\x12amqp:accepted:list\x45",
        ];
        for form in forms {
            let mut reader = Reader::new(form);
            assert_eq!(reader.peek_descriptor(), Ok(0x24));
            assert_eq!((reader.descriptor(), reader.rest()), (Ok(0x24), &b"\x45"[..]));
            let mut reader = Reader::new(form);
            assert_eq!((reader.skip(), reader.is_empty()), (Ok(()), true));
        }
        let descriptor = |bytes| Reader::new(bytes).descriptor();
        assert_eq!(descriptor(b"\x45"), Err(DecodeError::FormatCode(0x45)));
        assert_eq!(descriptor(b"\x00\xa3\x01x\x45"), Err(DecodeError::Descriptor));
        assert_eq!(descriptor(b"\x00\xa1\x01x\x45"), Err(DecodeError::Descriptor));
        assert_eq!(descriptor(b"\x00\xb3\xff\xff\xff\xff"), Err(DecodeError::Descriptor));
    }
}
