//! Field tables and arrays: the self-describing values of AMQP 0-9-1.
//!
//! Owns reading, checking and writing them. `Table::parse` walks the bytes once and vouches for them; what it returns
//! is a view that is decoded again only where somebody looks. It must never allocate for reading, recurse without
//! bound, or give a key a meaning. Rules: AMQP 0-9-1 section 4.2.5.5, with the type letters as RabbitMQ reads them.

use std::fmt;

use super::WireError;
use super::cursor::{Reader, Writer};

/// How deep tables and arrays may nest: far more than any client does, and a bound for the checker's stack.
pub const TABLE_DEPTH_MAX: usize = 32;

/// The content of a table, without its length.
#[derive(Clone, Copy, PartialEq)]
pub struct Table<'a>(&'a [u8]);

/// The content of an array, without its length.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a>(&'a [u8]);

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

    #[inline]
    pub const fn raw(&self) -> &'a [u8] {
        self.0
    }

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
        self.iter()
            .find_map(|(name, value)| (name == key).then_some(value))
    }
}

impl<'a> Array<'a> {
    #[inline]
    pub const fn raw(&self) -> &'a [u8] {
        self.0
    }

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
        let entry = self
            .0
            .short()
            .and_then(|key| Ok((key, value(&mut self.0)?)));
        entry.inspect_err(|_| self.0 = Reader::new(&[])).ok()
    }
}

/// Iterator over an array; ends at the first malformed byte.
pub struct Items<'a>(Reader<'a>);

impl<'a> Iterator for Items<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        value(&mut self.0)
            .inspect_err(|_| self.0 = Reader::new(&[]))
            .ok()
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
        b'D' => Value::Decimal {
            scale: r.u8()?,
            value: r.array().map(i32::from_be_bytes)?,
        },
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

    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(value) => Some(value),
            _ => None,
        }
    }

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
            Self::Array(Array(raw)) => w.tagged_long(b'A', raw),
            Self::Table(Table(raw)) => w.tagged_long(b'F', raw),
            Self::Void => w.u8(b'V'),
        }
    }
}

/// Prints the entries, unless the bytes never passed `parse`: nesting without bound must not reach the printer.
impl fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::parse(self.0) {
            Ok(table) => f
                .debug_map()
                .entries(
                    table
                        .iter()
                        .map(|(key, value)| (key.escape_ascii().to_string(), value)),
                )
                .finish(),
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

    pub fn value(&mut self, key: &[u8], value: Value<'_>) {
        value.write(&mut self.key(key));
    }

    pub fn str(&mut self, key: &[u8], value: &[u8]) {
        self.value(key, Value::LongString(value));
    }

    pub fn bool(&mut self, key: &[u8], value: bool) {
        self.value(key, Value::Bool(value));
    }

    pub fn i64(&mut self, key: &[u8], value: i64) {
        self.value(key, Value::I64(value));
    }

    pub fn table(&mut self, key: &[u8], fill: impl FnOnce(&mut TableWriter<'_>)) {
        self.key(key).u8(b'F');
        TableWriter::write(self.out, fill);
    }

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
    pub fn value(&mut self, value: Value<'_>) {
        value.write(&mut Writer::new(self.out));
    }

    pub fn str(&mut self, value: &[u8]) {
        self.value(Value::LongString(value));
    }

    pub fn table(&mut self, fill: impl FnOnce(&mut TableWriter<'_>)) {
        self.out.push(b'F');
        TableWriter::write(self.out, fill);
    }
}

fn prefixed(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let mark = out.len();
    out.extend_from_slice(&[0; 4]);
    fill(out);
    let len = (out.len() - mark - 4) as u32;
    out[mark..mark + 4].copy_from_slice(&len.to_be_bytes());
}
