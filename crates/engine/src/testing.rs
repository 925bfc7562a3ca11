//! Small things that many unit tests need.
//!
//! Owns makers of messages for tests; nothing of it is in a release. Plain bytes come in, ready messages go out.
//! It must never be used outside tests. Rule: a test says what matters and leaves the rest to these.

use std::rc::Rc;

use crate::memory::Ledger;
use crate::message::{Body, Kind, Message, Name, Traits};

/// A 0-9-1 message without properties.
pub(crate) fn message(body: &[u8], priority: u8) -> Rc<Message> {
    let mut bytes = vec![0, 0];
    bytes.extend_from_slice(body);
    let len = bytes.len();
    let body = Body::new(Rc::from(bytes.as_slice()), 2..len);
    let names: (Name, Name) = (Rc::from(&b""[..]), Rc::from(&b"key"[..]));
    let traits = Traits { priority, ..Traits::default() };
    let charge = Ledger::new(1 << 30).account().charge(len as u64);
    Rc::new(Message::new(Kind::Amqp091, names, traits, 0..2, body, charge))
}
