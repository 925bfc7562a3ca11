//! The AMQP 0-9-1 codec, with the extensions RabbitMQ and its clients speak.
//!
//! Owns the wire form of frames, methods, content headers and field tables: borrowed bytes come in, borrowed views go
//! out, and encoders append to a buffer of the caller's. It never knows a connection's state, so which frame may come
//! when is for the caller to judge. Rules: AMQP 0-9-1 section 4.2; the methods themselves are in
//! `schema/amqp-0-9-1/methods.json`, from which `tools/codegen.py` writes `generated.rs`.

mod cursor;
pub mod frame;
#[rustfmt::skip] // one row per method: a table to read, not code to lay out
mod generated;
mod method;
pub mod properties;
#[cfg(test)]
#[rustfmt::skip]
mod samples;
pub mod table;
mod table_writer;

pub use generated::{Method, method_name, reply};
pub use method::{MethodError, encode_deliver, publish_fast};

/// What a client sends first; the server sends it back to refuse another version (section 4.2.2).
pub const PROTOCOL_HEADER: [u8; 8] = *b"AMQP\0\0\x09\x01";

/// Why bytes from a peer could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireError {
    /// The bytes end inside a value.
    Short,
    /// A field table holds a type this codec does not know.
    BadTag(u8),
    /// Tables and arrays nest deeper than `table::TABLE_DEPTH_MAX`.
    TooDeep,
    /// Bytes are left over after the last value.
    Trailing,
    /// A content header sets property flags, or a weight, that the protocol does not define.
    BadFlags,
}

impl std::fmt::Display for WireError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Short => f.write_str("the data ends inside a value"),
            Self::BadTag(tag) => write!(f, "unknown field type {tag:#04x}"),
            Self::TooDeep => f.write_str("tables are nested too deeply"),
            Self::Trailing => f.write_str("data follows the last value"),
            Self::BadFlags => f.write_str("undefined content header flags"),
        }
    }
}

impl std::error::Error for WireError {}
