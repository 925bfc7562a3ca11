//! The two protocols, behind one face.
//!
//! Owns protocol detection and the closed set of what the engine may ask of a session: take bytes, take an answer, take
//! a delivery, say whether there is room, tick, end. Sessions call the broker for everything that touches a queue;
//! nobody calls back. It must never look into a frame after the first eight bytes. Rules: AMQP 0-9-1 section 4.2.2,
//! AMQP 1.0 section 2.2.

pub mod amqp091;
pub mod amqp10;

use weft_journal::Stored;

use crate::broker::{Broker, Ended};
use crate::change::LinkPlan;
use crate::conn::Io;
use crate::queue::QueueId;
use crate::queue::consumers::{Consumer, ConsumerId, Target};
use crate::queue::ready::Entry;

/// The state of a connection's protocol.
pub enum Session {
    /// The first eight bytes are not there yet.
    Detect,
    Amqp091(Box<amqp091::Session>),
    Amqp10(Box<amqp10::Session>),
}

/// Python's answer to a request.
#[derive(Debug)]
pub enum Answer {
    Accept { principal: u32, name: String, messages: u32, consumers: u32, proof: Vec<u8> },
    Challenge(Vec<u8>),
    Refuse { code: u16, text: String },
    Link(Box<LinkPlan>),
}

/// Can a consumer take a message now?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// No credit, prefetch or flow: the session wakes the consumer when there is.
    NoCredit,
    /// The connection's output is full: the engine wakes the consumer when it was flushed.
    NoRoom,
}

impl Session {
    /// Takes bytes, as many as make sense now; returns how many were used.
    pub fn receive(&mut self, io: &mut Io, data: &[u8], broker: &mut Broker) -> usize {
        match self {
            Self::Detect => self.detect(io, data, broker),
            Self::Amqp091(session) => session.receive(io, data, broker),
            Self::Amqp10(session) => session.receive(io, data, broker),
        }
    }

    /// How many bytes, at least, the frame that begins in `input` still lacks.
    pub fn missing(&self, input: &[u8]) -> usize {
        let size = match (self, input) {
            (Self::Amqp091(_), [_, _, _, a, b, c, d, ..]) => u32::from_be_bytes([*a, *b, *c, *d]) as usize + 8,
            (Self::Amqp10(_), [a, b, c, d, ..]) => u32::from_be_bytes([*a, *b, *c, *d]) as usize,
            _ => 8,
        };
        size.saturating_sub(input.len())
    }

    fn detect(&mut self, io: &mut Io, data: &[u8], broker: &mut Broker) -> usize {
        use weft_wire::amqp091::PROTOCOL_HEADER;
        let Some(header) = data.first_chunk::<8>() else {
            // A peer that does not begin as AMQP does is not worth waiting for.
            if !b"AMQP".starts_with(&data[..data.len().min(4)]) {
                io.output.extend_from_slice(&PROTOCOL_HEADER);
                io.finish("not AMQP");
            }
            return 0;
        };
        if *header == PROTOCOL_HEADER || header == b"AMQP\x01\x01\x00\x09" || header == b"AMQP\x01\x01\x09\x01" {
            *self = Self::Amqp091(Box::new(amqp091::Session::start(io, broker)));
            return 8 + self.receive(io, &data[8..], broker);
        }
        if let Some(session) = amqp10::Session::start(header, io, broker) {
            *self = Self::Amqp10(Box::new(session));
            return 8 + self.receive(io, &data[8..], broker);
        }
        io.output.extend_from_slice(&PROTOCOL_HEADER);
        io.finish("unknown protocol header");
        8
    }

    /// Takes the answer to the request this connection is parked on.
    pub fn answer(&mut self, io: &mut Io, broker: &mut Broker, answer: Answer) {
        match self {
            Self::Detect => {}
            Self::Amqp091(session) => session.answer(io, broker, answer),
            Self::Amqp10(session) => session.answer(io, broker, answer),
        }
    }

    /// Can this consumer take a message now?
    #[inline]
    pub fn readiness(&mut self, io: &Io, broker: &Broker, target: Target) -> Readiness {
        match (self, target) {
            (Self::Amqp091(session), Target::Amqp091 { channel, slot }) => session.readiness(io, broker, channel, slot),
            (Self::Amqp10(session), Target::Amqp10 { session: number, handle }) => {
                session.readiness(io, broker, number, handle)
            }
            _ => Readiness::NoCredit,
        }
    }

    /// Writes a delivery. Gives the entry back when it is settled already (the queue is not to wait for it).
    #[inline]
    pub fn deliver(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        target: Target,
        queue: QueueId,
        entry: Entry,
    ) -> Option<Entry> {
        match (self, target) {
            (Self::Amqp091(session), Target::Amqp091 { channel, slot }) => {
                session.deliver(io, broker, (channel, slot), queue, entry)
            }
            (Self::Amqp10(session), Target::Amqp10 { session: number, handle }) => {
                session.deliver(io, broker, (number, handle), queue, entry)
            }
            _ => Some(entry),
        }
    }

    /// Writes deliveries of a stream as they were stored; how many. None if this consumer gets its messages by
    /// `deliver`, or if that has to look at the first.
    #[inline]
    pub fn deliver_stored<'m>(
        &mut self,
        io: &mut Io,
        broker: &Broker,
        target: Target,
        from: (QueueId, u16),
        messages: impl Iterator<Item = Stored<'m>>,
    ) -> usize {
        match (self, target) {
            (Self::Amqp091(session), Target::Amqp091 { channel, slot }) => {
                session.deliver_stored(io, broker, (channel, slot), from, messages)
            }
            _ => 0,
        }
    }

    /// The queue of this consumer is gone; it has left the broker's tables already.
    pub fn cancelled(&mut self, io: &mut Io, broker: &mut Broker, consumer: &Consumer) {
        match (self, consumer.target) {
            (Self::Amqp091(session), Target::Amqp091 { channel, slot }) => session.cancelled(io, broker, channel, slot),
            (Self::Amqp10(session), Target::Amqp10 { session: number, handle }) => {
                session.cancelled(io, broker, number, handle);
            }
            _ => {}
        }
    }

    /// The output was flushed: more of a large message may go.
    pub fn flushed(&mut self, io: &mut Io, broker: &mut Broker) {
        if let Self::Amqp10(session) = self {
            session.flushed(io, broker);
        }
    }

    /// The queues had their turn: drains may be answered.
    pub fn pumped(&mut self, io: &mut Io, broker: &mut Broker) {
        if let Self::Amqp10(session) = self {
            session.pumped(io, broker);
        }
    }

    /// A message that this connection published has come to its end; `send_ended` tells of it.
    pub fn ended(&mut self, io: &mut Io, broker: &mut Broker, ended: &Ended) {
        match self {
            Self::Detect => {}
            Self::Amqp091(session) => session.ended(io, broker, ended),
            Self::Amqp10(session) => session.ended(io, broker, ended),
        }
    }

    /// All that ended by now was told: the answers leave.
    pub fn send_ended(&mut self, io: &mut Io, broker: &Broker) {
        match self {
            Self::Detect => {}
            Self::Amqp091(session) => session.send_ended(io),
            Self::Amqp10(session) => session.send_owed(io, broker),
        }
    }

    /// Time passed: heartbeats go out, silent peers are cut. When to be asked again.
    pub fn tick(&mut self, io: &mut Io, broker: &mut Broker) -> Option<u64> {
        match self {
            Self::Detect => opening_deadline(io, broker),
            Self::Amqp091(session) => session.tick(io, broker),
            Self::Amqp10(session) => session.tick(io, broker),
        }
    }

    /// Memory ran short (`blocked`) or is there again.
    pub fn blocked(&mut self, io: &mut Io, broker: &mut Broker, blocked: bool) {
        match self {
            Self::Detect => {}
            Self::Amqp091(session) => session.blocked(io, blocked),
            Self::Amqp10(session) => session.blocked(io, broker, blocked),
        }
    }

    /// Ends the connection with the protocol's own close.
    pub fn close(&mut self, io: &mut Io, broker: &mut Broker, code: u16, text: &str) {
        match self {
            Self::Detect => io.finish(text),
            Self::Amqp091(session) => session.close(io, broker, code, text),
            Self::Amqp10(session) => session.close(io, broker, code, text),
        }
    }

    /// The connection is gone: consumers leave, what was not settled goes back.
    pub fn lost(&mut self, io: &mut Io, broker: &mut Broker) {
        match self {
            Self::Detect => {}
            Self::Amqp091(session) => session.lost(io, broker),
            Self::Amqp10(session) => session.lost(io, broker),
        }
    }

    /// The consumers and channels of this connection, for `inspect`.
    pub fn describe(&self) -> Described {
        match self {
            Self::Detect => Described { protocol: "", channels: 0, consumers: Vec::new() },
            Self::Amqp091(session) => session.describe(),
            Self::Amqp10(session) => session.describe(),
        }
    }
}

impl Session {
    /// Every channel or session, for `inspect`.
    pub fn parts(&self) -> Vec<Part> {
        match self {
            Self::Detect => Vec::new(),
            Self::Amqp091(session) => session.parts(),
            Self::Amqp10(session) => session.parts(),
        }
    }

    /// Tag of a consumer, whether it must acknowledge, and its prefetch or credit.
    pub fn tap(&self, target: Target) -> Option<(String, bool, u16)> {
        match (self, target) {
            (Self::Amqp091(session), Target::Amqp091 { channel, slot }) => session.tap(channel, slot),
            (Self::Amqp10(session), Target::Amqp10 { session: number, handle }) => session.tap(number, handle),
            _ => None,
        }
    }
}

/// A channel of 0-9-1 or a session of 1.0.
pub struct Part {
    pub number: u16,
    /// Consumers, or links of either direction.
    pub links: usize,
    pub unsettled: usize,
    pub prefetch: u16,
    /// Publishes that were or will be confirmed, in confirm mode.
    pub published: Option<u64>,
    pub transactional: bool,
}

/// What `inspect` tells of a session.
pub struct Described {
    pub protocol: &'static str,
    pub channels: usize,
    pub consumers: Vec<ConsumerId>,
}

/// A peer that has not finished its opening in time is cut; until then, when to look again.
pub fn opening_deadline(io: &mut Io, broker: &Broker) -> Option<u64> {
    let deadline_ns = io.opened_ns + u64::from(broker.limits.unauthenticated_s) * 1_000_000_000;
    if broker.now_ns >= deadline_ns {
        io.finish("opening took too long");
        return None;
    }
    Some(deadline_ns)
}
