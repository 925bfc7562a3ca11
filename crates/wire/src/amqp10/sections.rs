//! The sections of a message: where each starts, without reading what is in it.
//!
//! Owns the message format: the order of the sections, their extents, and how their contents are read when asked.
//! Encoded messages come in, whole or as far as they have arrived, and byte spans go out; a message that only needs
//! more bytes is told from one that is wrong. It must never read a body. Rules: AMQP 1.0 part 3, section 3.2.

use super::composite::Field;
use super::error::DecodeError;
use super::generated::{descriptor, format};
use super::reader::Reader;
use super::value::{Map, Value};
use super::writer::{put_descriptor, put_value};

/// Some of a message's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub start: u32,
    pub len: u32,
}

impl Span {
    fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, len: (end - start) as u32 }
    }

    pub fn end(self) -> usize {
        self.start as usize + self.len as usize
    }

    /// The bytes the span marks in the message it was found in; none in a shorter one.
    pub fn of(self, message: &[u8]) -> &[u8] {
        message.get(self.start as usize..self.end()).unwrap_or(&[])
    }
}

/// The sections before the body, each span from its descriptor to its last byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Head {
    pub header: Option<Span>,
    pub delivery_annotations: Option<Span>,
    pub message_annotations: Option<Span>,
    pub properties: Option<Span>,
    pub application_properties: Option<Span>,
    /// Where the part starts that no intermediary may change: properties, application properties, body.
    pub bare_start: u32,
    /// Where the body starts.
    pub body_start: u32,
}

/// What the body is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// No body. The specification asks for one, but peers send messages without, and relaying them harms nobody.
    Absent,
    /// One data section; the span marks the bytes inside its binary.
    Data(Span),
    /// Several data sections.
    DataMany,
    /// One or more lists.
    Sequence,
    /// One value.
    Value,
}

/// Where everything is in a whole message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    pub head: Head,
    /// All body sections together.
    pub body: Span,
    pub kind: BodyKind,
    pub footer: Option<Span>,
}

/// Why there are no spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectionError {
    /// So far so good: more bytes are needed.
    Incomplete,
    /// More bytes will not help.
    Malformed(DecodeError),
}

impl From<DecodeError> for SectionError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::Truncated => Self::Incomplete,
            other => Self::Malformed(other),
        }
    }
}

/// A section that has a place in the order but is not part of the body.
const OUT_OF_ORDER: SectionError = SectionError::Malformed(DecodeError::Descriptor);

/// Finds the sections before the body and stops at the body's first byte, which must be there to be recognised.
pub fn scan_head(message: &[u8]) -> Result<Head, SectionError> {
    match scan_head_sections(message)? {
        (_, None) => Err(SectionError::Incomplete),
        (head, Some(_)) => Ok(head),
    }
}

/// Finds all sections of a whole message.
pub fn scan(message: &[u8]) -> Result<Sections, SectionError> {
    let (head, mut next) = scan_head_sections(message)?;
    let start = head.body_start as usize;
    let (mut end, mut kind) = (start, BodyKind::Absent);
    while let Some(code @ descriptor::DATA..=descriptor::AMQP_VALUE) = next {
        let section = Section::read(message, end, code)?;
        kind = match (kind, code) {
            (BodyKind::Absent, descriptor::DATA) => BodyKind::Data(section.content),
            (BodyKind::Absent, descriptor::AMQP_VALUE) => BodyKind::Value,
            (BodyKind::Data(_) | BodyKind::DataMany, descriptor::DATA) => BodyKind::DataMany,
            (BodyKind::Absent | BodyKind::Sequence, descriptor::AMQP_SEQUENCE) => BodyKind::Sequence,
            _ => return Err(OUT_OF_ORDER),
        };
        end = section.end;
        next = peek(message, end)?;
    }
    let body = Span::new(start, end);
    let footer = match next {
        None => None,
        Some(descriptor::FOOTER) => {
            let section = Section::read(message, end, descriptor::FOOTER)?;
            if section.end != message.len() {
                return Err(SectionError::Malformed(DecodeError::Trailing));
            }
            Some(Span::new(end, section.end))
        }
        Some(_) => return Err(OUT_OF_ORDER),
    };
    Ok(Sections { head, body, kind, footer })
}

/// The head, and the descriptor of what follows it; `None` at the end of the bytes.
fn scan_head_sections(message: &[u8]) -> Result<(Head, Option<u64>), SectionError> {
    if u32::try_from(message.len()).is_err() {
        return Err(SectionError::Malformed(DecodeError::Count));
    }
    let (mut head, mut at, mut last) = (Head::default(), 0, 0);
    let mut bare_start = None;
    loop {
        let next = peek(message, at)?;
        let code = match next {
            Some(code @ descriptor::HEADER..=descriptor::APPLICATION_PROPERTIES) => code,
            Some(descriptor::DATA..=descriptor::FOOTER) | None => {
                head.body_start = at as u32;
                head.bare_start = bare_start.unwrap_or(head.body_start);
                return Ok((head, next));
            }
            Some(_) => return Err(OUT_OF_ORDER),
        };
        if code <= last {
            return Err(OUT_OF_ORDER);
        }
        last = code;
        let end = Section::read(message, at, code)?.end;
        let span = Some(Span::new(at, end));
        match code {
            descriptor::HEADER => head.header = span,
            descriptor::DELIVERY_ANNOTATIONS => head.delivery_annotations = span,
            descriptor::MESSAGE_ANNOTATIONS => head.message_annotations = span,
            descriptor::PROPERTIES => head.properties = span,
            _ => head.application_properties = span,
        }
        if code >= descriptor::PROPERTIES {
            bare_start.get_or_insert(at as u32);
        }
        at = end;
    }
}

/// The descriptor at `at`; `None` at the end of the bytes.
#[inline]
fn peek(message: &[u8], at: usize) -> Result<Option<u64>, SectionError> {
    let rest = &message[at..];
    if let [format::DESCRIBED, format::SMALLULONG, code, ..] = rest {
        return Ok(Some((*code).into()));
    }
    if rest.is_empty() { Ok(None) } else { Ok(Some(Reader::new(rest).peek_descriptor()?)) }
}

/// The extent of one section.
struct Section {
    /// The bytes inside a binary; of any other value, the bytes after its format code.
    content: Span,
    end: usize,
}

impl Section {
    /// Measures the section at `at`, whose descriptor is `code`, and checks the type of its value.
    fn read(message: &[u8], at: usize, code: u64) -> Result<Self, SectionError> {
        let mut reader = Reader::new(&message[at..]);
        reader.descriptor()?;
        let format_code = reader.octet()?;
        let allowed = match code {
            descriptor::HEADER | descriptor::PROPERTIES | descriptor::AMQP_SEQUENCE => {
                matches!(format_code, format::LIST0 | format::LIST8 | format::LIST32)
            }
            descriptor::DATA => matches!(format_code, format::VBIN8 | format::VBIN32),
            descriptor::AMQP_VALUE => true,
            _ => matches!(format_code, format::MAP8 | format::MAP32),
        };
        if !allowed {
            return Err(SectionError::Malformed(DecodeError::FormatCode(format_code)));
        }
        let content = reader.skip_body(format_code)?;
        let size_bytes = match format_code {
            format::VBIN8 => 1,
            format::VBIN32 => 4,
            _ => 0,
        };
        let end = message.len() - reader.rest().len();
        Ok(Self { content: Span::new(end - content.len() + size_bytes, end), end })
    }
}

/// Reads a section that is a map: annotations, application properties or footer.
pub fn decode_map(section: &[u8]) -> Result<Map<'_>, DecodeError> {
    let mut reader = Reader::new(section);
    reader.descriptor()?;
    match (reader.read()?, reader.is_empty()) {
        (Value::Map(map), true) => Ok(map),
        (_, true) => Err(DecodeError::Type),
        (_, false) => Err(DecodeError::Trailing),
    }
}

/// Reads the value of an amqp-value section.
pub fn decode_value(section: &[u8]) -> Result<Value<'_>, DecodeError> {
    let mut reader = Reader::new(section);
    if reader.descriptor()? != descriptor::AMQP_VALUE {
        return Err(DecodeError::Descriptor);
    }
    let value = reader.read()?;
    if reader.is_empty() { Ok(value) } else { Err(DecodeError::Trailing) }
}

/// Appends a section that is a map; `code` is its descriptor.
pub fn put_map(out: &mut Vec<u8>, code: u64, map: Map<'_>) {
    put_descriptor(out, code);
    put_value(out, &Value::Map(map));
}

/// Appends a data section.
pub fn put_data(out: &mut Vec<u8>, bytes: &[u8]) {
    put_descriptor(out, descriptor::DATA);
    put_value(out, &Value::Binary(bytes));
}

/// Appends an amqp-value section.
pub fn put_amqp_value(out: &mut Vec<u8>, value: &Value<'_>) {
    put_descriptor(out, descriptor::AMQP_VALUE);
    put_value(out, value);
}

/// The four types a message id or correlation id may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageId<'a> {
    Ulong(u64),
    Uuid([u8; 16]),
    Binary(&'a [u8]),
    String(&'a str),
}

impl<'a> From<MessageId<'a>> for Value<'a> {
    fn from(id: MessageId<'a>) -> Self {
        match id {
            MessageId::Ulong(n) => Self::Ulong(n),
            MessageId::Uuid(bytes) => Self::Uuid(bytes),
            MessageId::Binary(bytes) => Self::Binary(bytes),
            MessageId::String(text) => Self::String(text),
        }
    }
}

impl<'a> Field<'a> for MessageId<'a> {
    fn from_value(value: Value<'a>) -> Result<Self, DecodeError> {
        match value {
            Value::Ulong(n) => Ok(Self::Ulong(n)),
            Value::Uuid(bytes) => Ok(Self::Uuid(bytes)),
            Value::Binary(bytes) => Ok(Self::Binary(bytes)),
            Value::String(text) => Ok(Self::String(text)),
            _ => Err(DecodeError::Type),
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_value(out, &(*self).into());
    }
}
