//! The files of a store under any bytes: segments and sidecars.
//!
//! Owns one target with three kinds of input: a store that was written properly and then damaged, records of any
//! content under checksums that are right, and files of nothing but the input. Whatever it is, opening the store ends
//! with an answer; what is read was written; opening it again finds all of it, unless a damaged sidecar got checksums
//! that are right; and the store goes on from there. Readers without the node come to an end too. It must never accept
//! a panic. Rules: docs/internals/segment.md.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_journal::{Config, Cursor, Done, Journal, Read, SimDisk, Storage, Target, View, recover};
use weft_sim::Random;

use crate::feature::note;
use crate::source::Source;

const HEAD: &[u8] = b"head";
const QUEUES: u64 = 3;
/// Steps of the store before it is damaged.
const STEPS_MAX: usize = 120;
/// Reads after which a queue that still has more is called endless.
const READS_MAX: usize = 2_000;

pub const WORDS: &[&[u8]] = &[b"weft-log", b"weft-idx", &[0; 8], &[0xFF; 8], &[1, 0, 0, 0], HEAD];

/// Bodies by queue and position.
type Written = BTreeMap<(u64, u64), Vec<u8>>;

/// The target.
pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    let disk = Arc::new(SimDisk::new(1));
    let mut lies = false;
    let written = match source.below(3) {
        0 => Some(write_and_damage(&disk, &mut source, &mut lies)),
        1 => {
            seal_records(&disk, &mut source);
            None
        }
        _ => {
            let (log, index) = source.rest().split_at(source.rest().len() / 2);
            disk.edit("segments/00000001.log", |file| file.extend_from_slice(log));
            disk.edit("segments/00000001.idx", |file| file.extend_from_slice(index));
            None
        }
    };
    look(&disk, written.as_ref());
    let Some(first) = open(&disk, written.as_ref()) else { return };
    look(&disk, written.as_ref());
    // Where the end of a queue was cut off, the new message took a place that another had before.
    let second = open(&disk, None);
    // The store was closed in between, so nothing may have been lost: all that was found is found again, and one more.
    // What was settled may come back with it, where the damage hit the record of that.
    let second = second.unwrap_or_else(|| panic!("a store that was opened is refused")).0;
    for (place, body) in first.1.iter().filter(|_| !lies) {
        assert_eq!(second.get(place), Some(body), "at {place:?}, opened again");
    }
}

/// An input of the right shape.
pub fn generate(random: &mut Random) -> Vec<u8> {
    let mut input = vec![random.below(3) as u8];
    let count = random.below(400);
    input.extend((0..count).map(|_| if random.one_in(3) { random.below(8) as u8 } else { random.below(256) as u8 }));
    input
}

fn config() -> Config {
    Config {
        segment_bytes: 4 << 10,
        segment_messages: 40,
        unsynced_bytes_max: 2 << 10,
        compact_bytes: 8 << 10,
        spares_max: 1,
        prepare_bytes: 1 << 10,
    }
}

/// Lets the journal do all that it wants to do.
fn pump(journal: &mut Journal, disk: &SimDisk) -> Vec<weft_journal::ReadDone> {
    let mut reads = Vec::new();
    while let Some(mut job) = journal.poll_job() {
        job.run(disk);
        match journal.job_done(job) {
            Done::Read(read) => reads.push(read),
            Done::Failed(fault) => panic!("this disk refuses nothing: {fault}"),
            _ => {}
        }
    }
    reads
}

/// A store that was written properly, and then bytes of its files were changed, cut off or added.
fn write_and_damage(disk: &SimDisk, source: &mut Source<'_>, lies: &mut bool) -> Written {
    let (mut journal, _) = recover(disk, config(), 1).unwrap_or_else(|error| panic!("an empty disk: {error}"));
    let (mut written, mut next) = (Written::new(), [0; QUEUES as usize]);
    for _ in 0..source.below(STEPS_MAX) {
        let queue = source.below(QUEUES as usize);
        let number = queue as u64 + 1;
        match source.below(8) {
            0..5 => {
                let body = vec![source.byte(); usize::from(source.byte())];
                let target = Target { queue_no: number, position: next[queue], expires_ms: 0, transient: false };
                let _fits = journal.append_message(HEAD, std::iter::once(&body[..]), &[target]);
                written.insert((number, next[queue]), body);
                next[queue] += 1;
            }
            5 => {
                journal.ack(number, source.odd_number() % (next[queue] + 1));
            }
            6 => {
                journal.sync();
                pump(&mut journal, disk);
            }
            _ => {
                journal.remember(number, 1_000_000 + source.odd_number() % 1_000, &[source.byte(); 16]);
            }
        }
    }
    journal.close();
    pump(&mut journal, disk);
    while !source.is_empty() {
        *lies |= damage(disk, source);
    }
    written
}

/// Changes a file. True if it is a sidecar that has the right checksums now.
fn damage(disk: &SimDisk, source: &mut Source<'_>) -> bool {
    let files = disk.list("segments").unwrap_or_default();
    let Some(file) = files.get(source.below(files.len())) else { return false };
    let place = usize::from(source.byte()) << 8 | usize::from(source.byte());
    let (kind, byte) = (source.below(6), source.byte());
    let seals = kind == 4 && file.name.ends_with(".idx");
    disk.edit(&format!("segments/{}", file.name), |bytes| {
        let place = place % (bytes.len() + 1);
        match kind {
            0 => bytes.iter_mut().skip(place).take(1).for_each(|old| *old ^= byte | 1),
            1 => bytes.iter_mut().skip(place).take(usize::from(byte)).for_each(|old| *old = byte),
            2 => bytes.truncate(place),
            3 => bytes.resize(bytes.len() + usize::from(byte), byte),
            4 if seals => seal_sidecar(bytes),
            _ => {
                let count = bytes.len().min(usize::from(byte));
                let place = place.min(bytes.len() - count);
                bytes.copy_within(..count, place);
            }
        }
    });
    seals
}

/// Makes the checksums of a sidecar right, whatever it says.
fn seal_sidecar(bytes: &mut [u8]) {
    let Some((header, rest)) = bytes.split_at_mut_checked(64) else { return };
    let directory = u32::from_le_bytes([header[48], header[49], header[50], header[51]]) as usize;
    let (directory, entries) = rest.split_at_mut(directory.min(rest.len()));
    header[52..56].copy_from_slice(&sum(0, directory).to_le_bytes());
    let whole = sum(0, &header[..60]);
    header[60..].copy_from_slice(&whole.to_le_bytes());
    for entry in entries.chunks_exact_mut(32) {
        let whole = sum(0, &entry[..28]);
        entry[28..].copy_from_slice(&whole.to_le_bytes());
    }
}

/// CRC-32C, the slow way: it must not be the journal's own.
fn sum(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(!seed, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ if sum & 1 == 1 { 0x82F6_3B78 } else { 0 })
    }) ^ u32::MAX
}

/// A log of records whose checksums are right, whatever they say.
fn seal_records(disk: &SimDisk, source: &mut Source<'_>) {
    let mut log = b"weft-log".to_vec();
    log.extend([1, 0, 0, 0, 1, 0, 0, 0]);
    log.extend(1_u64.to_le_bytes().into_iter().chain(1_u64.to_le_bytes()));
    log.resize(60, 0);
    log.extend(sum(0, &log).to_le_bytes());
    let mut batch = 0;
    while !source.is_empty() {
        batch += 1;
        let mut records = Vec::new();
        let count = 1 + source.below(4);
        let start = log.len();
        for _ in 0..count {
            let (kind, flags) = (2 + source.byte() % 4, source.byte() & 1);
            let payload = any_payload(kind, source);
            put(&mut records, start + 40, kind, flags, &payload);
        }
        let mut head = [batch, batch - 1].map(u64::to_le_bytes).concat();
        let odd = source.below(16) == 15;
        let bytes = if odd { source.odd_number() as u32 } else { records.len() as u32 + 40 };
        let count = if odd { source.odd_number() as u32 } else { count as u32 };
        head.extend(bytes.to_le_bytes().into_iter().chain(count.to_le_bytes()));
        put(&mut log, 0, 1, 0, &head);
        log.extend(records);
    }
    disk.edit("segments/00000001.log", |file| *file = log);
}

fn any_payload(kind: u8, source: &mut Source<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    let queue = 1 + source.below(QUEUES as usize) as u64;
    match kind {
        2 => {
            let (head, targets) = (source.below(8) as u32, source.below(3) as u32);
            let odd = source.below(16) == 15;
            payload.extend(if odd { source.odd_number() as u32 } else { head }.to_le_bytes());
            payload.extend(if odd { source.odd_number() as u32 } else { targets }.to_le_bytes());
            for _ in 0..targets {
                payload.extend(queue.to_le_bytes());
                payload.extend(source.odd_number().to_le_bytes());
                payload.extend((source.odd_number() << (source.below(2) * 63)).to_le_bytes());
            }
            payload.extend(vec![7; head as usize + source.below(64)]);
        }
        _ => payload.extend(queue.to_le_bytes()),
    }
    let more = source.below(24);
    payload.extend((0..more).map(|_| source.byte()));
    payload
}

fn put(out: &mut Vec<u8>, base: usize, kind: u8, flags: u8, payload: &[u8]) {
    let offset = (base + out.len()) as u32;
    let mut header = (payload.len() as u32).to_le_bytes().to_vec();
    header.extend([kind, flags, 0, 0]);
    header.extend(sum(0, payload).to_le_bytes());
    header.extend(sum(0x9E37_79B1 ^ offset, &header).to_le_bytes());
    out.extend(header);
    out.extend(payload);
    out.resize(out.len().next_multiple_of(8), 0);
}

/// Opens the store: what is in it, before and after one more message. None if it is refused, in words.
fn open(disk: &SimDisk, written: Option<&Written>) -> Option<(Written, Written)> {
    let (mut journal, found) = match recover(disk, config(), 1) {
        Ok(opened) => opened,
        Err(error) => {
            note(("refused", error.to_string().split(' ').next()));
            return None;
        }
    };
    note(("damage", found.damaged.len().min(5), found.queues.len().min(5), found.barriers.len().min(3)));
    found.damaged.iter().for_each(|damage| note(("why", damage.reason)));
    let mut before = Written::new();
    for queue in &found.queues {
        read_all(&mut journal, disk, queue.queue_no, &mut before);
    }
    for (place, body) in written.into_iter().flat_map(|_| &before) {
        assert_eq!(written.and_then(|written| written.get(place)), Some(body), "nobody wrote that at {place:?}");
    }
    let mut after = before.clone();
    let known = found.queues.iter().find(|queue| queue.queue_no == 1);
    let position = known.map_or(0, |queue| queue.next_position);
    if position <= weft_journal::POSITION_MAX {
        let target = Target { queue_no: 1, position, expires_ms: 0, transient: false };
        if journal.append_message(HEAD, std::iter::once(&b"on"[..]), &[target]).is_ok() {
            after.insert((1, position), b"on".to_vec());
        }
    }
    journal.sync();
    pump(&mut journal, disk);
    journal.close();
    pump(&mut journal, disk);
    Some((before, after))
}

/// Everything that waits in a queue, in order.
fn read_all(journal: &mut Journal, disk: &SimDisk, queue_no: u64, found: &mut Written) {
    let mut from = 0;
    for _ in 0..READS_MAX {
        let reads = match journal.read(queue_no, from, 100, 64 << 10) {
            Read::Empty => return,
            Read::Ready(messages) => vec![messages],
            Read::Waits(_) => pump(journal, disk).into_iter().map(|read| read.messages).collect(),
        };
        for stored in reads.iter().flat_map(|messages| messages.iter()) {
            assert!(stored.position >= from, "{} after {from}", stored.position);
            found.insert((queue_no, stored.position), stored.body.to_vec());
            from = stored.position + 1;
        }
    }
    panic!("queue {queue_no} has no end");
}

/// Looks at the files without the node, as far as they can be read.
fn look(disk: &Arc<SimDisk>, written: Option<&Written>) {
    for queue_no in 1..=QUEUES {
        let Ok(view) = View::open(Arc::clone(disk) as Arc<dyn Storage>, queue_no) else { return };
        note(("view", view.damaged().len().min(3), view.messages().min(3)));
        let mut cursor = Cursor::new(view, 0, u64::MAX);
        let mut last = None;
        while let Ok(Some(stored)) = cursor.next_message() {
            assert!(last < Some(stored.position), "{last:?}, then {}", stored.position);
            last = Some(stored.position);
            let known = written.and_then(|written| written.get(&(queue_no, stored.position)));
            let ours = known.is_some_and(|body| body[..] == *stored.body) || stored.body == b"on";
            assert!(written.is_none() || ours, "nobody wrote that at {}", stored.position);
        }
    }
}
