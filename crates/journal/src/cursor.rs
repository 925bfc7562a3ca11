//! Reading a queue from outside, message after message, at the speed of the disk.
//!
//! Owns the way from a view to messages: places are looked up a block at a time, logs are read a stretch at a time,
//! and every record is verified before it is handed out. When a segment goes away, because its messages were moved or
//! are no longer kept, the view is refreshed and reading goes on. It must never hand out bytes that fail a checksum,
//! nor pass over them in silence. Rule: docs/internals/segment.md, "Readers without the node".

use std::fmt;
use std::ops::Range;

use crate::checksum::crc32c;
use crate::error::{Error, Fault, FaultKind};
use crate::format::{Header, Kind, RECORD_HEADER_BYTES, span};
use crate::read::{Messages, Stored};
use crate::record::{Message, Target};
use crate::sidecar::{LookupError, RowReader};
use crate::storage::log_name;
use crate::table::{Entries, Entry};
use crate::view::View;

/// Entries looked up at once: 128 KiB of a sidecar.
const ENTRIES_MAX: u32 = 4096;
/// Bytes of a log read at once, unless a single record is larger.
const CHUNK_BYTES: u32 = 1 << 20;
/// Records this close to each other are read together, with what lies between.
const GAP_BYTES: u32 = 16 << 10;

/// Why reading ends early.
#[derive(Clone, Debug)]
pub enum ReadError {
    Store(Error),
    /// A record is not what it should be.
    Damaged {
        file: String,
        /// Where in the file.
        at: u32,
        position: u64,
        reason: &'static str,
    },
    /// Some of what was asked for is not there any more; `next` is the first that is, if any.
    Gap {
        position: u64,
        next: Option<u64>,
    },
    /// The message is whole, but its head is of another version of weft.
    Foreign {
        position: u64,
    },
}

impl<T: Into<Error>> From<T> for ReadError {
    fn from(error: T) -> Self {
        Self::Store(error.into())
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store(error) => error.fmt(out),
            Self::Damaged { file, at, position, reason } => {
                let next = position + 1;
                write!(
                    out,
                    "offset {position} cannot be read: {file} is damaged at {at} ({reason}); read on from {next}"
                )
            }
            Self::Gap { position, next: Some(next) } => {
                write!(out, "offsets {position} to {} are not kept any more", next.saturating_sub(1))
            }
            Self::Gap { position, next: None } => {
                write!(out, "offset {position} and what followed are not kept any more")
            }
            Self::Foreign { position } => write!(out, "offset {position} was written by another version of weft"),
        }
    }
}

impl std::error::Error for ReadError {}

/// Reads the messages of a view from one position to another.
pub struct Cursor {
    view: View,
    /// The next position that was not handed out.
    position: u64,
    end: u64,
    /// Every position must be there.
    whole: bool,
    /// One message is looked at, not many.
    one_by_one: bool,
    /// Of one run, in order.
    entries: Vec<Entry>,
    at: usize,
    segment: u32,
    /// A stretch of the segment's log.
    chunk: Vec<u8>,
    chunk_start: u32,
    chunk_bytes: u32,
    /// A record that failed once.
    doubted: Option<(u32, u32)>,
    /// What only memory has: behind everything the view has.
    tail: Messages,
    tail_at: usize,
}

impl Cursor {
    /// Reads positions from `start` up to `end`, without it.
    pub fn new(view: View, start: u64, end: u64) -> Self {
        Self {
            view,
            position: start,
            end,
            whole: false,
            one_by_one: false,
            entries: Vec::new(),
            at: 0,
            segment: 0,
            chunk: Vec::new(),
            chunk_start: 0,
            chunk_bytes: 0,
            doubted: None,
            tail: Messages::default(),
            tail_at: 0,
        }
    }

    /// Missing positions are an error.
    #[must_use]
    pub fn whole(mut self, whole: bool) -> Self {
        self.whole = whole;
        self
    }

    /// Reads no further than the next message, for those who look at one here and there.
    #[must_use]
    pub fn one_by_one(mut self) -> Self {
        self.one_by_one = true;
        self
    }

    /// Messages that were not on the disk when the view was opened.
    #[must_use]
    pub fn with_tail(mut self, tail: Messages) -> Self {
        self.tail = tail;
        self
    }

    /// The next message.
    #[inline]
    pub fn next_message(&mut self) -> Result<Option<Stored<'_>>, ReadError> {
        loop {
            let Some(entry) = self.entries.get(self.at).copied() else {
                if self.load_entries()? {
                    continue;
                }
                return self.next_of_tail();
            };
            let from = entry.offset.wrapping_sub(self.chunk_start);
            let reach = u64::from(from) + span(entry.length as usize) as u64;
            if reach > u64::from(self.chunk_bytes) && !self.load_chunk()? {
                continue;
            }
            let from = (entry.offset - self.chunk_start) as usize;
            let record = self.chunk.get(from..self.chunk_bytes as usize).unwrap_or_default();
            match verify(record, (self.segment, self.view.queue_no), &entry) {
                Ok((head, body)) => {
                    self.at += 1;
                    self.position = entry.position + 1;
                    let target = Target::new(0, entry.position, entry.expires);
                    let payload = &self.chunk[from + RECORD_HEADER_BYTES..];
                    return Ok(Some(Stored {
                        position: entry.position,
                        expires_ms: target.expires_ms,
                        transient: target.transient,
                        head: &payload[head],
                        body: &payload[body],
                    }));
                }
                Err(reason) => self.doubt(&entry, reason)?,
            }
        }
    }

    fn next_of_tail(&mut self) -> Result<Option<Stored<'_>>, ReadError> {
        while self.tail.get(self.tail_at).is_some_and(|stored| stored.position < self.position) {
            self.tail_at += 1;
        }
        let next = self.tail.get(self.tail_at).filter(|stored| stored.position < self.end);
        let reached = next.map_or(self.end, |stored| stored.position);
        if self.whole && self.position < reached {
            return Err(ReadError::Gap { position: self.position, next: next.map(|stored| stored.position) });
        }
        if let Some(stored) = next {
            self.tail_at += 1;
            self.position = stored.position + 1;
        }
        Ok(next)
    }

    /// Finds the places of the next messages; false if the files have no more.
    fn load_entries(&mut self) -> Result<bool, ReadError> {
        let end = self.tail.get(self.tail_at).map_or(self.end, |first| first.position.min(self.end));
        let Some((row, first, last)) = self.view.next_run(self.position).filter(|run| run.1 < end) else {
            return Ok(false);
        };
        if self.whole && first > self.position {
            return Err(ReadError::Gap { position: self.position, next: Some(first) });
        }
        let last = if self.one_by_one { first } else { last.min(end - 1) };
        let segment = row.segment;
        let found = match &row.entries {
            Entries::Memory(all) => {
                let from = all.partition_point(|entry| entry.position < first);
                Ok(all.iter().skip(from).take(ENTRIES_MAX as usize).copied().collect())
            }
            Entries::File { start, count } => {
                let guess = u32::try_from(first - row.first).ok();
                read_entries(&self.view, segment, (*start, *count), first, guess)
            }
        };
        self.position = first;
        match found {
            Ok(found) => self.set_entries(segment, found, last),
            Err(LookupError::Fault(fault)) if fault.kind != FaultKind::Missing => return Err(fault.into()),
            Err(_) => self.view.distrust_sidecar(segment)?,
        }
        Ok(true)
    }

    fn set_entries(&mut self, segment: u32, mut entries: Vec<Entry>, last: u64) {
        entries.truncate(entries.partition_point(|entry| entry.position <= last));
        if segment != self.segment {
            self.chunk_bytes = 0;
        }
        (self.segment, self.entries, self.at) = (segment, entries, 0);
    }

    /// Reads the next stretch of the log, as many records as lie together; false if the log is gone.
    fn load_chunk(&mut self) -> Result<bool, ReadError> {
        let rest = &self.entries[self.at..];
        let start = rest[0].offset;
        let mut end = start.saturating_add(span(rest[0].length as usize) as u32);
        for entry in &rest[1..] {
            let next = entry.offset.saturating_add(span(entry.length as usize) as u32);
            let near = entry.offset >= end && entry.offset - end <= GAP_BYTES;
            if !near || next - start > CHUNK_BYTES {
                break;
            }
            end = next;
        }
        let want = (end - start) as usize;
        if self.chunk.len() < want {
            self.chunk.resize(want, 0);
        }
        let name = log_name(self.segment);
        match self.view.storage.read_at(&name, u64::from(start), &mut self.chunk[..want]) {
            Ok(read) => {
                (self.chunk_start, self.chunk_bytes) = (start, read as u32);
                Ok(true)
            }
            Err(error) => {
                let fault = Fault::new("read", &name, &error);
                if fault.kind != FaultKind::Missing {
                    return Err(fault.into());
                }
                self.start_over()?;
                Ok(false)
            }
        }
    }

    /// A record is not what it should be: its segment may be gone, and its file reused. If not, it is damaged.
    fn doubt(&mut self, entry: &Entry, reason: &'static str) -> Result<(), ReadError> {
        let place = (self.segment, entry.offset);
        if self.doubted == Some(place) {
            let file = log_name(self.segment);
            return Err(ReadError::Damaged { file, at: entry.offset, position: entry.position, reason });
        }
        self.doubted = Some(place);
        self.start_over()
    }

    /// Goes on at the same position with what the files say now.
    fn start_over(&mut self) -> Result<(), ReadError> {
        self.entries.clear();
        (self.at, self.chunk_bytes) = (0, 0);
        Ok(self.view.refresh()?)
    }
}

/// Entries of a row of a sidecar, from a position on.
fn read_entries(
    view: &View,
    segment: u32,
    (start, count): (u32, u32),
    first: u64,
    guess: Option<u32>,
) -> Result<Vec<Entry>, LookupError> {
    let mut reader = RowReader::open(&*view.storage, segment, start, count)?;
    let (_, at) = reader.find(first, guess)?;
    reader.entries(at, ENTRIES_MAX)
}

/// Where head and body are in the payload, if this is the record of that message.
#[inline]
fn verify(
    record: &[u8],
    (segment, queue_no): (u32, u64),
    entry: &Entry,
) -> Result<(Range<usize>, Range<usize>), &'static str> {
    let header = Header::decode(record, segment, entry.offset).ok_or("header-checksum")?;
    if header.kind != Kind::Message || header.length != entry.length {
        return Err("other-record");
    }
    let length = header.length as usize;
    let payload = record.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + length).ok_or("file-ends-early")?;
    if crc32c(payload) != header.payload_crc {
        return Err("payload-checksum");
    }
    let message = Message::decode(payload).ok_or("malformed")?;
    if !message.targets().any(|target| target.queue_no == queue_no && target.position == entry.position) {
        return Err("other-message");
    }
    let body = length - message.body.len()..length;
    Ok((body.start - message.head.len()..body.start, body))
}
