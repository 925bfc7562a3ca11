//! Reading a log from its first byte, whatever state it is in.
//!
//! Owns the walk over a log file: batches, records, and the search for the next record after damage. Bytes come from
//! a `Storage` through a window; a digest comes out, with what was torn or damaged beside it. It must never change
//! the file, nor trust a length it has not checked. Rule: docs/internals/segment.md, "Recovery".

use crate::checksum::crc32c;
use crate::digest::{Digest, DigestBuilder};
use crate::error::Fault;
use crate::format::{FILE_HEADER_BYTES, FLAG_LAST, Header, Kind, LogHeader, Opened, RECORD_ALIGN, RECORD_HEADER_BYTES};
use crate::record::BatchHead;
use crate::storage::{Storage, log_name};
use crate::writer::BATCH_HEAD_BYTES;

/// How much of a file is read at once.
const WINDOW_BYTES: usize = 256 << 10;
/// Stretches of zeros are passed over in steps of this.
const BLANK_BYTES: u64 = 4 << 10;
/// Bytes that are compared at once.
const BLANK_STEP_BYTES: usize = 64;

/// A log file, read through a window.
pub(crate) struct Log<'a> {
    storage: &'a dyn Storage,
    name: String,
    segment: u32,
    /// The file's length, as far as offsets reach.
    bytes: u64,
    base: u64,
    window: Vec<u8>,
}

/// A batch found in a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchAt {
    pub(crate) offset: u32,
    pub(crate) head: BatchHead,
}

impl BatchAt {
    fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.head.bytes)
    }

    /// How much of the log was on the disk, as far as this batch tells, when all batches up to `synced` were.
    fn certain(&self, synced: u64) -> u64 {
        if self.head.number <= synced {
            self.end()
        } else if self.head.synced + 1 == self.head.number {
            u64::from(self.offset)
        } else {
            FILE_HEADER_BYTES as u64
        }
    }
}

/// What can be seen of a log at a glance.
#[derive(Debug)]
pub(crate) struct Outline {
    pub(crate) batches: Vec<BatchAt>,
    /// Good records behind the last batch of which the beginning is lost: the batch is newer than this one, if that
    /// is known.
    orphans_after: Option<u64>,
    orphans_end: u64,
}

impl Outline {
    /// How much of the log was on the disk when all batches up to `synced` were.
    pub(crate) fn certain(&self, synced: u64) -> u64 {
        let told = self.batches.iter().map(|batch| batch.certain(synced)).max().unwrap_or(FILE_HEADER_BYTES as u64);
        match self.orphans_after {
            Some(number) if number < synced => told.max(self.orphans_end),
            _ => told,
        }
    }

    /// The newest batch that was synced for sure, as far as this log tells.
    pub(crate) fn synced(&self) -> u64 {
        self.batches.iter().map(|batch| batch.head.synced).max().unwrap_or(0)
    }

    fn end(&self) -> u64 {
        self.batches.iter().map(BatchAt::end).max().unwrap_or(0).max(self.orphans_end)
    }
}

/// A stretch of a log that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
    pub(crate) reason: &'static str,
}

/// What a log turned out to hold.
#[derive(Debug)]
pub(crate) struct Scanned {
    pub(crate) digest: Digest,
    pub(crate) damaged: Vec<Stretch>,
    /// Batches that were never complete: the write was cut short, and nobody was told that it succeeded.
    pub(crate) torn: Option<Stretch>,
}

/// What a log has got since it was scanned.
#[derive(Debug)]
pub(crate) struct Added {
    pub(crate) digest: Digest,
    /// Batches up to this one are on the disk, as far as the new ones tell.
    pub(crate) synced: u64,
}

impl<'a> Log<'a> {
    pub(crate) fn new(storage: &'a dyn Storage, segment: u32, file_bytes: u64) -> Self {
        let bytes = file_bytes.min(u64::from(u32::MAX));
        Self { storage, name: log_name(segment), segment, bytes, base: 0, window: Vec::new() }
    }

    /// Bytes at an offset; `None` where the file ends before.
    fn get(&mut self, offset: u64, count: usize) -> Result<Option<&[u8]>, Fault> {
        if offset + count as u64 > self.bytes {
            return Ok(None);
        }
        let held = self.base..self.base + self.window.len() as u64;
        if offset < held.start || offset + count as u64 > held.end {
            let want = (count.max(WINDOW_BYTES) as u64).min(self.bytes - offset) as usize;
            self.window.resize(want, 0);
            let read = self.storage.read_at(&self.name, offset, &mut self.window);
            let read = read.map_err(|error| Fault::new("read", &self.name, &error))?;
            self.window.truncate(read);
            self.base = offset;
            if read < want {
                // It was cut since its length was told: there is nothing to look for behind its end.
                self.bytes = offset + read as u64;
            }
        }
        let from = (offset - self.base) as usize;
        Ok(self.window.get(from..from + count))
    }

    /// The first bytes of the file.
    pub(crate) fn file_header(&mut self) -> Result<Vec<u8>, Fault> {
        Ok(self.get(0, FILE_HEADER_BYTES)?.unwrap_or_default().to_vec())
    }

    /// A record's header, if one is there and the record ends within the file.
    fn header(&mut self, offset: u64) -> Result<Option<Header>, Fault> {
        let (segment, bytes) = (self.segment, self.bytes);
        let found = self.get(offset, RECORD_HEADER_BYTES)?;
        let header = found.and_then(|found| Header::decode(found, segment, offset as u32));
        Ok(header.filter(|header| offset + header.span() as u64 <= bytes))
    }

    /// A record's payload, if its checksum fits.
    pub(crate) fn payload(&mut self, offset: u64, header: &Header) -> Result<Option<&[u8]>, Fault> {
        let payload = self.get(offset + RECORD_HEADER_BYTES as u64, header.length as usize)?;
        Ok(payload.filter(|payload| crc32c(payload) == header.payload_crc))
    }

    /// The payload of the record at an offset, if there is a good one.
    pub(crate) fn record(&mut self, offset: u32) -> Result<Option<&[u8]>, Fault> {
        match self.header(u64::from(offset))? {
            Some(header) => self.payload(u64::from(offset), &header),
            None => Ok(None),
        }
    }

    /// The first record header at or after an offset.
    fn next_header(&mut self, from: u64, end: u64) -> Result<Option<u64>, Fault> {
        let mut at = from.next_multiple_of(RECORD_ALIGN as u64);
        while at < end {
            if at.is_multiple_of(BLANK_BYTES) && self.is_blank(at)? {
                at += BLANK_BYTES;
                continue;
            }
            if self.header(at)?.is_some() {
                return Ok(Some(at));
            }
            at += RECORD_ALIGN as u64;
        }
        Ok(None)
    }

    /// Only zeros, as in a file that was made longer than what is in it.
    fn is_blank(&mut self, offset: u64) -> Result<bool, Fault> {
        let block = self.get(offset, BLANK_BYTES as usize)?;
        // Many at once: most of a young log is zeros.
        let blank = |part: &[u8]| part.iter().fold(0, |any, byte| any | byte) == 0;
        Ok(block.is_some_and(|block| block.chunks(BLANK_STEP_BYTES).all(blank)))
    }

    fn batch(&mut self, offset: u64, header: &Header) -> Result<Option<BatchAt>, Fault> {
        if header.kind != Kind::Batch {
            return Ok(None);
        }
        let head = self.payload(offset, header)?.and_then(BatchHead::decode);
        let head = head.filter(|head| head.bytes as usize >= BATCH_HEAD_BYTES);
        Ok(head.map(|head| BatchAt { offset: offset as u32, head }))
    }

    /// What can be seen of the log without reading all of it: batches are passed over from one to the next where that
    /// is possible.
    pub(crate) fn outline(&mut self) -> Result<Outline, Fault> {
        let before = match LogHeader::decode(&self.file_header()?) {
            Opened::Known(header) if header.segment == self.segment => header.first_batch.checked_sub(1),
            _ => None,
        };
        let mut outline = Outline { batches: Vec::new(), orphans_after: before, orphans_end: 0 };
        let mut at = FILE_HEADER_BYTES as u64;
        while at < self.bytes {
            let Some(header) = self.header(at)? else {
                match self.next_header(at + 1, self.bytes)? {
                    Some(next) => at = next,
                    None => break,
                }
                continue;
            };
            let batch = self.batch(at, &header)?;
            at = batch.map_or(at + header.span() as u64, |batch| batch.end());
            match batch {
                Some(batch) => {
                    outline.orphans_after = Some(batch.head.number);
                    outline.batches.push(batch);
                    if header.flags & FLAG_LAST != 0 {
                        break;
                    }
                }
                None => outline.orphans_end = at,
            }
        }
        Ok(outline)
    }

    /// Reads the whole log. Batches up to `synced` were on the disk: what is wrong in them is damage, and the rest of
    /// them counts. Later ones count only if they are complete, and only up to the first that is not.
    pub(crate) fn scan(&mut self, outline: &Outline, synced: u64) -> Result<Scanned, Fault> {
        let mut builder = DigestBuilder::new(self.segment);
        let promised = outline.certain(synced);
        let certain = promised.min(self.bytes.max(FILE_HEADER_BYTES as u64));
        let mut damaged = self.salvage(&mut builder, FILE_HEADER_BYTES as u64, certain)?;
        if promised > certain {
            damaged.push(Stretch { offset: certain as u32, bytes: 0, reason: "file-ends-early" });
        }
        let mut at = certain;
        for batch in outline.batches.iter().filter(|batch| u64::from(batch.offset) >= certain) {
            if u64::from(batch.offset) != at || !self.is_complete(batch)? {
                break;
            }
            self.salvage(&mut builder, at, batch.end())?;
            at = batch.end();
        }
        let end = outline.end().min(self.bytes);
        let bytes = end.saturating_sub(at) as u32;
        let torn = (bytes > 0).then_some(Stretch { offset: at as u32, bytes, reason: "torn-write" });
        let mut digest = builder.finish();
        digest.log_bytes = at as u32;
        Ok(Scanned { digest, damaged, torn })
    }

    /// Reads a log that was complete and on the disk up to its end: whatever is wrong in it is damage, even where no
    /// batch shows its beginning any more.
    pub(crate) fn scan_closed(&mut self) -> Result<Scanned, Fault> {
        let mut builder = DigestBuilder::new(self.segment);
        let damaged = self.salvage(&mut builder, FILE_HEADER_BYTES as u64, self.bytes)?;
        let mut digest = builder.finish();
        digest.log_bytes = self.bytes as u32;
        Ok(Scanned { digest, damaged, torn: None })
    }

    /// What was added to a log behind `from` since it was scanned: complete batches, up to the first that is not.
    pub(crate) fn scan_on(&mut self, from: u64) -> Result<Added, Fault> {
        let mut builder = DigestBuilder::new(self.segment);
        let (mut at, mut synced) = (from, 0);
        while let Some(header) = self.header(at)? {
            let Some(batch) = self.batch(at, &header)? else { break };
            if batch.end() > self.bytes || !self.is_complete(&batch)? {
                break;
            }
            self.salvage(&mut builder, at, batch.end())?;
            synced = synced.max(batch.head.synced);
            at = batch.end();
        }
        let mut digest = builder.finish();
        digest.log_bytes = at as u32;
        Ok(Added { digest, synced })
    }

    /// Takes every good record of a stretch, and names what lies between.
    fn salvage(&mut self, builder: &mut DigestBuilder, from: u64, end: u64) -> Result<Vec<Stretch>, Fault> {
        let mut damaged = Vec::new();
        let mut at = from;
        while at < end {
            let (next, reason) = match self.header(at)? {
                Some(header) => {
                    let payload = self.payload(at, &header)?;
                    let reason = match payload.map(|payload| builder.add(&header, at as u32, payload)) {
                        Some(Some(())) => None,
                        Some(None) => Some("malformed"),
                        None => Some("payload-checksum"),
                    };
                    (at + header.span() as u64, reason)
                }
                None => (self.next_header(at + 1, end)?.unwrap_or(end), Some("header-checksum")),
            };
            if let Some(reason) = reason {
                damaged.push(Stretch { offset: at as u32, bytes: (next - at) as u32, reason });
            }
            at = next;
        }
        Ok(damaged)
    }

    /// Are all records of a batch there, and good?
    fn is_complete(&mut self, batch: &BatchAt) -> Result<bool, Fault> {
        let mut at = u64::from(batch.offset) + BATCH_HEAD_BYTES as u64;
        let mut records = 0;
        while at < batch.end() {
            let Some(header) = self.header(at)? else { return Ok(false) };
            if self.payload(at, &header)?.is_none() {
                return Ok(false);
            }
            records += 1;
            at += header.span() as u64;
        }
        Ok(at == batch.end() && records == batch.head.records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;

    #[test]
    fn a_log_that_is_shorter_than_it_was_is_looked_at_once() {
        let disk = SimDisk::new(1);
        disk.edit(&log_name(1), |file| file.resize(1_000, 1));
        let mut log = Log::new(&disk, 1, 1 << 40);
        assert!(log.outline().expect("a disk that answers").batches.is_empty());
        assert_eq!(log.bytes, 1_000, "not searched any further");
    }
}
