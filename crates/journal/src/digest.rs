//! A segment in brief: what it holds, and what it settles.
//!
//! Owns `Digest`, the one form in which a closed segment is told: made from memory when a segment is closed, from the
//! log when a sidecar is missing, from the sidecar when the store is opened. It must never depend on other segments:
//! a log alone gives the same digest again. Rule: docs/internals/segment.md, "Sidecar".

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::format::{FILE_HEADER_BYTES, FLAG_MOVED, Header, Kind, span};
use crate::positions::Positions;
use crate::ranges::Ranges;
use crate::record::{BatchHead, Message, decode_acks, decode_barrier, decode_deleted};
use crate::scan::Stretch;
use crate::table::{Class, Entries, Entry};

/// What a segment says of positions in older segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Drops {
    /// The queue itself is gone.
    pub(crate) deleted: bool,
    pub(crate) ranges: Ranges,
}

/// A BARRIER record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BarrierAt {
    pub(crate) barrier_no: u64,
    pub(crate) until_ms: u64,
    pub(crate) offset: u32,
    pub(crate) length: u32,
}

impl BarrierAt {
    /// All of the record, for a copy of it.
    pub(crate) fn stretch(&self) -> Stretch {
        let bytes = u32::try_from(span(self.length as usize)).unwrap_or(u32::MAX);
        Stretch { offset: self.offset, bytes, reason: "barrier" }
    }
}

/// The messages of one queue and class.
#[derive(Clone, Debug)]
pub(crate) struct DigestRow {
    pub(crate) queue_no: u64,
    pub(crate) class: Class,
    /// Not settled by the segment itself.
    pub(crate) live: Positions,
    /// Bytes of the bodies of those, where entries are in a file.
    pub(crate) told_bytes: u64,
    pub(crate) entries: Entries,
}

/// A closed segment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digest {
    pub(crate) segment: u32,
    /// Where its valid bytes end.
    pub(crate) log_bytes: u32,
    pub(crate) last_batch: u64,
    pub(crate) refs: u64,
    pub(crate) rows: Vec<DigestRow>,
    pub(crate) drops: BTreeMap<u64, Drops>,
    pub(crate) barriers: Vec<BarrierAt>,
}

impl Digest {
    /// The row of a queue and class; rows are sorted by these.
    pub(crate) fn row(&self, queue_no: u64, class: Class) -> Option<&DigestRow> {
        let found = self.rows.binary_search_by_key(&(queue_no, class), |row| (row.queue_no, row.class));
        found.ok().and_then(|at| self.rows.get(at))
    }

    /// The rows' entries are now where a sidecar has them.
    pub(crate) fn place(&mut self, placement: Vec<Entries>) {
        for (row, entries) in self.rows.iter_mut().zip(placement) {
            row.told_bytes = row.body_bytes();
            row.entries = entries;
        }
    }
}

/// Makes a digest from a log's records, in their order.
#[derive(Debug)]
pub(crate) struct DigestBuilder {
    digest: Digest,
    rows: BTreeMap<(u64, Class), (Positions, Vec<Entry>)>,
}

impl DigestBuilder {
    pub(crate) fn new(segment: u32) -> Self {
        let digest = Digest { segment, log_bytes: FILE_HEADER_BYTES as u32, ..Digest::default() };
        Self { digest, rows: BTreeMap::new() }
    }

    /// Takes a record in; `None` if its payload is malformed, and then nothing has changed.
    pub(crate) fn add(&mut self, header: &Header, offset: u32, payload: &[u8]) -> Option<()> {
        match header.kind {
            Kind::Batch => {
                let head = BatchHead::decode(payload)?;
                self.digest.last_batch = self.digest.last_batch.max(head.number);
            }
            Kind::Message => self.message(header, offset, payload)?,
            Kind::Acks => {
                let (queue_no, ranges) = decode_acks(payload)?;
                for (_, (live, _)) in self.rows.range_mut((queue_no, Class::Fresh)..=(queue_no, Class::Transient)) {
                    ranges.iter().for_each(|(first, last)| {
                        live.remove_range(first, last);
                    });
                }
                self.digest.drops.entry(queue_no).or_default().ranges.extend(&ranges);
            }
            Kind::QueueDeleted => {
                let queue_no = decode_deleted(payload)?;
                for class in [Class::Fresh, Class::Moved, Class::Transient] {
                    self.rows.remove(&(queue_no, class));
                }
                self.digest.drops.insert(queue_no, Drops { deleted: true, ranges: Ranges::default() });
            }
            Kind::Barrier => {
                let (barrier_no, until_ms, _) = decode_barrier(payload)?;
                self.digest.barriers.push(BarrierAt { barrier_no, until_ms, offset, length: header.length });
            }
        }
        self.digest.log_bytes = self.digest.log_bytes.max(offset.saturating_add(header.span() as u32));
        Some(())
    }

    fn message(&mut self, header: &Header, offset: u32, payload: &[u8]) -> Option<()> {
        let message = Message::decode(payload)?;
        let body = message.body.len() as u32;
        for target in message.targets() {
            let class = match (target.transient, header.flags & FLAG_MOVED != 0) {
                (true, _) => Class::Transient,
                (false, true) => Class::Moved,
                (false, false) => Class::Fresh,
            };
            let (position, expires) = (target.position, target.expires());
            let (live, entries) = self.rows.entry((target.queue_no, class)).or_default();
            live.insert(position);
            entries.push(Entry { position, expires, offset, length: header.length, body });
            self.digest.refs += 1;
        }
        Some(())
    }

    pub(crate) fn finish(mut self) -> Digest {
        for drops in self.digest.drops.values_mut() {
            drops.ranges.normalize();
        }
        for ((queue_no, class), (live, mut entries)) in self.rows {
            // The record that came last counts; a stable sort keeps it last among equals.
            entries.sort_by_key(|entry| entry.position);
            entries.reverse();
            entries.dedup_by_key(|entry| entry.position);
            entries.reverse();
            self.digest.rows.extend(DigestRow::new(queue_no, class, live, Arc::new(entries)));
        }
        self.digest
    }
}

impl DigestRow {
    /// A row with its entries in memory; `None` if nothing in it is live.
    pub(crate) fn new(queue_no: u64, class: Class, live: Positions, entries: Arc<Vec<Entry>>) -> Option<Self> {
        if live.is_empty() {
            return None;
        }
        Some(Self { queue_no, class, live, told_bytes: 0, entries: Entries::Memory(entries) })
    }

    /// Bytes of the bodies of what is live. With entries in memory they are counted, which takes a while: not for the
    /// engine's thread.
    pub(crate) fn body_bytes(&self) -> u64 {
        match &self.entries {
            Entries::Memory(entries) => live_entries(&self.live, entries).map(|entry| u64::from(entry.body)).sum(),
            Entries::File { .. } => self.told_bytes,
        }
    }
}

/// Those of the entries, which are in order of position, that are live.
pub(crate) fn live_entries<'a>(live: &'a Positions, entries: &'a [Entry]) -> impl Iterator<Item = &'a Entry> {
    entries.iter().filter(|entry| live.contains(entry.position))
}
