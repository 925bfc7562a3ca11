//! What a message carries from node to node: its identity, the nodes it passed, where it was published.
//!
//! Owns the annotations of relay links, their form as 0-9-1 headers, and the reading of both. The sender of a relay
//! link stamps a message as it leaves; its receiver reads the stamp before anything else. It must never decide what
//! becomes of a message. Rules: docs/reference/links.md: the trace lists every node that forwarded the message, the
//! origin first; the identity is the origin's name and the message's number there.

use std::rc::Rc;

use weft_wire::amqp10::peek::annotations;
use weft_wire::amqp10::sections;
use weft_wire::amqp10::{Compound, DecodeError, List, Value as Value10, format, writer};
use weft_wire::amqp091::properties::{Properties, peek};
use weft_wire::amqp091::table::{Array, Table, TableWriter, Value as Value091};

use crate::broker::{Death, Reason};
use crate::message::{Body, Kind, Message, Name};

/// The property of attach by which two nodes agree to relay; its value is the name of who says it.
pub const RELAY_PROPERTY: &str = "weft:relay";
/// The property by which they agree that messages may come back to a node.
pub const CIRCLES_PROPERTY: &str = "weft:circles";
/// The property by which a receiver asks for nothing that other nodes brought to the sender.
pub const FIRST_HAND_PROPERTY: &str = "weft:first-hand";
/// The property by which they agree that the receiver may be asked what it has.
pub const ASK_PROPERTY: &str = "weft:ask";
/// Message annotations: identity, trace, and the properties of a 0-9-1 message as they were.
pub const ID: &str = "x-opt-weft-id";
pub const TRACE: &str = "x-opt-weft-trace";
pub const PROPERTIES: &str = "x-opt-weft-properties";
/// The receiver is not given the message: it says accepted if it has it, released if not.
pub const ASKED: &str = "x-opt-weft-ask";
/// The first two as 0-9-1 headers.
pub const ID_HEADER: &[u8] = b"x-weft-id";
pub const TRACE_HEADER: &[u8] = b"x-weft-trace";
/// Where the message was published, as RabbitMQ writes it, and where it died.
pub const EXCHANGE: &str = "x-exchange";
pub const ROUTING_KEY: &str = "x-routing-key";
pub const DEATHS: &str = "x-opt-deaths";

/// Nodes that a message may pass: more than any network is wide, few enough that a trace stays small.
pub const NODES_MAX: usize = 64;
/// Digits of the largest number of a message.
const SERIAL_DIGITS_MAX: usize = 20;
/// Bytes of a large data section before its content.
const DATA_FRONT_BYTES: usize = 8;
/// Lines of a death record that are taken over from a peer.
const DEATHS_MAX: usize = 64;

/// The nodes a message passed, in whichever form it carries them.
#[derive(Clone, Copy, Default)]
pub enum Trace<'m> {
    #[default]
    None,
    List(List<'m>),
    Array(Array<'m>),
}

impl<'m> Trace<'m> {
    /// Calls `each` with every name, the origin's first, until it says no.
    pub fn visit(self, mut each: impl FnMut(&'m [u8]) -> bool) {
        match self {
            Self::None => {}
            Self::List(list) => drop(list.iter().filter_map(|name| name.as_str()).all(|name| each(name.as_bytes()))),
            Self::Array(array) => drop(array.iter().filter_map(|name| name.as_bytes()).all(each)),
        }
    }

    /// Has the message passed this node?
    pub fn contains(self, node: &[u8]) -> bool {
        let mut found = false;
        self.visit(|name| {
            found |= name == node;
            !found
        });
        found
    }

    pub fn len(self) -> usize {
        let mut count = 0;
        self.visit(|_| {
            count += 1;
            true
        });
        count
    }

    pub fn is_empty(self) -> bool {
        let mut empty = true;
        self.visit(|_| {
            empty = false;
            false
        });
        empty
    }
}

/// Identity and trace of a message.
#[derive(Clone, Copy, Default)]
pub struct Passed<'m> {
    pub id: Option<&'m [u8]>,
    pub trace: Trace<'m>,
}

impl<'m> Passed<'m> {
    /// What a message of this node says: nothing, unless a relay brought it, since clients copy what they get.
    pub fn of(message: &'m Message) -> Self {
        let mut passed = Self::default();
        if !message.traits.relayed {
            return passed;
        }
        match &message.kind {
            Kind::Amqp10(head) => {
                let Some(span) = head.message_annotations else { return passed };
                let Ok(map) = sections::decode_map(span.of(message.head())) else { return passed };
                for (key, value) in map.iter() {
                    match key.as_str() {
                        Some(ID) => passed.id = value.as_str().map(str::as_bytes),
                        Some(TRACE) => passed.trace = value.as_list().map_or(Trace::None, Trace::List),
                        _ => {}
                    }
                }
            }
            Kind::Amqp091 => {
                let headers = peek(message.head()).ok().and_then(|peek| peek.headers);
                for (key, value) in headers.unwrap_or(Table::EMPTY).iter() {
                    match (key, value) {
                        (ID_HEADER, value) => passed.id = value.as_bytes(),
                        (TRACE_HEADER, Value091::Array(names)) => passed.trace = Trace::Array(names),
                        _ => {}
                    }
                }
            }
        }
        passed
    }

    /// Writes identity and trace of a message that leaves `node`, as pairs of an annotations map.
    pub fn stamp(self, map: &mut Compound<'_>, node: &str, serial: u64) {
        map.item(|out| writer::put_symbol(out, ID));
        match self.id.and_then(|id| std::str::from_utf8(id).ok()) {
            Some(id) => map.value(&Value10::String(id)),
            None => map.item(|out| put_identity(out, node, serial)),
        }
        map.item(|out| writer::put_symbol(out, TRACE));
        map.item(|out| {
            let mut list = Compound::list(out);
            self.trace.visit(|name| {
                if let Ok(name) = std::str::from_utf8(name) {
                    list.value(&Value10::String(name));
                }
                true
            });
            list.value(&Value10::String(node));
            list.finish();
        });
    }
}

/// The number of a message as text.
pub struct Digits {
    bytes: [u8; SERIAL_DIGITS_MAX],
    start: usize,
}

impl Digits {
    /// Written once, from behind.
    pub fn of(serial: u64) -> Self {
        let (mut bytes, mut start, mut left) = ([0; SERIAL_DIGITS_MAX], SERIAL_DIGITS_MAX, serial);
        loop {
            start -= 1;
            bytes[start] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                return Self { bytes, start };
            }
        }
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

/// Writes `NODE:SERIAL` as a string.
fn put_identity(out: &mut Vec<u8>, node: &str, serial: u64) {
    let digits = Digits::of(serial);
    let len = node.len() + 1 + digits.as_bytes().len();
    match u8::try_from(len) {
        Ok(len) => out.extend_from_slice(&[format::STR8, len]),
        Err(_) => {
            out.push(format::STR32);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(node.as_bytes());
    out.push(b':');
    out.extend_from_slice(digits.as_bytes());
}

/// Where the properties of a 0-9-1 message are written, table and all, before it is known how long they are.
#[derive(Default)]
pub struct HeadBuffers {
    headers: Vec<u8>,
    head: Vec<u8>,
}

/// What a message that came from another node says of itself.
#[derive(Clone, Copy, Default)]
pub struct Carried<'m> {
    pub passed: Passed<'m>,
    pub exchange: Option<&'m str>,
    pub routing_key: Option<&'m str>,
    /// It is a 0-9-1 message, with these properties.
    properties: Option<&'m [u8]>,
    deaths: Option<List<'m>>,
    /// The sender only asks whether this node has it.
    pub asked: bool,
}

impl<'m> Carried<'m> {
    /// Reads the annotations section of a message.
    pub fn read(section: &'m [u8]) -> Result<Self, DecodeError> {
        let mut carried = Self::default();
        if annotations(section, |key, value| carried.take(key, value)).is_some() {
            return Ok(carried);
        }
        let mut carried = Self::default();
        for (key, value) in sections::decode_map(section)?.iter() {
            carried.take(key.as_str().unwrap_or_default().as_bytes(), value);
        }
        Ok(carried)
    }

    #[inline]
    fn take(&mut self, key: &[u8], value: Value10<'m>) {
        const ID_KEY: &[u8] = ID.as_bytes();
        const TRACE_KEY: &[u8] = TRACE.as_bytes();
        const EXCHANGE_KEY: &[u8] = EXCHANGE.as_bytes();
        const ROUTING_KEY_KEY: &[u8] = ROUTING_KEY.as_bytes();
        const PROPERTIES_KEY: &[u8] = PROPERTIES.as_bytes();
        const DEATHS_KEY: &[u8] = DEATHS.as_bytes();
        const ASKED_KEY: &[u8] = ASKED.as_bytes();
        match key {
            ID_KEY => self.passed.id = value.as_str().map(str::as_bytes),
            TRACE_KEY => self.passed.trace = value.as_list().map_or(Trace::None, Trace::List),
            EXCHANGE_KEY => self.exchange = value.as_str(),
            ROUTING_KEY_KEY => self.routing_key = value.as_str(),
            PROPERTIES_KEY => self.properties = value.as_binary(),
            DEATHS_KEY => self.deaths = value.as_list(),
            ASKED_KEY => self.asked = value.as_bool().unwrap_or(false),
            _ => {}
        }
    }

    /// The 0-9-1 message that travels inside a 1.0 one: its properties and its content. None if it is none.
    pub fn unwrap_amqp091(&self, body: &Body) -> Option<(Properties<'m>, Body)> {
        let properties = Properties::decode(self.properties?).ok()?;
        Some((properties, content(body)?))
    }

    /// The properties of that message, with identity and trace among its headers. Written in buffers that the caller
    /// keeps, so that the next message finds room.
    pub fn head_amqp091(&self, properties: &Properties<'_>, buffers: &mut HeadBuffers) -> Box<[u8]> {
        let own = properties.headers.unwrap_or(Table::EMPTY);
        let HeadBuffers { headers, head } = buffers;
        headers.clear();
        head.clear();
        TableWriter::write(headers, |table| {
            own.iter()
                .filter(|(key, _)| *key != ID_HEADER && *key != TRACE_HEADER)
                .for_each(|(key, value)| table.value(key, value));
            self.passed.id.into_iter().for_each(|id| table.str(ID_HEADER, id));
            if !self.passed.trace.is_empty() {
                table.array(TRACE_HEADER, |array| {
                    self.passed.trace.visit(|name| {
                        array.str(name);
                        true
                    });
                });
            }
        });
        let headers = Table::trusted(headers.get(4..).unwrap_or_default());
        let headers = (!headers.is_empty() || properties.headers.is_some()).then_some(headers);
        Properties { headers, ..*properties }.encode(head);
        Box::from(head.as_slice())
    }

    /// Where it died before.
    pub fn deaths(&self) -> Option<Rc<[Death]>> {
        let rows = self.deaths?.iter().take(DEATHS_MAX).filter_map(death);
        Some(rows.collect::<Rc<[Death]>>()).filter(|deaths| !deaths.is_empty())
    }
}

fn death(row: Value10<'_>) -> Option<Death> {
    let row = row.as_map()?;
    let name = |key: &str| row.get(key).and_then(|value| value.as_str()).map(|text| Name::from(text.as_bytes()));
    let keys = row.get("routing-keys")?.as_list()?;
    Some(Death {
        queue: name("queue")?,
        reason: Reason::from_word(&name("reason")?)?,
        count: row.get("count").and_then(|value| value.as_u64()).unwrap_or(1),
        time_s: match row.get("last-time") {
            Some(Value10::Timestamp(at_ms)) => u64::try_from(at_ms / 1_000).unwrap_or(0),
            _ => 0,
        },
        exchange: name("exchange")?,
        routing_keys: keys.iter().filter_map(|key| key.as_str()).map(|key| Name::from(key.as_bytes())).collect(),
        expiration_ms: row.get("ttl").and_then(|value| value.as_u64()),
    })
}

/// The content of a body that is one data section and nothing else.
fn content(body: &Body) -> Option<Body> {
    let mut body = body.clone();
    if body.first().len() < DATA_FRONT_BYTES && !body.is_single() {
        // Frames were cut within the front of the section.
        let all = body.gather();
        body = Body::new(Rc::from(all.as_slice()), 0..all.len());
    }
    let (skip, len) = data_front(body.first())?;
    (body.len() == skip + len).then(|| body.without_front(skip))
}

/// Bytes of a data section before its content, and of its content.
#[inline]
pub fn data_front(section: &[u8]) -> Option<(usize, usize)> {
    match *section {
        [0, 0x53, 0x75, 0xa0, len, ..] => Some((5, usize::from(len))),
        [0, 0x53, 0x75, 0xb0, a, b, c, d, ..] => Some((8, u32::from_be_bytes([a, b, c, d]) as usize)),
        _ => None,
    }
}

/// The identity among the headers of a 0-9-1 message.
pub fn id_amqp091(head: &[u8]) -> Option<&[u8]> {
    match peek(head).ok()?.headers?.get(ID_HEADER)? {
        Value091::LongString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_the_node_and_the_number() {
        for (node, serial) in [("a", 0), ("node", 9), ("n", u64::MAX), (&*"x".repeat(255), 10)] {
            let mut out = Vec::new();
            put_identity(&mut out, node, serial);
            let value = weft_wire::amqp10::Reader::new(&out).read();
            assert_eq!(value, Ok(Value10::String(&std::format!("{node}:{serial}"))));
        }
    }
}
