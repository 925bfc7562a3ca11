//! Deliveries to the consumers of a connection.
//!
//! Owns the last step of the message path: a queue's entry becomes basic.deliver and content frames. Entries come in
//! from `delivery.rs` for a consumer that said it was ready. It must never take more than prefetch, flow and output
//! allow. Rule: AMQP 0-9-1 sections 1.8.3.9 and 4.2.6; this is the hot path, one pass, no allocation but the output's
//! own.

use std::rc::Rc;

use weft_wire::amqp091::{Method, encode_deliver};

use super::Session;
use super::ack::Held;
use super::consume::{REPLY_QUEUE, counted};
use super::content::{write_content, write_read};
use crate::broker::Broker;
use crate::conn::Io;
use crate::message::{Message, Name};
use crate::queue::QueueId;
use crate::queue::ready::Entry;
use crate::session::Readiness;

impl Session {
    #[inline]
    pub fn readiness(&mut self, io: &Io, broker: &Broker, number: u16, slot: u32) -> Readiness {
        let Some(channel) = self.channel(number) else { return Readiness::NoCredit };
        let over = channel.limit > 0 && channel.inflight >= u32::from(channel.limit);
        let stopped = channel.stopped;
        let Some(Some(tap)) = channel.taps.get_mut(slot as usize) else { return Readiness::NoCredit };
        let full = tap.prefetch > 0 && tap.inflight >= u32::from(tap.prefetch);
        if !tap.no_ack && (full || over) || stopped {
            tap.starved = true;
            return Readiness::NoCredit;
        }
        if io.has_room(broker.limits.output_bytes_max) { Readiness::Ready } else { Readiness::NoRoom }
    }

    #[inline]
    pub fn deliver(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: (u16, u32),
        queue: QueueId,
        mut entry: Entry,
    ) -> Option<Entry> {
        let frame_max = self.frame_max;
        let Some(channel) = self.channel(place.0) else { return Some(entry) };
        let Some(Some(tap)) = channel.taps.get_mut(place.1 as usize) else { return Some(entry) };
        let (redelivered, position, is_read) = (entry.redelivered, entry.position, entry.reader > 0);
        let message = match is_read {
            true => std::mem::replace(&mut entry.message, Rc::clone(&broker.hollow)),
            false => Rc::clone(&entry.message),
        };
        let failures = if redelivered { counted(broker, queue, entry.failures) } else { None };
        let (tag, back) = match tap.no_ack {
            true => (channel.unacked.skip(), Some(entry)),
            false => {
                tap.inflight += 1;
                channel.inflight += 1;
                (channel.unacked.hold(Held { queue, entry, tap: place.1, marked: false }), None)
            }
        };
        let out = &mut io.output;
        encode_deliver(out, place.0, &tap.tag, tag, redelivered, &message.exchange, &message.routing_key);
        match is_read {
            true => {
                let part = broker.queues.get(queue).and_then(|queue| queue.settings.part);
                write_read(out, place.0, frame_max, &message, position, part);
            }
            false => write_content(out, place.0, frame_max, &message, failures),
        }
        back
    }

    /// The queue of a consumer was deleted: the client is told, if it can be.
    pub fn cancelled(&mut self, io: &mut Io, _broker: &mut Broker, number: u16, slot: u32) {
        let told = self.abilities.consumer_cancel_notify;
        let Some(channel) = self.channel(number) else { return };
        let Some(tap) = channel.taps.get_mut(slot as usize).and_then(Option::take) else { return };
        super::consume::forget_tap(channel, slot);
        if told {
            Method::BasicCancel { consumer_tag: &tap.tag, no_wait: true }.encode_frame(number, &mut io.output);
        }
    }

    /// A reply for the direct reply-to consumer of a channel.
    pub fn deliver_reply(&mut self, io: &mut Io, number: u16, message: &Message) {
        let frame_max = self.frame_max;
        let Some(channel) = self.channel(number) else { return };
        let Some((tag, _)) = channel.reply.clone() else { return };
        let delivery_tag = channel.unacked.skip();
        let out = &mut io.output;
        encode_deliver(out, number, &tag, delivery_tag, false, &message.exchange, &message.routing_key);
        write_content(out, number, frame_max, message, None);
    }
}

/// The address that stands for the direct reply-to consumer of a channel: the channel, and a word that cannot be
/// guessed.
pub(super) fn reply_address(io: &Io, number: u16, secret: u64) -> Name {
    let mut address = REPLY_QUEUE.to_vec();
    address.extend_from_slice(format!(".{:x}.{number:x}.{secret:016x}", io.id.raw()).as_bytes());
    Name::from(address)
}
