//! Messages as columns.
//!
//! Owns the way from stored and received messages to Arrow, and back from Arrow to encoded messages. Borrowed values
//! come in one message at a time, record batches go out; only the columns that were asked for are decoded. The order
//! of reading: `schema` (what there is), `row` (what comes in), `builder`, `likeness` and `buffer` (what goes out),
//! `log` (from a store's files), `encode` (back). It is the only crate that knows Arrow, and must never know an engine
//! or a socket. Rule: docs/reference/columns.md.
#![forbid(unsafe_code)]

mod amqp091;
mod amqp10;
mod buffer;
mod builder;
mod cells;
mod encode;
mod facts;
mod likeness;
mod log;
mod row;
mod schema;
mod text;

pub use arrow_array::ffi_stream::FFI_ArrowArrayStream as ArrowStream;
pub use arrow_array::ffi_stream::RecordBatchStreamReader as ImportedBatches;
pub use builder::{Builder, Constants, single};
pub use encode::{Mapping, NoMessage, encode_messages};
pub use log::{BATCH_BYTES_MAX, LogStream, Options, find, first_as_ipc, times};
pub use row::Row;
pub use schema::{Column, UnknownColumn, schema};

/// Record batches on their way out.
pub type Batches = Box<dyn arrow_array::RecordBatchReader + Send>;

/// For whoever speaks Arrow's C stream interface.
pub fn export(batches: Batches) -> ArrowStream {
    ArrowStream::new(batches)
}
