//! Who holds how much message memory, and who must wait.
//!
//! Owns the ledger of the node, one account per connection, and one within it per link that wants it. Each message
//! carries a `Charge` that is written at its birth and erased when its last holder lets go, so nothing can be
//! forgotten. It must never decide by itself to stop anyone: it answers `over`. Rule: dynamic thresholds as in
//! shared-memory switches (Choudhury and Hahne 1998): an account may hold at most as much as is still free, so a flood
//! stops at half of the memory and there is always room for those whose messages flow.

use std::cell::Cell;
use std::rc::Rc;

/// What a message costs beyond its bytes: the message, its queue entry, the allocator.
pub const MESSAGE_OVERHEAD_BYTES: u64 = 256;
/// An account below this is never stopped while the node as a whole has room.
const ACCOUNT_BYTES_MIN: u64 = 256 << 10;
/// A message that is still coming must bring so much more, or its end, within `limits.unfinished_s`: about 550 bytes a
/// second by default, which is slow for any line and dear for whoever would hold much memory by it.
const PROGRESS_BYTES_MIN: u64 = 64 << 10;

/// Message memory of the whole node.
#[derive(Debug)]
pub struct Ledger {
    used: Cell<u64>,
    /// What messages take of it that have not come to their end.
    unfinished: Cell<u64>,
    max: u64,
}

/// Message memory written by one connection, or by one link of it.
#[derive(Debug)]
pub struct Account {
    ledger: Rc<Ledger>,
    /// The connection's account, if this is a link's.
    parent: Option<Rc<Self>>,
    used: Cell<u64>,
    unfinished: Cell<u64>,
    messages: Cell<u32>,
}

/// The entry of one message; dropping it gives the memory back.
#[derive(Debug)]
pub struct Charge {
    account: Rc<Account>,
    bytes: u64,
}

/// The entry of a message whose end has not come yet. All of them together have half of the memory: who holds parts of
/// messages and never ends them must not stop those who do, nor wait for memory that only others like it could free.
#[derive(Debug)]
pub struct Unfinished {
    charge: Charge,
    /// How far it had come when it last made progress, and when that was.
    reached: u64,
    reached_ns: u64,
}

impl Ledger {
    pub fn new(max: u64) -> Rc<Self> {
        Rc::new(Self { used: Cell::new(0), unfinished: Cell::new(0), max: max.max(1) })
    }
    pub fn used(&self) -> u64 {
        self.used.get()
    }
    pub fn max(&self) -> u64 {
        self.max
    }
    pub fn account(self: &Rc<Self>) -> Rc<Account> {
        self.open(None)
    }
    fn open(self: &Rc<Self>, parent: Option<Rc<Account>>) -> Rc<Account> {
        let (used, unfinished, messages) = (Cell::new(0), Cell::new(0), Cell::new(0));
        Rc::new(Account { ledger: Rc::clone(self), parent, used, unfinished, messages })
    }
}

impl Account {
    /// An account within this one.
    pub fn part(self: &Rc<Self>) -> Rc<Self> {
        self.ledger.open(Some(Rc::clone(self)))
    }

    /// Messages on this account.
    pub fn messages(&self) -> u32 {
        self.messages.get()
    }

    /// Writes a message of `bytes` to this account.
    #[inline]
    pub fn charge(self: &Rc<Self>, bytes: u64) -> Charge {
        let bytes = bytes + MESSAGE_OVERHEAD_BYTES;
        self.ledger.used.set(self.ledger.used.get() + bytes);
        self.messages.set(self.messages.get() + 1);
        self.used.set(self.used.get() + bytes);
        if let Some(parent) = &self.parent {
            parent.used.set(parent.used.get() + bytes);
        }
        Charge { account: Rc::clone(self), bytes }
    }

    /// Writes the part of a message that is here.
    pub fn charge_part(self: &Rc<Self>, bytes: u64, now_ns: u64) -> Unfinished {
        let charge = self.charge(bytes);
        for place in [&self.unfinished, &self.ledger.unfinished] {
            place.set(place.get() + charge.bytes);
        }
        Unfinished { charge, reached: bytes, reached_ns: now_ns }
    }

    /// Must this writer wait? Not for what it could not end then.
    #[inline]
    pub fn over(&self) -> bool {
        let free = self.ledger.max.saturating_sub(self.ledger.used.get());
        let own = self.finished();
        own > free && (own > ACCOUNT_BYTES_MIN || free == 0)
    }

    #[inline]
    fn finished(&self) -> u64 {
        self.used.get() - self.unfinished.get()
    }

    /// May a writer that waited go on? Later than `!over`, so that it does not flap.
    pub fn under(&self) -> bool {
        let free = self.ledger.max.saturating_sub(self.ledger.used.get());
        let own = self.finished();
        free > 0 && (own <= free - free / 5 || own <= ACCOUNT_BYTES_MIN)
    }

    pub fn used(&self) -> u64 {
        self.used.get()
    }
}

impl Charge {
    /// The same charge once more, for a new message made from this one.
    pub fn again(&self) -> Self {
        self.again_on(&self.account)
    }

    /// The same charge on another account.
    pub fn again_on(&self, account: &Rc<Account>) -> Self {
        account.charge(self.bytes - MESSAGE_OVERHEAD_BYTES)
    }
}

impl Unfinished {
    /// More of it is here.
    pub fn grow(&mut self, bytes: u64, now_ns: u64) {
        let (reached, reached_ns) = match bytes >= self.reached + PROGRESS_BYTES_MIN {
            true => (bytes, now_ns),
            false => (self.reached, self.reached_ns),
        };
        *self = Rc::clone(&self.charge.account).charge_part(bytes, now_ns);
        (self.reached, self.reached_ns) = (reached, reached_ns);
    }

    /// Nobody could have brought more of it: the node did not read.
    pub fn excuse(&mut self, now_ns: u64) {
        self.reached_ns = now_ns;
    }

    /// When it is given up if it makes no progress until then.
    pub fn due_ns(&self, unfinished_s: u16) -> u64 {
        self.reached_ns + u64::from(unfinished_s) * 1_000_000_000
    }

    /// The whole message is here.
    pub fn finish(self) -> Charge {
        self.charge.again()
    }

    /// Have unfinished messages taken their half, of which this is not the only one?
    pub fn is_too_much(&self) -> bool {
        let ledger = &self.charge.account.ledger;
        let all = ledger.unfinished.get();
        all > ledger.max / 2 && all > self.charge.bytes
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let account = &self.charge.account;
        for place in [&account.unfinished, &account.ledger.unfinished] {
            place.set(place.get() - self.charge.bytes);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let account = &self.account;
        account.messages.set(account.messages.get() - 1);
        account.used.set(account.used.get() - self.bytes);
        if let Some(parent) = &account.parent {
            parent.used.set(parent.used.get() - self.bytes);
        }
        account.ledger.used.set(account.ledger.used.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_stops_at_half_and_leaves_room_for_others() {
        let ledger = Ledger::new(64 << 20);
        let (flood, calm) = (ledger.account(), ledger.account());
        let mut held = Vec::new();
        while !flood.over() {
            held.push(flood.charge(1024));
        }
        assert!((31 << 20..33 << 20).contains(&ledger.used()), "{}", ledger.used());
        let _one = calm.charge(1024);
        assert!(!calm.over());
        held.truncate(held.len() / 2);
        assert!(flood.under());
        drop(held);
        assert_eq!(flood.used(), 0);
        let link = calm.part();
        let two = (link.charge(10), link.charge(20));
        assert_eq!((link.messages(), link.used(), calm.used()), (2, 542, 542 + 1280));
        drop(two);
        assert_eq!((link.messages(), calm.used()), (0, 1280));
    }
}
