//! Reading messages of cold queues.
//!
//! Owns the work of a read: entries are looked up in sidecars, records that lie together are read together, every one
//! is verified. A plan comes in from the journal, messages go out in the plan's order. It runs on a disk thread and
//! must never touch the journal's memory; what it finds damaged it sets aside and names. Rule:
//! docs/internals/segment.md, "Reading".

use std::ops::Range;
use std::sync::Arc;

use crate::aligned::BLOCK_BYTES;
use crate::aside::set_aside;
use crate::checksum::crc32c;
use crate::direct::DIRECT_BYTES_MIN;
use crate::error::Fault;
use crate::format::{Header, Kind, RECORD_HEADER_BYTES, span};
use crate::record::{Message, Target};
use crate::room::{PAGE_BYTES, Pages, Room};
use crate::scan::Stretch;
use crate::sidecar::{LookupError, RowReader};
use crate::storage::{Storage, log_name};
use crate::table::Entry;

/// Records this close to each other are read together, with what lies between.
const GAP_BYTES: u32 = 16 << 10;
/// One read is not made larger than this, unless a single record is.
const READ_BYTES_MAX: usize = PAGE_BYTES - 2 * BLOCK_BYTES;

/// A message to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) queue_no: u64,
    pub(crate) position: u64,
    pub(crate) segment: u32,
    pub(crate) at: At,
}

/// Where a message's entry is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    Known(Entry),
    Sidecar { start: u32, count: u32 },
}

/// A message as it was stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored<'a> {
    pub position: u64,
    /// Milliseconds since 1970; 0 for never.
    pub expires_ms: u64,
    pub transient: bool,
    pub head: &'a [u8],
    pub body: &'a [u8],
}

/// Messages that were read, in order of position. Whoever wants to keep some without copying them shares the bytes.
#[derive(Debug, Default)]
pub struct Messages {
    bytes: Arc<Room>,
    /// What of them was read; there may be more room.
    used: usize,
    items: Vec<Item>,
}

#[derive(Debug)]
struct Item {
    position: u64,
    expires: u64,
    head: Range<usize>,
    body: Range<usize>,
}

impl Messages {
    pub fn len(&self) -> usize {
        self.items.len()
    }
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }
    /// The messages.
    pub fn iter(&self) -> impl Iterator<Item = Stored<'_>> {
        self.items.iter().map(|item| self.stored(item))
    }

    /// The messages from one of them on.
    pub fn iter_from(&self, index: usize) -> impl Iterator<Item = Stored<'_>> {
        self.items.get(index..).unwrap_or_default().iter().map(|item| self.stored(item))
    }

    /// Where the body of one begins in `bytes`. Its head stands just before.
    pub fn place(&self, index: usize) -> Option<usize> {
        self.items.get(index).map(|item| item.body.start)
    }

    /// What they lie in.
    pub fn bytes(&self) -> &Arc<Room> {
        &self.bytes
    }

    /// How much was read, with what lies between the messages.
    pub fn bytes_read(&self) -> usize {
        self.used
    }

    /// One of them.
    pub fn get(&self, index: usize) -> Option<Stored<'_>> {
        self.items.get(index).map(|item| self.stored(item))
    }

    fn stored(&self, item: &Item) -> Stored<'_> {
        let target = Target::new(0, item.position, item.expires);
        Stored {
            position: item.position,
            expires_ms: target.expires_ms,
            transient: target.transient,
            head: &self.bytes[item.head.clone()],
            body: &self.bytes[item.body.clone()],
        }
    }

    /// Adds a copy of a message that is nowhere but in memory, behind the others.
    pub fn add<'a>(&mut self, position: u64, head: &[u8], body: impl Iterator<Item = &'a [u8]>) {
        let bytes = Arc::make_mut(&mut self.bytes);
        let start = bytes.len();
        bytes.extend(head);
        let middle = bytes.len();
        body.for_each(|part| bytes.extend(part));
        self.used = bytes.len();
        self.items.push(Item { position, expires: 0, head: start..middle, body: middle..bytes.len() });
    }

    /// Adds a copy of a message that is still in memory.
    pub(crate) fn push(&mut self, entry: &Entry, message: &Message<'_>) {
        let bytes = Arc::make_mut(&mut self.bytes);
        let start = bytes.len();
        bytes.extend(message.head);
        let middle = bytes.len();
        bytes.extend(message.body);
        let (position, expires) = (entry.position, entry.expires);
        self.used = bytes.len();
        self.items.push(Item { position, expires, head: start..middle, body: middle..bytes.len() });
    }
}

/// What a read found.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub(crate) bytes: Room,
    /// What of them was read.
    pub(crate) used: usize,
    pub(crate) found: Vec<FoundRecord>,
    /// Messages whose record is damaged and was set aside.
    pub(crate) damaged: Vec<(u64, u64)>,
    /// A segment whose sidecar must be made again first.
    pub(crate) wrong_index: Option<u32>,
    pub(crate) fault: Option<Fault>,
}

/// A verified MESSAGE record.
#[derive(Clone, Debug)]
pub(crate) struct FoundRecord {
    pub(crate) pick: Pick,
    pub(crate) entry: Entry,
    pub(crate) payload: Range<usize>,
    /// Bytes of the message's head, which stands before its body at the end of the payload.
    head: usize,
    body: usize,
}

impl Gathered {
    /// Makes room for bytes behind the others, at an address that is a multiple of `block`: where that is.
    fn make_room(&mut self, count: usize, block: usize) -> usize {
        self.bytes.grow(self.used + (block - 1) + count);
        let address = self.bytes.as_ptr() as usize + self.used;
        let base = self.used + address.next_multiple_of(block) - address;
        self.used = base + count;
        base
    }

    /// The messages, for whoever asked. Their bytes are another core's so far, and are not touched here.
    pub(crate) fn into_messages(self) -> Messages {
        let items = self.found.iter().map(|found| {
            let body = found.payload.end - found.body..found.payload.end;
            let (position, expires) = (found.entry.position, found.entry.expires);
            Item { position, expires, head: body.start - found.head..body.start, body }
        });
        let items = items.collect();
        Messages { bytes: Arc::new(self.bytes), used: self.used, items }
    }
}

/// Reads what is picked, in order, until `bytes_max` is reached; at least one message.
pub(crate) fn gather(storage: &dyn Storage, picks: &[Pick], bytes_max: usize, shared: bool, pages: &Pages) -> Gathered {
    let mut gathered = Gathered::default();
    let mut wanted = resolve(storage, picks, bytes_max, &mut gathered);
    let spans: usize = wanted.iter().map(|found| span(found.entry.length as usize)).sum();
    gathered.bytes = pages.room(spans);
    // Records are read in the order they lie in, and answered in the order they were asked for.
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|at| (wanted[*at].pick.segment, wanted[*at].entry.offset));
    let mut rest = &order[..];
    while !rest.is_empty() && gathered.fault.is_none() {
        let count = together(&wanted, rest);
        let (now, later) = rest.split_at(count);
        rest = later;
        read_stretch(storage, &mut wanted, now, shared, &mut gathered);
    }
    let stopped = gathered.fault.is_some() || gathered.wrong_index.is_some();
    let good = wanted.into_iter().take_while(|found| !stopped || !found.payload.is_empty());
    gathered.found = good.filter(|found| !found.payload.is_empty()).collect();
    gathered
}

/// Finds the entries of the picks.
fn resolve(storage: &dyn Storage, picks: &[Pick], bytes_max: usize, gathered: &mut Gathered) -> Vec<FoundRecord> {
    let mut wanted: Vec<FoundRecord> = Vec::with_capacity(picks.len());
    let mut reader: Option<((u32, u32), RowReader<'_>, Option<u32>)> = None;
    let mut total = 0;
    for pick in picks {
        let entry = match pick.at {
            At::Known(entry) => Ok(entry),
            At::Sidecar { start, count } => lookup(storage, pick, (start, count), &mut reader),
        };
        match entry {
            Ok(entry) => {
                total += span(entry.length as usize);
                if total > bytes_max && !wanted.is_empty() {
                    break;
                }
                wanted.push(FoundRecord { pick: *pick, entry, payload: 0..0, head: 0, body: 0 });
            }
            Err(LookupError::Damaged) => {
                gathered.wrong_index = Some(pick.segment);
                break;
            }
            Err(LookupError::Fault(fault)) => {
                gathered.fault = Some(fault);
                break;
            }
        }
    }
    wanted
}

fn lookup<'a>(
    storage: &'a dyn Storage,
    pick: &Pick,
    (start, count): (u32, u32),
    reader: &mut Option<((u32, u32), RowReader<'a>, Option<u32>)>,
) -> Result<Entry, LookupError> {
    let row = (pick.segment, start);
    if reader.as_ref().is_none_or(|(open, _, _)| *open != row) {
        *reader = Some((row, RowReader::open(storage, pick.segment, start, count)?, None));
    }
    let Some((_, reader, expected)) = reader else { return Err(LookupError::Damaged) };
    let (entry, at) = reader.find(pick.position, *expected)?;
    *expected = Some(at + 1);
    Ok(entry)
}

/// How many of the records, which are in order, one read should fetch.
fn together(wanted: &[FoundRecord], order: &[usize]) -> usize {
    let first = &wanted[order[0]];
    let mut end = first.entry.offset;
    let close = |at: &&usize| {
        let (pick, entry) = (&wanted[**at].pick, &wanted[**at].entry);
        let next_end = entry.offset.saturating_add(span(entry.length as usize) as u32);
        let near = pick.segment == first.pick.segment
            && entry.offset.saturating_sub(end) <= GAP_BYTES
            && (next_end - first.entry.offset) as usize <= READ_BYTES_MAX;
        end = end.max(next_end);
        near
    };
    order.iter().take_while(close).count().max(1)
}

/// Reads records that lie together and verifies each. Many at once are read in whole blocks, into memory that lies as
/// they do: a storage can have them brought there by the disk.
fn read_stretch(
    storage: &dyn Storage,
    wanted: &mut [FoundRecord],
    order: &[usize],
    shared: bool,
    gathered: &mut Gathered,
) {
    let first = &wanted[order[0]];
    let (segment, offset) = (first.pick.segment, first.entry.offset);
    let end_of = |at: &usize| wanted[*at].entry.offset as usize + span(wanted[*at].entry.length as usize);
    let end = order.iter().map(end_of).max().unwrap_or(0);
    let large = end - offset as usize >= DIRECT_BYTES_MIN;
    let block = if large { BLOCK_BYTES } else { 1 };
    let (start, end) = (offset - offset % block as u32, end.next_multiple_of(block));
    let base = gathered.make_room(end - start as usize, block);
    let name = log_name(segment);
    let room = &mut gathered.bytes[base..gathered.used];
    let read = match large {
        true => storage.read_blocks(&name, u64::from(start), room, shared),
        false => storage.read_at(&name, u64::from(start), room),
    };
    match read {
        // A log that ends early fails the records' checksums.
        Ok(count) => room[count..].fill(0),
        Err(error) => {
            gathered.fault = Some(Fault::new("read", &name, &error));
            return;
        }
    }
    for &at in order {
        let found = &mut wanted[at];
        let from = base + (found.entry.offset - start) as usize;
        let record = &gathered.bytes[from..from + span(found.entry.length as usize)];
        match verify(record, found) {
            Ok((head, body)) => {
                let payload = from + RECORD_HEADER_BYTES;
                found.payload = payload..payload + found.entry.length as usize;
                (found.head, found.body) = (head, body);
            }
            // The record is good, so it is the sidecar that is not: it was made again, or never right.
            Err("other-message") if matches!(found.pick.at, At::Sidecar { .. }) => gathered.wrong_index = Some(segment),
            Err(reason) => {
                let stretch = Stretch { offset: found.entry.offset, bytes: record.len() as u32, reason };
                match set_aside(storage, segment, &stretch) {
                    Ok(_) => gathered.damaged.push((found.pick.queue_no, found.pick.position)),
                    Err(fault) => gathered.fault = Some(fault),
                }
            }
        }
    }
}

/// Is this the record of that message? The bytes of its head and its body.
fn verify(record: &[u8], found: &FoundRecord) -> Result<(usize, usize), &'static str> {
    let header = Header::decode(record, found.pick.segment, found.entry.offset);
    let header = header.filter(|header| header.length == found.entry.length && header.kind == Kind::Message);
    let header = header.ok_or("header-checksum")?;
    let payload = &record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + header.length as usize];
    if crc32c(payload) != header.payload_crc {
        return Err("payload-checksum");
    }
    let message = Message::decode(payload).ok_or("malformed")?;
    let mut targets = message.targets();
    let named = targets.any(|target| target.queue_no == found.pick.queue_no && target.position == found.pick.position);
    if named { Ok((message.head.len(), message.body.len())) } else { Err("other-message") }
}
