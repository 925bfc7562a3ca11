//! The tables of the node: virtual hosts, exchanges, queues, consumers, principals.
//!
//! Owns everything that outlives a connection. Changes from Python come in and become rows; sessions publish, consume
//! and settle through it. It must never know a session, a frame or a socket: what a consumer is told is `delivery.rs`'s
//! business. Rules: decision 0003 (grants per principal), docs/concepts.

mod counted;
mod deadletter;
mod delayed;
mod doubt;
mod guard;
mod moving;
mod prepared;
mod promised;
mod publish;
mod quota;
mod reading;
mod receipts;
mod searching;
mod settle;
mod stored;
mod tables;
mod topics;

use std::collections::VecDeque;
use std::rc::Rc;

use crate::barrier::Barrier;
use crate::conn::{ConnId, Io};
use crate::durability::Durability;
use crate::event::{Access, Event, Resource};
use crate::hash::{Map, Seeded};
use crate::limits::Limits;
use crate::memory::{Account, Ledger};
use crate::message::{Message, Name};
use crate::queue::consumers::Consumer;
use crate::queue::{Queue, QueueId};
use crate::routing::matches::Matches;
use crate::routing::{Dest, Exchange, ExchangeId};
use crate::slab::{Id, Slab};
use crate::stats::{NodeLatency, Runs, Spans, Types};
use crate::stream::offsets::Offsets;
use crate::timers::{Due, Timers};

use deadletter::Dying;
pub use deadletter::{Death, Reason};
use delayed::Delayed;
pub use moving::{MOVE_COUNT_MAX, Moved};
pub use prepared::{Hold, Post, Prepared, Unresolved};
pub use publish::Published;
pub use quota::{Quota, Ticket};
pub use receipts::{Ended, Fate, ReceiptId, Waiter};
pub use searching::Searched;
pub use settle::Outcome;
pub use stored::{ReadFor, Store, holds_messages};
pub use tables::Unknown;
pub use topics::Topics;

/// Names a virtual host.
pub type VhostId = Id<Vhost>;

/// One virtual host: names of what is in it.
#[derive(Debug)]
pub struct Vhost {
    pub name: Name,
    pub exchanges: Map<Name, ExchangeId>,
    pub queues: Map<Name, QueueId>,
}

/// An answer of the policy, remembered.
#[derive(Clone, Debug)]
pub enum Permit {
    Yes,
    No(Rc<str>),
}

/// Where messages to an address go, remembered.
#[derive(Clone, Debug)]
pub enum Route {
    To {
        exchange: Name,
        routing_key: Option<Name>,
    },
    /// Known only as long as nothing changes: the next declare may make the address.
    Nowhere {
        code: u16,
        text: Rc<str>,
        generation: u64,
    },
}

/// A user in a virtual host, and what was decided for it.
pub struct Principal {
    pub user: Name,
    pub vhost: VhostId,
    pub impersonate: bool,
    grants: [Map<Name, Permit>; 6],
    pub addresses: Map<Name, Route>,
    topics: Topics,
    quota: Rc<Quota>,
}

/// A binding by its ends, key and arguments.
#[derive(Clone, PartialEq, Eq, Hash)]
struct BindingRow {
    source: ExchangeId,
    dest: Dest,
    routing_key: Box<[u8]>,
    arguments: Box<[u8]>,
}

/// Node-wide counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    pub published: u64,
    pub unroutable: u64,
    pub delivered: u64,
    pub settled: u64,
    pub returned: u64,
    pub redelivered: u64,
    pub expired: u64,
    pub dead_lettered: u64,
    pub connections_opened: u64,
    /// Held back by a barrier.
    pub duplicates: u64,
    /// Relayed messages that had been here before.
    pub looped: u64,
    /// Messages that were in doubt for too long and went on.
    pub undecided: u64,
    /// Transactions that were carried out, and that were not.
    pub committed: u64,
    pub rolled_back: u64,
}

/// What peers are offered until Python says otherwise.
const MECHANISMS: [&str; 4] = ["PLAIN", "AMQPLAIN", "ANONYMOUS", "EXTERNAL"];

/// The broker's tables and what is due in them.
pub struct Broker {
    pub limits: Limits,
    /// The node's name and version, for peers.
    pub node: Rc<str>,
    pub version: Rc<str>,
    /// SASL mechanisms that peers are offered, the best first.
    pub mechanisms: Vec<String>,
    pub vhosts: Slab<Vhost>,
    pub exchanges: Slab<Exchange>,
    pub queues: Slab<Queue>,
    pub consumers: Slab<Consumer>,
    pub timers: Timers,
    pub events: Vec<Event>,
    /// Somebody wants to know of every session and consumer.
    pub watched: bool,
    pub ledger: Rc<Ledger>,
    pub totals: Totals,
    pub latency: Box<NodeLatency>,
    pub runs: Runs,
    pub types: Types,
    /// What traced messages did, while somebody wants to know.
    pub spans: Option<Box<Spans>>,
    /// How many messages each binding matched.
    pub matches: Matches,
    pub now_ns: u64,
    pub wall_ns: u64,
    /// Units of work this call may still do.
    pub work_left: u32,
    /// A queue with a limit got a message and wants to be pumped before there is another: nothing is read until then.
    pub pump_first: bool,
    /// Rises with every change that could make a remembered route or grant wrong.
    pub generation: u64,
    /// Queues with something to deliver.
    pub dirty: VecDeque<QueueId>,
    /// Queues that would be in `dirty` if delivery had not been stopped.
    pub quiet: Vec<QueueId>,
    /// Consumers of deleted queues, to be told by their sessions.
    pub cancelled: Vec<Consumer>,
    /// Connections (raw ids) of principals whose waiting question was answered.
    pub answered: Vec<u32>,
    /// Connections of 1.0 with a drain to answer once the queues had their turn.
    pub draining: Vec<ConnId>,
    /// The node's own account: messages it makes itself.
    pub own_account: Rc<Account>,
    /// In place of a message of a stream that was written to its reader.
    pub hollow: Rc<Message>,
    /// Deliveries to direct reply-to consumers, for `delivery.rs`.
    pub replies: VecDeque<(Name, Rc<Message>)>,
    seed: Seeded,
    vhost_names: Map<Name, VhostId>,
    principals: Map<u32, Principal>,
    /// Every binding, by each of its ends.
    bindings: Map<ExchangeId, Map<BindingRow, ()>>,
    bound: Map<Dest, Map<BindingRow, ()>>,
    dying: VecDeque<Dying>,
    /// What durable messages survive in queues that do not say so themselves.
    pub durability: Durability,
    /// The journal, if this node has a disk.
    pub store: Option<Store>,
    /// Queues whose reads came back: who waited for them is read on.
    pub arrived: Vec<QueueId>,
    /// Streams with messages that the disk has not answered for.
    pub(crate) unsynced_streams: Vec<QueueId>,
    pub(crate) offsets: Offsets,
    counts: counted::Counts,
    delayed: Map<u64, Delayed>,
    delayed_count: u64,
    route_mark: u64,
    /// The last route depends on more than exchange and key: a barrier stands on it.
    route_guarded: bool,
    /// What barriers said of the message that is being published.
    guards: Vec<guard::Guard>,
    /// Publishers that wait for the end of their messages.
    pub(crate) receipts: receipts::Receipts,
    /// Nodes that queues are drained by.
    notes: Vec<doubt::Note>,
    /// Queues with messages that are not to be seen yet, and the places of the message that is being published.
    hiding: Vec<QueueId>,
    hidden: Vec<(QueueId, u64)>,
    /// Messages are being moved by hand: that is no publishing.
    moving: bool,
    /// What is published was promised: full queues take it, too.
    admits: bool,
    prepared: prepared::PreparedTable,
    /// What came by relay links.
    pub fabric: Barrier,
    route: Vec<QueueId>,
    requests: u64,
    serial: u64,
    reply_addresses: Map<Name, ()>,
    /// Bindings of headers exchanges: while there are none, a route depends on exchange and key alone.
    headers_bound: usize,
    no_name: Name,
}

impl Broker {
    pub fn new(limits: Limits, seed: u64, now_ns: u64, wall_ns: u64) -> Self {
        let seed = Seeded(seed);
        let ledger = Ledger::new(limits.memory_bytes_max);
        let fabric = Barrier::new(guard::fabric_settings(&limits), seed);
        Self {
            own_account: ledger.account(),
            hollow: Rc::new(Message::hollow()),
            ledger,
            limits,
            node: Rc::from("weft"),
            version: Rc::from(env!("CARGO_PKG_VERSION")),
            mechanisms: MECHANISMS.map(String::from).to_vec(),
            vhosts: Slab::default(),
            exchanges: Slab::default(),
            queues: Slab::default(),
            consumers: Slab::default(),
            timers: Timers::default(),
            events: Vec::new(),
            watched: false,
            totals: Totals::default(),
            latency: Box::default(),
            runs: Runs::default(),
            types: Types::new(seed),
            spans: None,
            matches: Matches::default(),
            now_ns,
            wall_ns,
            work_left: 0,
            pump_first: false,
            generation: 1,
            dirty: VecDeque::new(),
            quiet: Vec::new(),
            cancelled: Vec::new(),
            answered: Vec::new(),
            draining: Vec::new(),
            replies: VecDeque::new(),
            seed,
            vhost_names: Map::with_hasher(seed),
            principals: Map::with_hasher(seed),
            bindings: Map::with_hasher(seed),
            bound: Map::with_hasher(seed),
            dying: VecDeque::new(),
            durability: Durability::default(),
            store: None,
            arrived: Vec::new(),
            unsynced_streams: Vec::new(),
            offsets: Offsets::default(),
            counts: counted::Counts::new(seed),
            delayed: Map::with_hasher(seed),
            delayed_count: 0,
            route_mark: 0,
            route_guarded: false,
            guards: Vec::new(),
            receipts: receipts::Receipts::new(seed),
            notes: Vec::new(),
            hiding: Vec::new(),
            hidden: Vec::new(),
            moving: false,
            admits: false,
            prepared: prepared::PreparedTable::default(),
            fabric,
            route: Vec::new(),
            requests: 0,
            // Every start has numbers of its own: nobody publishes a message per nanosecond. (See `number_from`.)
            serial: wall_ns,
            reply_addresses: Map::with_hasher(seed),
            headers_bound: 0,
            no_name: Rc::from(&b""[..]),
        }
    }

    /// The empty name, shared.
    pub fn no_name(&self) -> Name {
        Rc::clone(&self.no_name)
    }

    /// A number no other request has.
    pub fn next_request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Messages are numbered from here on, at least: a clock that was set back since the last start gives none twice.
    pub fn number_from(&mut self, serial: u64) {
        self.serial = self.serial.max(serial);
    }

    /// When a message arrived (microseconds since 1970), and its number.
    #[inline]
    pub fn stamp(&mut self) -> (u64, u64) {
        self.serial += 1;
        (self.wall_ns / 1_000, self.serial)
    }

    /// May a session read another frame in this call?
    #[inline]
    pub fn may_read(&self) -> bool {
        self.work_left > 0 && !self.pump_first
    }

    /// Spends `units` of this call's budget.
    #[inline]
    pub fn spend(&mut self, units: u32) {
        self.work_left = self.work_left.saturating_sub(units);
    }

    /// Puts a queue on the list of those to pump.
    #[inline]
    pub fn touch(&mut self, id: QueueId) {
        if let Some(queue) = self.queues.get_mut(id)
            && !std::mem::replace(&mut queue.dirty, true)
        {
            self.dirty.push_back(id);
        }
    }

    /// Wants a connection to be looked at by `at_ns`.
    pub fn schedule_conn(&mut self, io: &mut Io, at_ns: u64) {
        if at_ns >= io.timer_ns {
            return;
        }
        if io.later_ns <= at_ns {
            // Soon enough: a heartbeat is not set anew each time that something else was due before it.
            io.timer_ns = io.later_ns;
            return;
        }
        io.later_ns = io.later_ns.min(io.timer_ns);
        io.timer_ns = at_ns;
        self.timers.set(at_ns, Due::Conn(io.id));
    }

    pub fn find_vhost(&self, name: &[u8]) -> Option<VhostId> {
        self.vhost_names.get(name).copied()
    }
    pub fn find_queue(&self, vhost: VhostId, name: &[u8]) -> Option<QueueId> {
        self.vhosts.get(vhost)?.queues.get(name).copied()
    }
    pub fn find_exchange(&self, vhost: VhostId, name: &[u8]) -> Option<ExchangeId> {
        self.vhosts.get(vhost)?.exchanges.get(name).copied()
    }
    pub fn principal(&self, id: u32) -> Option<&Principal> {
        self.principals.get(&id)
    }

    /// May this principal do that? None: nobody has been asked yet.
    pub fn permit(&self, principal: u32, access: Access, kind: Resource, name: &[u8]) -> Option<&Permit> {
        self.principals.get(&principal)?.grants[Principal::slot(access, kind)].get(name)
    }

    /// Where this principal's messages to `address` go. None: nobody has been asked yet.
    pub fn address(&self, principal: u32, address: &[u8]) -> Option<&Route> {
        match self.principals.get(&principal)?.addresses.get(address)? {
            Route::Nowhere { generation, .. } if *generation != self.generation => None,
            route => Some(route),
        }
    }
}

impl Principal {
    fn new(user: Name, vhost: VhostId, impersonate: bool, topics: Topics, quota: Rc<Quota>, seed: Seeded) -> Self {
        let grants = std::array::from_fn(|_| Map::with_hasher(seed));
        Self { user, vhost, impersonate, grants, addresses: Map::with_hasher(seed), topics, quota }
    }

    fn slot(access: Access, kind: Resource) -> usize {
        access as usize * 2 + kind as usize
    }
}
