//! What cannot be understood is kept.
//!
//! Owns the `damaged` folder: a copy of every stretch of a log that is not what it should be, named by place and
//! reason. Stretches come in, file names go out. It must never overwrite a copy, nor lose one by claiming success
//! early. Rule: docs/internals/segment.md, "Damage": nothing is deleted that is not understood.

use std::io;

use crate::error::Fault;
use crate::scan::Stretch;
use crate::storage::{DAMAGED, Storage, log_name};

const PIECE_BYTES: u64 = 1 << 20;

/// Copies a stretch of a log; answers with the copy's name.
pub(crate) fn set_aside(storage: &dyn Storage, segment: u32, stretch: &Stretch) -> Result<String, Fault> {
    let name = format!("{DAMAGED}/{segment:08}-{:010}-{}.bin", stretch.offset, stretch.reason);
    copy(storage, segment, stretch, &name).map_err(|error| Fault::new("write", &name, &error))?;
    Ok(name)
}

fn copy(storage: &dyn Storage, segment: u32, stretch: &Stretch, name: &str) -> io::Result<()> {
    let log = log_name(segment);
    storage.create(name, 0)?;
    let mut done = 0;
    while done < u64::from(stretch.bytes) {
        let mut piece = vec![0; PIECE_BYTES.min(u64::from(stretch.bytes) - done) as usize];
        let read = storage.read_at(&log, u64::from(stretch.offset) + done, &mut piece)?;
        if read == 0 {
            break;
        }
        storage.write_at(name, done, &piece[..read])?;
        done += read as u64;
    }
    storage.sync(name)?;
    storage.sync_folder(DAMAGED)
}
