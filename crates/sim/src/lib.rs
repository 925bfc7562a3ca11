//! A node without sockets: the engine on a virtual clock, with peers that are vectors of bytes.
//!
//! Owns what the engine's tests and the fuzz targets share: a driver that does what signals ask for, a controller that
//! says yes, a 0-9-1 client, and seeded random numbers. Bytes and operations come in, frames and observations go out.
//! It must never be shipped, read a clock or know a test. Rule: one seed and one list of operations reproduce
//! everything.
#![forbid(unsafe_code)]

pub mod client;
pub mod client10;
pub mod controller;
pub mod fate;
pub mod node;
pub mod random;
pub mod wire;

pub use client::{Client, Item};
pub use client10::{Client10, Said};
pub use node::Node;
pub use random::Random;
pub use wire::Wire;
