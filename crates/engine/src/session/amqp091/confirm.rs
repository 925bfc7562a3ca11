//! Publisher confirms.
//!
//! Owns the numbering of publishes on a channel in confirm mode and the acks and nacks that answer them. Outcomes come
//! in one by one and leave in runs, one frame for each batch of bytes read; those of publishes that their consumers
//! answer come later, in any order. It must never ack what a queue or a consumer has refused. Rules: RabbitMQ's
//! confirm.select; an ack with `multiple` speaks for everything before it, so nothing before it may still be open.

use std::collections::BTreeMap;

use weft_wire::amqp091::{Method, reply};

use super::{Fault, Session};
use crate::broker::{Broker, Ended, Fate, ReceiptId};
use crate::conn::Io;

/// Confirms of one channel.
#[derive(Debug, Default)]
pub(super) struct Confirms {
    /// Publishes so far.
    count: u64,
    /// The last one that was answered.
    sent: u64,
    /// The last one that may be acked.
    acked: u64,
    /// Publishes that wait for their consumers, and when they came.
    open: BTreeMap<u64, (ReceiptId, u64)>,
    /// Publishes to be acked that have an open one before them, or had.
    apart: Vec<u64>,
}

impl Confirms {
    /// Publishes so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The next publish was taken. True when the channel has to be listed for sending.
    #[inline]
    pub fn ack(&mut self) -> bool {
        self.count += 1;
        if !self.open.is_empty() || !self.apart.is_empty() {
            self.apart.push(self.count);
            return self.apart.len() == 1 && self.acked == self.sent;
        }
        let first = self.acked == self.sent;
        self.acked = self.count;
        first
    }

    /// The next publish is answered by its consumer.
    fn hold(&mut self, receipt: ReceiptId, now_ns: u64) {
        self.count += 1;
        self.open.insert(self.count, (receipt, now_ns));
    }

    /// A publish that was held is answered; when it came. None if it is not the one that is meant.
    fn end(&mut self, ended: &Ended) -> Option<u64> {
        let known = self.open.get(&ended.waiter.number).filter(|open| open.0 == ended.receipt)?;
        let made_ns = known.1;
        self.open.remove(&ended.waiter.number);
        Some(made_ns)
    }

    /// The next publish was refused: what came before it is answered first.
    pub fn nack(&mut self, number: u16, out: &mut Vec<u8>) {
        self.send(number, out, true);
        self.count += 1;
        (self.sent, self.acked) = (self.count, self.count);
        write_nack(number, self.count, out);
    }

    /// Answers everything that was taken since the last time. Acks may not be `spanned` by one where earlier ones of
    /// this channel have not left yet.
    pub fn send(&mut self, number: u16, out: &mut Vec<u8>, spanned: bool) {
        if self.acked > self.sent {
            let multiple = self.acked - self.sent > 1;
            Method::BasicAck { delivery_tag: self.acked, multiple }.encode_frame(number, out);
            self.sent = self.acked;
        }
        if self.apart.is_empty() {
            return;
        }
        self.apart.sort_unstable();
        let first_open = self.open.keys().next().copied().unwrap_or(u64::MAX);
        let before = self.apart.partition_point(|tag| *tag < first_open);
        let together = if spanned { before.saturating_sub(1) } else { 0 };
        for (at, tag) in self.apart.drain(..).enumerate().skip(together) {
            let multiple = together > 0 && at == together;
            Method::BasicAck { delivery_tag: tag, multiple }.encode_frame(number, out);
        }
        if self.open.is_empty() {
            (self.sent, self.acked) = (self.count, self.count);
        }
    }
}

fn write_nack(number: u16, delivery_tag: u64, out: &mut Vec<u8>) {
    // What is to be done with it is the publisher's to say; the flag has its default.
    Method::BasicNack { delivery_tag, multiple: false, requeue: true }.encode_frame(number, out);
}

impl Session {
    pub(super) fn on_confirm_select(&mut self, io: &mut Io, number: u16, no_wait: bool) -> Result<(), Fault> {
        let Some(channel) = self.channel(number) else { return Ok(()) };
        if channel.transaction.is_some() {
            return Err(Fault::channel(reply::PRECONDITION_FAILED, "cannot switch from tx to confirm mode"));
        }
        channel.confirms.get_or_insert_with(Confirms::default);
        if !no_wait {
            Method::ConfirmSelectOk.encode_frame(number, &mut io.output);
        }
        Ok(())
    }

    /// At the end of a batch: one ack per channel for all that it published.
    #[inline]
    pub(super) fn send_confirms(&mut self, io: &mut Io) {
        while let Some(number) = self.confirming.pop() {
            if let Some(confirms) = self.channel(number).and_then(|channel| channel.confirms.as_mut()) {
                io.promise(number, |out| confirms.send(number, out, true));
            }
        }
    }

    /// A publish is held until its consumer answers.
    pub(super) fn hold_confirm(&mut self, io: &mut Io, broker: &Broker, number: u16, receipt: ReceiptId) {
        let Some(confirms) = self.channel(number).and_then(|channel| channel.confirms.as_mut()) else { return };
        confirms.hold(receipt, broker.now_ns);
        io.awaited += 1;
        io.promised += 1;
    }

    /// A consumer has answered for a publish. Its ack leaves with `send_ended`.
    pub fn ended(&mut self, io: &mut Io, broker: &mut Broker, ended: &Ended) {
        let number = ended.waiter.channel;
        let Some(confirms) = self.channel(number).and_then(|channel| channel.confirms.as_mut()) else { return };
        let Some(made_ns) = confirms.end(ended) else { return };
        io.awaited -= 1;
        broker.note_answered(made_ns);
        match ended.fate {
            Fate::Accepted => {
                confirms.apart.push(ended.waiter.number);
                if !self.confirming.contains(&number) {
                    self.confirming.push(number);
                }
            }
            _ => io.promise(number, |out| write_nack(number, ended.waiter.number, out)),
        }
    }

    /// All that ended by now was told: the acks leave. Those of others may still wait for the disk.
    pub fn send_ended(&mut self, io: &mut Io) {
        let spanned = io.deferred.is_empty() && io.promises.is_empty();
        while let Some(number) = self.confirming.pop() {
            if let Some(confirms) = self.channel(number).and_then(|channel| channel.confirms.as_mut()) {
                io.promise(number, |out| confirms.send(number, out, spanned));
            }
        }
    }

    /// A channel goes: nobody waits for its publishes any more.
    pub(super) fn abandon_confirms(&mut self, io: &mut Io, broker: &mut Broker, number: u16) {
        let Some(confirms) = self.channel(number).and_then(|channel| channel.confirms.as_mut()) else { return };
        let open = std::mem::take(&mut confirms.open);
        io.awaited -= open.len();
        open.into_values().for_each(|(receipt, _)| broker.abandon(receipt));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_after_what_came_before_it() {
        let (mut confirms, mut out) = (Confirms::default(), Vec::new());
        assert!(confirms.ack());
        assert!(!confirms.ack());
        confirms.nack(1, &mut out);
        assert!(confirms.ack());
        confirms.send(1, &mut out, true);
        confirms.send(1, &mut out, true);
        let mut expected = Vec::new();
        Method::BasicAck { delivery_tag: 2, multiple: true }.encode_frame(1, &mut expected);
        Method::BasicNack { delivery_tag: 3, multiple: false, requeue: true }.encode_frame(1, &mut expected);
        Method::BasicAck { delivery_tag: 4, multiple: false }.encode_frame(1, &mut expected);
        assert_eq!(out, expected);
    }

    fn answered(open: [u64; 2], spanned: bool) -> Vec<(u64, bool)> {
        let (mut confirms, mut out) = (Confirms::default(), Vec::new());
        for tag in 1..=8 {
            match open.contains(&tag) || tag == 2 {
                true => confirms.hold(ReceiptId::from_raw(tag), 0),
                false => drop(confirms.ack()),
            }
        }
        confirms.send(1, &mut out, true);
        let before = out.len();
        confirms.open.remove(&2);
        confirms.apart.push(2);
        confirms.ack();
        confirms.send(1, &mut out, spanned);
        let mut acks = Vec::new();
        let mut rest = &out[..];
        while let Ok(Some(frame)) = weft_wire::amqp091::frame::split(rest, 4_096) {
            if let Ok(Method::BasicAck { delivery_tag, multiple }) = Method::decode(frame.payload) {
                acks.push((delivery_tag, multiple));
            }
            rest = &rest[frame.size..];
        }
        assert!(before > 0 && rest.is_empty());
        acks
    }

    #[test]
    fn no_ack_speaks_for_a_publish_that_is_still_open() {
        let early = [(1, false), (3, false), (4, false), (6, false)];
        let expected = [&early[..], &[(8, false), (2, false), (9, false)]].concat();
        assert_eq!(answered([5, 7], true), expected);
        let early = [(1, false), (3, false), (4, false), (5, false), (6, false), (7, false), (8, false)];
        assert_eq!(answered([2, 2], true), [&early[..], &[(9, true)]].concat());
        assert_eq!(answered([2, 2], false), [&early[..], &[(2, false), (9, false)]].concat());
    }
}
