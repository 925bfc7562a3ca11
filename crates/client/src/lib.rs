//! An AMQP 1.0 client as a machine: bytes and time come in, bytes, signals, events, outcomes and deliveries go out.
//!
//! Owns one connection with its sessions and links, and what must outlive it: after a lost connection `start` attaches
//! every link again and sends again what has no outcome yet. It has no socket, clock, thread or randomness, and must
//! never know the engine, a queue or what a message means. Four kinds of method, as the engine's: plain verbs,
//! `poll_*`, and no callback. Rules: AMQP 1.0 parts 2 to 5.
#![forbid(unsafe_code)]

mod attach;
mod client;
mod event;
mod frames;
mod opening;
mod options;
mod output;
mod receiver;
mod scram;
mod sender;
mod session;

pub use client::{Client, Mistake, signal};
pub use event::{Ending, Event, Settled, Verdict};
pub use options::{Limits, LinkOptions, Login, Place};
pub use receiver::Arrived;
pub use scram::Key;
pub use sender::Manner;
