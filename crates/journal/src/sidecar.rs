//! The sidecar of a closed segment: a directory of queues, and their messages by position.
//!
//! Owns the bytes of `.idx` files. A digest comes in and a file goes out; opening a store reads the directory only,
//! reading a cold queue only the entries it needs. Whatever does not fit its checksum makes the sidecar worthless,
//! not the store: it is made again from the log. It must never be the only place of a fact. Rule:
//! docs/internals/segment.md, "Sidecar".

use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::bytes::{Reader, patch};
use crate::checksum::crc32c;
use crate::digest::{BarrierAt, Digest, DigestRow, Drops, live_entries};
use crate::error::Fault;
use crate::format::{
    FILE_HEADER_BYTES, FORMAT_VERSION, Opened, PAYLOAD_BYTES_MAX, POSITION_MAX, open_header, seal_header,
};
use crate::positions::Positions;
use crate::ranges::{Ranges, decode_runs, encode_runs};
use crate::storage::{SEGMENTS, Storage, index_name, unfinished};
use crate::table::{Class, Entries, Entry};

const MAGIC: &[u8; 8] = b"weft-idx";
pub(crate) const ENTRY_BYTES: usize = 32;
/// A directory is read into memory whole; one larger than this was not written by us.
const DIRECTORY_BYTES_MAX: u32 = 1 << 30;

/// Where the entries of each row of a digest, in its order, are in the file.
pub(crate) type Placement = Vec<Entries>;

/// The whole file, and where each row's entries went.
pub(crate) fn encode(digest: &Digest) -> (Vec<u8>, Placement) {
    let mut out = vec![0; FILE_HEADER_BYTES];
    let mut placement = Vec::with_capacity(digest.rows.len());
    let mut start = 0_u32;
    for row in &digest.rows {
        let count = row.live.len() as u32;
        out.extend_from_slice(&row.queue_no.to_le_bytes());
        out.extend_from_slice(&row.body_bytes().to_le_bytes());
        out.push(row.class as u8);
        encode_runs(row.live.runs().count() as u64, row.live.runs(), &mut out);
        placement.push(Entries::File { start, count });
        start += count;
    }
    for (queue_no, drops) in &digest.drops {
        out.extend_from_slice(&queue_no.to_le_bytes());
        out.push(u8::from(drops.deleted));
        drops.ranges.encode(&mut out);
    }
    for barrier in &digest.barriers {
        out.extend_from_slice(&barrier.barrier_no.to_le_bytes());
        out.extend_from_slice(&barrier.until_ms.to_le_bytes());
        out.extend_from_slice(&barrier.offset.to_le_bytes());
        out.extend_from_slice(&barrier.length.to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(ENTRY_BYTES), 0);
    let header = encode_header(digest, &out[FILE_HEADER_BYTES..]);
    patch(&mut out, 0, &header);
    out.reserve(start as usize * ENTRY_BYTES);
    for row in &digest.rows {
        if let Entries::Memory(entries) = &row.entries {
            live_entries(&row.live, entries).for_each(|entry| out.extend_from_slice(&encode_entry(entry)));
        }
    }
    (out, placement)
}

fn encode_header(digest: &Digest, directory: &[u8]) -> [u8; FILE_HEADER_BYTES] {
    let mut out = [0; FILE_HEADER_BYTES];
    patch(&mut out, 0, MAGIC);
    patch(&mut out, 8, &FORMAT_VERSION.to_le_bytes());
    patch(&mut out, 12, &digest.segment.to_le_bytes());
    patch(&mut out, 16, &digest.last_batch.to_le_bytes());
    patch(&mut out, 24, &digest.refs.to_le_bytes());
    patch(&mut out, 32, &digest.log_bytes.to_le_bytes());
    patch(&mut out, 36, &(digest.rows.len() as u32).to_le_bytes());
    patch(&mut out, 40, &(digest.drops.len() as u32).to_le_bytes());
    patch(&mut out, 44, &(digest.barriers.len() as u32).to_le_bytes());
    patch(&mut out, 48, &(directory.len() as u32).to_le_bytes());
    patch(&mut out, 52, &crc32c(directory).to_le_bytes());
    seal_header(&mut out);
    out
}

fn encode_entry(entry: &Entry) -> [u8; ENTRY_BYTES] {
    let mut out = [0; ENTRY_BYTES];
    patch(&mut out, 0, &entry.position.to_le_bytes());
    patch(&mut out, 8, &entry.expires.to_le_bytes());
    patch(&mut out, 16, &entry.offset.to_le_bytes());
    patch(&mut out, 20, &entry.length.to_le_bytes());
    patch(&mut out, 24, &entry.body.to_le_bytes());
    let crc = crc32c(&out[..28]);
    patch(&mut out, 28, &crc.to_le_bytes());
    out
}

/// An entry, if its checksum fits.
fn decode_entry(bytes: &[u8]) -> Option<Entry> {
    let mut reader = Reader::new(bytes);
    let entry = Entry {
        position: reader.u64()?,
        expires: reader.u64()?,
        offset: reader.u32()?,
        length: reader.u32()?,
        body: reader.u32()?,
    };
    let valid = reader.u32()? == crc32c(bytes.get(..28)?) && entry.length as usize <= PAYLOAD_BYTES_MAX;
    valid.then_some(entry)
}

/// Writes a sidecar so that it is there whole or not at all.
pub(crate) fn write(storage: &dyn Storage, digest: &Digest) -> Result<Placement, Fault> {
    let name = index_name(digest.segment);
    let draft = unfinished(&name);
    let fault = |error| Fault::new("write", &name, &error);
    let (bytes, placement) = encode(digest);
    // A draft of an earlier try may be there, and longer.
    storage.create(&draft, 0).and_then(|()| storage.set_len(&draft, 0)).map_err(fault)?;
    storage.write_at(&draft, 0, &bytes).map_err(fault)?;
    storage.sync(&draft).map_err(fault)?;
    storage.rename(&draft, &name).map_err(fault)?;
    storage.sync_folder(SEGMENTS).map_err(fault)?;
    Ok(placement)
}

/// Reads the directory of a sidecar.
pub(crate) fn load(storage: &dyn Storage, segment: u32, file_bytes: u64) -> Result<Opened<Digest>, Fault> {
    let name = index_name(segment);
    let read = |offset: u64, buffer: &mut [u8]| {
        storage.read_at(&name, offset, buffer).map_err(|error| Fault::new("read", &name, &error))
    };
    let mut header = [0; FILE_HEADER_BYTES];
    let count = read(0, &mut header)?;
    let mut reader = match open_header(&header[..count], MAGIC) {
        Opened::Known(reader) => reader,
        Opened::Newer(version) => return Ok(Opened::Newer(version)),
        Opened::Damaged => return Ok(Opened::Damaged),
    };
    let Some(sizes) = Sizes::decode(&mut reader) else { return Ok(Opened::Damaged) };
    let room = file_bytes.saturating_sub(FILE_HEADER_BYTES as u64);
    if sizes.segment != segment || u64::from(sizes.directory_bytes) > room.min(u64::from(DIRECTORY_BYTES_MAX)) {
        return Ok(Opened::Damaged);
    }
    let mut directory = vec![0; sizes.directory_bytes as usize];
    let count = read(FILE_HEADER_BYTES as u64, &mut directory)?;
    if crc32c(&directory[..count]) != sizes.directory_crc {
        return Ok(Opened::Damaged);
    }
    let entries_max = (room - u64::from(sizes.directory_bytes)) / ENTRY_BYTES as u64;
    Ok(sizes.digest(&directory, entries_max).map_or(Opened::Damaged, Opened::Known))
}

struct Sizes {
    segment: u32,
    last_batch: u64,
    refs: u64,
    log_bytes: u32,
    rows: u32,
    drops: u32,
    barriers: u32,
    directory_bytes: u32,
    directory_crc: u32,
}

impl Sizes {
    fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            segment: reader.u32()?,
            last_batch: Some(reader.u64()?).filter(|number| *number <= POSITION_MAX)?,
            refs: reader.u64()?,
            log_bytes: reader.u32()?,
            rows: reader.u32()?,
            drops: reader.u32()?,
            barriers: reader.u32()?,
            directory_bytes: reader.u32()?,
            directory_crc: reader.u32()?,
        })
    }

    fn digest(&self, directory: &[u8], entries_max: u64) -> Option<Digest> {
        let mut reader = Reader::new(directory);
        let (mut rows, mut start) = (Vec::<DigestRow>::new(), 0_u32);
        for _ in 0..self.rows {
            let queue_no = reader.u64()?;
            // No two of its bodies are in the same place.
            let told_bytes = Some(reader.u64()?).filter(|bytes| *bytes <= u64::from(self.log_bytes))?;
            let class = Class::from_byte(reader.u8()?)?;
            // They are found by bisection, and each but once.
            if rows.last().is_some_and(|last| (last.queue_no, last.class) >= (queue_no, class)) {
                return None;
            }
            let live = decode_live(&mut reader, entries_max)?;
            let count = u32::try_from(live.len()).ok()?;
            rows.push(DigestRow { queue_no, class, live, told_bytes, entries: Entries::File { start, count } });
            start = start.checked_add(count).filter(|start| u64::from(*start) <= entries_max)?;
        }
        let mut drops = BTreeMap::new();
        for _ in 0..self.drops {
            let (queue_no, deleted) = (reader.u64()?, reader.u8()? != 0);
            drops.insert(queue_no, Drops { deleted, ranges: Ranges::decode(&mut reader)? });
        }
        let mut barriers = Vec::new();
        for _ in 0..self.barriers {
            let (barrier_no, until_ms) = (reader.u64()?, reader.u64()?);
            barriers.push(BarrierAt { barrier_no, until_ms, offset: reader.u32()?, length: reader.u32()? });
        }
        let (segment, log_bytes, last_batch, refs) = (self.segment, self.log_bytes, self.last_batch, self.refs);
        Some(Digest { segment, log_bytes, last_batch, refs, rows, drops, barriers })
    }
}

/// Live positions; more of them than the file can have entries are not believed.
fn decode_live(reader: &mut Reader<'_>, entries_max: u64) -> Option<Positions> {
    let mut runs = Vec::new();
    let mut total = 0_u64;
    decode_runs(reader, |first, last| {
        total = total.saturating_add(last - first + 1);
        runs.push((first, last));
    })?;
    if total > entries_max || total == 0 {
        return None;
    }
    let mut live = Positions::default();
    for (first, last) in runs {
        (first..=last).for_each(|position| {
            live.insert(position);
        });
    }
    Some(live)
}

/// A sidecar's entry was not what it should be, or the disk refused.
#[derive(Debug)]
pub(crate) enum LookupError {
    Damaged,
    Fault(Fault),
}

/// Reads entries of one row.
pub(crate) struct RowReader<'a> {
    storage: &'a dyn Storage,
    name: String,
    /// Where the row begins in the file.
    base: u64,
    count: u32,
    block: Vec<u8>,
    block_start: u32,
}

/// Entries read ahead when a row is read in order.
const BLOCK_ENTRIES: u32 = 256;

impl<'a> RowReader<'a> {
    /// For a row at `start`, of a sidecar whose directory takes what the header says.
    pub(crate) fn open(storage: &'a dyn Storage, segment: u32, start: u32, count: u32) -> Result<Self, LookupError> {
        let name = index_name(segment);
        let mut header = [0; FILE_HEADER_BYTES];
        let read = storage.read_at(&name, 0, &mut header);
        let read = read.map_err(|error| LookupError::Fault(Fault::new("read", &name, &error)))?;
        let Opened::Known(mut reader) = open_header(&header[..read], MAGIC) else { return Err(LookupError::Damaged) };
        let sizes = Sizes::decode(&mut reader).ok_or(LookupError::Damaged)?;
        let base = FILE_HEADER_BYTES as u64 + u64::from(sizes.directory_bytes) + u64::from(start) * ENTRY_BYTES as u64;
        Ok(Self { storage, name, base, count, block: Vec::new(), block_start: 0 })
    }

    fn load(&mut self, at: u32, count: u32) -> Result<(), LookupError> {
        let count = count.min(self.count.saturating_sub(at));
        self.block.resize(count as usize * ENTRY_BYTES, 0);
        self.block_start = at;
        let read = self.storage.read_at(&self.name, self.base + u64::from(at) * ENTRY_BYTES as u64, &mut self.block);
        match read {
            Ok(read) if read == self.block.len() => Ok(()),
            Ok(_) => Err(LookupError::Damaged),
            Err(error) => Err(LookupError::Fault(Fault::new("read", &self.name, &error))),
        }
    }

    /// The entry at an index of the row.
    pub(crate) fn entry(&mut self, at: u32, ahead: u32) -> Result<Entry, LookupError> {
        let loaded = self.block_start..self.block_start + (self.block.len() / ENTRY_BYTES) as u32;
        if !loaded.contains(&at) {
            self.load(at, ahead)?;
        }
        let from = (at - self.block_start) as usize * ENTRY_BYTES;
        let entry = self.block.get(from..from + ENTRY_BYTES).and_then(decode_entry);
        entry.ok_or(LookupError::Damaged)
    }

    /// The entry of a position, with its index; `from` is where it is expected, if anywhere.
    pub(crate) fn find(&mut self, position: u64, from: Option<u32>) -> Result<(Entry, u32), LookupError> {
        // Whoever reads a queue in order wants the next entry, or one soon after; in most rows no position is missing.
        let from = match from {
            Some(from) => from,
            None => position.saturating_sub(self.entry(0, 1)?.position).min(u64::from(self.count)) as u32,
        };
        let mut low = from;
        while low < self.count.min(from.saturating_add(BLOCK_ENTRIES)) {
            let entry = self.entry(low, BLOCK_ENTRIES)?;
            if entry.position == position {
                return Ok((entry, low));
            }
            if entry.position > position {
                break;
            }
            low += 1;
        }
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.entry(middle, 1)?;
            match entry.position.cmp(&position) {
                Ordering::Equal => return Ok((entry, middle)),
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
            }
        }
        Err(LookupError::Damaged)
    }

    /// Entries from an index on, read at once.
    pub(crate) fn entries(&mut self, at: u32, count_max: u32) -> Result<Vec<Entry>, LookupError> {
        self.load(at, count_max)?;
        self.block.chunks_exact(ENTRY_BYTES).map(|entry| decode_entry(entry).ok_or(LookupError::Damaged)).collect()
    }

    /// Every entry of the row.
    pub(crate) fn all(&mut self) -> Result<Vec<Entry>, LookupError> {
        (0..self.count).map(|at| self.entry(at, BLOCK_ENTRIES)).collect()
    }
}
