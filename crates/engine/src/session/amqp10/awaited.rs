//! Deliveries of the peer that are answered by whoever consumes them.
//!
//! Owns what is known of such a delivery until its end: the link it came by and what it is answered with. Deliveries
//! come in from `publish.rs` and `carried.rs` with a receipt; ends come in from the broker; dispositions go out as for
//! any other delivery, and credit goes out again. It must never answer a delivery of a link that is gone. Rules:
//! decision 0024; a link has at most `limits.end_to_end_max` of them.

use super::incoming::Delivery;
use super::link::Link;
use super::settle::Verdict;
use super::{Place, Session};
use crate::broker::{Broker, Ended, Fate, ReceiptId, Waiter};
use crate::conn::Io;
use crate::message::Message;

/// A delivery that waits for its consumer.
pub(super) struct Awaited {
    pub handle: u32,
    delivery: Delivery,
    receipt: ReceiptId,
    /// The peer only asks whether this node has the message.
    asked: bool,
    made_ns: u64,
}

impl Session {
    /// The sender wants to know how its message ends, where consumers say so.
    #[inline]
    pub(super) fn ask_end(&self, io: &Io, broker: &mut Broker, place: Place, delivery: &Delivery, message: &Message) {
        if !delivery.settled && delivery.transaction.is_none() {
            broker.ask_end(message, Waiter { conn: io.id, channel: place.0, number: delivery.id.into() });
        }
    }

    /// A delivery is answered when its receipt is complete.
    pub(super) fn await_end(
        &mut self,
        broker: &Broker,
        place: Place,
        delivery: Delivery,
        (receipt, asked): (ReceiptId, bool),
    ) {
        let made_ns = broker.now_ns;
        let Some(channel) = self.channel(place.0) else { return };
        if let Some(Link::In(inlet)) = channel.link(place.1) {
            inlet.awaited += 1;
        }
        channel.awaited.insert(delivery.id, Awaited { handle: place.1, delivery, receipt, asked, made_ns });
    }

    /// A consumer has answered for a delivery; the answer leaves with `send_owed`.
    pub fn ended(&mut self, io: &mut Io, broker: &mut Broker, ended: &Ended) {
        let number = ended.waiter.channel;
        let Some(channel) = self.channel(number) else { return };
        let id = ended.waiter.number as u32;
        if channel.awaited.get(&id).is_none_or(|awaited| awaited.receipt != ended.receipt) {
            return;
        }
        let Some(Awaited { handle, delivery, asked, made_ns, .. }) = channel.awaited.remove(&id) else { return };
        let place = (number, handle);
        let mut rests = false;
        if let Some(Link::In(inlet)) = channel.link(handle) {
            inlet.awaited -= 1;
            // The same message may come again at once, if it was not for want of another consumer.
            let returned = matches!(ended.fate, Fate::Released | Fate::Modified { undeliverable: false, .. });
            rests = inlet.refusal.is_some() && returned && !asked;
            inlet.refused += u32::from(rests);
            if inlet.credit <= inlet.window / 2 {
                channel.thirst(handle);
            }
        }
        broker.note_answered(made_ns);
        let verdict = match asked && ended.fate != Fate::Accepted {
            true => Verdict::Released,
            false => Verdict::Ended(ended.fate.clone()),
        };
        self.answer_delivery(io, place, delivery, verdict);
        self.owe(number);
        if rests {
            self.rest(io, broker, place);
        }
    }

    /// Links go: nobody waits for their deliveries any more.
    pub(super) fn abandon_awaited(&mut self, broker: &mut Broker, number: u16, handle: Option<u32>) {
        let Some(channel) = self.channel(number) else { return };
        channel.awaited.retain(|_, awaited| {
            let goes = handle.is_none_or(|handle| awaited.handle == handle);
            if goes {
                broker.abandon(awaited.receipt);
            }
            !goes
        });
    }
}
