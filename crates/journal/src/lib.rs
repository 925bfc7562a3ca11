//! The durable store under the engine: one log of segments for all queues of a node.
//!
//! Owns the format of segments and sidecars, batches and their numbers, and what waits where. Messages and
//! acknowledgements come in; disk jobs go out, to be run on any thread with a `Storage`. The order of reading:
//! `journal` (the calls), `writer` (batches), `table` (memory), `keeper` (housekeeping), `recover`. It must never
//! read a clock or touch a file outside a job. Rules: docs/internals/segment.md.
#![forbid(unsafe_code)]

mod aligned;
mod aside;
mod bytes;
mod checksum;
mod chunk;
mod config;
mod cursor;
mod digest;
mod direct;
mod envelope;
mod error;
mod fetch;
mod files;
mod format;
mod hash;
mod ids;
mod job;
mod journal;
mod keeper;
mod pending;
mod positions;
mod random;
mod ranges;
mod read;
mod record;
mod recover;
mod replace;
mod room;
mod scan;
mod segment;
mod sidecar;
mod sim;
mod storage;
mod table;
mod view;
mod writer;

pub use config::Config;
pub use cursor::{Cursor, ReadError};
pub use envelope::{Deaths, Envelope, StoredDeath};
pub use error::{Error, Fault, FaultKind, TooLarge};
pub use fetch::Read;
pub use files::Files;
pub use format::{FORMAT_VERSION, POSITION_MAX};
pub use job::{Job, JobKind};
pub use journal::{Done, Journal, ReadDone, Status};
pub use random::Random;
pub use read::{Messages, Stored};
pub use record::Target;
pub use recover::{Damage, Recovered, RecoveredBarrier, RecoveredQueue, recover};
pub use room::Room;
pub use sim::{Operation, SimDisk};
pub use storage::{FileInfo, Storage};
pub use view::View;
