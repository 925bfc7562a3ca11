//! Publisher confirms.
//!
//! Owns the numbering of publishes on a channel in confirm mode and the acks and nacks that answer them. Outcomes come
//! in one by one and leave in runs, one frame for each batch of bytes read. It must never ack what a queue has refused.
//! Rule: RabbitMQ's confirm.select; an ack with `multiple` speaks for everything before it, so runs are sent in order.

use weft_wire::amqp091::{Method, reply};

use super::{Fault, Session};
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
        let first = self.acked == self.sent;
        self.acked = self.count;
        first
    }

    /// The next publish was refused: what came before it is answered first.
    pub fn nack(&mut self, number: u16, out: &mut Vec<u8>) {
        self.send(number, out);
        self.count += 1;
        (self.sent, self.acked) = (self.count, self.count);
        let nack = Method::BasicNack { delivery_tag: self.count, multiple: false, requeue: false };
        nack.encode_frame(number, out);
    }

    /// Answers everything that was taken since the last time.
    pub fn send(&mut self, number: u16, out: &mut Vec<u8>) {
        if self.acked > self.sent {
            let multiple = self.acked - self.sent > 1;
            Method::BasicAck { delivery_tag: self.acked, multiple }.encode_frame(number, out);
            self.sent = self.acked;
        }
    }
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
                io.promise(number, |out| confirms.send(number, out));
            }
        }
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
        confirms.send(1, &mut out);
        confirms.send(1, &mut out);
        let mut expected = Vec::new();
        Method::BasicAck { delivery_tag: 2, multiple: true }.encode_frame(1, &mut expected);
        Method::BasicNack { delivery_tag: 3, multiple: false, requeue: false }.encode_frame(1, &mut expected);
        Method::BasicAck { delivery_tag: 4, multiple: false }.encode_frame(1, &mut expected);
        assert_eq!(out, expected);
    }
}
