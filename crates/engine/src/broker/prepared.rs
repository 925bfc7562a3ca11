//! Transactions that have promised to be committed and wait to hear whether they are.
//!
//! Owns them by their global ids: messages that nobody sees yet, deliveries that nobody gets. A session prepares one;
//! whoever may, on whatever connection, has it carried out or undone, also after a restart. Its records and their end
//! are each one batch of the journal. It must never decide by itself: a promise has no deadline.
//! Rules: decision 0022; docs/reference/amqp-1.0.md, "Two-phase commit".

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_journal::Target;

use super::promised::Kind;
use super::{Broker, Outcome};
use crate::message::{Message, Name};
use crate::queue::QueueId;
use crate::queue::ready::Entry;

/// Their number in the journal; those of declared queues are smaller.
pub(super) const NUMBER: u64 = (1 << 62) + 4;
/// A global id is as long as this at most: two UUIDs and a name.
pub const GLOBAL_ID_BYTES_MAX: usize = 128;

/// A message that is published if its transaction is committed.
pub struct Post {
    pub exchange: Name,
    pub message: Rc<Message>,
    pub more_keys: Vec<Box<[u8]>>,
    pub delay_ms: u64,
}

/// A delivery that ends so if its transaction is committed.
pub struct Hold {
    /// None after a restart, until its queue is there.
    pub queue: Option<QueueId>,
    /// Where it is on disk; 0: nowhere.
    pub queue_no: u64,
    pub position: u64,
    pub outcome: Outcome,
    /// None after a restart, until it was read.
    pub entry: Option<Entry>,
}

/// A prepared transaction.
pub struct Prepared {
    pub user: Name,
    pub vhost: Name,
    /// When it was prepared, in milliseconds since 1970.
    pub since_ms: u64,
    pub posts: Vec<Post>,
    pub holds: Vec<Hold>,
    pub bytes: u64,
    /// The first and last of its records.
    pub(super) records: Option<(u64, u64)>,
}

impl Prepared {
    pub fn new(user: Name, vhost: Name, since_ms: u64) -> Self {
        Self { user, vhost, since_ms, posts: Vec::new(), holds: Vec::new(), bytes: 0, records: None }
    }
}

/// Why a transaction cannot be ended now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unresolved {
    /// It is not there: never prepared, or over.
    Unknown,
    /// Another user's, or in another virtual host.
    NotYours,
    /// The node has just started and is still reading.
    NotYet,
}

/// Every prepared transaction of a node.
#[derive(Default)]
pub(super) struct PreparedTable {
    pub(super) rows: BTreeMap<Box<[u8]>, Prepared>,
    pub(super) bytes: u64,
    pub(super) next_position: u64,
    /// Records of this node's last life, from one position to another, until all were read.
    pub(super) coming: Option<(u64, u64)>,
    /// The transaction whose records come next.
    pub(super) latest: Option<Box<[u8]>>,
    /// Deliveries that are yet to be read.
    pub(super) unread: Vec<(Box<[u8]>, usize)>,
}

impl Broker {
    /// Why a transaction with so many bytes cannot be prepared under this id.
    pub fn cannot_prepare(&self, id: &[u8], bytes: u64) -> Option<&'static str> {
        let table = &self.prepared;
        if id.is_empty() || id.len() > GLOBAL_ID_BYTES_MAX {
            return Some("a global id has from 1 to 128 bytes");
        }
        if table.rows.contains_key(id) || table.coming.is_some() {
            return Some("a transaction with this global id is prepared already, or may be");
        }
        let crowded = table.rows.len() >= self.limits.prepared_max;
        (crowded || table.bytes + bytes > self.limits.prepared_bytes_max)
            .then_some("too much is prepared here and not resolved")
    }

    /// Keeps a transaction until it is resolved. It comes back if the disk cannot take it.
    pub fn prepare(&mut self, id: &[u8], mut prepared: Prepared) -> Option<Prepared> {
        self.begin();
        let stored = self.store_prepared(id, &mut prepared);
        if !stored {
            self.forget_prepared(&prepared);
        }
        self.commit();
        if !stored {
            return Some(prepared);
        }
        self.prepared.bytes += prepared.bytes;
        self.prepared.rows.insert(id.into(), prepared);
        None
    }

    fn store_prepared(&mut self, id: &[u8], prepared: &mut Prepared) -> bool {
        let Some(store) = &mut self.store else { return true };
        let (first, mut head) = (self.prepared.next_position, Vec::new());
        let mut put = |kind: Kind<'_>, body: Option<&Message>, table: &mut PreparedTable| {
            let position = table.next_position;
            head.clear();
            kind.encode(first, &mut head);
            let target = Target { queue_no: NUMBER, position, expires_ms: 0, transient: false };
            let stored = match body {
                Some(message) => store.journal.append_message(&head, message.body().parts(), &[target]),
                None => store.journal.append_message(&head, std::iter::empty(), &[target]),
            };
            table.next_position += u64::from(stored.is_ok());
            stored.is_ok()
        };
        let table = &mut self.prepared;
        let begin = Kind::Begin { id, user: &prepared.user, vhost: &prepared.vhost, since_ms: prepared.since_ms };
        let whole = put(begin, None, table)
            && prepared.posts.iter().all(|post| put(Kind::Post(post), Some(&post.message), table))
            && prepared.holds.iter().filter(|hold| hold.queue_no != 0).all(|hold| put(Kind::Hold(hold), None, table));
        if table.next_position > first {
            prepared.records = Some((first, table.next_position - 1));
        }
        whole
    }

    fn forget_prepared(&mut self, prepared: &Prepared) {
        if let (Some(store), Some((first, last))) = (&mut self.store, prepared.records) {
            store.journal.ack_range(NUMBER, first, last);
        }
    }

    /// Ends a transaction for a principal, who must be the user that prepared it, in the same virtual host.
    pub fn resolve_as(&mut self, principal: u32, id: &[u8], commit: bool) -> Result<(), Unresolved> {
        let vhost =
            |broker: &Self, own: &super::Principal| broker.vhosts.get(own.vhost).map(|vhost| vhost.name.clone());
        let own = self.principals.get(&principal).and_then(|own| Some((own.user.clone(), vhost(self, own)?)));
        match (self.prepared.rows.get(id), own) {
            (Some(row), Some((user, vhost))) if row.user == user && row.vhost == vhost => self.resolve(id, commit),
            (Some(_), _) => Err(Unresolved::NotYours),
            (None, _) => self.resolve(id, commit),
        }
    }

    /// Carries a transaction out, or undoes it.
    pub fn resolve(&mut self, id: &[u8], commit: bool) -> Result<(), Unresolved> {
        if self.prepared.coming.is_some() {
            return Err(Unresolved::NotYet);
        }
        let prepared = self.prepared.rows.remove(id).ok_or(Unresolved::Unknown)?;
        self.prepared.bytes -= prepared.bytes;
        self.begin();
        self.forget_prepared(&prepared);
        if commit {
            self.publish_prepared(&prepared);
        }
        self.end_holds(prepared.holds, commit);
        self.commit();
        self.totals.committed += u64::from(commit);
        self.totals.rolled_back += u64::from(!commit);
        Ok(())
    }

    /// Deliveries end as their transaction does.
    pub fn end_holds(&mut self, holds: Vec<Hold>, commit: bool) {
        for hold in holds {
            let Some((queue, entry)) = hold.queue.zip(hold.entry) else { continue };
            // Somebody tried and did not get to the end: that is a failed delivery.
            self.settle(queue, entry, if commit { hold.outcome } else { Outcome::Returned { failed: true } });
        }
    }

    /// It was promised, so queues take it even if they have become full meanwhile.
    fn publish_prepared(&mut self, prepared: &Prepared) {
        let Some(vhost) = self.find_vhost(&prepared.vhost) else { return };
        self.admits = true;
        for post in &prepared.posts {
            let Some(exchange) = self.find_exchange(vhost, &post.exchange) else {
                self.totals.unroutable += 1;
                continue;
            };
            if post.delay_ms > 0 {
                self.delay(exchange, &post.message, &post.more_keys, post.delay_ms);
            } else {
                let more_keys: Vec<&[u8]> = post.more_keys.iter().map(|key| &**key).collect();
                self.publish(exchange, &post.message, &more_keys);
            }
        }
        self.admits = false;
    }

    /// Are promises of the last life still being read?
    pub fn is_recovering(&self) -> bool {
        self.prepared.coming.is_some()
    }

    /// Every prepared transaction with its global id.
    pub fn prepared(&self) -> impl Iterator<Item = (&[u8], &Prepared)> {
        self.prepared.rows.iter().map(|(id, prepared)| (&**id, prepared))
    }

    /// The node has a disk: are there promises of its last life?
    pub(super) fn find_prepared(&mut self) {
        let Some(store) = &mut self.store else { return };
        let Some(at) = store.found.iter().position(|found| found.queue_no == NUMBER) else { return };
        let found = store.found.swap_remove(at);
        self.prepared.next_position = found.next_position;
        self.prepared.coming = Some((found.first_position, found.next_position));
    }
}
