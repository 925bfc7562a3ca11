//! What a client tells: rare events, and the outcomes of what was sent.
//!
//! Owns the closed sets. Values are owned, so that whoever polls keeps them as long as it likes; maps stay encoded
//! until someone wants to read them. It must never carry a delivery: those are taken link by link.

use std::rc::Rc;

/// Why something ended: the peer's condition and words, or ours; both empty where nobody gave a reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    pub condition: String,
    pub description: String,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The peer answered `open`. `properties` is an encoded map, or empty.
    Opened { container: String, capabilities: Vec<String>, properties: Vec<u8> },
    /// The peer wants a proof of the password: what PBKDF2 makes of it goes to `prove`.
    KeyRequested { salt: Vec<u8>, iterations: u32 },
    /// The login was refused; `Closed` follows. `temporary` means that trying again may help.
    LoginFailed { text: String, temporary: bool },
    /// A link is ready. `address` is the peer's, who may have made the node; `filters` names those it applies.
    Attached { link: u32, address: Option<String>, filters: Vec<String>, properties: Vec<u8> },
    /// A link is gone for good: it will not be attached again, and what it held never gets an outcome.
    Detached { link: u32, ending: Ending },
    /// The peer has used or given back all the credit of a drained link.
    Drained { link: u32 },
    /// A session is gone, and its links with it.
    SessionEnded { session: u16, ending: Ending },
    /// The connection is over; the transport is to be closed.
    Closed { ending: Ending, by_peer: bool },
}

/// How the peer decided on a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Accepted,
    Released,
    Rejected(Ending),
    Modified {
        failed: bool,
        undeliverable_here: bool,
    },
    /// A transaction was declared under this id.
    Declared(Rc<[u8]>),
    /// Settled without an outcome: nothing is known.
    Unknown,
    /// The transaction it was part of ended with its connection.
    Lost(Ending),
}

/// Messages of one link with one outcome, first and last by their numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    pub link: u32,
    pub first: u64,
    pub last: u64,
    pub verdict: Verdict,
}
