//! What Python tells the engine: the native twins of `weft.model.changes`, where each field is explained.
//!
//! Owns the closed set of changes. The binding builds them from Python values, `Engine::apply` turns each into an
//! answer or a row of a table. It must never name anything but ids, names and plain values.
//! Rule: applied in order; one that names something unknown is refused and ends the list.

use crate::barrier;
use crate::event::{Access, Resource};
use crate::queue::Settings;

/// How an exchange chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeKind {
    Direct,
    Fanout,
    Topic,
    Headers,
}

/// What a 1.0 link ends at, and what its receiver wants to see.
#[derive(Clone, Debug, Default)]
pub struct LinkPlan {
    pub address: Option<String>,
    pub queue: Option<String>,
    pub exchange: Option<String>,
    pub routing_key: Option<String>,
    pub anonymous: bool,
    pub browse: bool,
    pub selector: Option<String>,
    pub subject_filter: Option<String>,
    pub no_local: bool,
    pub discard: bool,
    pub filters: Vec<String>,
    pub capabilities: Vec<String>,
    pub watch: bool,
    pub report: bool,
}

/// Which way the messages of a link of ours go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// From the peer to us.
    #[default]
    Pull,
    /// From us to the peer.
    Push,
}

/// What the peer is told of a message that no queue here took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refusal {
    /// Not here and now, counted as a failed delivery.
    #[default]
    Modify,
    /// Not here and now.
    Release,
    Reject,
    /// It may be forgotten.
    Accept,
}

/// A value of a source's filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterValue {
    Text(String),
    Number(i64),
}

/// A link that we attach.
#[derive(Clone, Debug, Default)]
pub struct LinkOrder {
    pub conn: u64,
    pub link: u64,
    pub name: String,
    pub direction: Direction,
    pub address: String,
    pub vhost: String,
    pub queue: Option<String>,
    pub exchange: Option<String>,
    pub routing_key: Option<String>,
    pub credit: u32,
    pub backlog_max: Option<u32>,
    pub bytes_per_s_max: Option<u64>,
    pub filters: Vec<(String, FilterValue)>,
    pub capabilities: Vec<String>,
    pub durable: bool,
    pub priority: i32,
    pub relay: bool,
    pub circles: bool,
    pub first_hand: bool,
    pub discard: bool,
    pub refusal: Refusal,
}

/// One end of a binding with its key and arguments (a 0-9-1 table's content).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BindingSpec {
    pub vhost: String,
    pub source: String,
    pub kind: Resource,
    pub destination: String,
    pub routing_key: String,
    pub arguments: Box<[u8]>,
}

/// One change.
#[derive(Clone, Debug)]
pub enum Change {
    Accept {
        request: u64,
        principal: u32,
        name: String,
        messages: u32,
        consumers: u32,
        proof: Vec<u8>,
    },
    Challenge {
        request: u64,
        data: Vec<u8>,
    },
    Refuse {
        request: u64,
        code: u16,
        text: String,
    },
    AcceptLink {
        request: u64,
        plan: Box<LinkPlan>,
    },
    SetPrincipal {
        principal: u32,
        user: String,
        vhost: String,
        impersonate: bool,
        /// Of topic exchanges: the pattern that keys must match.
        topics: Vec<(String, String)>,
        /// Channels and sessions of the user, in all its virtual hosts together.
        channels_max: Option<u32>,
    },
    Revoke {
        principal: u32,
    },
    Grant {
        principal: u32,
        access: Access,
        kind: Resource,
        name: String,
        allowed: bool,
        text: String,
    },
    SetAddress {
        principal: u32,
        address: String,
        exchange: Option<String>,
        routing_key: Option<String>,
        code: u16,
        text: String,
    },
    CreateVhost {
        name: String,
    },
    DeleteVhost {
        name: String,
    },
    DeclareExchange {
        vhost: String,
        name: String,
        kind: ExchangeKind,
        internal: bool,
        delayed: bool,
        alternate: Option<String>,
        /// The stream that gets a copy of whatever comes by.
        tap: Option<String>,
        barrier: Option<barrier::Settings>,
    },
    DeleteExchange {
        vhost: String,
        name: String,
    },
    DeclareQueue {
        vhost: String,
        name: String,
        settings: Box<Settings>,
    },
    DeleteQueue {
        vhost: String,
        name: String,
    },
    Bind(BindingSpec),
    Unbind(BindingSpec),
    OpenLink(Box<LinkOrder>),
    CloseLink {
        conn: u64,
        link: u64,
        closed: bool,
    },
    CloseConnection {
        conn: u64,
        code: u16,
        text: String,
    },
    Quiesce {
        on: bool,
    },
    SetMechanisms {
        names: Vec<String>,
    },
}
