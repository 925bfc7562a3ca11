//! Opening a store: from files to a journal that goes on where they end.
//!
//! Owns the order of recovery: sidecars are read, logs without one are scanned, and each segment in turn settles and
//! supersedes what older ones hold. A `Storage` comes in; a journal and a report go out. It must never delete a log,
//! nor refuse a store over damage: only a newer format or a disk that does not answer stops it. Rule:
//! docs/internals/segment.md, "Recovery".

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::aside::set_aside;
use crate::config::Config;
use crate::digest::{Digest, DigestRow, live_entries};
use crate::error::{Error, Fault, FaultKind};
use crate::format::{FORMAT_VERSION, LogHeader, NUMBER_MAX, Opened, span};
use crate::job::{Cut, SealWork};
use crate::journal::Journal;
use crate::record::decode_barrier;
use crate::scan::{Log, Outline, Stretch};
use crate::segment::{Segment, State};
use crate::sidecar::{self, RowReader};
use crate::storage::{Named, SEGMENTS, Storage, index_name, log_name, parse_name, spare_name};
use crate::table::{Class, Entries, Row, Table};

/// What was not known to be synced is written again in pieces of this size.
const REWRITE_BYTES: usize = 256 << 10;

/// What was found when a store was opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Queues that left a trace, by number.
    pub queues: Vec<RecoveredQueue>,
    /// Ids that barriers must still remember.
    pub barriers: Vec<RecoveredBarrier>,
    /// Segments in all, and those that had to be scanned because they had no good sidecar.
    pub segments: usize,
    pub scanned: usize,
    /// Writes that were cut short by the end of the process or the power; nobody was told that they succeeded.
    pub torn: Vec<Damage>,
    /// Stretches that were on the disk and are not what they should be.
    pub damaged: Vec<Damage>,
    /// Files in the folder that are not ours; they were left alone.
    pub strangers: Vec<String>,
}

/// A queue that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredQueue {
    pub queue_no: u64,
    pub messages: u64,
    pub body_bytes: u64,
    /// The first that waits; `next_position` if none does.
    pub first_position: u64,
    /// Larger than any position there is a trace of: the queue must go on from here, or from further on.
    pub next_position: u64,
}

/// Ids of an idempotency barrier, as they were appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveredBarrier {
    pub barrier_no: u64,
    pub until_ms: u64,
    pub ids: Vec<u8>,
}

/// A stretch of a log that was cut or passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub segment: u32,
    pub offset: u32,
    pub bytes: u32,
    pub reason: &'static str,
    /// The copy in `damaged/`; without one, the segment is kept as it is.
    pub kept_as: Option<String>,
}

impl Damage {
    fn new(segment: u32, stretch: &Stretch, kept_as: Option<String>) -> Self {
        Self { segment, offset: stretch.offset, bytes: stretch.bytes, reason: stretch.reason, kept_as }
    }
}

/// Opens a store. `now_ms` (since 1970) tells which barriers' ids still count.
pub fn recover(storage: &dyn Storage, config: Config, now_ms: u64) -> Result<(Journal, Recovered), Error> {
    let config = config.bounded();
    let mut recovery = Recovery {
        storage,
        config,
        report: Recovered::default(),
        table: Table::default(),
        cuts: Vec::new(),
        sizes: Vec::new(),
    };
    let found = recovery.list()?;
    let next = next_number(&[found.logs.keys().max(), found.indexes.keys().max()], log_name)?;
    let next_spare = next_number(&[found.spares.last()], spare_name)?;
    let parts = recovery.open_all(&found)?;
    // Never finished, so never meant anything. On a read-only disk they may stay.
    found.unfinished.iter().for_each(|name| drop(storage.remove(name)));
    let mut synced = parts.values().map(|part| part.last_synced()).max().unwrap_or(0);
    let mut incarnation = 0;
    for (segment, part) in parts {
        incarnation = incarnation.max(part.incarnation);
        let mut placed = recovery.digest(segment, part, synced)?;
        synced = synced.max(placed.digest.last_batch);
        placed.held |= !recovery.read_barriers(&placed.digest, now_ms)?;
        recovery.absorb(placed);
    }
    recovery.report_queues();
    let mut journal = Journal::new(recovery.config, recovery.table, next, synced, incarnation.saturating_add(1));
    journal.keeper.next_spare = next_spare;
    journal.keeper.spares = found.spares;
    journal.cuts = recovery.cuts;
    journal.advance(now_ms);
    Ok((journal, recovery.report))
}

/// The files of the segments folder.
#[derive(Debug, Default)]
struct Found {
    logs: BTreeMap<u32, u64>,
    indexes: BTreeMap<u32, u64>,
    spares: Vec<u32>,
    unfinished: Vec<String>,
}

/// The number after the largest of these.
fn next_number(largest: &[Option<&u32>], name: fn(u32) -> String) -> Result<u32, Error> {
    match largest.iter().copied().flatten().max() {
        Some(&last) if last > NUMBER_MAX => Err(Error::LastNumber { file: name(last) }),
        last => Ok(last.map_or(1, |last| last + 1)),
    }
}

/// A segment whose log was opened.
struct Part {
    log_bytes: u64,
    incarnation: u64,
    /// From the sidecar.
    digest: Option<Digest>,
    /// From the log, where there is no good sidecar.
    outline: Option<Outline>,
}

impl Part {
    /// The newest batch that was synced for sure, as far as this segment tells.
    fn last_synced(&self) -> u64 {
        let told = self.outline.as_ref().map_or(0, Outline::synced);
        self.digest.as_ref().map_or(told, |digest| digest.last_batch)
    }
}

struct Recovery<'a> {
    storage: &'a dyn Storage,
    config: Config,
    report: Recovered,
    table: Table,
    cuts: Vec<Cut>,
    /// For each row (queue, segment, class): how many messages it had, and their bodies' bytes.
    sizes: Vec<(u64, u32, Class, u64, u64)>,
}

impl Recovery<'_> {
    fn list(&mut self) -> Result<Found, Fault> {
        let mut found = Found::default();
        let listed = self.storage.list(SEGMENTS).map_err(|error| Fault::new("list", SEGMENTS, &error))?;
        for file in listed {
            match parse_name(&file.name) {
                Named::Log(number) => {
                    found.logs.insert(number, file.bytes);
                }
                Named::Index(number) => {
                    found.indexes.insert(number, file.bytes);
                }
                Named::Spare(number) => found.spares.push(number),
                Named::Unfinished => found.unfinished.push(format!("{SEGMENTS}/{}", file.name)),
                Named::Unknown => self.report.strangers.push(file.name),
            }
        }
        let alone = found.indexes.keys().filter(|number| !found.logs.contains_key(number));
        self.report.strangers.extend(alone.map(|number| index_name(*number)));
        found.spares.sort_unstable();
        Ok(found)
    }

    fn open_all(&mut self, found: &Found) -> Result<BTreeMap<u32, Part>, Error> {
        let mut parts = BTreeMap::new();
        for (&segment, &log_bytes) in &found.logs {
            let index_bytes = found.indexes.get(&segment).copied();
            if let Some(part) = self.open(segment, log_bytes, index_bytes)? {
                parts.insert(segment, part);
            }
        }
        self.report.segments = parts.len();
        Ok(parts)
    }

    fn open(&mut self, segment: u32, log_bytes: u64, index_bytes: Option<u64>) -> Result<Option<Part>, Error> {
        let mut log = Log::new(self.storage, segment, log_bytes);
        let incarnation = match LogHeader::decode(&log.file_header()?) {
            Opened::Known(header) if header.segment == segment => header.incarnation,
            Opened::Known(_) => {
                self.report.strangers.push(log_name(segment));
                return Ok(None);
            }
            Opened::Newer(version) => return Err(newer(log_name(segment), version)),
            // The name tells the number, and every record proves itself.
            Opened::Damaged => 0,
        };
        let mut part = Part { log_bytes, incarnation, digest: None, outline: None };
        if let Some(index_bytes) = index_bytes {
            match sidecar::load(self.storage, segment, index_bytes)? {
                Opened::Known(digest) if u64::from(digest.log_bytes) <= log_bytes => part.digest = Some(digest),
                Opened::Newer(version) => return Err(newer(index_name(segment), version)),
                _ => {}
            }
        }
        if part.digest.is_none() {
            part.outline = Some(log.outline()?);
        }
        Ok(Some(part))
    }

    /// The segment in brief; a log without a sidecar is scanned, and gets one if the disk allows.
    fn digest(&mut self, segment: u32, part: Part, synced: u64) -> Result<Placed, Fault> {
        if let Some(digest) = part.digest {
            return Ok(Placed { digest, sealed: true, held: false });
        }
        self.report.scanned += 1;
        let mut log = Log::new(self.storage, segment, part.log_bytes);
        let outline = part.outline.map_or_else(|| log.outline(), Ok)?;
        let scanned = log.scan(&outline, synced)?;
        let kept = self.keep_damage(segment, &scanned.damaged);
        let cut = self.cut_torn(segment, scanned.torn);
        let mut digest = scanned.digest;
        let sure = self.make_sure(segment, outline.certain(synced), u64::from(digest.log_bytes))?;
        let held = !kept || !sure;
        if held || !cut {
            return Ok(Placed { digest, sealed: false, held });
        }
        let trim = digest.log_bytes < self.config.segment_bytes - self.config.segment_bytes / 8;
        let mut work = SealWork { digest: Arc::new(digest.clone()), trim, outcome: None };
        work.seal(self.storage);
        let sealed = match work.outcome {
            Some(Ok(placement)) => {
                digest.place(placement);
                true
            }
            _ => false,
        };
        Ok(Placed { digest, sealed, held })
    }

    /// Deciding on the strength of bytes that only the operating system has would be deciding too early: what was not
    /// known to be synced is, before anybody is told that it is there. A sync alone is not enough. Where an earlier one
    /// has failed, the system shows bytes that it no longer means to write, so they are written once more. False on a
    /// disk that takes nothing, not even in place: the next start tries again.
    fn make_sure(&self, segment: u32, from: u64, to: u64) -> Result<bool, Fault> {
        let name = log_name(segment);
        let mut piece = vec![0; REWRITE_BYTES];
        let mut written = true;
        for offset in (from..to).step_by(REWRITE_BYTES) {
            let piece = &mut piece[..REWRITE_BYTES.min((to - offset) as usize)];
            let count =
                self.storage.read_at(&name, offset, piece).map_err(|error| Fault::new("read", &name, &error))?;
            written &= self.storage.write_at(&name, offset, &piece[..count]).is_ok();
        }
        match self.storage.sync(&name).map_err(|error| Fault::new("sync", &name, &error)) {
            Err(fault) if fault.kind != FaultKind::ReadOnly => Err(fault),
            synced => Ok(written && synced.is_ok()),
        }
    }

    /// Copies what is damaged; false if a copy could not be made.
    fn keep_damage(&mut self, segment: u32, damaged: &[Stretch]) -> bool {
        let mut all_kept = true;
        for stretch in damaged {
            let kept = if stretch.bytes > 0 { set_aside(self.storage, segment, stretch).map(Some) } else { Ok(None) };
            all_kept &= kept.is_ok();
            self.report.damaged.push(Damage::new(segment, stretch, kept.ok().flatten()));
        }
        all_kept
    }

    /// Copies what is torn, and cuts it off. False where the disk refuses: then the first write of a segment does it.
    fn cut_torn(&mut self, segment: u32, torn: Option<Stretch>) -> bool {
        let Some(stretch) = torn else { return true };
        let kept_as = set_aside(self.storage, segment, &stretch).ok();
        let cut = Cut { segment, at: stretch.offset, keep: Some(stretch).filter(|_| kept_as.is_none()) };
        self.report.torn.push(Damage::new(segment, &stretch, kept_as));
        let done = cut.keep.is_none() && cut.run(self.storage).is_ok();
        self.cuts.extend(Some(cut).filter(|_| !done));
        done
    }

    /// Reads the ids that still count; false if some are damaged and could not be copied.
    fn read_barriers(&mut self, digest: &Digest, now_ms: u64) -> Result<bool, Fault> {
        let mut damaged = Vec::new();
        let mut log = Log::new(self.storage, digest.segment, u64::from(digest.log_bytes));
        for barrier in digest.barriers.iter().filter(|barrier| barrier.until_ms > now_ms) {
            let payload = log.record(barrier.offset)?;
            match payload.and_then(decode_barrier) {
                Some((barrier_no, until_ms, ids)) => {
                    self.report.barriers.push(RecoveredBarrier { barrier_no, until_ms, ids: ids.to_vec() });
                }
                None => damaged.push(barrier.stretch()),
            }
        }
        Ok(self.keep_damage(digest.segment, &damaged))
    }

    /// Adds a segment to the table: newer than all that are in it.
    fn absorb(&mut self, placed: Placed) {
        let Placed { digest, sealed, held } = placed;
        for (queue_no, drops) in &digest.drops {
            if drops.deleted {
                self.table.delete_queue(*queue_no, 0);
                continue;
            }
            for (first, last) in drops.ranges.iter() {
                self.table.settle_range(*queue_no, first, last, 0);
            }
            let next = drops.ranges.iter().map(|(_, last)| last + 1).max().unwrap_or(0);
            let queue = self.table.queues.entry(*queue_no).or_default();
            queue.next = queue.next.max(next);
        }
        let mut segment = Segment::open();
        segment.bytes = digest.log_bytes;
        segment.last_batch = digest.last_batch;
        segment.refs = digest.refs;
        segment.settled = digest.drops.keys().copied().collect();
        segment.keep_until_ms = digest.barriers.iter().map(|barrier| barrier.until_ms).max().unwrap_or(0);
        segment.ids_bytes = digest.barriers.iter().map(|barrier| span(barrier.length as usize) as u64).sum();
        segment.held = held;
        let number = digest.segment;
        self.table.segments.insert(number, segment);
        // What was on disk for want of memory belongs to a process that is no more.
        for row in digest.rows.iter().filter(|row| row.class != Class::Transient) {
            self.absorb_row(number, row);
        }
        if let Some(segment) = self.table.segments.get_mut(&number) {
            segment.state = if sealed { State::Sealed } else { State::Closed(Arc::new(digest)) };
        }
    }

    fn absorb_row(&mut self, segment: u32, row: &DigestRow) {
        let first = row.live.first().unwrap_or(0);
        let known = self.table.queues.get(&row.queue_no).map_or(0, |queue| queue.next);
        if first < known {
            // Moved, or written again: the newer copy counts.
            for (first, last) in row.live.runs() {
                self.table.settle_range(row.queue_no, first, last, 0);
            }
        }
        self.sizes.push((row.queue_no, segment, row.class, row.live.len(), row.body_bytes()));
        let queue = self.table.queues.entry(row.queue_no).or_default();
        let last = row.live.runs().last().map_or(0, |run| run.1);
        queue.next = queue.next.max(last + 1);
        queue.rows.push(Row::new(segment, row.class, row.live.clone(), row.entries.clone()));
        if let Some(held) = self.table.segments.get_mut(&segment) {
            held.live += row.live.len();
            if held.queues.last() != Some(&row.queue_no) {
                held.queues.push(row.queue_no);
            }
        }
    }

    /// Counts what waits. Only rows of which a part was settled later must be read for that.
    fn report_queues(&mut self) {
        let mut bytes: BTreeMap<u64, u64> = BTreeMap::new();
        for &(queue_no, segment, class, messages, body_bytes) in &self.sizes {
            let Some(queue) = self.table.queues.get(&queue_no) else { continue };
            let row = queue.rows.iter().find(|row| row.segment == segment && row.class == class);
            let Some(row) = row.filter(|row| !row.live.is_empty()) else { continue };
            let whole = row.live.len() == messages;
            let counted = if whole { Some(body_bytes) } else { count_bytes(self.storage, row) };
            if let (None, Some(segment)) = (counted, self.table.segments.get_mut(&segment)) {
                segment.index_damaged = true;
            }
            // A sidecar that cannot be read is made again later; until then the bytes are an estimate.
            let share = u128::from(body_bytes) * u128::from(row.live.len()) / u128::from(messages.max(1));
            *bytes.entry(queue_no).or_default() += counted.unwrap_or(share as u64);
        }
        for (queue_no, queue) in &self.table.queues {
            if queue.deleted {
                continue;
            }
            let first = queue.rows.iter().filter_map(|row| row.live.first()).min();
            self.report.queues.push(RecoveredQueue {
                queue_no: *queue_no,
                messages: queue.len(),
                body_bytes: bytes.get(queue_no).copied().unwrap_or(0),
                first_position: first.unwrap_or(queue.next),
                next_position: queue.next,
            });
        }
        self.report.queues.sort_unstable_by_key(|queue| queue.queue_no);
    }
}

/// A digest, and whether its rows are in a sidecar.
struct Placed {
    digest: Digest,
    sealed: bool,
    held: bool,
}

fn newer(file: String, version: u16) -> Error {
    Error::Newer { file, version, known: FORMAT_VERSION }
}

/// The bytes of the bodies that wait in a row; `None` if its entries cannot be read.
fn count_bytes(storage: &dyn Storage, row: &Row) -> Option<u64> {
    let read;
    let entries = match &row.entries {
        Entries::Memory(entries) => &entries[..],
        Entries::File { start, count } => {
            read = RowReader::open(storage, row.segment, *start, *count).ok()?.all().ok()?;
            &read[..]
        }
    };
    Some(live_entries(&row.live, entries).map(|entry| u64::from(entry.body)).sum())
}
