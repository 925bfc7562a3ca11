//! The deterministic machine of a weft node.
//!
//! Owns sessions, routing, queues and delivery, with no socket, clock, thread or file: bytes and time come in, bytes,
//! signals and events go out. The order of reading: `engine` (the calls), `session` (the protocols), `broker` (the
//! tables), `queue`, `delivery`. It must never name Python or do I/O. Rules: ARCHITECTURE.md and docs/decisions.
#![forbid(unsafe_code)]

mod apply;
pub mod barrier;
pub mod broker;
pub mod change;
pub mod conn;
pub mod convert;
pub mod delivery;
mod disk;
pub mod durability;
pub mod engine;
pub mod event;
pub mod fields;
pub mod filter;
pub mod hash;
mod input;
pub mod inspect;
pub mod limits;
mod links;
pub mod local;
pub mod log;
pub mod memory;
pub mod message;
mod origin;
pub mod queue;
pub mod record;
pub mod relay;
pub mod routing;
pub mod session;
pub mod slab;
pub mod stats;
pub mod stream;
#[cfg(test)]
mod testing;
pub mod timers;

pub use engine::{Engine, NoSuchConnection, signal};
pub use limits::Limits;
