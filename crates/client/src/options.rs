//! What a client is told before it does anything: limits, how to log in, what a link is to be.
//!
//! Owns plain values that callers fill in and the machine keeps, so that links can be attached again. It must never
//! hold the state of anything. Rules: AMQP 1.0 part 3, section 3.5 (sources and targets), part 5 (SASL).

use weft_wire::amqp10::{MapBuf, TerminusDurability, TerminusExpiryPolicy};

use crate::scram;

/// What a client bounds, whoever it talks to.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest frame taken from the peer.
    pub frame_bytes_max: u32,
    /// Largest message taken from the peer; a link that brings a larger one is detached.
    pub message_bytes_max: u64,
    /// The peer must be heard at least this often; 0 asks for nothing.
    pub idle_ms: u32,
    /// Transfer frames the peer may send on a session before it hears from us.
    pub session_window: u32,
    /// Messages a sending link holds, sent or not, that have no outcome yet.
    pub held_max: usize,
    /// Links at a time.
    pub links_max: usize,
    /// Sessions at a time.
    pub sessions_max: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            frame_bytes_max: 1 << 17,
            message_bytes_max: 128 << 20,
            idle_ms: 30_000,
            session_window: 8_192,
            held_max: 1 << 16,
            links_max: 4_096,
            sessions_max: 255,
        }
    }
}

/// A way to log in.
#[derive(Clone)]
pub enum Login {
    Anonymous,
    Plain {
        user: Box<str>,
        password: Box<str>,
    },
    /// By the certificate of the transport.
    External,
    /// By a proof: `Event::KeyRequested` asks for what is derived from the password. The nonce is never used twice.
    Scram {
        user: Box<str>,
        nonce: Box<str>,
    },
}

impl Login {
    pub(crate) fn mechanism(&self) -> &'static str {
        match self {
            Self::Anonymous => "ANONYMOUS",
            Self::Plain { .. } => "PLAIN",
            Self::External => "EXTERNAL",
            Self::Scram { .. } => scram::MECHANISM,
        }
    }
}

/// The peer's end of a link: where messages come from or go to.
#[derive(Clone, Debug)]
pub struct Place {
    /// None with `dynamic` (the peer makes a node), or for a sender whose messages each say `to`.
    pub address: Option<Box<str>>,
    pub dynamic: bool,
    pub durable: TerminusDurability,
    pub expiry: TerminusExpiryPolicy,
    pub timeout_s: u32,
    /// Leave the messages where they are.
    pub browse: bool,
    pub capabilities: Vec<Box<str>>,
    pub filters: MapBuf,
    /// The transaction coordinator.
    pub coordinator: bool,
}

impl Default for Place {
    fn default() -> Self {
        Self {
            address: None,
            dynamic: false,
            durable: TerminusDurability::None,
            expiry: TerminusExpiryPolicy::SessionEnd,
            timeout_s: 0,
            browse: false,
            capabilities: Vec::new(),
            filters: MapBuf::new(),
            coordinator: false,
        }
    }
}

/// A link as it is to be, now and after every reconnect.
#[derive(Clone, Debug, Default)]
pub struct LinkOptions {
    pub name: Box<str>,
    pub place: Place,
    /// Deliveries are settled when they are sent.
    pub settled: bool,
    pub properties: MapBuf,
    /// Receiving: deliveries that may be on their way, waiting or unsettled together; 0 leaves credit to the caller.
    pub window: u32,
}
