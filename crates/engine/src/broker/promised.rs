//! Promises of a node's last life: prepared transactions come back from the disk.
//!
//! Owns their records and the way back from them. Records come in pieces, then the deliveries that they hold, one by
//! one; until all are there no durable queue shows a message, since it might be one of these. It must never let go of
//! a promise that it can read. Rules: decision 0022; docs/internals/segment.md, "What the engine writes".

use std::rc::Rc;

use weft_journal::{Messages, Read};

use super::prepared::{Hold, NUMBER, Post, Prepared};
use super::reading::Reading;
use super::stored::ReadFor;
use super::{Broker, Outcome};
use crate::message::Name;
use crate::queue::QueueId;
use crate::record;

/// Records, and bytes, read from disk at a time when a node starts.
const READ_COUNT: usize = 256;
const READ_BYTES: usize = 1 << 20;

/// A record of a prepared transaction: it begins with one, then come its messages and deliveries.
pub(super) enum Kind<'a> {
    Begin { id: &'a [u8], user: &'a [u8], vhost: &'a [u8], since_ms: u64 },
    Post(&'a Post),
    Hold(&'a Hold),
}

impl Kind<'_> {
    /// `first` is where the transaction begins: records of two are never taken for one.
    pub(super) fn encode(&self, first: u64, out: &mut Vec<u8>) {
        out.push(match self {
            Self::Begin { .. } => 0,
            Self::Post(_) => 1,
            Self::Hold(_) => 2,
        });
        out.extend_from_slice(&first.to_le_bytes());
        match self {
            Self::Begin { id, user, vhost, since_ms } => {
                [*id, *user, *vhost].into_iter().for_each(|text| put(out, text));
                out.extend_from_slice(&since_ms.to_le_bytes());
            }
            Self::Post(post) => {
                put(out, &post.exchange);
                out.extend_from_slice(&(post.more_keys.len() as u64).to_le_bytes());
                post.more_keys.iter().for_each(|key| put(out, key));
                out.extend_from_slice(&post.delay_ms.to_le_bytes());
                record::encode(&post.message, out);
            }
            Self::Hold(hold) => {
                out.extend_from_slice(&hold.queue_no.to_le_bytes());
                out.extend_from_slice(&hold.position.to_le_bytes());
                out.push(match hold.outcome {
                    Outcome::Accepted => 0,
                    Outcome::Rejected => 1,
                    Outcome::Returned { failed: false } => 2,
                    Outcome::Returned { failed: true } => 3,
                });
            }
        }
    }
}

fn put(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text);
}

fn number(head: &mut &[u8]) -> Option<u64> {
    let (front, rest) = head.split_first_chunk()?;
    *head = rest;
    Some(u64::from_le_bytes(*front))
}

fn text<'a>(head: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(number(head)?).ok()?;
    let (front, rest) = head.split_at_checked(len)?;
    *head = rest;
    Some(front)
}

fn begin_of(mut head: &[u8]) -> Option<(&[u8], Prepared)> {
    let (id, user, vhost) = (text(&mut head)?, text(&mut head)?, text(&mut head)?);
    Some((id, Prepared::new(Name::from(user), Name::from(vhost), number(&mut head)?)))
}

/// Exchange, further keys, delay, and the message's own head.
type PostHead<'a> = (Name, Vec<Box<[u8]>>, u64, &'a [u8]);

fn post_of(mut head: &[u8]) -> Option<PostHead<'_>> {
    let exchange = Name::from(text(&mut head)?);
    let count = number(&mut head)?;
    let keys = (0..count).map(|_| text(&mut head).map(Box::from)).collect::<Option<Vec<_>>>()?;
    Some((exchange, keys, number(&mut head)?, head))
}

fn hold_of(mut head: &[u8]) -> Option<Hold> {
    let (queue_no, position) = (number(&mut head)?, number(&mut head)?);
    let outcome = match head {
        [0] => Outcome::Accepted,
        [1] => Outcome::Rejected,
        [2] => Outcome::Returned { failed: false },
        [3] => Outcome::Returned { failed: true },
        _ => return None,
    };
    Some(Hold { queue: None, queue_no, position, outcome, entry: None })
}

impl Broker {
    /// Reads on in the records of the last life, if there are any.
    pub(super) fn read_prepared(&mut self) {
        let Some((from, until)) = self.prepared.coming else { return self.recovered() };
        let Some(store) = self.store.as_mut().filter(|_| from < until) else { return self.read_holds() };
        match store.journal.read(NUMBER, from, READ_COUNT, READ_BYTES) {
            Read::Empty => self.read_holds(),
            Read::Ready(messages) => self.prepared_came(&messages),
            Read::Waits(token) => store.reads.push((token, ReadFor::Prepared)),
        }
    }

    /// Records have come from disk; more may wait behind them.
    pub(super) fn prepared_came(&mut self, messages: &Messages) {
        let Some((from, until)) = self.prepared.coming else { return };
        let (table, mut names, mut next) = (&mut self.prepared, record::Names::default(), from);
        for stored in messages.iter() {
            next = stored.position + 1;
            let Some((kind, mut head)) = stored.head.split_first() else { continue };
            let Some(first) = number(&mut head) else { continue };
            if let (0, Some((id, prepared))) = (kind, begin_of(head)) {
                table.latest = Some(id.into());
                table.rows.insert(id.into(), Prepared { records: Some((first, first)), ..prepared });
            }
            let latest = table.latest.as_ref().and_then(|id| Some((id, table.rows.get_mut(id)?)));
            let Some((id, row)) = latest.filter(|(_, row)| row.records.is_some_and(|own| own.0 == first)) else {
                continue;
            };
            row.records = Some((first, stored.position));
            match kind {
                1 => {
                    let Some((exchange, more_keys, delay_ms, head)) = post_of(head) else { continue };
                    let Some(message) = record::decode(head, stored.body, &self.own_account, &mut names) else {
                        continue;
                    };
                    let bytes = message.body_len() as u64 + crate::memory::MESSAGE_OVERHEAD_BYTES;
                    (row.bytes, table.bytes) = (row.bytes + bytes, table.bytes + bytes);
                    row.posts.push(Post { exchange, message: Rc::new(message), more_keys, delay_ms });
                }
                2 => {
                    let Some(hold) = hold_of(head) else { continue };
                    table.unread.push((id.clone(), row.holds.len()));
                    row.holds.push(hold);
                }
                _ => {}
            }
        }
        self.prepared.coming = Some((next, until));
        self.read_prepared();
    }

    /// Reads the deliveries that are held, one after the other.
    pub(super) fn read_holds(&mut self) {
        while let Some((id, index)) = self.prepared.unread.last() {
            let hold = self.prepared.rows.get(id).and_then(|row| row.holds.get(*index));
            let (Some(hold), Some(store)) = (hold, &mut self.store) else { break };
            let (queue_no, position) = (hold.queue_no, hold.position);
            if !store.journal.waits(queue_no, position) {
                self.prepared.unread.pop();
                continue;
            }
            match store.journal.read(queue_no, position, 1, READ_BYTES) {
                Read::Empty => drop(self.prepared.unread.pop()),
                Read::Ready(messages) => self.keep_hold(&messages),
                Read::Waits(token) => return store.reads.push((token, ReadFor::Held)),
            }
        }
        self.prepared.unread.clear();
        self.prepared.coming = None;
        let ids: Vec<QueueId> = self.queues.iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| self.hold_stored(id));
        self.recovered();
    }

    /// A delivery has come from disk. None may come although it waits there: then it is read once more.
    pub(super) fn held_came(&mut self, messages: &Messages) {
        self.keep_hold(messages);
        self.read_holds();
    }

    fn keep_hold(&mut self, messages: &Messages) {
        let (Some(stored), Some((id, index))) = (messages.iter().next(), self.prepared.unread.last()) else { return };
        let hold = self.prepared.rows.get_mut(id).and_then(|row| row.holds.get_mut(*index));
        if let Some(hold) = hold.filter(|hold| hold.position == stored.position) {
            // Whoever had it before this start: it was delivered.
            let mut reading = Reading::new(self.now_ns, self.wall_ns, &self.own_account, &self.counts);
            hold.entry = reading.entry(hold.queue_no, u64::MAX, &stored);
        }
        self.prepared.unread.pop();
    }

    /// A queue is there, and all promises are known: what they hold in it nobody else gets.
    pub(super) fn hold_stored(&mut self, id: QueueId) {
        let Some(queue) = self.queues.get_mut(id).filter(|queue| queue.settings.number != 0) else { return };
        if self.prepared.coming.is_some() {
            return;
        }
        let number = queue.settings.number;
        let holds = self.prepared.rows.values_mut().flat_map(|row| &mut row.holds);
        for hold in holds.filter(|hold| hold.queue_no == number && hold.queue.is_none()) {
            if let Some(entry) = &hold.entry {
                queue.take_out_of_turn(hold.position, entry.message.body_len() as u64);
                queue.unsettled += 1;
                hold.queue = Some(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_are_cut_are_none() {
        let mut head = Vec::new();
        Kind::Begin { id: b"id", user: b"me", vhost: b"/", since_ms: 7 }.encode(5, &mut head);
        let (id, row) = begin_of(&head[9..]).expect("whole");
        assert_eq!((id, &*row.user, &*row.vhost, row.since_ms), (&b"id"[..], &b"me"[..], &b"/"[..], 7));
        (9..head.len()).for_each(|len| assert!(begin_of(&head[9..len]).is_none()));
        for outcome in [Outcome::Accepted, Outcome::Rejected, Outcome::Returned { failed: true }] {
            let mut head = Vec::new();
            Kind::Hold(&Hold { queue: None, queue_no: 3, position: 9, outcome, entry: None }).encode(5, &mut head);
            let hold = hold_of(&head[9..]).expect("whole");
            assert_eq!((hold.queue_no, hold.position, hold.outcome), (3, 9, outcome));
            (9..head.len()).for_each(|len| assert!(hold_of(&head[9..len]).is_none()));
        }
        assert!(post_of(&[255; 40]).is_none());
    }
}
