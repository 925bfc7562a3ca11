//! Deliveries to the peer: a queue's entry becomes transfers.
//!
//! Owns the last step of the message path for outlets. Entries come in from `delivery.rs` for a consumer that said it
//! was ready; small messages leave in one frame at once, large ones frame by frame as the output and the window
//! allow, so that other links have their turn in between. It must never send more than credit, window and the peer's
//! frame size allow. Rule: AMQP 1.0 section 2.6.14.

use weft_wire::amqp10::frame::{FrameKind, begin_frame, end_frame};
use weft_wire::amqp10::transfer::{TransferHead, encode_continuation, encode_transfer};
use weft_wire::amqp10::{Composite, DeliveryState, Received, TransactionalState, Transfer, sections};

use super::channel::Channel;
use super::familiar::Written;
use super::head::{self, Telling};
use super::link::{Common, Link};
use super::settle;
use super::unsettled::Held;
use super::{Place, Session};
use crate::broker::{Broker, Fate, Outcome};
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
    start: Start,
    /// Nothing of it is wanted any more: the next frame says so.
    aborted: bool,
    /// Everything before the body as it is kept.
    prefix: Vec<u8>,
    body: Body,
    /// How far it is: bytes left, the part of the body that comes next, and the bytes of it (or of the prefix)
    /// already sent.
    left: usize,
    part: Option<usize>,
    offset: usize,
}

/// What the first transfer of a large or unusual delivery says besides the usual.
pub(super) enum Start {
    Usual,
    /// It was acquired in this transaction.
    Acquired(u64),
    /// It is an old delivery that goes on here; the beginning, unless something is said.
    Resumed(Option<Received>),
}

impl Session {
    #[inline]
    pub fn readiness(&mut self, io: &Io, broker: &Broker, number: u16, handle: u32) -> Readiness {
        let Some(channel) = self.channel(number) else { return Readiness::NoCredit };
        let window = channel.remote_window;
        let Some(Link::Out(outlet)) = channel.link(handle) else { return Readiness::NoCredit };
        if outlet.credit == 0 || window == 0 || outlet.paused || outlet.is_busy() {
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
        let reports = outlet.common.reports;
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
        let acquired = outlet.transaction;
        let fits = acquired.is_none() && len + OVERHEAD_BYTES <= frame_max;
        if fits && write_whole(io, place.0, &transfer, &entry, &telling, &mut outlet.written, frame_max) {
            channel.next_outgoing_id = channel.next_outgoing_id.wrapping_add(1);
            channel.remote_window -= 1;
        } else {
            let start = acquired.map_or(Start::Usual, Start::Acquired);
            outlet.sending = Some(Box::new(Sending::of(&transfer, tag, &entry, &telling, start)));
            self.begin_large(io, broker, place);
        }
        if settled && acquired.is_none() {
            if reports {
                settle::report(broker, queue, &entry, Some(&Fate::Accepted));
            }
            return Some(entry);
        }
        let held = Held { queue, entry, handle: place.1, link, tag, peer, asked, reports };
        self.hold(place.0, delivery_id, held, acquired.map(|id| (id, settled)));
        None
    }

    /// Keeps a delivery until it is settled; what a transaction acquired settled ends with it.
    #[inline]
    fn hold(&mut self, number: u16, id: u32, held: Held, acquired: Option<(u64, bool)>) {
        let held = match acquired {
            Some((transaction, settled)) => self.transactions.acquire(transaction, (number, id), held, settled),
            None => Some(held),
        };
        if let (Some(held), Some(channel)) = (held, self.channel(number)) {
            channel.unsettled.hold(id, held);
        }
    }

    /// Of a large message only so much at once that others find room as well.
    pub(super) fn begin_large(&mut self, io: &mut Io, broker: &Broker, place: Place) {
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
            self.go_on(io, broker, place);
        }
    }

    /// A link may have something to send again: what it left behind comes before anything new.
    pub(super) fn go_on(&mut self, io: &mut Io, broker: &mut Broker, place: Place) {
        match self.channel(place.0).and_then(|channel| channel.link(place.1)) {
            Some(Link::Out(outlet)) if outlet.returned.is_some() => self.send_returned(io, broker, place),
            Some(Link::Out(outlet)) => outlet.wake(broker),
            _ => {}
        }
    }

    /// Stops a delivery that has not been sent to its end. Was there something to stop?
    pub(super) fn abort(&mut self, io: &mut Io, place: Place, delivery_id: u32) -> bool {
        let sending = match self.channel(place.0).and_then(|channel| channel.link(place.1)) {
            Some(Link::Out(outlet)) => outlet.sending.as_mut().filter(|sending| sending.delivery_id == delivery_id),
            _ => None,
        };
        let Some(sending) = sending else { return false };
        sending.aborted = true;
        // If the window is shut it leaves when that is open again, before anything else of this link.
        self.send_on(io, place, usize::MAX);
        true
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
    written: &mut Written,
    frame_max: usize,
) -> bool {
    let out = &mut io.output;
    let (start, body) = (out.len(), entry.message.body());
    let body_len = if telling.asked { 0 } else { body.len() };
    out.reserve(entry.message.head().len() + body_len + OVERHEAD_BYTES);
    let mark = encode_transfer(out, number, transfer);
    written.write(out, entry, telling);
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

/// A delivery from before its link was suspended, from where the peer's bytes of it end.
pub(super) fn sending_on(
    held: &Held,
    delivery_id: u32,
    common: &Common,
    broker: &Broker,
    has: Option<Received>,
) -> Sending {
    let part = broker.queues.get(held.queue).filter(|_| held.entry.reader > 0).and_then(|queue| queue.settings.part);
    let telling = Telling { now_ns: broker.now_ns, stamp: common.stamp(broker), part, asked: held.asked };
    let mut bytes = Vec::new();
    head::write(&mut bytes, &held.entry, &telling);
    if !held.asked {
        held.entry.message.body().parts().for_each(|part| bytes.extend_from_slice(part));
    }
    // The header tells what is left of the time to live: a peer with only a part of it gets it whole.
    let after_header = has.filter(|has| has.section_number > 0);
    let offset = after_header.and_then(|has| sections::offset_of(&bytes, has.section_number, has.section_offset));
    bytes.drain(..offset.unwrap_or(0));
    let begins = if offset.is_some() { has } else { has.map(|_| Received { section_number: 0, section_offset: 0 }) };
    Sending { start: Start::Resumed(begins), ..Sending::new(delivery_id, held.tag, bytes) }
}

impl Sending {
    /// A delivery with nothing but these bytes.
    fn new(delivery_id: u32, tag: u32, prefix: Vec<u8>) -> Self {
        let (left, body) = (prefix.len(), Body::empty());
        let (settled, is_first, start, aborted) = (false, true, Start::Usual, false);
        Self { delivery_id, tag, settled, is_first, start, aborted, prefix, body, left, part: None, offset: 0 }
    }

    /// A message from its beginning.
    fn of(transfer: &TransferHead<'_>, tag: u32, entry: &Entry, telling: &Telling<'_>, start: Start) -> Self {
        let mut prefix = Vec::new();
        head::write(&mut prefix, entry, telling);
        let body = if telling.asked { Body::empty() } else { entry.message.body().clone() };
        let (settled, left) = (transfer.settled, prefix.len() + body.len());
        Self { settled, left, start, body, ..Self::new(transfer.delivery_id, tag, prefix) }
    }

    /// Writes the next frame.
    fn write_frame(&mut self, out: &mut Vec<u8>, place: Place, frame_max: usize) {
        let start = out.len();
        if self.aborted {
            let mark = self.open_frame(out, place, false);
            self.left = 0;
            return end_frame(out, mark);
        }
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
        let tag = self.tag.to_be_bytes();
        let (handle, delivery_id, settled) = (place.1, self.delivery_id, self.settled);
        match self.start {
            _ if self.aborted => {}
            _ if !self.is_first => return encode_continuation(out, place.0, handle, more),
            Start::Usual => {
                let (tag, message_format, batchable) = (&tag, 0, false);
                let head = TransferHead { handle, delivery_id, tag, message_format, settled, more, batchable };
                return encode_transfer(out, place.0, &head);
            }
            Start::Acquired(_) | Start::Resumed(_) => {}
        }
        let mark = begin_frame(out, FrameKind::Amqp, place.0);
        let bytes;
        let state = match self.start {
            Start::Acquired(id) => {
                bytes = id.to_be_bytes();
                Some(DeliveryState::Transactional(TransactionalState { txn_id: &bytes, outcome: None }))
            }
            Start::Resumed(begins) => begins.map(DeliveryState::Received),
            Start::Usual => None,
        };
        let transfer = Transfer {
            handle,
            delivery_id: Some(delivery_id),
            delivery_tag: Some(&tag),
            message_format: Some(0),
            settled: Some(settled),
            more,
            state,
            resume: matches!(self.start, Start::Resumed(_)),
            aborted: self.aborted,
            ..Transfer::default()
        };
        transfer.encode(out);
        mark
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
