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

/// A section that may not stand where it stands.
const OUT_OF_ORDER: SectionError = SectionError::Malformed(DecodeError::Descriptor);

/// Finds the sections before the body and stops at the body, whose descriptor must be there to recognise it.
///
/// A message that ends before any body stays incomplete here: once all of it has arrived, `scan` has the last word.
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
    while let Some(Opening { code: code @ descriptor::DATA..=descriptor::AMQP_VALUE, value }) = next {
        let section = Extent::of(message, code, value)?;
        kind = match (kind, code) {
            (BodyKind::Absent, descriptor::DATA) => BodyKind::Data(section.content),
            (BodyKind::Absent, descriptor::AMQP_VALUE) => BodyKind::Value,
            (BodyKind::Data(_) | BodyKind::DataMany, descriptor::DATA) => BodyKind::DataMany,
            (BodyKind::Absent | BodyKind::Sequence, descriptor::AMQP_SEQUENCE) => BodyKind::Sequence,
            _ => return Err(OUT_OF_ORDER),
        };
        end = section.end;
        next = Opening::at(message, end)?;
    }
    let footer = match next {
        None => None,
        Some(Opening { code: descriptor::FOOTER, value }) => {
            let section = Extent::of(message, descriptor::FOOTER, value)?;
            if section.end != message.len() {
                return Err(SectionError::Malformed(DecodeError::Trailing));
            }
            Some(Span::new(end, section.end))
        }
        Some(_) => return Err(OUT_OF_ORDER),
    };
    Ok(Sections { head, body: Span::new(start, end), kind, footer })
}

/// The head, and the opening of what follows it; `None` at the end of the bytes.
fn scan_head_sections(message: &[u8]) -> Result<(Head, Option<Opening<'_>>), SectionError> {
    if u32::try_from(message.len()).is_err() {
        return Err(SectionError::Malformed(DecodeError::Count));
    }
    let (mut head, mut at, mut last) = (Head::default(), 0, 0);
    let mut bare_start = None;
    loop {
        let next = Opening::at(message, at)?;
        let Some(Opening { code: code @ ..=descriptor::APPLICATION_PROPERTIES, value }) = next else {
            if next.is_some_and(|opening| opening.code > descriptor::FOOTER) {
                return Err(OUT_OF_ORDER);
            }
            head.body_start = at as u32;
            head.bare_start = bare_start.unwrap_or(head.body_start);
            return Ok((head, next));
        };
        if code < descriptor::HEADER || code <= last {
            return Err(OUT_OF_ORDER);
        }
        let end = Extent::of(message, code, value)?.end;
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
        (at, last) = (end, code);
    }
}

/// A section whose descriptor has been read, and its value not yet.
#[derive(Clone, Copy)]
struct Opening<'a> {
    code: u64,
    value: Reader<'a>,
}

impl<'a> Opening<'a> {
    /// The section at `at`; `None` at the end of the bytes.
    #[inline]
    fn at(message: &'a [u8], at: usize) -> Result<Option<Self>, SectionError> {
        let mut value = Reader::new(&message[at..]);
        if value.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { code: value.descriptor()?, value }))
    }
}

/// Where a section ends, and what is in it.
struct Extent {
    /// The bytes inside a binary; of any other value, the bytes after its format code.
    content: Span,
    end: usize,
}

impl Extent {
    /// Measures the value of a section and checks its type, which is all of it that is looked at.
    #[inline]
    fn of(message: &[u8], code: u64, mut value: Reader<'_>) -> Result<Self, SectionError> {
        let format_code = value.octet()?;
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
        let content = value.skip_body(format_code)?;
        let size_bytes = match format_code {
            format::VBIN8 => 1,
            format::VBIN32 => 4,
            _ => 0,
        };
        let end = message.len() - value.rest().len();
        Ok(Self { content: Span::new(end - content.len() + size_bytes, end), end })
    }
}

/// How far a message has come whose first bytes these are: whole sections, and bytes of the next one (section 3.4.1).
pub fn place_of(bytes: &[u8]) -> (u32, u64) {
    let (mut number, mut at) = (0, 0);
    while let Some(end) = section_end(bytes, at) {
        (number, at) = (number + 1, end);
    }
    (number, (bytes.len() - at) as u64)
}

/// Where in a message the byte is that comes so many bytes after the beginning of a section; `None` if there is none.
pub fn offset_of(message: &[u8], number: u32, offset: u64) -> Option<usize> {
    let mut at = 0;
    for _ in 0..number {
        at = section_end(message, at)?;
    }
    let wanted = at.checked_add(usize::try_from(offset).ok()?)?;
    (wanted <= section_end(message, at).unwrap_or(at)).then_some(wanted)
}

/// Where the section ends that begins here, if all of it is there.
fn section_end(message: &[u8], at: usize) -> Option<usize> {
    let opening = Opening::at(message, at).ok()??;
    Some(Extent::of(message, opening.code, opening.value).ok()?.end)
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

/// Reads the values of the body sections, one binary, list or value each; ends after the first error.
pub fn body_values(body: &[u8]) -> impl Iterator<Item = Result<Value<'_>, DecodeError>> {
    let mut reader = Reader::new(body);
    std::iter::from_fn(move || {
        if reader.is_empty() {
            return None;
        }
        let value = reader.descriptor().and_then(|_| reader.read());
        if value.is_err() {
            reader = Reader::new(&[]);
        }
        Some(value)
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_message_is_found_again_wherever_it_was_cut() {
        let mut message = b"\x00\x53\x70\x45".to_vec();
        put_data(&mut message, b"first");
        put_data(&mut message, &[7; 300]);
        for cut in 0..=message.len() {
            let (number, offset) = place_of(&message[..cut]);
            assert_eq!(offset_of(&message, number, offset), Some(cut));
        }
        assert_eq!(place_of(&message), (3, 0));
        assert_eq!((place_of(&message[..6]), place_of(b"")), ((1, 2), (0, 0)));
        // A whole section may also be told by its length; what is not there is nowhere.
        assert_eq!(offset_of(&message, 0, 4), Some(4));
        assert_eq!(
            (offset_of(&message, 0, 5), offset_of(&message, 3, 1), offset_of(&message, 4, 0)),
            (None, None, None)
        );
        assert_eq!(offset_of(&message, u32::MAX, u64::MAX), None);
    }
    use crate::amqp10::samples::{MESSAGE, bytes, damage};
    use crate::amqp10::{Composite, Header, MapBuf, Properties, Symbol, Timestamp};

    /// A message with every section there is and one data section.
    fn full() -> Vec<u8> {
        let mut map = MapBuf::new();
        map.put(Value::Symbol("x-opt"), Value::Ulong(3));
        let mut out = Vec::new();
        Header { durable: true, ..Header::default() }.encode(&mut out);
        put_map(&mut out, descriptor::DELIVERY_ANNOTATIONS, map.as_map());
        put_map(&mut out, descriptor::MESSAGE_ANNOTATIONS, map.as_map());
        Properties { to: Some("/queues/q"), ..Properties::default() }.encode(&mut out);
        put_map(&mut out, descriptor::APPLICATION_PROPERTIES, map.as_map());
        put_data(&mut out, b"hello");
        put_map(&mut out, descriptor::FOOTER, map.as_map());
        out
    }

    #[test]
    fn every_section_is_found_where_it_is() {
        let message = full();
        let found = scan(&message).unwrap();
        let head = found.head;
        let spans = [head.header, head.delivery_annotations, head.message_annotations, head.properties];
        let spans = spans.into_iter().chain([head.application_properties, Some(found.body), found.footer]);
        let mut at = 0;
        for (span, code) in spans.zip([0x70, 0x71, 0x72, 0x73, 0x74, 0x75, 0x78]) {
            let span = span.unwrap();
            assert_eq!(span.start as usize, at);
            assert_eq!(span.of(&message)[..3], [0x00, 0x53, code]);
            at = span.end();
        }
        assert_eq!(at, message.len());
        assert_eq!((head.bare_start, head.body_start), (head.properties.unwrap().start, found.body.start));
        let BodyKind::Data(inner) = found.kind else { panic!("{:?}", found.kind) };
        assert_eq!(inner.of(&message), b"hello");
        let annotations = decode_map(head.message_annotations.unwrap().of(&message)).unwrap();
        assert_eq!(annotations.get("x-opt"), Some(Value::Ulong(3)));
    }

    #[test]
    fn the_head_is_incomplete_until_the_body_begins_and_never_after() {
        let message = full();
        let head = scan(&message).unwrap().head;
        let enough = head.body_start as usize + 3;
        for cut in 0..=message.len() {
            let expected = if cut < enough { Err(SectionError::Incomplete) } else { Ok(head) };
            assert_eq!(scan_head(&message[..cut]), expected, "{cut}");
        }
    }

    #[test]
    fn the_body_is_not_looked_at_by_the_head() {
        let broken = b"\x00\x53\x70\x45\x00\x53\x77\x3f\xff\xff";
        assert_eq!(scan_head(broken).unwrap().body_start, 4);
        assert_eq!(scan(broken), Err(SectionError::Malformed(DecodeError::FormatCode(0x3f))));
    }

    #[test]
    fn bodies_are_told_apart() {
        let kind = |bytes: &[u8]| scan(bytes).map(|found| found.kind);
        let inner = Span { start: 5, len: 2 };
        assert_eq!(kind(b"\x00\x53\x75\xa0\x02hi"), Ok(BodyKind::Data(inner)));
        let inner = Span { start: 8, len: 1 };
        assert_eq!(kind(b"\x00\x53\x75\xb0\0\0\0\x01x"), Ok(BodyKind::Data(inner)));
        assert_eq!(kind(b"\x00\x53\x75\xa0\x00\x00\x53\x75\xa0\x00"), Ok(BodyKind::DataMany));
        assert_eq!(kind(b"\x00\x53\x76\x45\x00\x53\x76\x45"), Ok(BodyKind::Sequence));
        assert_eq!(kind(b"\x00\x53\x77\x40"), Ok(BodyKind::Value));
        assert_eq!(kind(b"\x00\x53\x77\x00\x53\x31\x45"), Ok(BodyKind::Value));
        assert_eq!(kind(b"\x00\x53\x70\x45\x00\x53\x73\x45"), Ok(BodyKind::Absent));
        assert_eq!(kind(b""), Ok(BodyKind::Absent));
        assert_eq!(kind(b"\x00\x53\x75\xa0\x02h"), Err(SectionError::Incomplete));
    }

    #[test]
    fn sections_out_of_place_are_refused() {
        let out_of_place: [&[u8]; 8] = [
            b"\x00\x53\x73\x45\x00\x53\x70\x45\x00\x53\x77\x40",
            b"\x00\x53\x70\x45\x00\x53\x70\x45\x00\x53\x77\x40",
            b"\x00\x53\x77\x40\x00\x53\x77\x40",
            b"\x00\x53\x77\x40\x00\x53\x70\x45",
            b"\x00\x53\x75\xa0\x00\x00\x53\x77\x40",
            b"\x00\x53\x75\xa0\x00\x00\x53\x76\x45",
            b"\x00\x53\x24\x45",
            b"\x00\x53\x79\x45",
        ];
        for message in out_of_place {
            assert_eq!(scan(message), Err(OUT_OF_ORDER), "{message:02x?}");
        }
        let malformed = |message: &[u8]| scan(message).unwrap_err();
        let wrong_type = SectionError::Malformed(DecodeError::FormatCode(0x45));
        assert_eq!(malformed(b"\x00\x53\x72\x45"), wrong_type);
        assert_eq!(malformed(b"\x00\x53\x75\x45"), wrong_type);
        let trailing = SectionError::Malformed(DecodeError::Trailing);
        assert_eq!(malformed(b"\x00\x53\x77\x40\x00\x53\x78\xc1\x01\x00\x40"), trailing);
        let endless_name = SectionError::Malformed(DecodeError::Descriptor);
        assert_eq!(scan_head(b"\x00\xb3\xff\xff\xff\xff"), Err(endless_name));
    }

    #[test]
    fn symbolic_sections_are_understood() {
        let message = b"\x00\xa3\x10amqp:header:list\xc0\x02\x01\x41\x00\xa3\x10amqp:data:binary\xa0\x02hi";
        let found = scan(message).unwrap();
        let header = Header::decode(found.head.header.unwrap().of(message)).unwrap();
        assert_eq!(header, Header { durable: true, ..Header::default() });
        assert!(matches!(found.kind, BodyKind::Data(inner) if inner.of(message) == b"hi"));
    }

    #[test]
    fn a_message_of_another_implementation_is_understood() {
        let message = bytes(MESSAGE);
        let found = scan(&message).unwrap();
        let header = Header::decode(found.head.header.unwrap().of(&message)).unwrap();
        let expected = Header { durable: true, priority: 7, ttl: Some(5_000), ..Header::default() };
        assert_eq!(header, expected);
        let properties = Properties::decode(found.head.properties.unwrap().of(&message)).unwrap();
        let expected = Properties {
            message_id: Some(MessageId::String("m1")),
            user_id: Some(b"guest"),
            to: Some("/queues/q"),
            subject: Some("key"),
            reply_to: Some("r"),
            correlation_id: Some(MessageId::Ulong(9)),
            content_type: Some(Symbol("text/plain")),
            creation_time: Some(Timestamp(1_500)),
            group_id: Some("g"),
            group_sequence: Some(2),
            ..Properties::default()
        };
        assert_eq!(properties, expected);
        let mut written = Vec::new();
        properties.encode(&mut written);
        assert_eq!(written, found.head.properties.unwrap().of(&message));
        let application = decode_map(found.head.application_properties.unwrap().of(&message)).unwrap();
        assert_eq!((application.get("a"), application.get("b")), (Some(Value::Long(1)), Some(Value::String("x"))));
        let mut values = body_values(found.body.of(&message));
        assert_eq!((values.next(), values.next()), (Some(Ok(Value::Binary(b"hello"))), None));
    }

    #[test]
    fn header_and_properties_keep_every_field() {
        let header = Header { durable: true, priority: 9, ttl: Some(1), first_acquirer: true, delivery_count: 300 };
        let mut out = Vec::new();
        header.encode(&mut out);
        assert_eq!(Header::decode(&out), Ok(header));
        let ids = [MessageId::Ulong(1), MessageId::Uuid([7; 16]), MessageId::Binary(b"b"), MessageId::String("s")];
        for id in ids {
            let properties = Properties {
                message_id: Some(id),
                user_id: Some(b"u"),
                to: Some("to"),
                subject: Some("subject"),
                reply_to: Some("reply"),
                correlation_id: Some(id),
                content_type: Some(Symbol("text/plain")),
                content_encoding: Some(Symbol("gzip")),
                absolute_expiry_time: Some(Timestamp(-1)),
                creation_time: Some(Timestamp(1)),
                group_id: Some("g"),
                group_sequence: Some(u32::MAX),
                reply_to_group_id: Some("r"),
            };
            out.clear();
            properties.encode(&mut out);
            assert_eq!(Properties::decode(&out), Ok(properties));
        }
        let number = b"\x00\x53\x73\xc0\x03\x01\x52\x01";
        assert_eq!(Properties::decode(number), Err(DecodeError::FieldType("message-id")));
    }

    #[test]
    fn body_values_end_with_the_first_error() {
        let mut values = body_values(b"\x00\x53\x76\x45\x00\x53\x76\xa1\x01\xff\x00\x53\x76\x45");
        assert!(matches!(values.next(), Some(Ok(Value::List(_)))));
        assert_eq!(values.next(), Some(Err(DecodeError::Utf8)));
        assert_eq!(values.next(), None);
    }

    #[test]
    fn damaged_messages_never_panic() {
        let mut understood = 0_u32;
        for sample in [full(), bytes(MESSAGE)] {
            damage(&sample, |copy| {
                let Ok(found) = scan(copy) else { return };
                understood += 1;
                assert_eq!(scan_head(copy).is_ok(), found.kind != BodyKind::Absent || found.footer.is_some());
                let of = |span: Option<Span>| span.map(|span| span.of(copy));
                let _ = of(found.head.properties).map(Properties::decode);
                let _ = of(found.head.message_annotations).map(decode_map);
                let _ = body_values(found.body.of(copy)).count();
            });
        }
        assert!(understood > 0);
    }
}
