//! The sections in front of a message's body, as its next receiver sees them.
//!
//! Owns what a node may write anew: the header with what is left of the time to live and the failed deliveries so
//! far, and message annotations with what the node itself has to say. Everything from the properties on is copied
//! byte for byte; delivery annotations end with the hop they came for. It must never touch a bare message. Rule: AMQP
//! 1.0 section 3.2.

use weft_wire::amqp10::sections::{self, Head};
use weft_wire::amqp10::{Composite, Compound, Header, Map, MapBuf, Reader, Value, descriptor, writer};

use crate::broker::Death;
use crate::convert;
use crate::message::{Kind, Message};
use crate::queue::ready::{Entry, NEVER};
use crate::relay::{self, Passed};

/// Annotations that only nodes write, and those that only relays do.
const OWN: [&str; 3] = [relay::EXCHANGE, relay::ROUTING_KEY, relay::DEATHS];
const STAMPED: [&str; 4] = [relay::ID, relay::TRACE, relay::PROPERTIES, relay::ASKED];
/// The place in a stream, and in which of its parts, on what is read from one.
const OFFSET: &str = "x-stream-offset";
const PART: &str = "x-stream-partition";
/// When the node took what is read from a stream, in microseconds since 1970: for those who want it as columns.
const ARRIVED: &str = "x-opt-weft-arrived";

/// A header that says nothing, and the same as the first to see the message gets it.
const EMPTY_HEADER: &[u8] = b"\x00\x53\x70\x45";
const FRESH_HEADER: &[u8] = b"\x00\x53\x70\xc0\x05\x04\x40\x40\x40\x41";

/// What a message gets that leaves over a relay link.
pub(super) struct Stamp<'a> {
    /// The name of this node.
    pub node: &'a str,
    /// The peer is a weft node: it gets 0-9-1 messages as they are.
    pub verbatim: bool,
}

/// What a delivery tells besides the message itself.
pub(super) struct Telling<'a> {
    pub now_ns: u64,
    pub stamp: Option<Stamp<'a>>,
    /// The part of a stream that it was read from.
    pub part: Option<u32>,
    /// The peer is only asked whether it has the message; no body follows.
    pub asked: bool,
}

/// Does the node add annotations to this message?
#[inline]
fn is_marked(entry: &Entry) -> bool {
    let message = &entry.message;
    !message.exchange.is_empty() || message.deaths.is_some() || entry.reader > 0
}

/// Appends everything that comes before the bytes of the body as they are kept.
pub(super) fn write(out: &mut Vec<u8>, entry: &Entry, telling: &Telling<'_>) {
    let message = &*entry.message;
    let (now_ns, stamp) = (telling.now_ns, telling.stamp.as_ref());
    match &message.kind {
        Kind::Amqp10(head) => {
            write_header(out, entry, head, now_ns);
            match head.message_annotations {
                span if stamp.is_some() || is_marked(entry) => {
                    let own = span.and_then(|span| sections::decode_map(span.of(message.head())).ok());
                    writer::put_descriptor(out, descriptor::MESSAGE_ANNOTATIONS);
                    let mut map = Compound::map(out);
                    for (key, value) in own.unwrap_or_default().iter() {
                        let replaced = |key: &str| {
                            let is_read = entry.reader > 0 && [OFFSET, PART, ARRIVED].contains(&key);
                            OWN.contains(&key) || is_read || stamp.is_some() && STAMPED.contains(&key)
                        };
                        if !key.as_str().is_some_and(replaced) {
                            map.value(&key);
                            map.value(&value);
                        }
                    }
                    mark(&mut map, entry, telling);
                    map.finish();
                }
                Some(span) => out.extend_from_slice(span.of(message.head())),
                None => {}
            }
            out.extend_from_slice(message.head().get(head.bare_start as usize..).unwrap_or_default());
        }
        Kind::Amqp091 => match stamp {
            Some(stamp) if stamp.verbatim => {
                write_stamped(out, entry, telling);
                convert::open_data(out, if telling.asked { 0 } else { message.body_len() });
            }
            _ => {
                let mark = |map: &mut Compound<'_>| mark(map, entry, telling);
                convert::head_to_amqp10(out, message, header_amqp091(entry, now_ns), stamp.is_some(), mark);
            }
        },
    }
}

/// Appends the header section of a 1.0 message, with what changed since it came.
#[inline]
fn write_header(out: &mut Vec<u8>, entry: &Entry, head: &Head, now_ns: u64) {
    let section = head.header.map_or(EMPTY_HEADER, |span| span.of(entry.message.head()));
    if section == EMPTY_HEADER && !entry.redelivered && entry.failures == 0 {
        return out.extend_from_slice(FRESH_HEADER);
    }
    let came = Header::decode(section).unwrap_or_default();
    let header = Header {
        ttl: came.ttl.and_then(|_| left_ms(entry, now_ns)),
        first_acquirer: !entry.redelivered,
        delivery_count: entry.failures,
        ..came
    };
    header.encode(out);
}

/// What is left of a message's own time to live.
fn left_ms(entry: &Entry, now_ns: u64) -> Option<u32> {
    let expires_ns = Some(entry.expires_ns).filter(|at_ns| *at_ns != NEVER && entry.message.traits.ttl_ms.is_some())?;
    Some(u32::try_from(expires_ns.saturating_sub(now_ns).div_ceil(1_000_000)).unwrap_or(u32::MAX))
}

/// What the node says of a message: its place in a stream, the exchange it came by, where it died, and what relays want
/// to know.
fn mark(map: &mut Compound<'_>, entry: &Entry, telling: &Telling<'_>) {
    let (message, stamp) = (&*entry.message, telling.stamp.as_ref());
    if entry.reader > 0 {
        map.value(&Value::Symbol(OFFSET));
        map.value(&Value::Ulong(entry.position));
        map.value(&Value::Symbol(ARRIVED));
        map.value(&Value::Long(i64::try_from(message.traits.arrived_us).unwrap_or(i64::MAX)));
    }
    if let Some(part) = telling.part {
        map.value(&Value::Symbol(PART));
        map.value(&Value::Uint(part));
    }
    if !message.exchange.is_empty() || stamp.is_some() {
        map.value(&Value::Symbol(relay::EXCHANGE));
        map.value(&Value::String(&String::from_utf8_lossy(&message.exchange)));
        map.value(&Value::Symbol(relay::ROUTING_KEY));
        map.value(&Value::String(&String::from_utf8_lossy(&message.routing_key)));
    }
    if let Some(deaths) = &message.deaths {
        map.value(&Value::Symbol(relay::DEATHS));
        map.item(|out| write_deaths(out, deaths));
    }
    if let Some(stamp) = stamp {
        Passed::of(message).stamp(map, stamp.node, message.traits.serial);
    }
    if telling.asked {
        map.value(&Value::Symbol(relay::ASKED));
        map.value(&Value::Bool(true));
    }
}

/// Header and annotations of a 0-9-1 message that travels as it is, its properties among them. Where the annotations
/// begin.
pub(super) fn write_stamped(out: &mut Vec<u8>, entry: &Entry, telling: &Telling<'_>) -> usize {
    let message = &*entry.message;
    Header { durable: message.traits.durable, ..header_amqp091(entry, telling.now_ns) }.encode(out);
    let start = out.len();
    writer::put_descriptor(out, descriptor::MESSAGE_ANNOTATIONS);
    let mut map = Compound::map(out);
    mark(&mut map, entry, telling);
    map.value(&Value::Symbol(relay::PROPERTIES));
    map.value(&Value::Binary(message.head()));
    map.finish();
    start
}

/// What the node has to say in the header of a 0-9-1 message.
fn header_amqp091(entry: &Entry, now_ns: u64) -> Header {
    Header {
        ttl: left_ms(entry, now_ns),
        first_acquirer: !entry.redelivered,
        delivery_count: entry.failures,
        ..Header::default()
    }
}

/// The death record: a list of maps, newest first.
fn write_deaths(out: &mut Vec<u8>, deaths: &[Death]) {
    let mut list = Compound::list(out);
    for death in deaths {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut row = MapBuf::new();
        row.put(Value::Symbol("queue"), Value::String(&text(&death.queue)));
        row.put(Value::Symbol("reason"), Value::Symbol(death.reason.word()));
        row.put(Value::Symbol("count"), Value::Ulong(death.count));
        row.put(Value::Symbol("last-time"), Value::Timestamp(death.time_s as i64 * 1_000));
        row.put(Value::Symbol("exchange"), Value::String(&text(&death.exchange)));
        row.put_with(Value::Symbol("routing-keys"), |out| {
            let mut keys = Compound::list(out);
            death.routing_keys.iter().for_each(|key| keys.value(&Value::String(&text(key))));
            keys.finish();
        });
        if let Some(ttl_ms) = death.expiration_ms {
            row.put(Value::Symbol("ttl"), Value::Uint(u32::try_from(ttl_ms).unwrap_or(u32::MAX)));
        }
        list.value(&Value::Map(row.as_map()));
    }
    list.finish();
}

/// The same letter with more annotations (an encoded map), which win over those of the same name.
pub(super) fn annotated(message: &Message, annotations: &[u8]) -> Option<Message> {
    let Ok(Value::Map(added)) = Reader::new(annotations).read() else { return None };
    let Kind::Amqp10(head) = &message.kind else { return Some(convert::add_headers(message, added)) };
    let own = head.message_annotations.and_then(|span| sections::decode_map(span.of(message.head())).ok());
    let mut map = MapBuf::new();
    copy_others(&mut map, own.unwrap_or_default(), |key| added.get(key).is_some());
    for (key, value) in added.iter() {
        map.put(key, value);
    }
    let mut bytes = Vec::new();
    if let Some(span) = head.header {
        bytes.extend_from_slice(span.of(message.head()));
    }
    sections::put_map(&mut bytes, descriptor::MESSAGE_ANNOTATIONS, map.as_map());
    bytes.extend_from_slice(message.head().get(head.bare_start as usize..).unwrap_or_default());
    let head = sections::scan(&bytes).ok()?.head;
    Some(message.with_head(Kind::Amqp10(Box::new(head)), bytes.into_boxed_slice()))
}

/// Copies the pairs of a map whose keys are not `replaced`.
fn copy_others(map: &mut MapBuf, from: Map<'_>, replaced: impl Fn(&str) -> bool) {
    for (key, value) in from.iter() {
        if !key.as_str().is_some_and(&replaced) {
            map.put(key, value);
        }
    }
}
