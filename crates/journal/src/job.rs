//! Work for a disk thread.
//!
//! Owns `Job`: everything a piece of disk work needs, and its outcome. The journal hands jobs out by `poll_job`;
//! `run` does the work anywhere, with a `Storage`; the journal takes the job back by `job_done`. A job must never
//! share memory with the journal other than bytes that no longer change. Rule: docs/internals/segment.md, "Jobs".

use std::io;
use std::sync::Arc;

use crate::aligned::{Aligned, BLOCK_BYTES};
use crate::aside::set_aside;
use crate::digest::Digest;
use crate::error::Fault;
use crate::format::FILE_HEADER_BYTES;
use crate::ids::IdsWork;
use crate::read::{Gathered, Pick, gather};
use crate::room::Pages;
use crate::scan::{Log, Stretch};
use crate::sidecar::{self, Placement};
use crate::storage::{SEGMENTS, Storage, index_name, log_name, spare_name, unfinished};

/// Zeros that new spare files are filled with at a time: as many as are cheap to write past the page cache.
const ZEROS_BYTES: usize = 1 << 20;

/// What kind of work a job is; writes are urgent, reads are awaited by someone, the rest is housekeeping. Writes run
/// one after the other, and so does the rest; reads may run beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    Write,
    Read,
    Background,
}

/// A piece of disk work.
#[derive(Debug)]
pub struct Job {
    pub(crate) number: u64,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) enum Work {
    Write(WriteWork),
    Read(ReadWork),
    /// Makes a sidecar again that a read found wrong.
    Rebuild(RebuildWork),
    Seal(SealWork),
    Remove(RemoveWork),
    Prepare(PrepareWork),
    /// A read for compaction.
    Move(ReadWork),
    /// Ids of barriers that are all that counts in their segment.
    Ids(IdsWork),
}

impl Job {
    /// Unique among the jobs of this journal; a read's is its token.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn kind(&self) -> JobKind {
        match &self.work {
            Work::Write(_) => JobKind::Write,
            Work::Read(_) => JobKind::Read,
            _ => JobKind::Background,
        }
    }

    /// Bytes a write will write; 0 for other jobs.
    pub fn size(&self) -> usize {
        match &self.work {
            Work::Write(work) => work.bytes.len(),
            _ => 0,
        }
    }

    /// Does this write wait for the disk itself?
    pub fn must_sync(&self) -> bool {
        matches!(&self.work, Work::Write(work) if work.must_sync)
    }

    /// Does the work; to be called once, on any thread. Errors are kept for `job_done`.
    pub fn run(&mut self, storage: &dyn Storage) {
        match &mut self.work {
            Work::Write(work) => work.outcome = Some(work.run(storage)),
            Work::Read(work) | Work::Move(work) => work.run(storage),
            Work::Rebuild(work) => work.outcome = Some(work.run(storage)),
            Work::Ids(work) => work.outcome = Some(work.run(storage)),
            Work::Seal(work) => work.seal(storage),
            Work::Remove(work) => work.outcome = Some(work.run(storage)),
            Work::Prepare(work) => work.outcome = Some(work.run(storage)),
        }
    }
}

/// What stopped a write.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// Nothing is lost: the same bytes can be written again.
    Write(Fault),
    /// The file can no longer be trusted.
    Sync(Fault),
}

/// Writes one batch.
#[derive(Debug)]
pub(crate) struct WriteWork {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) bytes: Arc<Aligned>,
    pub(crate) must_sync: bool,
    pub(crate) create: Option<Create>,
    pub(crate) outcome: Option<Result<(), WriteError>>,
}

/// A segment's file is made by the job that writes its first batch.
#[derive(Debug)]
pub(crate) struct Create {
    pub(crate) header: [u8; FILE_HEADER_BYTES],
    pub(crate) spare: Option<u32>,
    pub(crate) bytes: u64,
    /// Ends of older logs that must not be there once a newer one is.
    pub(crate) cuts: Vec<Cut>,
}

/// The end of a log that does not count: batches torn by a crash, or not trusted after a sync that failed. Their
/// numbers are given to new batches, and once those are synced the old ones would look as if they were.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    pub(crate) segment: u32,
    pub(crate) at: u32,
    /// Not copied yet.
    pub(crate) keep: Option<Stretch>,
}

impl Cut {
    pub(crate) fn run(&self, storage: &dyn Storage) -> Result<(), Fault> {
        if let Some(stretch) = &self.keep {
            set_aside(storage, self.segment, stretch)?;
        }
        let name = log_name(self.segment);
        let cut = storage.set_len(&name, u64::from(self.at)).and_then(|()| storage.sync(&name));
        ignore_missing(cut).map_err(|error| Fault::new("cut", &name, &error))
    }
}

impl WriteWork {
    fn run(&self, storage: &dyn Storage) -> Result<(), WriteError> {
        let name = log_name(self.segment);
        let cannot_write = |error| WriteError::Write(Fault::new("write", &name, &error));
        let cannot_sync = |error| WriteError::Sync(Fault::new("sync", &name, &error));
        if let Some(create) = &self.create {
            create.cuts.iter().try_for_each(|cut| cut.run(storage)).map_err(WriteError::Write)?;
            create.run(storage, &name).map_err(cannot_write)?;
            // The name first: a number whose file might vanish could be given out twice.
            storage.sync_folder(SEGMENTS).map_err(cannot_sync)?;
            storage.write_at(&name, 0, &create.header).map_err(cannot_write)?;
        }
        storage.write_at(&name, u64::from(self.offset), &self.bytes).map_err(cannot_write)?;
        if self.must_sync {
            storage.sync(&name).map_err(cannot_sync)?;
        }
        Ok(())
    }
}

impl Create {
    fn run(&self, storage: &dyn Storage, name: &str) -> io::Result<()> {
        if let Some(spare) = self.spare {
            match storage.rename(&spare_name(spare), name) {
                // An earlier try got this far, or someone took the spare away.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                renamed => return renamed,
            }
        }
        storage.create(name, self.bytes)
    }
}

/// Reads messages, for a queue or for compaction.
#[derive(Debug)]
pub(crate) struct ReadWork {
    pub(crate) picks: Vec<Pick>,
    pub(crate) bytes_max: usize,
    /// Others may read them too.
    pub(crate) shared: bool,
    pub(crate) pages: Pages,
    pub(crate) outcome: Option<Gathered>,
}

impl ReadWork {
    fn run(&mut self, storage: &dyn Storage) {
        self.outcome = Some(gather(storage, &self.picks, self.bytes_max, self.shared, &self.pages));
    }
}

/// Makes a sidecar again from its log.
#[derive(Debug)]
pub(crate) struct RebuildWork {
    pub(crate) segment: u32,
    pub(crate) log_bytes: u32,
    /// Does someone wait for it?
    pub(crate) awaited: bool,
    pub(crate) outcome: Option<Result<Digest, Fault>>,
}

impl RebuildWork {
    pub(crate) fn new(segment: u32, log_bytes: u32, awaited: bool) -> Self {
        Self { segment, log_bytes, awaited, outcome: None }
    }

    /// The digest, its rows placed in the new sidecar, or in memory if that cannot be written.
    pub(crate) fn run(&self, storage: &dyn Storage) -> Result<Digest, Fault> {
        let scanned = Log::new(storage, self.segment, u64::from(self.log_bytes)).scan_closed()?;
        for stretch in &scanned.damaged {
            set_aside(storage, self.segment, stretch)?;
        }
        let mut digest = scanned.digest;
        if let Ok(placement) = sidecar::write(storage, &digest) {
            digest.place(placement);
        }
        Ok(digest)
    }
}

/// Writes the sidecar of a closed segment.
#[derive(Debug)]
pub(crate) struct SealWork {
    pub(crate) digest: Arc<Digest>,
    /// Cut the log where its batches end: much of it was never used.
    pub(crate) trim: bool,
    pub(crate) outcome: Option<Result<Placement, Fault>>,
}

impl SealWork {
    pub(crate) fn seal(&mut self, storage: &dyn Storage) {
        self.outcome = Some(self.run(storage));
    }

    fn run(&self, storage: &dyn Storage) -> Result<Placement, Fault> {
        let placement = sidecar::write(storage, &self.digest)?;
        if self.trim {
            let name = log_name(self.digest.segment);
            let trimmed = storage.set_len(&name, u64::from(self.digest.log_bytes));
            trimmed.map_err(|error| Fault::new("trim", &name, &error))?;
        }
        Ok(placement)
    }
}

/// Removes a dead segment, or makes its file a spare.
#[derive(Debug)]
pub(crate) struct RemoveWork {
    pub(crate) segment: u32,
    pub(crate) spare: Option<u32>,
    pub(crate) outcome: Option<Result<(), Fault>>,
}

impl RemoveWork {
    fn run(&self, storage: &dyn Storage) -> Result<(), Fault> {
        let name = log_name(self.segment);
        self.remove(storage, &name).map_err(|error| Fault::new("remove", &name, &error))
    }

    fn remove(&self, storage: &dyn Storage, name: &str) -> io::Result<()> {
        // The sidecar first: without its log it would mean nothing, while a log alone still makes sense.
        ignore_missing(storage.remove(&index_name(self.segment)))?;
        match self.spare {
            Some(spare) => {
                // A blank header says "never used": a log that claims another segment's number would be a riddle.
                let blanked = storage.write_at(name, 0, &[0; FILE_HEADER_BYTES]).and_then(|()| storage.sync(name));
                ignore_missing(blanked.and_then(|()| storage.rename(name, &spare_name(spare))))?;
            }
            None => ignore_missing(storage.remove(name))?,
        }
        storage.sync_folder(SEGMENTS)
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Fills a piece of a new spare file with zeros.
#[derive(Debug)]
pub(crate) struct PrepareWork {
    pub(crate) spare: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: usize,
    /// The last piece: the file becomes a spare.
    pub(crate) last: bool,
    pub(crate) outcome: Option<Result<(), Fault>>,
}

impl PrepareWork {
    fn run(&self, storage: &dyn Storage) -> Result<(), Fault> {
        let name = spare_name(self.spare);
        self.prepare(storage, &name).map_err(|error| Fault::new("prepare", &name, &error))
    }

    fn prepare(&self, storage: &dyn Storage, name: &str) -> io::Result<()> {
        let draft = unfinished(name);
        storage.create(&draft, 0)?;
        let end = self.offset + self.bytes as u64;
        // Never touched, this memory costs nothing; whole blocks of it are written from where they are.
        let zeros = vec![0; ZEROS_BYTES.min(self.bytes) + BLOCK_BYTES];
        let start = zeros.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        for offset in (self.offset..end).step_by(ZEROS_BYTES) {
            let bytes = ZEROS_BYTES.min((end - offset) as usize);
            storage.write_at(&draft, offset, &zeros[start..start + bytes])?;
        }
        storage.sync(&draft)?;
        if self.last {
            storage.rename(&draft, name)?;
            storage.sync_folder(SEGMENTS)?;
        }
        Ok(())
    }
}
