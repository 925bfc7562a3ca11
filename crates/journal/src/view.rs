//! One queue of a store, seen from outside.
//!
//! Owns the picture that a reader without the journal has of one queue: what waits in which segment. Files come in
//! through a `Storage` that is only read, while a node may be writing, sealing, moving and removing segments; rows with
//! the places of messages go out. It must never change a file, hold one back, or count a batch that a crash could still
//! take away. Rule: docs/internals/segment.md, "Readers without the node".

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use crate::digest::{Digest, DigestRow, Drops};
use crate::error::{Error, Fault, FaultKind};
use crate::format::{FORMAT_VERSION, LogHeader, Opened};
use crate::positions::Positions;
use crate::scan::{Log, Outline, Scanned, Stretch};
use crate::sidecar;
use crate::storage::{Named, SEGMENTS, Storage, index_name, log_name, parse_name};
use crate::table::{Class, Entries};

/// How often the folder is looked at before a change under the reader's eyes is called an error.
const LOOKS_MAX: usize = 16;
/// Additions to an unsealed log that are kept apart; then the log is scanned again as one.
const PARTS_MAX: usize = 64;

/// What a stretch of a log says of the queue.
#[derive(Debug)]
struct Part {
    /// Where the stretch ends.
    log_bytes: u32,
    last_batch: u64,
    rows: Vec<DigestRow>,
    drops: Option<Drops>,
}

/// What is known of a segment.
#[derive(Clone, Debug)]
struct Seen {
    /// Nothing will be added.
    sealed: bool,
    parts: Vec<Arc<Part>>,
    damaged: Vec<Stretch>,
}

/// The messages of the queue in one stretch of a segment.
#[derive(Clone, Debug)]
pub(crate) struct ViewRow {
    pub(crate) segment: u32,
    pub(crate) live: Positions,
    /// The first position that has an entry.
    pub(crate) first: u64,
    pub(crate) entries: Entries,
    /// Of all that were live when the stretch ended: how many, and the bytes of their bodies.
    count: u64,
    bytes: u64,
}

/// A queue as its files tell it.
#[derive(Clone)]
pub struct View {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) queue_no: u64,
    segments: BTreeMap<u32, Seen>,
    /// Batches up to this one are on the disk itself.
    synced: u64,
    pub(crate) rows: Vec<ViewRow>,
    next: u64,
}

/// The files of the segments folder: sizes of logs, and of sidecars.
#[derive(Default, PartialEq)]
struct Listed {
    logs: BTreeMap<u32, u64>,
    indexes: BTreeMap<u32, u64>,
}

impl View {
    /// A view of a queue, with what can be seen now.
    pub fn open(storage: Arc<dyn Storage>, queue_no: u64) -> Result<Self, Error> {
        let (segments, rows) = (BTreeMap::new(), Vec::new());
        let mut view = Self { storage, queue_no, segments, synced: 0, rows, next: 0 };
        view.refresh()?;
        Ok(view)
    }

    /// Looks again. Only what was added since the last look is read.
    pub fn refresh(&mut self) -> Result<(), Error> {
        let mut listed = self.list()?;
        for look in 1.. {
            self.segments.retain(|segment, _| listed.logs.contains_key(segment));
            let looked = self.look(&listed);
            let after = self.list()?;
            // What was moved while we looked is in a segment that was not listed: then neither copy was seen.
            let same = after.logs.keys().eq(listed.logs.keys());
            match looked {
                Ok(()) if same || look >= LOOKS_MAX => break,
                Ok(()) => {}
                Err(Error::Disk(fault)) if fault.kind == FaultKind::Missing && look < LOOKS_MAX => {}
                Err(error) => return Err(error),
            }
            listed = after;
        }
        self.sync()?;
        self.merge();
        Ok(())
    }

    /// The first position that waits and the one after the last there is a trace of; equal if nothing waits.
    pub fn offsets(&self) -> (u64, u64) {
        let first = self.rows.iter().filter_map(|row| row.live.first()).min();
        (first.unwrap_or(self.next), self.next)
    }

    /// Messages that wait.
    pub fn messages(&self) -> u64 {
        self.rows.iter().map(|row| row.live.len()).sum()
    }

    /// The last position that waits.
    pub fn last(&self) -> Option<u64> {
        self.rows.iter().filter_map(|row| row.live.last()).max()
    }

    /// About the bytes of their bodies: where a part of a row was settled later, its share.
    pub fn bytes(&self) -> u64 {
        let share = |row: &ViewRow| u128::from(row.bytes) * u128::from(row.live.len()) / u128::from(row.count.max(1));
        self.rows.iter().map(|row| share(row) as u64).sum()
    }

    /// Stretches of logs that were on the disk and are not what they should be: what they held is not seen.
    pub fn damaged(&self) -> Vec<String> {
        let all = self.segments.iter().flat_map(|(segment, seen)| seen.damaged.iter().map(move |at| (*segment, at)));
        all.map(|(segment, at)| format!("{} at {}: {} bytes, {}", log_name(segment), at.offset, at.bytes, at.reason))
            .collect()
    }

    /// The row that holds the first message at or after a position, and the run of positions that begins there.
    pub(crate) fn next_run(&self, from: u64) -> Option<(&ViewRow, u64, u64)> {
        let runs = self.rows.iter().filter_map(|row| row.live.next_run(from).map(|(first, last)| (row, first, last)));
        runs.min_by_key(|(_, first, _)| *first)
    }

    /// A sidecar is wrong or gone: what is in its log is read from the log, if that is still there.
    pub(crate) fn distrust_sidecar(&mut self, segment: u32) -> Result<(), Error> {
        let log_bytes = self.list()?.logs.get(&segment).copied();
        let scanned = log_bytes.map(|log_bytes| {
            let outline = Log::new(&*self.storage, segment, log_bytes).outline()?;
            self.scan(segment, log_bytes, &outline)
        });
        match scanned {
            Some(Ok(seen)) => drop(self.segments.insert(segment, Seen { sealed: true, ..seen })),
            Some(Err(Error::Disk(fault))) if fault.kind == FaultKind::Missing => {}
            Some(Err(error)) => return Err(error),
            None => {}
        }
        self.refresh()
    }

    fn list(&self) -> Result<Listed, Error> {
        let mut found = Listed::default();
        for file in self.storage.list(SEGMENTS).map_err(|error| Fault::new("list", SEGMENTS, &error))? {
            match parse_name(&file.name) {
                Named::Log(number) => found.logs.insert(number, file.bytes),
                Named::Index(number) => found.indexes.insert(number, file.bytes),
                _ => None,
            };
        }
        Ok(found)
    }

    /// Reads what is new: sidecars first, since they tell what is safely on the disk in the logs that have none.
    fn look(&mut self, listed: &Listed) -> Result<(), Error> {
        let mut outlines = Vec::new();
        for (&segment, &log_bytes) in &listed.logs {
            if self.segments.get(&segment).is_some_and(|seen| seen.sealed) {
                continue;
            }
            if let Some(digest) = self.load_sidecar(segment, log_bytes, listed.indexes.get(&segment).copied())? {
                self.synced = self.synced.max(digest.last_batch);
                let parts = vec![Arc::new(self.part(&digest))];
                self.segments.insert(segment, Seen { sealed: true, parts, damaged: Vec::new() });
            } else if self.is_ours(segment, log_bytes)? && !self.look_on(segment, log_bytes)? {
                let outline = Log::new(&*self.storage, segment, log_bytes).outline()?;
                self.synced = self.synced.max(outline.synced());
                outlines.push((segment, log_bytes, outline));
            }
        }
        for (segment, log_bytes, outline) in outlines {
            let seen = self.scan(segment, log_bytes, &outline)?;
            self.segments.insert(segment, seen);
        }
        Ok(())
    }

    fn load_sidecar(&self, segment: u32, log_bytes: u64, index: Option<u64>) -> Result<Option<Digest>, Error> {
        let Some(index_bytes) = index else { return Ok(None) };
        match sidecar::load(&*self.storage, segment, index_bytes)? {
            Opened::Known(digest) if u64::from(digest.log_bytes) <= log_bytes => Ok(Some(digest)),
            Opened::Newer(version) => Err(newer(index_name(segment), version)),
            _ => Ok(None),
        }
    }

    /// Is this log what its name says, as far as its header tells?
    fn is_ours(&self, segment: u32, log_bytes: u64) -> Result<bool, Error> {
        match LogHeader::decode(&Log::new(&*self.storage, segment, log_bytes).file_header()?) {
            Opened::Known(header) => Ok(header.segment == segment),
            Opened::Newer(version) => Err(newer(log_name(segment), version)),
            Opened::Damaged => Ok(true),
        }
    }

    /// Reads on in a log that was scanned before; false if it has to be scanned from its beginning.
    fn look_on(&mut self, segment: u32, log_bytes: u64) -> Result<bool, Error> {
        let Some(seen) = self.segments.get(&segment).filter(|seen| seen.parts.len() < PARTS_MAX) else {
            return Ok(false);
        };
        let Some(end) = seen.parts.last().map(|part| part.log_bytes) else { return Ok(false) };
        let added = Log::new(&*self.storage, segment, log_bytes).scan_on(u64::from(end))?;
        self.synced = self.synced.max(added.synced);
        if added.digest.log_bytes > end {
            let part = Arc::new(self.part(&added.digest));
            self.segments.entry(segment).and_modify(|seen| seen.parts.push(part));
        }
        Ok(true)
    }

    /// Scans a log. What looks damaged is looked at twice: a batch may have been on its way into the file.
    fn scan(&self, segment: u32, log_bytes: u64, outline: &Outline) -> Result<Seen, Error> {
        let once = |outline: &Outline| Log::new(&*self.storage, segment, log_bytes).scan(outline, self.synced);
        let mut scanned = once(outline)?;
        if !scanned.damaged.is_empty() {
            scanned = once(&Log::new(&*self.storage, segment, log_bytes).outline()?)?;
        }
        let Scanned { digest, damaged, .. } = scanned;
        Ok(Seen { sealed: false, parts: vec![Arc::new(self.part(&digest))], damaged })
    }

    /// What a digest says of the queue. What was on disk for want of memory is no part of what is kept.
    fn part(&self, digest: &Digest) -> Part {
        let rows = [Class::Fresh, Class::Moved].into_iter().filter_map(|class| digest.row(self.queue_no, class));
        Part {
            log_bytes: digest.log_bytes,
            last_batch: digest.last_batch,
            rows: rows.map(|row| DigestRow { told_bytes: row.body_bytes(), ..row.clone() }).collect(),
            drops: digest.drops.get(&self.queue_no).cloned(),
        }
    }

    /// Sees to it that what was read of unsealed logs is on the disk: the page cache may have shown what a loss of
    /// power would undo.
    fn sync(&mut self) -> Result<(), Error> {
        for (&segment, seen) in &self.segments {
            let last_batch = seen.parts.last().map_or(0, |part| part.last_batch);
            if last_batch <= self.synced {
                continue;
            }
            let name = log_name(segment);
            match self.storage.sync(&name) {
                // Nobody can write there, so there is nothing to wait for.
                Err(error) if is_read_only(&error) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                synced => synced.map_err(|error| Fault::new("sync", &name, &error))?,
            }
            self.synced = self.synced.max(last_batch);
        }
        Ok(())
    }

    /// From the oldest part to the newest: each settles and supersedes what is older.
    fn merge(&mut self) {
        let (mut rows, mut next): (Vec<ViewRow>, u64) = (Vec::new(), 0);
        let remove = |rows: &mut Vec<ViewRow>, first, last| {
            rows.iter_mut().for_each(|row| {
                row.live.remove_range(first, last);
            });
        };
        for (segment, seen) in &self.segments {
            for part in &seen.parts {
                match &part.drops {
                    Some(drops) if drops.deleted => rows.clear(),
                    Some(drops) => drops.ranges.iter().for_each(|(first, last)| {
                        remove(&mut rows, first, last);
                        next = next.max(last + 1);
                    }),
                    None => {}
                }
                for row in &part.rows {
                    let first = row.live.first().unwrap_or(0);
                    if first < next {
                        row.live.runs().for_each(|(first, last)| remove(&mut rows, first, last));
                    }
                    next = next.max(row.live.runs().last().map_or(0, |run| run.1 + 1));
                    rows.push(ViewRow {
                        segment: *segment,
                        live: row.live.clone(),
                        first,
                        entries: row.entries.clone(),
                        count: row.live.len(),
                        bytes: row.told_bytes,
                    });
                }
            }
        }
        rows.retain(|row| !row.live.is_empty());
        (self.rows, self.next) = (rows, next);
    }
}

fn newer(file: String, version: u16) -> Error {
    Error::Newer { file, version, known: FORMAT_VERSION }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::InvalidInput)
}
