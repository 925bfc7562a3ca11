//! Bytes to frames to performatives and back, for AMQP 0-9-1 and AMQP 1.0.
//!
//! Owns the two codecs and nothing else: every function is stateless, borrows from the bytes it is given, and allocates
//! only where a caller asks for an owned value. Peers' mistakes come back as typed errors, never as panics.
//! It must never know a connection, a session or a queue. Rules: AMQP 0-9-1 section 4.2, AMQP 1.0 parts 1 and 2.
#![forbid(unsafe_code)]

pub mod amqp091;
pub mod amqp10;
