//! What the engine tells Python: the native twins of `weft.model.events`.
//!
//! Owns the closed set of events. Sessions and queues push them, the binding turns them into Python values, per
//! connection, link or change of topology and never per message. It must never carry a reference into the engine.
//! Rule: every request is answered by exactly one change that names its number.

/// A field table or map on its way to Python, still in its wire form.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Fields {
    #[default]
    Empty,
    /// The content of a 0-9-1 table (without its length).
    Amqp091(Box<[u8]>),
    /// An encoded 1.0 map.
    Amqp10(Box<[u8]>),
}

/// Which protocol a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Amqp091,
    Amqp10,
}

/// What a permission is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    Configure,
    Write,
    Read,
}

/// What kind of thing a name names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    Queue,
    Exchange,
}

/// A change or check of topology that a 0-9-1 peer asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    ExchangeDeclare {
        name: String,
        kind: String,
        passive: bool,
        durable: bool,
        auto_delete: bool,
        internal: bool,
        arguments: Fields,
    },
    ExchangeDelete {
        name: String,
        if_unused: bool,
    },
    QueueDeclare {
        name: String,
        passive: bool,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Fields,
    },
    QueueDelete {
        name: String,
        if_unused: bool,
        if_empty: bool,
    },
    Binding {
        bind: bool,
        kind: Resource,
        source: String,
        destination: String,
        routing_key: String,
        arguments: Fields,
    },
}

/// The node's end of a 1.0 link as the peer asked for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Terminus {
    pub address: Option<String>,
    pub dynamic: bool,
    pub durable: u32,
    pub expiry: String,
    pub timeout_s: u32,
    pub distribution: String,
    pub capabilities: Vec<String>,
    pub lifetime: String,
    pub filters: Fields,
}

/// Why a queue is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unused {
    AutoDelete,
    Expired,
    Empty,
}

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    AuthRequested {
        request: u64,
        conn: u64,
        wire: Wire,
        mechanism: String,
        response: Vec<u8>,
        step: u32,
    },
    OpenRequested {
        request: u64,
        conn: u64,
        wire: Wire,
        vhost: String,
        container: String,
        properties: Fields,
    },
    AccessRequested {
        request: u64,
        conn: u64,
        principal: u32,
        access: Access,
        kind: Resource,
        name: String,
    },
    TopologyRequested {
        request: u64,
        conn: u64,
        principal: u32,
        operation: Box<Operation>,
    },
    AttachRequested {
        request: u64,
        conn: u64,
        principal: u32,
        link: String,
        /// The peer sends to us on this link.
        peer_sends: bool,
        terminus: Box<Terminus>,
        /// The peer's node name, if it asks for a relay link.
        relay: String,
    },
    AddressRequested {
        request: u64,
        conn: u64,
        principal: u32,
        address: String,
    },
    LinkClosed {
        conn: u64,
        vhost: String,
        queue: String,
        link: String,
        closed: bool,
    },
    /// On a link whose plan asks for reports: the peer says how much it may be sent.
    LinkFlow {
        conn: u64,
        vhost: String,
        queue: String,
        link: String,
        credit: u32,
        drain: bool,
    },
    /// A message that left such a link has an end, by the peer's word or since it went settled.
    Settled {
        vhost: String,
        queue: String,
        /// Empty if the message has none.
        message_id: String,
        outcome: &'static str,
    },
    PeerOpened {
        conn: u64,
        container: String,
        node: String,
        properties: Fields,
    },
    LinkAttached {
        conn: u64,
        link: u64,
        address: String,
        node: String,
    },
    LinkDetached {
        conn: u64,
        link: u64,
        condition: String,
        text: String,
        closed: bool,
    },
    ConnectionClosed {
        conn: u64,
        principal: u32,
        cause: String,
    },
    /// While somebody watches: a channel or session was begun, or is over.
    SessionChanged {
        conn: u64,
        number: u16,
        begun: bool,
    },
    /// While somebody watches: a consumer or receiving link joined a queue, or left it.
    ConsumerChanged {
        conn: u64,
        consumer: u64,
        vhost: String,
        queue: String,
        joined: bool,
    },
    HangUp {
        conn: u64,
    },
    ReadingResumed {
        conn: u64,
    },
    QueueUnused {
        vhost: String,
        queue: String,
        cause: Unused,
    },
    DiskAlarm {
        raised: bool,
        text: String,
    },
    /// A stored message could not be read, or could again.
    ReadAlarm {
        raised: bool,
        text: String,
    },
    /// Messages of a queue that another node may have are waited for no longer, and may come twice.
    DoubtEnded {
        vhost: String,
        queue: String,
        messages: u64,
    },
    MemoryAlarm {
        raised: bool,
        used_bytes: u64,
        max_bytes: u64,
    },
}
