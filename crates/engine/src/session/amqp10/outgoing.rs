//! Deliveries to the peer: a queue's entry becomes transfers.
//!
//! Owns the last step of the message path for outlets. Entries come in from `delivery.rs` for a consumer that said it
//! was ready; small messages leave in one frame at once, large ones frame by frame as the output and the window
//! allow, so that other links have their turn in between. It must never send more than credit, window and the peer's
//! frame size allow. Rule: AMQP 1.0 section 2.6.14.

use weft_wire::amqp10::frame::end_frame;
use weft_wire::amqp10::transfer::{TransferHead, encode_continuation, encode_transfer};

use super::channel::Channel;
use super::head::{self, Telling};
use super::link::Link;
use super::unsettled::Held;
use super::{Place, Session};
use crate::broker::{Broker, Outcome};
use crate::conn::Io;
use crate::message::Body;
use crate::queue::QueueId;
use crate::queue::ready::Entry;
use crate::session::Readiness;

/// More than any transfer performative of ours and any header section take.
const OVERHEAD_BYTES: usize = 128;

/// A message that is being sent.
pub(super) struct Sending {
    delivery_id: u32,
    tag: u32,
    settled: bool,
    is_first: bool,
    /// Everything before the body as it is kept.
    prefix: Vec<u8>,
    body: Body,
    /// How far it is: bytes left, the part of the body that comes next, and the bytes of it (or of the prefix)
    /// already sent.
    left: usize,
    part: Option<usize>,
    offset: usize,
}

impl Session {
    #[inline]
    pub fn readiness(&mut self, io: &Io, broker: &Broker, number: u16, handle: u32) -> Readiness {
        let Some(channel) = self.channel(number) else { return Readiness::NoCredit };
        let window = channel.remote_window;
        let Some(Link::Out(outlet)) = channel.link(handle) else { return Readiness::NoCredit };
        if outlet.credit == 0 || window == 0 || outlet.paused || outlet.paced || outlet.sending.is_some() {
            outlet.starved = true;
            return Readiness::NoCredit;
        }
        if io.has_room(broker.limits.output_bytes_max) { Readiness::Ready } else { Readiness::NoRoom }
    }

    #[inline]
    pub fn deliver(
        &mut self,
        io: &mut Io,
        broker: &mut Broker,
        place: Place,
        queue: QueueId,
        entry: Entry,
    ) -> Option<Entry> {
        let frame_max = self.peer_frame_bytes_max as usize;
        let tag = self.tags_made;
        if !self.late.is_empty() {
            self.send_late(io);
        }
        let Some(Some(channel)) = self.channels.get_mut(usize::from(place.0)) else { return Some(entry) };
        let delivery_id = channel.next_delivery_id;
        let Some(Some(Link::Out(outlet))) = channel.links.get_mut(place.1 as usize) else { return Some(entry) };
        let message = &entry.message;
        let asked = outlet.peer.is_some() && broker.asks(queue, entry.position, outlet.peer);
        let body_len = if asked { 0 } else { message.body_len() };
        let len = message.head().len() + body_len;
        if len as u64 > outlet.message_bytes_max {
            // Nothing but a message of another size could ever be delivered here.
            broker.settle(queue, entry, Outcome::Rejected);
            return None;
        }
        if let Some(peer) = outlet.peer.filter(|_| broker.wall_ns >= outlet.renew_ns) {
            outlet.renew_ns = broker.note_drain(queue, peer);
        }
        self.tags_made = tag.wrapping_add(1);
        channel.next_delivery_id = delivery_id.wrapping_add(1);
        outlet.credit -= 1;
        outlet.delivery_count = outlet.delivery_count.wrapping_add(1);
        outlet.paced = outlet.common.count(len, broker.now_ns);
        if outlet.paced {
            self.paced.add(place);
            self.paced.schedule(io, broker);
        }
        let (settled, link, peer) = (outlet.settled, outlet.number, outlet.peer);
        let part = if entry.reader > 0 { broker.queues.get(queue).and_then(|queue| queue.settings.part) } else { None };
        let telling = Telling { now_ns: broker.now_ns, stamp: outlet.common.stamp(broker), part, asked };
        let transfer = TransferHead {
            handle: place.1,
            delivery_id,
            tag: &tag.to_be_bytes(),
            message_format: 0,
            settled,
            more: false,
            batchable: false,
        };
        if len + OVERHEAD_BYTES <= frame_max && write_whole(io, place.0, &transfer, &entry, &telling, frame_max) {
            channel.next_outgoing_id = channel.next_outgoing_id.wrapping_add(1);
            channel.remote_window -= 1;
        } else {
            let mut prefix = Vec::new();
            head::write(&mut prefix, &entry, &telling);
            let body = if asked { Body::empty() } else { message.body().clone() };
            let left = prefix.len() + body.len();
            let sending =
                Sending { delivery_id, tag, settled, is_first: true, prefix, body, left, part: None, offset: 0 };
            outlet.sending = Some(Box::new(sending));
            self.begin_large(io, broker, place);
        }
        if settled {
            return Some(entry);
        }
        if let Some(channel) = self.channel(place.0) {
            channel.unsettled.hold(delivery_id, Held { queue, entry, handle: place.1, link, tag, peer, asked });
        }
        None
    }

    /// Of a large message only so much at once that others find room as well.
    fn begin_large(&mut self, io: &mut Io, broker: &Broker, place: Place) {
        let output_max = (broker.limits.output_bytes_max / 2).max(io.output.len() + 1);
        if !self.send_on(io, place, output_max) {
            self.unfinished.push_back(place);
        }
    }

    /// The output was flushed: large messages go on, each a piece.
    pub fn flushed(&mut self, io: &mut Io, broker: &mut Broker) {
        let output_max = broker.limits.output_bytes_max / 2;
        for _ in 0..self.unfinished.len() {
            if !io.writable || io.output.len() >= output_max {
                return;
            }
            let Some(place) = self.unfinished.pop_front() else { return };
            if !self.send_on(io, place, output_max) {
                self.unfinished.push_back(place);
                continue;
            }
            if let Some(Link::Out(outlet)) = self.channel(place.0).and_then(|channel| channel.link(place.1)) {
                outlet.wake(broker);
            }
        }
    }

    /// Sends frames of the message that a link is in the middle of. True when nothing of it is left.
    fn send_on(&mut self, io: &mut Io, place: Place, output_max: usize) -> bool {
        let frame_max = self.peer_frame_bytes_max as usize;
        let Some(channel) = self.channel(place.0) else { return true };
        let Some(Link::Out(outlet)) = channel.link(place.1) else { return true };
        let Some(mut sending) = outlet.sending.take() else { return true };
        while io.output.len() < output_max && channel.remote_window > 0 {
            channel.remote_window -= 1;
            channel.next_outgoing_id = channel.next_outgoing_id.wrapping_add(1);
            sending.write_frame(&mut io.output, place, frame_max);
            if sending.left == 0 {
                return true;
            }
        }
        put_back(channel, place.1, sending);
        false
    }
}

/// Writes a message into one frame; false, and nothing, if the peer's frames are too small for it.
#[inline]
fn write_whole(
    io: &mut Io,
    number: u16,
    transfer: &TransferHead<'_>,
    entry: &Entry,
    telling: &Telling<'_>,
    frame_max: usize,
) -> bool {
    let out = &mut io.output;
    let (start, body) = (out.len(), entry.message.body());
    let body_len = if telling.asked { 0 } else { body.len() };
    out.reserve(entry.message.head().len() + body_len + OVERHEAD_BYTES);
    let mark = encode_transfer(out, number, transfer);
    head::write(out, entry, telling);
    if out.len() - start + body_len > frame_max {
        out.truncate(start);
        return false;
    }
    match body.is_single() {
        _ if telling.asked => {}
        true => out.extend_from_slice(body.first()),
        false => body.parts().for_each(|part| out.extend_from_slice(part)),
    }
    end_frame(out, mark);
    true
}

fn put_back(channel: &mut Channel, handle: u32, sending: Box<Sending>) {
    if let Some(Link::Out(outlet)) = channel.link(handle) {
        outlet.sending = Some(sending);
    }
}

impl Sending {
    /// Writes the next frame.
    fn write_frame(&mut self, out: &mut Vec<u8>, place: Place, frame_max: usize) {
        let start = out.len();
        let mut mark = self.open_frame(out, place, true);
        let mut room = frame_max.saturating_sub(out.len() - start);
        if self.left <= room {
            // The last frame is written without `more`, which makes its performative shorter, not longer.
            out.truncate(start);
            mark = self.open_frame(out, place, false);
            room = self.left;
        }
        self.is_first = false;
        self.copy(out, room.min(self.left));
        end_frame(out, mark);
    }

    fn open_frame(&self, out: &mut Vec<u8>, place: Place, more: bool) -> usize {
        if !self.is_first {
            return encode_continuation(out, place.0, place.1, more);
        }
        let tag = self.tag.to_be_bytes();
        let (handle, delivery_id, settled) = (place.1, self.delivery_id, self.settled);
        encode_transfer(
            out,
            place.0,
            &TransferHead { handle, delivery_id, tag: &tag, message_format: 0, settled, more, batchable: false },
        )
    }

    /// Appends the next `count` bytes of prefix and body.
    fn copy(&mut self, out: &mut Vec<u8>, mut count: usize) {
        self.left -= count;
        while count > 0 {
            let source = match self.part {
                None => Some(&self.prefix[..]),
                Some(part) => self.body.part(part),
            };
            let Some(rest) = source.and_then(|source| source.get(self.offset..)) else { return };
            let now = rest.len().min(count);
            out.extend_from_slice(&rest[..now]);
            count -= now;
            self.offset += now;
            if now == rest.len() {
                self.part = Some(self.part.map_or(0, |part| part + 1));
                self.offset = 0;
            }
        }
    }
}
