//! Messages that wait for their time, in memory and, if they are durable, on disk.
//!
//! Owns what delayed exchanges hold back. A message comes in with a delay and leaves to its exchange when the time has
//! come; a durable one is stored meanwhile in a row of the journal of its own, and comes back from there after a
//! restart. It must never route twice: leaving that row and entering queues is one batch. Rules: RabbitMQ's delayed
//! message exchange; docs/guides/durability.md, "What is kept".

use std::rc::Rc;

use weft_journal::{Messages, Read, Target};

use super::guard::Place;
use super::stored::ReadFor;
use super::{Broker, Published};
use crate::durability::{Durability, Needs};
use crate::message::{Message, Name};
use crate::queue::ready::NEVER;
use crate::record;
use crate::routing::ExchangeId;
use crate::timers::Due;

/// Their number in the journal; those of declared queues are smaller.
pub(super) const NUMBER: u64 = (1 << 62) + 2;
/// Messages, and bytes, read from disk at a time when a node starts.
const READ_COUNT: usize = 256;
const READ_BYTES: usize = 1 << 20;

/// A message that waits for its time.
pub(super) struct Delayed {
    vhost: Name,
    exchange: Name,
    message: Rc<Message>,
    more_keys: Vec<Box<[u8]>>,
    stored: bool,
}

impl Broker {
    /// Keeps a message until its time, then routes it as `publish` would. The barrier of its exchange looks at it now.
    pub fn delay(
        &mut self,
        exchange: ExchangeId,
        message: &Rc<Message>,
        more_keys: &[Box<[u8]>],
        delay_ms: u64,
    ) -> Published {
        let Some(found) = self.exchanges.get(exchange) else { return Published::default() };
        let Some(vhost) = self.vhosts.get(found.vhost).map(|vhost| Rc::clone(&vhost.name)) else {
            return Published::default();
        };
        let (guarded, name) = (found.barrier.is_some(), Rc::clone(&found.name));
        let known = guarded && self.guard(Place::Exchange(exchange), message);
        let mut published = Published { queues: usize::from(!known), ..Published::default() };
        if known {
            self.settle_guards(message, &mut published, true);
            return published;
        }
        let more_keys = more_keys.to_vec();
        let mut delayed = Delayed { vhost, exchange: name, message: Rc::clone(message), more_keys, stored: false };
        let number = self.delayed_count + 1;
        let kept = self.store_delayed(number, &delayed, delay_ms);
        published.rejected = kept.is_none();
        published.stored = kept == Some(true);
        self.settle_guards(message, &mut published, kept.is_some());
        if kept.is_some() {
            delayed.stored = published.stored;
            self.delayed_count = number;
            self.wait_until_due(number, delayed, delay_ms);
        }
        published
    }

    fn wait_until_due(&mut self, number: u64, delayed: Delayed, delay_ms: u64) {
        self.delayed.insert(number, delayed);
        let at_ns = self.now_ns.saturating_add(delay_ms.saturating_mul(1_000_000)).min(NEVER - 1);
        self.timers.set(at_ns, Due::Delayed(number));
    }

    /// Stores a message that is to be kept: was it? None if it cannot be stored.
    fn store_delayed(&mut self, number: u64, delayed: &Delayed, delay_ms: u64) -> Option<bool> {
        let (level, due_ms) = (self.durability, (self.wall_ns / 1_000_000).saturating_add(delay_ms).max(1));
        let keep = delayed.message.traits.durable && level != Durability::Memory;
        let Some(store) = self.store.as_mut().filter(|_| keep) else { return Some(false) };
        let mut head = Vec::new();
        encode(delayed, &mut head);
        let target = Target { queue_no: NUMBER, position: number, expires_ms: due_ms, transient: false };
        let body = delayed.message.body().parts();
        let batch = store.journal.append_message(&head, body, &[target]).ok()?;
        let synced = if level == Durability::Sync { batch } else { 0 };
        store.last = store.last.and(Needs { written: batch, synced });
        Some(true)
    }

    /// A delayed message's time has come.
    pub fn release_delayed(&mut self, number: u64) {
        let Some(delayed) = self.delayed.remove(&number) else { return };
        self.begin();
        let vhost = self.find_vhost(&delayed.vhost);
        if let Some(exchange) = vhost.and_then(|vhost| self.find_exchange(vhost, &delayed.exchange)) {
            let more_keys: Vec<&[u8]> = delayed.more_keys.iter().map(|key| &**key).collect();
            self.publish_past(exchange, &delayed.message, &more_keys);
        }
        if let Some(store) = self.store.as_mut().filter(|_| delayed.stored) {
            store.journal.ack(NUMBER, number);
        }
        self.commit();
    }

    /// The node has a disk: what waited there before this start waits again.
    pub(super) fn find_delayed(&mut self) {
        let Some(store) = &mut self.store else { return };
        let Some(at) = store.found.iter().position(|found| found.queue_no == NUMBER) else { return };
        let found = store.found.swap_remove(at);
        self.delayed_count = self.delayed_count.max(found.next_position);
        self.read_delayed(found.first_position);
    }

    fn read_delayed(&mut self, from: u64) {
        let Some(store) = &mut self.store else { return };
        match store.journal.read(NUMBER, from, READ_COUNT, READ_BYTES) {
            Read::Empty => {}
            Read::Ready(messages) => self.delayed_came(from, &messages),
            Read::Waits(token) => store.reads.push((token, ReadFor::Delayed(from))),
        }
    }

    /// Delayed messages have come from disk; more may wait behind them.
    pub(super) fn delayed_came(&mut self, from: u64, messages: &Messages) {
        let wall_ms = self.wall_ns / 1_000_000;
        let mut next = from;
        let mut names = record::Names::default();
        for stored in messages.iter() {
            next = stored.position + 1;
            let Some((vhost, exchange, more_keys, head)) = decode(stored.head) else { continue };
            if let Some(message) = record::decode(head, stored.body, &self.own_account, &mut names) {
                let delayed = Delayed { vhost, exchange, message: Rc::new(message), more_keys, stored: true };
                self.wait_until_due(stored.position, delayed, stored.expires_ms.saturating_sub(wall_ms));
            }
        }
        self.read_delayed(next);
    }

    /// Messages that wait for their time.
    pub fn delayed_len(&self) -> usize {
        self.delayed.len()
    }
}

/// Virtual host, exchange and further keys before the message's own head.
fn encode(delayed: &Delayed, out: &mut Vec<u8>) {
    let put = |out: &mut Vec<u8>, bytes: &[u8]| {
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(bytes);
    };
    put(out, &delayed.vhost);
    put(out, &delayed.exchange);
    out.extend_from_slice(&(delayed.more_keys.len() as u32).to_le_bytes());
    delayed.more_keys.iter().for_each(|key| put(out, key));
    record::encode(&delayed.message, out);
}

type Decoded<'a> = (Name, Name, Vec<Box<[u8]>>, &'a [u8]);

fn decode(mut head: &[u8]) -> Option<Decoded<'_>> {
    fn number(head: &mut &[u8]) -> Option<usize> {
        let (front, rest) = head.split_first_chunk()?;
        *head = rest;
        Some(u32::from_le_bytes(*front) as usize)
    }
    fn text<'a>(head: &mut &'a [u8]) -> Option<&'a [u8]> {
        let len = number(head)?;
        let (front, rest) = head.split_at_checked(len)?;
        *head = rest;
        Some(front)
    }
    let (vhost, exchange) = (Name::from(text(&mut head)?), Name::from(text(&mut head)?));
    let count = number(&mut head)?;
    let keys = (0..count).map(|_| text(&mut head).map(Box::from)).collect::<Option<Vec<_>>>()?;
    Some((vhost, exchange, keys, head))
}
