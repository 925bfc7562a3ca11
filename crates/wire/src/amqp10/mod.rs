//! The AMQP 1.0 codec: frames, values, performatives, SASL frames and message sections.
//!
//! Owns every byte layout of the protocol. Bytes come in as slices and go out appended to a `Vec<u8>`; what is read
//! borrows from the slice and has been checked whole, so walking it later cannot fail. Both the numeric and the
//! symbolic form of a descriptor are understood everywhere. It must never know which frame may follow which: that is
//! a session's business. Rules: AMQP 1.0 part 1 (types), 2 (transport), 3 (messaging), 4 (transactions), 5 (security).

mod composite;
mod error;
pub mod frame;
#[rustfmt::skip]
pub mod generated;
mod outcome;
pub mod peek;
mod performative;
mod reader;
#[cfg(test)]
mod samples;
mod sasl;
pub mod sections;
mod symbol;
mod terminus;
mod transaction;
pub mod transfer;
mod value;
pub mod writer;

pub use composite::{Composite, Field, Fields};
pub use error::DecodeError;
pub use generated::*;
pub use outcome::{DeliveryState, Outcome};
pub use performative::{Performative, encode};
pub use reader::Reader;
#[cfg(debug_assertions)]
pub use reader::values_read;
pub use sasl::{SaslFrame, encode_sasl};
pub use sections::MessageId;
pub use symbol::{Symbol, Symbols};
pub use terminus::{AttachTarget, LifetimePolicy};
pub use transaction::{Prepare, Resolve, TransactionRequest};
pub use value::{Array, DEPTH_MAX, Described, List, Map, Timestamp, Value};
pub use writer::{Compound, MapBuf};
