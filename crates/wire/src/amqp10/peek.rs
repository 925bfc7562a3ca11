//! The few fields of a message's head that a broker reads for every message.
//!
//! Owns a reader for header and properties in the shapes that peers really send, which leaves everything unusual to
//! the general one. Sections come in with their descriptor; the fields go out, borrowed, and `None` sends the caller
//! to `Composite::decode`. Fields that nobody asks for are stepped over by their size. It must never read a field
//! differently than the general decoder does. Rules: AMQP 1.0 part 3, sections 3.2.1 and 3.2.4.

use super::generated::{descriptor, format};
use super::value::{List, Value};

/// What a node needs of a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderPeek {
    pub durable: bool,
    /// `None` if the header does not say.
    pub priority: Option<u8>,
    pub ttl: Option<u32>,
    pub delivery_count: u32,
}

/// What a node needs of the properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PropertiesPeek<'a> {
    pub user_id: Option<&'a [u8]>,
    pub to: Option<&'a str>,
    pub subject: Option<&'a str>,
    /// Milliseconds since the Unix epoch.
    pub absolute_expiry_time: Option<i64>,
}

/// How many fields a header has.
const HEADER_FIELDS: u8 = 5;
/// How many fields the properties have.
const PROPERTIES_FIELDS: u8 = 13;

/// Reads a header section.
#[inline]
pub fn header(section: &[u8]) -> Option<HeaderPeek> {
    let mut fields = Items::open(section, descriptor::HEADER, HEADER_FIELDS)?;
    let (durable, priority, ttl) = (fields.flag()?.unwrap_or(false), fields.ubyte()?, fields.uint()?);
    fields.flag()?;
    let delivery_count = fields.uint()?.unwrap_or(0);
    fields.is_done().then_some(HeaderPeek { durable, priority, ttl, delivery_count })
}

/// Reads a properties section.
#[inline]
pub fn properties(section: &[u8]) -> Option<PropertiesPeek<'_>> {
    let mut fields = Items::open(section, descriptor::PROPERTIES, PROPERTIES_FIELDS)?;
    let mut peek = PropertiesPeek::default();
    for index in 0..fields.left {
        match index {
            1 => peek.user_id = fields.binary()?,
            2 => peek.to = fields.string()?,
            3 => peek.subject = fields.string()?,
            8 => peek.absolute_expiry_time = fields.timestamp()?,
            _ => fields.skip()?,
        }
    }
    fields.is_done().then_some(peek)
}

/// Calls `each` with the pairs of an annotations section whose keys are short symbols and whose values are text, binary
/// or lists of short text, as nodes write them. `None`: there is something else, and what was told so far counts for
/// nothing.
#[inline]
pub fn annotations<'a>(section: &'a [u8], mut each: impl FnMut(&'a [u8], Value<'a>)) -> Option<()> {
    let [format::DESCRIBED, format::SMALLULONG, code, map, body @ ..] = section else { return None };
    if u64::from(*code) != descriptor::MESSAGE_ANNOTATIONS {
        return None;
    }
    let (count, mut rest) = match (*map, body) {
        (format::MAP8, [size, count, rest @ ..]) if usize::from(*size) == rest.len() + 1 => (u32::from(*count), rest),
        (format::MAP32, [a, b, c, d, e, f, g, h, rest @ ..])
            if u32::from_be_bytes([*a, *b, *c, *d]) as usize == rest.len() + 4 =>
        {
            (u32::from_be_bytes([*e, *f, *g, *h]), rest)
        }
        _ => return None,
    };
    if count % 2 != 0 {
        return None;
    }
    for _ in 0..count / 2 {
        let (format::SYM8, key, after) = text_or_binary(rest)? else { return None };
        let (value, after) = match after {
            [format::LIST8, size, count, items @ ..] => {
                let (items, after) = items.split_at_checked(usize::from(*size).checked_sub(1)?)?;
                (Value::List(short_texts(items, *count)?), after)
            }
            _ => match text_or_binary(after)? {
                (format::VBIN8 | format::VBIN32, bytes, after) => (Value::Binary(bytes), after),
                (format::STR8 | format::STR32, text, after) => (Value::String(std::str::from_utf8(text).ok()?), after),
                _ => return None,
            },
        };
        each(key, value);
        rest = after;
    }
    rest.is_empty().then_some(())
}

/// The code, the bytes and what follows of a value that is bytes behind their length.
#[inline]
fn text_or_binary(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (code, len, rest) = match bytes {
        [code @ (format::SYM8 | format::STR8 | format::VBIN8), len, rest @ ..] => (*code, usize::from(*len), rest),
        [code @ (format::STR32 | format::VBIN32), a, b, c, d, rest @ ..] => {
            (*code, u32::from_be_bytes([*a, *b, *c, *d]) as usize, rest)
        }
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(len)?;
    Some((code, value, rest))
}

/// A list of short texts and nothing else.
fn short_texts(body: &[u8], count: u8) -> Option<List<'_>> {
    let mut rest = body;
    for _ in 0..count {
        let (format::STR8, text, after) = text_or_binary(rest)? else { return None };
        std::str::from_utf8(text).ok()?;
        rest = after;
    }
    rest.is_empty().then_some(List { count: count.into(), body })
}

/// The fields of a composite in their most common encodings; `None` is anything else.
struct Items<'a> {
    left: u8,
    rest: &'a [u8],
}

impl<'a> Items<'a> {
    #[inline]
    fn open(section: &'a [u8], code: u64, count_max: u8) -> Option<Self> {
        let [format::DESCRIBED, format::SMALLULONG, found, list, body @ ..] = section else { return None };
        if u64::from(*found) != code {
            return None;
        }
        let (left, rest) = match (*list, body) {
            (format::LIST0, []) => (0, body),
            (format::LIST8, [size, count, rest @ ..]) if usize::from(*size) == rest.len() + 1 => (*count, rest),
            _ => return None,
        };
        (left <= count_max).then_some(Self { left, rest })
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.rest.is_empty()
    }

    /// The format code of the next field; null once there are no more.
    #[inline]
    fn code(&mut self) -> Option<u8> {
        let Some(left) = self.left.checked_sub(1) else {
            return Some(format::NULL);
        };
        let (code, rest) = self.rest.split_first()?;
        (self.left, self.rest) = (left, rest);
        Some(*code)
    }

    #[inline]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    #[inline]
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    #[inline]
    fn flag(&mut self) -> Option<Option<bool>> {
        match self.code()? {
            format::TRUE => Some(Some(true)),
            format::FALSE => Some(Some(false)),
            format::NULL => Some(None),
            _ => None,
        }
    }

    #[inline]
    fn ubyte(&mut self) -> Option<Option<u8>> {
        match self.code()? {
            format::UBYTE => self.take().map(|[n]| Some(n)),
            format::NULL => Some(None),
            _ => None,
        }
    }

    #[inline]
    fn uint(&mut self) -> Option<Option<u32>> {
        match self.code()? {
            format::UINT => self.take().map(|n| Some(u32::from_be_bytes(n))),
            format::SMALLUINT => self.take().map(|[n]| Some(n.into())),
            format::UINT0 => Some(Some(0)),
            format::NULL => Some(None),
            _ => None,
        }
    }

    #[inline]
    fn timestamp(&mut self) -> Option<Option<i64>> {
        match self.code()? {
            format::TIMESTAMP => self.take().map(|n| Some(i64::from_be_bytes(n))),
            format::NULL => Some(None),
            _ => None,
        }
    }

    #[inline]
    fn binary(&mut self) -> Option<Option<&'a [u8]>> {
        match self.code()? {
            format::VBIN8 => {
                let [len] = self.take()?;
                self.bytes(len.into()).map(Some)
            }
            format::NULL => Some(None),
            _ => None,
        }
    }

    #[inline]
    fn string(&mut self) -> Option<Option<&'a str>> {
        match self.code()? {
            format::STR8 => {
                let [len] = self.take()?;
                str::from_utf8(self.bytes(len.into())?).ok().map(Some)
            }
            format::NULL => Some(None),
            _ => None,
        }
    }

    /// Steps over a field that has a primitive type; the high half of a format code tells how many bytes follow it.
    #[inline]
    fn skip(&mut self) -> Option<()> {
        let len = match self.code()? >> 4 {
            0x4 => 0,
            0x5 => 1,
            0x6 => 2,
            0x7 => 4,
            0x8 => 8,
            0x9 => 16,
            0xa => usize::from(self.take::<1>()?[0]),
            0xb => u32::from_be_bytes(self.take()?) as usize,
            _ => return None,
        };
        self.bytes(len).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp10::samples::{MESSAGE, bytes, damage};
    use crate::amqp10::{Composite, Compound, Header, MapBuf, MessageId, Properties, Symbol, Timestamp, sections};

    fn section<'a>(composite: &impl Composite<'a>) -> Vec<u8> {
        let mut out = Vec::new();
        composite.encode(&mut out);
        out
    }

    /// What the general decoder makes of a header, as far as a peek would tell it.
    fn same_header(section: &[u8], peek: HeaderPeek) {
        let header = Header::decode(section).expect("the general decoder takes it as well");
        assert_eq!((peek.durable, peek.priority.unwrap_or(4)), (header.durable, header.priority));
        assert_eq!((peek.ttl, peek.delivery_count), (header.ttl, header.delivery_count));
    }

    #[test]
    fn headers_are_read_as_the_general_decoder_reads_them() {
        let full = Header { durable: true, priority: 9, ttl: Some(70_000), first_acquirer: true, delivery_count: 3 };
        for header in [Header::default(), full, Header { ttl: Some(0), ..Header::default() }] {
            let section = section(&header);
            let peek = super::header(&section).expect("a usual header");
            same_header(&section, peek);
            damage(&section, |copy| {
                if let Some(peek) = super::header(copy) {
                    same_header(copy, peek);
                }
            });
        }
        assert_eq!(header(b"\x00\x53\x70\xc0\x04\x02\x40\x50\x04").and_then(|peek| peek.priority), Some(4));
        assert_eq!(header(b"\x00\x53\x70\x45"), Some(HeaderPeek::default()));
        assert_eq!(header(b"\x00\x53\x73\x45"), None);
    }

    #[test]
    fn annotations_are_read_as_the_general_decoder_reads_them() {
        let long = "l".repeat(300);
        let mut few = MapBuf::new();
        few.put(Value::Symbol("id"), Value::String("a:1")).put_with(Value::Symbol("trace"), |out| {
            let mut list = Compound::list(out);
            ["a", "bc", ""].iter().for_each(|name| list.value(&Value::String(name)));
            list.finish();
        });
        let mut many = few.clone();
        many.put(Value::Symbol("text"), Value::String(&long)).put(Value::Symbol("bytes"), Value::Binary(&[0xff; 300]));
        for map in [&MapBuf::new(), &few, &many] {
            let mut section = Vec::new();
            sections::put_map(&mut section, descriptor::MESSAGE_ANNOTATIONS, map.as_map());
            let told = |bytes: &[u8]| {
                let mut pairs = Vec::new();
                let peeked = annotations(bytes, |key, value| pairs.push((key.to_vec(), format!("{value:?}"))));
                peeked.map(|()| pairs)
            };
            let general = |bytes: &[u8]| -> Option<Vec<(Vec<u8>, String)>> {
                let map = sections::decode_map(bytes).ok()?;
                map.iter().map(|(key, value)| Some((key.as_str()?.as_bytes().to_vec(), format!("{value:?}")))).collect()
            };
            assert!(told(&section).is_some_and(|pairs| pairs.len() == map.as_map().len()));
            assert_eq!(told(&section), general(&section));
            damage(&section, |copy| {
                if let (Some(peeked), Some(general)) = (told(copy), general(copy)) {
                    assert_eq!(peeked, general);
                }
            });
        }
        let mut other = MapBuf::new();
        other.put(Value::Symbol("number"), Value::Ulong(1));
        let mut section = Vec::new();
        sections::put_map(&mut section, descriptor::MESSAGE_ANNOTATIONS, other.as_map());
        assert!(annotations(&section, |_, _| ()).is_none());
    }

    #[test]
    fn properties_are_read_as_the_general_decoder_reads_them() {
        let full = Properties {
            message_id: Some(MessageId::Uuid([7; 16])),
            user_id: Some(b"guest"),
            to: Some("/queues/q"),
            subject: Some("key"),
            reply_to: Some("back"),
            correlation_id: Some(MessageId::Binary(&[0; 20])),
            content_type: Some(Symbol("text/plain")),
            absolute_expiry_time: Some(Timestamp(-5)),
            group_sequence: Some(400),
            reply_to_group_id: Some("g"),
            ..Properties::default()
        };
        let sample = bytes(MESSAGE);
        let head = sections::scan_head(&sample).expect("a message");
        let sample = head.properties.expect("properties").of(&sample).to_vec();
        for section in [section(&Properties::default()), section(&full), sample] {
            let general = Properties::decode(&section).expect("well-formed");
            let peek = properties(&section).expect("usual properties");
            assert_eq!((peek.user_id, peek.to, peek.subject), (general.user_id, general.to, general.subject));
            assert_eq!(peek.absolute_expiry_time, general.absolute_expiry_time.map(|at| at.0));
            damage(&section, |copy| {
                if let (Some(peek), Ok(general)) = (properties(copy), Properties::decode(copy)) {
                    assert_eq!((peek.user_id, peek.to, peek.subject), (general.user_id, general.to, general.subject));
                }
            });
        }
    }
}
