//! Batches on their way to the disk.
//!
//! Owns the bytes of every batch that is not known to be synced, and their numbers. Records come in at the end of the
//! batch being built; one batch at a time goes out as a write, and whatever is appended meanwhile forms the next. It
//! must never write by itself, nor let go of bytes before a sync has answered for them. Rule:
//! docs/internals/segment.md, "Batches".

use std::collections::VecDeque;
use std::sync::Arc;

use crate::aligned::Aligned;
use crate::bytes::patch;
use crate::checksum::crc32c;
use crate::format::{FILE_HEADER_BYTES, FLAG_LAST, Header, Kind, RECORD_ALIGN, RECORD_HEADER_BYTES, span};
use crate::record::{BATCH_PAYLOAD_BYTES, BatchHead};

/// The first record of every batch takes this much.
pub(crate) const BATCH_HEAD_BYTES: usize = RECORD_HEADER_BYTES + BATCH_PAYLOAD_BYTES;
/// Room that is kept for later batches: one is filled while others are written, or wait for a sync.
const SPARE_BYTES_MAX: usize = 8 << 20;
/// The same once there is nothing to write.
const SPARE_BYTES_MAX_IDLE: usize = 4 << 20;

/// A batch: built, waiting, being written, or written and not synced.
#[derive(Clone, Debug)]
pub(crate) struct Batch {
    pub(crate) number: u64,
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) bytes: Arc<Aligned>,
    records: u32,
    pub(crate) must_sync: bool,
    last: bool,
}

impl Batch {
    /// The first of its segment?
    pub(crate) fn creates(&self) -> bool {
        self.offset as usize == FILE_HEADER_BYTES
    }

    fn end(&self) -> u32 {
        self.offset + self.bytes.len() as u32
    }

    /// Writes the batch's own record, whose contents are known only when the batch goes out.
    fn encode_head(&mut self, synced: u64) {
        let bytes = Arc::make_mut(&mut self.bytes);
        let (number, records) = (self.number, self.records);
        let payload = BatchHead { number, synced, bytes: bytes.len() as u32, records }.encode();
        let flags = if self.last { FLAG_LAST } else { 0 };
        let header = Header { length: payload.len() as u32, kind: Kind::Batch, flags, payload_crc: crc32c(&payload) };
        patch(bytes, 0, &header.encode(self.segment, self.offset));
        patch(bytes, RECORD_HEADER_BYTES, &payload);
    }
}

/// Where a record was put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Put {
    pub(crate) segment: u32,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

/// Records that were to go to `from` are now in `to`, from offset `start` of the old one on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    pub(crate) from: u32,
    pub(crate) start: u32,
    pub(crate) to: u32,
}

/// All batches that are not synced.
#[derive(Debug)]
pub(crate) struct Writer {
    /// The batch being built.
    number: u64,
    segment: u32,
    offset: u32,
    buffer: Aligned,
    records: u32,
    must_sync: bool,
    /// It must be synced, but may wait for company before it is written.
    sync_idly: bool,
    /// The batch being built holds more than what may wait for company.
    hurries: bool,
    /// Built, in order.
    closed: VecDeque<Batch>,
    out: Option<Batch>,
    /// Written, not synced.
    tail: Vec<Batch>,
    tail_bytes: usize,
    spares: Vec<Aligned>,
    written: u64,
    synced: u64,
    /// A write failed; it is tried again when the caller says so.
    pub(crate) stalled: bool,
}

impl Writer {
    /// Starts with an empty segment after `synced` batches.
    pub(crate) fn new(segment: u32, synced: u64) -> Self {
        Self {
            number: synced + 1,
            segment,
            offset: FILE_HEADER_BYTES as u32,
            buffer: Aligned::default(),
            records: 0,
            must_sync: false,
            sync_idly: false,
            hurries: false,
            closed: VecDeque::new(),
            out: None,
            tail: Vec::new(),
            tail_bytes: 0,
            spares: Vec::new(),
            written: synced,
            synced,
            stalled: false,
        }
    }

    /// The number of the batch being built.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }
    pub(crate) fn segment(&self) -> u32 {
        self.segment
    }
    pub(crate) fn written(&self) -> u64 {
        self.written
    }
    pub(crate) fn synced(&self) -> u64 {
        self.synced
    }
    pub(crate) fn is_out(&self) -> bool {
        self.out.is_some()
    }

    /// The batch being built must be synced.
    pub(crate) fn require_sync(&mut self) {
        self.must_sync = true;
    }

    /// The batch being built must be synced when it is written.
    pub(crate) fn sync_idly(&mut self) {
        self.sync_idly = true;
    }

    /// Something in the batch being built is to be written soon.
    pub(crate) fn hurry(&mut self) {
        self.hurries = true;
    }

    /// Is there a batch to be ended? One that may wait for company is when it has so many bytes.
    pub(crate) fn is_due(&self, company_bytes: usize) -> bool {
        self.hurries || self.must_sync || self.buffer.len() >= company_bytes
    }

    /// Batches wait that were built earlier.
    pub(crate) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Nothing to write.
    pub(crate) fn is_idle(&self) -> bool {
        self.buffer.is_empty() && !self.must_sync && self.closed.is_empty() && self.out.is_none()
    }

    /// Where the segment would end with a record of this span.
    pub(crate) fn end_with(&self, span: usize) -> usize {
        self.offset as usize + self.buffer.len().max(BATCH_HEAD_BYTES) + span
    }

    /// Nothing was put into the segment yet.
    pub(crate) fn segment_is_empty(&self) -> bool {
        self.buffer.is_empty() && self.offset as usize == FILE_HEADER_BYTES
    }

    /// Bytes in memory: appended and not known to be synced.
    pub(crate) fn pending_bytes(&self) -> usize {
        let waiting: usize = self.closed.iter().chain(&self.out).map(|batch| batch.bytes.len()).sum();
        self.buffer.len() + waiting + self.tail_bytes
    }

    pub(crate) fn unsynced_bytes(&self) -> usize {
        self.tail_bytes
    }

    /// Appends a record; `fill` writes its payload.
    #[inline]
    pub(crate) fn put(&mut self, kind: Kind, flags: u8, fill: impl FnOnce(&mut Vec<u8>)) -> Put {
        if self.buffer.is_empty() {
            self.begin();
        }
        let start = self.buffer.len();
        self.buffer.add(|out| {
            out.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
            fill(out);
        });
        let payload = &self.buffer[start + RECORD_HEADER_BYTES..];
        let length = payload.len() as u32;
        let header = Header { length, kind, flags, payload_crc: crc32c(payload) };
        let offset = self.offset + start as u32;
        patch(&mut self.buffer, start, &header.encode(self.segment, offset));
        let padding = self.buffer.len().next_multiple_of(RECORD_ALIGN) - self.buffer.len();
        self.buffer.add(|out| out.resize(out.len() + padding, 0));
        self.records += 1;
        Put { segment: self.segment, offset, length }
    }

    /// Makes room for the batch's own record: a length is all that may be read of it until it goes out.
    fn begin(&mut self) {
        if self.buffer.capacity() == 0 {
            self.buffer = self.spares.pop().unwrap_or_default();
        }
        self.buffer.begin(self.offset);
        self.buffer.add(|out| out.resize(out.len() + BATCH_HEAD_BYTES, 0));
        patch(&mut self.buffer, 0, &(BATCH_PAYLOAD_BYTES as u32).to_le_bytes());
    }

    /// Ends the batch being built. With `next`, it was the last of its segment, and must be synced before the next
    /// begins.
    pub(crate) fn close(&mut self, next: Option<u32>) {
        if self.buffer.is_empty() {
            self.begin();
        }
        let batch = Batch {
            number: self.number,
            segment: self.segment,
            offset: self.offset,
            bytes: Arc::new(std::mem::take(&mut self.buffer)),
            records: self.records,
            must_sync: self.must_sync || self.sync_idly || next.is_some() || self.offset as usize == FILE_HEADER_BYTES,
            last: next.is_some(),
        };
        self.offset = batch.end();
        if let Some(segment) = next {
            (self.segment, self.offset) = (segment, FILE_HEADER_BYTES as u32);
        }
        self.number += 1;
        self.records = 0;
        self.must_sync = false;
        self.sync_idly = false;
        self.hurries = false;
        self.closed.push_back(batch);
    }

    /// The next batch to write, if none is out.
    pub(crate) fn take(&mut self) -> Option<&Batch> {
        if self.out.is_some() || self.stalled {
            return None;
        }
        let mut batch = self.closed.pop_front()?;
        batch.encode_head(self.synced);
        Some(self.out.insert(batch))
    }

    /// The batch that was out is written, and synced if it had to be. Answers with its number.
    pub(crate) fn finished(&mut self) -> Option<u64> {
        let batch = self.out.take()?;
        self.written = batch.number;
        self.tail_bytes += batch.bytes.len();
        let (number, synced) = (batch.number, batch.must_sync);
        self.tail.push(batch);
        if synced {
            self.synced = number;
            self.tail_bytes = 0;
            for batch in std::mem::take(&mut self.tail) {
                self.recycle(batch);
            }
            let spare_bytes_max = if self.is_idle() { SPARE_BYTES_MAX_IDLE } else { SPARE_BYTES_MAX };
            while self.spares.iter().map(Aligned::capacity).sum::<usize>() > spare_bytes_max {
                self.spares.pop();
            }
        }
        Some(number)
    }

    /// Lets go of the room that is kept for later batches.
    pub(crate) fn rest(&mut self) {
        self.spares = Vec::new();
    }

    fn recycle(&mut self, batch: Batch) {
        if let Ok(mut buffer) = Arc::try_unwrap(batch.bytes) {
            buffer.clear();
            self.spares.push(buffer);
        }
    }

    /// The batch that was out could not be written: it stays first, for the same place.
    pub(crate) fn write_failed(&mut self) {
        self.closed.extend(self.out.take());
        self.closed.rotate_right(1);
        self.stalled = true;
    }

    /// A sync failed, so nothing since the last good one is trusted: all of it goes to new segments, from number
    /// `next` on.
    pub(crate) fn sync_failed(&mut self, next: u32) -> Vec<Replaced> {
        self.stalled = true;
        self.tail_bytes = 0;
        let mut waiting: VecDeque<Batch> = std::mem::take(&mut self.tail).into();
        waiting.extend(self.out.take());
        waiting.append(&mut self.closed);
        let mut replaced: Vec<Replaced> = Vec::new();
        let mut place = |segment: u32, offset: u32| {
            match replaced.last() {
                Some(known) if known.from == segment => {}
                known => {
                    let to = known.map_or(next, |known| known.to + 1);
                    replaced.push(Replaced { from: segment, start: offset, to });
                }
            }
            let known = &replaced[replaced.len() - 1];
            (known.to, offset - known.start + FILE_HEADER_BYTES as u32)
        };
        for batch in &mut waiting {
            (batch.segment, batch.offset) = place(batch.segment, batch.offset);
            let bytes: &mut Aligned = Arc::make_mut(&mut batch.bytes);
            rebase(bytes, batch.segment, batch.offset);
            batch.must_sync |= batch.creates();
        }
        (self.segment, self.offset) = place(self.segment, self.offset);
        rebase(&mut self.buffer, self.segment, self.offset);
        self.closed = waiting;
        replaced
    }

    /// The first place whose bytes are in memory.
    pub(crate) fn floor(&self) -> (u32, u32) {
        let first = self.tail.first().or(self.out.as_ref()).or(self.closed.front());
        first.map_or((self.segment, self.offset), |batch| (batch.segment, batch.offset))
    }

    /// The payload of a record that is in memory.
    pub(crate) fn payload(&self, segment: u32, offset: u32, length: u32) -> Option<&[u8]> {
        let batches = self.tail.iter().chain(&self.out).chain(&self.closed);
        let places = batches.map(|batch| (batch.segment, batch.offset, &batch.bytes[..]));
        let building = std::iter::once((self.segment, self.offset, &self.buffer[..]));
        places.chain(building).find_map(|(place, start, bytes)| {
            let from = offset.checked_sub(start).filter(|_| place == segment)? as usize + RECORD_HEADER_BYTES;
            bytes.get(from..from + length as usize)
        })
    }
}

/// Gives every record of a batch the checksum of its new place.
fn rebase(bytes: &mut [u8], segment: u32, offset: u32) {
    let mut at = 0;
    while let Some(header) = bytes.get(at..at + RECORD_HEADER_BYTES) {
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        if let Some(moved) = Header::moved(header, segment, offset + at as u32) {
            patch(bytes, at, &moved);
        }
        at += span(length as usize);
    }
}
