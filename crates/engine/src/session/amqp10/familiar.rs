//! Messages of a relay link that look like the one before: all but their number and their body is known.
//!
//! Owns what each end of a link remembers of its last 0-9-1 message: the sender the sections in front of the body, the
//! receiver those sections and everything that was read from them. Messages come in that are to be written, or as they
//! came; out goes the same as the long way (`head.rs`, `carried.rs`) would make, or nothing, and then that way is
//! taken. It must never take two messages for alike that differ in more than their number. Rule: decision 0035.

use std::ops::Range;
use std::rc::Rc;

use super::head::{self, Telling};
use super::link::Inlet;
use crate::barrier::Id;
use crate::broker::Broker;
use crate::conn::Io;
use crate::convert;
use crate::message::{Body, Kind, Message, Name, Traits};
use crate::origin;
use crate::queue::ready::Entry;
use crate::relay::{self, Carried, Digits};

/// The last message that left by a relay link to another node.
#[derive(Default)]
pub(super) struct Written {
    exchange: Option<Name>,
    routing_key: Option<Name>,
    durable: bool,
    /// Its properties, as they are kept here.
    properties: Vec<u8>,
    /// Header and annotations, as they were sent, where the message's number lies in them, and what it was.
    head: Vec<u8>,
    number: Range<usize>,
    serial: u64,
}

impl Written {
    /// Appends everything that comes before the bytes of the body as they are kept.
    pub(super) fn write(&mut self, out: &mut Vec<u8>, entry: &Entry, telling: &Telling<'_>) {
        if !is_plain(entry, telling) {
            return head::write(out, entry, telling);
        }
        let (message, start) = (&*entry.message, out.len());
        if self.fits(message) && self.renumber(message.traits.serial) {
            out.extend_from_slice(&self.head);
        } else {
            let annotations = head::write_stamped(out, entry, telling);
            self.keep(&out[start..], annotations - start, message);
        }
        convert::open_data(out, message.body_len());
    }

    #[inline]
    fn fits(&self, message: &Message) -> bool {
        let is_same = |own: &Name, name: &Name| Rc::ptr_eq(own, name) || **own == **name;
        let same = |own: &Option<Name>, name: &Name| own.as_ref().is_some_and(|own| is_same(own, name));
        self.durable == message.traits.durable
            && same(&self.routing_key, &message.routing_key)
            && same(&self.exchange, &message.exchange)
            && self.properties == message.head()
    }

    /// Puts another number in; false if it is longer or shorter. Most are one more than the last, and differ from it
    /// in their last digit.
    #[inline]
    fn renumber(&mut self, serial: u64) -> bool {
        let Some(own) = self.head.get_mut(self.number.clone()) else { return false };
        let is_next = std::mem::replace(&mut self.serial, serial).wrapping_add(1) == serial;
        if let Some(last @ b'0'..=b'8') = own.last_mut().filter(|_| is_next) {
            *last += 1;
            return true;
        }
        let digits = Digits::of(serial);
        let fits = own.len() == digits.as_bytes().len();
        if fits {
            own.copy_from_slice(digits.as_bytes());
        }
        fits
    }

    fn keep(&mut self, head: &[u8], annotations: usize, message: &Message) {
        let digits = Digits::of(message.traits.serial);
        let carried = head.get(annotations..).and_then(|section| Carried::read(section).ok());
        let id = carried.and_then(|carried| place_of(carried.passed.id?, head));
        let Some(id) = id.filter(|id| head[id.clone()].ends_with(digits.as_bytes())) else {
            self.exchange = None;
            return;
        };
        (self.number, self.serial) = (id.end - digits.as_bytes().len()..id.end, message.traits.serial);
        (self.exchange, self.routing_key) = (Some(message.exchange.clone()), Some(message.routing_key.clone()));
        self.durable = message.traits.durable;
        self.properties.clear();
        self.properties.extend_from_slice(message.head());
        self.head.clear();
        self.head.extend_from_slice(head);
    }
}

/// Does a message say nothing that the next one would not say as well? It is of 0-9-1 and goes to another node for the
/// first time, no clock runs on it, and it has not failed or died.
#[inline]
fn is_plain(entry: &Entry, telling: &Telling<'_>) -> bool {
    let message = &*entry.message;
    let is_fresh = !entry.redelivered && entry.failures == 0 && entry.reader == 0 && message.deaths.is_none();
    let is_ours = matches!(message.kind, Kind::Amqp091) && !message.traits.relayed && message.traits.ttl_ms.is_none();
    let to_node = telling.stamp.as_ref().is_some_and(|stamp| stamp.verbatim) && !telling.asked;
    is_fresh && is_ours && to_node
}

/// The last message that came by a relay link, if the next one may be like it.
pub(super) struct Familiar {
    /// Everything before its body, and where its number lies there.
    head: Box<[u8]>,
    number: Range<usize>,
    id: Id,
    traits: Traits,
    names: (Name, Name),
    /// Its properties here, and where its number lies in them.
    properties: Box<[u8]>,
    own_number: Range<usize>,
}

impl Familiar {
    /// Remembers a message of 0-9-1 that was read from this head; None if it has no number.
    pub(super) fn of(head: &[u8], carried: &Carried<'_>, message: &Message, id: Id) -> Option<Box<Self>> {
        let text = carried.passed.id?;
        let digits = origin::numbered(text)?;
        let number = place_of(digits, head)?;
        let own = relay::id_amqp091(message.head()).filter(|own| *own == text)?;
        let own_number = place_of(&own[text.len() - digits.len()..], message.head())?;
        let names = (message.exchange.clone(), message.routing_key.clone());
        // What is put in their place must not be longer than the sections.
        let properties = Some(message.head()).filter(|properties| properties.len() <= head.len())?.into();
        let head = head.into();
        Some(Box::new(Self { head, number, id, traits: message.traits, names, properties, own_number }))
    }

    /// Does a message begin as the last one did, but for its number?
    #[inline]
    pub(super) fn begins(&self, payload: &[u8]) -> bool {
        let Some(head) = payload.get(..self.head.len()) else { return false };
        let Range { start, end } = self.number;
        head[..start] == self.head[..start] && head[end..] == self.head[end..]
    }
}

impl Inlet {
    /// A message that begins as the last one did, as the long way would make it. None if it must be read as any other.
    pub(super) fn familiar_message(&self, io: &Io, broker: &mut Broker, payload: &[u8]) -> Option<(Rc<Message>, Id)> {
        let familiar = self.familiar.as_deref()?;
        let is_known =
            |own: &(Name, Name)| Rc::ptr_eq(&own.0, &familiar.names.0) && Rc::ptr_eq(&own.1, &familiar.names.1);
        if self.memory.generation != broker.generation || !self.memory.names.as_ref().is_some_and(is_known) {
            return None;
        }
        if payload.len() as u64 > broker.limits.message_bytes_max {
            return None;
        }
        let start = familiar.head.len();
        let skip =
            relay::data_front(payload.get(start..)?).filter(|(skip, len)| start + skip + len == payload.len())?.0;
        let digits = payload.get(familiar.number.clone())?;
        let id = origin::with_number(familiar.id, digits)?;
        let account = self.backlog.as_ref().map_or(&io.account, |backlog| &backlog.1);
        let charge = account.charge(payload.len() as u64);
        let (arrived_us, serial) = broker.stamp();
        let traits = Traits { publisher: io.id.raw(), arrived_us, serial, ..familiar.traits };
        // One copy, with the properties where the last of the sections were.
        let head = 0..familiar.properties.len();
        let mut bytes = Rc::<[u8]>::from(payload.get((start + skip).checked_sub(head.end)?..)?);
        let own = Rc::get_mut(&mut bytes)?.get_mut(head.clone())?;
        own.copy_from_slice(&familiar.properties);
        own[familiar.own_number.clone()].copy_from_slice(digits);
        let body = head.end..bytes.len();
        let body = Body::new(bytes, body);
        Some((Rc::new(Message::new(Kind::Amqp091, familiar.names.clone(), traits, head, body, charge)), id))
    }
}

/// Where a part lies in the bytes that it was taken from.
fn place_of(part: &[u8], whole: &[u8]) -> Option<Range<usize>> {
    let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
    (start + part.len() <= whole.len()).then(|| start..start + part.len())
}
