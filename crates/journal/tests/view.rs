//! A queue seen from outside is what the journal itself would give: while it is written, sealed, moved and removed.
//!
//! A journal works on a simulated disk, operations coming from a seed; beside it a view of each queue looks at the same
//! files every so often. Rule: docs/internals/segment.md, "Readers without the node".

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use support::{HEAD, pump, small, target};
use weft_journal::{Cursor, Journal, Random, ReadError, SimDisk, Storage, View, recover};

const QUEUES: u64 = 3;

type Queue = BTreeMap<u64, Vec<u8>>;

fn read(view: &View, start: u64, end: u64) -> Result<Vec<(u64, Vec<u8>)>, ReadError> {
    let mut cursor = Cursor::new(view.clone(), start, end);
    let mut found = Vec::new();
    while let Some(stored) = cursor.next_message()? {
        assert_eq!(stored.head, HEAD);
        found.push((stored.position, stored.body.to_vec()));
    }
    Ok(found)
}

/// One step: something is appended or settled, for one queue or for all.
fn step(random: &mut Random, journal: &mut Journal, model: &mut [Queue], next: &mut [u64]) {
    let queue = random.below(QUEUES) as usize;
    match random.below(10) {
        0..=5 => {
            let all = random.below(4) == 0;
            let queues: Vec<usize> = if all { (0..QUEUES as usize).collect() } else { vec![queue] };
            let body = vec![next[queue] as u8; random.below(300) as usize];
            let targets: Vec<_> = queues.iter().map(|queue| target(*queue as u64 + 1, next[*queue])).collect();
            journal.append_message(HEAD, std::iter::once(&body[..]), &targets).expect("small");
            for queue in queues {
                model[queue].insert(next[queue], body.clone());
                next[queue] += 1;
            }
        }
        6..=7 => {
            let first = model[queue].keys().next().copied().unwrap_or(0);
            let last = first + random.below(8);
            journal.ack_range(queue as u64 + 1, first, last);
            model[queue].retain(|position, _| *position < first || *position > last);
        }
        _ => {
            let at = random.below(next[queue].max(1));
            journal.ack(queue as u64 + 1, at);
            model[queue].remove(&at);
        }
    }
}

fn check(view: &mut View, model: &Queue, next: u64, context: &str) {
    view.refresh().expect("a store that can be read");
    assert!(view.damaged().is_empty(), "{context}: {:?}", view.damaged());
    let first = model.keys().next().copied();
    let offsets = view.offsets();
    assert_eq!(offsets.0, first.unwrap_or(offsets.1), "{context}");
    assert!(offsets.1 <= next && (first.is_none() || offsets.1 == next), "{context}: {offsets:?}, {next}");
    assert_eq!(view.messages(), model.len() as u64, "{context}");
    let all: Vec<_> = model.iter().map(|(position, body)| (*position, body.clone())).collect();
    assert_eq!(read(view, 0, u64::MAX).expect("good files"), all, "{context}");
    let (start, end) = (next / 3, next / 2);
    let some: Vec<_> = all.into_iter().filter(|(position, _)| (start..end).contains(position)).collect();
    assert_eq!(read(view, start, end).expect("good files"), some, "{context}");
}

#[test]
fn a_view_shows_what_waits() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let disk = Arc::new(SimDisk::new(seed));
        let (mut journal, _) = recover(&*disk, small(), 0).expect("an empty disk");
        let mut model = vec![Queue::new(); QUEUES as usize];
        let mut next = vec![0; QUEUES as usize];
        let storage = || Arc::clone(&disk) as Arc<dyn Storage>;
        let mut views: Vec<View> = (1..=QUEUES).map(|queue| View::open(storage(), queue).expect("a store")).collect();
        for round in 0..60 {
            for _ in 0..random.below(40) {
                step(&mut random, &mut journal, &mut model, &mut next);
            }
            if random.below(2) == 0 {
                journal.sync();
            }
            if random.below(25) == 0 {
                journal.close();
            }
            pump(&mut journal, &*disk);
            if random.below(20) == 0 {
                (journal, _) = recover(&*disk, small(), 0).expect("a store that can be opened");
            }
            for queue in 0..QUEUES as usize {
                let context = format!("seed {seed}, round {round}, queue {queue}");
                check(&mut views[queue], &model[queue], next[queue], &context);
                let mut fresh = View::open(storage(), queue as u64 + 1).expect("a store");
                check(&mut fresh, &model[queue], next[queue], &format!("{context}, fresh"));
            }
        }
    }
}

#[test]
fn what_goes_away_under_a_reader_is_left_out_and_what_moves_is_found() {
    let disk = Arc::new(SimDisk::new(7));
    let (mut journal, _) = recover(&*disk, small(), 0).expect("an empty disk");
    for position in 0..400 {
        let body = [position as u8; 100];
        journal.append_message(HEAD, std::iter::once(&body[..]), &[target(1, position)]).expect("small");
        pump(&mut journal, &*disk);
    }
    let view = View::open(Arc::clone(&disk) as Arc<dyn Storage>, 1).expect("a store");
    let mut cursor = Cursor::new(view.clone(), 0, 400);
    let mut strict = Cursor::new(view, 0, 400).whole(true);
    for at in 0..10 {
        assert_eq!(cursor.next_message().expect("there").map(|stored| stored.position), Some(at));
        assert_eq!(strict.next_message().expect("there").map(|stored| stored.position), Some(at));
    }
    // All but every seventh: few enough wait in each segment that they are moved together, and the old files go.
    (0..380).filter(|position| position % 7 != 0).for_each(|position| {
        journal.ack(1, position);
    });
    for position in 400..800 {
        journal.append_message(HEAD, std::iter::once(&[0; 100][..]), &[target(2, position)]).expect("small");
        journal.ack(2, position);
        pump(&mut journal, &*disk);
    }
    let mut rest = Vec::new();
    while let Some(stored) = cursor.next_message().expect("what is gone is passed over") {
        assert_eq!(stored.body, [stored.position as u8; 100]);
        rest.push(stored.position);
    }
    let waits = |position: &u64| *position >= 380 || position.is_multiple_of(7);
    // What had been read ahead may still come: it was there when it was read.
    let late: Vec<u64> = rest.iter().copied().filter(|position| !waits(position)).collect();
    assert!(late.len() < 64, "{late:?}");
    rest.retain(waits);
    assert_eq!(rest, (10..400).filter(waits).collect::<Vec<_>>());
    let gap = loop {
        match strict.next_message() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the gaps were not seen"),
            Err(error) => break error,
        }
    };
    assert!(matches!(gap, ReadError::Gap { .. }), "{gap}");
}

#[test]
fn flipped_bits_are_named_or_harmless_and_never_believed() {
    let disk = Arc::new(SimDisk::new(11));
    let (mut journal, _) = recover(&*disk, small(), 0).expect("an empty disk");
    for position in 0..120 {
        let body = [position as u8; 80];
        journal.append_message(HEAD, std::iter::once(&body[..]), &[target(1, position)]).expect("small");
        journal.sync();
        pump(&mut journal, &*disk);
    }
    let files = disk.list("segments").expect("a folder");
    assert!(files.iter().any(|file| file.name.ends_with(".idx")));
    let mut random = Random::new(5);
    let mut named = 0;
    for _ in 0..400 {
        let file = &files[random.below(files.len() as u64) as usize];
        let name = format!("segments/{}", file.name);
        let (at, bit) = (random.below(file.bytes), 1 << random.below(8));
        let mut byte = [0];
        disk.read_at(&name, at, &mut byte).expect("within the file");
        disk.write_at(&name, at, &[byte[0] ^ bit]).expect("a byte");
        let view = View::open(Arc::clone(&disk) as Arc<dyn Storage>, 1).expect("damage does not refuse a store");
        let mut cursor = Cursor::new(view.clone(), 0, 120);
        let mut count = 0;
        loop {
            match cursor.next_message() {
                Ok(None) => break,
                Ok(Some(stored)) => {
                    assert_eq!(stored.body, [stored.position as u8; 80]);
                    count += 1;
                }
                Err(ReadError::Damaged { position, file, .. }) => {
                    assert!(file.ends_with(".log"), "{file}");
                    named += 1;
                    cursor = Cursor::new(view.clone(), position + 1, 120);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(count >= 118, "one flipped bit cost {} messages", 120 - count);
        disk.write_at(&name, at, &byte).expect("a byte");
    }
    assert!(named > 20, "{named}");
}
