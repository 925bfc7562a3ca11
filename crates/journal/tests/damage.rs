//! Files that are not what was written: flipped bits, lost ends, strange names, other formats, noise.
//!
//! Each test writes a store, changes its files behind the journal's back and opens it again. Whatever was not touched
//! must come back, nothing may panic, and what is not understood must still be on the disk afterwards. Rule:
//! docs/internals/segment.md, "Damage".

mod support;

use support::{pump, small, target};
use weft_journal::{Done, Error, Journal, Random, Read, Recovered, SimDisk, Storage, recover};

const MESSAGES: u64 = 60;

fn body(position: u64) -> Vec<u8> {
    vec![position as u8; 100 + position as usize % 50]
}

/// A store of a few sealed segments; with `tail`, the last one was not sealed.
fn store(seed: u64, tail: bool) -> SimDisk {
    let disk = SimDisk::new(seed);
    let (mut journal, _) = recover(&disk, small(), 0).expect("an empty disk");
    for position in 0..MESSAGES {
        let body = body(position);
        journal.append_message(b"head", std::iter::once(&body[..]), &[target(1, position)]).expect("small enough");
        if position % 5 == 0 {
            journal.sync();
            pump(&mut journal, &disk);
        }
    }
    journal.sync();
    pump(&mut journal, &disk);
    if !tail {
        journal.close();
        pump(&mut journal, &disk);
    }
    disk
}

fn logs(disk: &SimDisk) -> Vec<String> {
    let listed = disk.list("segments").expect("a disk that answers");
    listed.into_iter().map(|file| format!("segments/{}", file.name)).filter(|name| name.ends_with(".log")).collect()
}

fn open(disk: &SimDisk) -> (Journal, Recovered) {
    recover(disk, small(), 0).expect("damage does not stop a store from opening")
}

/// Reads everything, over damage and all. What comes back must be right; answers with the positions.
fn read_all(journal: &mut Journal, disk: &SimDisk) -> (Vec<u64>, usize) {
    let (mut found, mut damaged, mut from) = (Vec::new(), 0, 0);
    for _ in 0..1_000 {
        let messages = match journal.read(1, from, 7, 1 << 20) {
            Read::Empty => return (found, damaged),
            Read::Ready(messages) => messages,
            Read::Waits(_) => loop {
                let mut job = journal.poll_job().expect("the read is a job");
                job.run(disk);
                if let Done::Read(read) = journal.job_done(job) {
                    damaged += read.damaged.len();
                    assert!(read.fault.is_none(), "{:?}", read.fault);
                    break read.messages;
                }
            },
        };
        for message in messages.iter() {
            assert_eq!((message.head, message.body), (&b"head"[..], &body(message.position)[..]));
            found.push(message.position);
            from = message.position + 1;
        }
    }
    panic!("reading does not end");
}

fn assert_sorted(found: &[u64]) {
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
}

#[test]
fn a_flipped_bit_costs_one_record_at_most_and_its_bytes_are_kept() {
    let clean = store(1, false);
    let names = logs(&clean);
    let mut random = Random::new(77);
    for round in 0..400 {
        let disk = store(1, false);
        let name = &names[random.below(names.len() as u64) as usize];
        let bits = disk.contents(name).map_or(0, |bytes| bytes.len() as u64 * 8);
        disk.flip(name, random.below(bits));
        // With and without the sidecar: found while reading, or while opening.
        let without = round % 2 == 0;
        if without {
            let index = name.replace(".log", ".idx");
            disk.remove(&index).expect("it was sealed");
        }
        let (mut journal, report) = open(&disk);
        let (found, damaged) = read_all(&mut journal, &disk);
        assert_sorted(&found);
        let lost = MESSAGES - found.len() as u64;
        assert!(lost <= 1, "round {round}: {lost} lost of {name}, {report:?}");
        let kept = disk.list("damaged").expect("a disk that answers");
        if lost == 1 {
            assert!(!kept.is_empty(), "round {round}: {report:?}");
            assert!(without || damaged == 1, "round {round}");
        }
        pump(&mut journal, &disk);
        disk.crash();
        let (mut journal, _) = open(&disk);
        assert_eq!(read_all(&mut journal, &disk).0, found, "round {round}: the same the second time");
    }
}

#[test]
fn a_file_cut_at_any_length_opens_and_serves_what_is_left() {
    let clean = store(2, true);
    let names = logs(&clean);
    let last = names.last().expect("a log").clone();
    let contents = clean.contents(&last).expect("a log");
    for length in (0..contents.len()).step_by(7) {
        let disk = store(2, true);
        disk.edit(&last, |bytes| bytes.truncate(length));
        let (mut journal, _) = open(&disk);
        let (found, _) = read_all(&mut journal, &disk);
        assert_eq!(found, (0..found.len() as u64).collect::<Vec<_>>(), "cut at {length}");
    }
    for (at, name) in names.iter().enumerate().take(names.len() - 1) {
        for length in (0..4_000).step_by(501) {
            let disk = store(2, false);
            disk.edit(name, |bytes| bytes.truncate(length));
            let (mut journal, _) = open(&disk);
            let (found, _) = read_all(&mut journal, &disk);
            assert_sorted(&found);
            assert!(found.len() as u64 >= MESSAGES - 26, "segment {at} cut at {length}: {} left", found.len());
        }
    }
}

#[test]
fn a_sidecar_is_never_needed_and_a_bad_one_never_believed() {
    let mut random = Random::new(5);
    for round in 0..300 {
        let disk = store(3, false);
        for name in logs(&disk) {
            let index = name.replace(".log", ".idx");
            match random.below(4) {
                0 => disk.remove(&index).expect("it was sealed"),
                1 => disk.edit(&index, |bytes| {
                    let keep = bytes.len() / 2;
                    bytes.truncate(keep);
                }),
                2 => {
                    let bits = disk.contents(&index).map_or(0, |bytes| bytes.len() as u64 * 8);
                    disk.flip(&index, random.below(bits));
                }
                _ => {}
            }
        }
        let (mut journal, report) = open(&disk);
        assert_eq!(report.queues[0].messages, MESSAGES, "round {round}");
        let (found, damaged) = read_all(&mut journal, &disk);
        assert_eq!((found.len() as u64, damaged), (MESSAGES, 0), "round {round}");
    }
}

#[test]
fn a_sidecar_that_goes_bad_while_the_node_runs_is_made_again() {
    let disk = store(4, false);
    let (mut journal, _) = open(&disk);
    for name in logs(&disk) {
        let index = name.replace(".log", ".idx");
        disk.edit(&index, |bytes| {
            let length = bytes.len();
            bytes[length - 100..].fill(0xFF);
        });
    }
    let (found, damaged) = read_all(&mut journal, &disk);
    assert_eq!((found.len() as u64, damaged), (MESSAGES, 0));
}

#[test]
fn noise_for_files_never_panics() {
    let mut random = Random::new(9);
    for round in 0..300 {
        let disk = SimDisk::new(round);
        let clean = store(5, true);
        for name in logs(&clean) {
            let mut bytes = clean.contents(&name).unwrap_or_default();
            match random.below(4) {
                0 => bytes.iter_mut().for_each(|byte| *byte = random.next_u64() as u8),
                1 => {
                    let from = random.below(bytes.len() as u64) as usize;
                    let to = (from + random.below(600) as usize).min(bytes.len());
                    bytes[from..to].iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
                }
                2 => {
                    // A stretch copied elsewhere, as a confused disk might.
                    let (from, to) = (random.below(2_000) as usize, random.below(2_000) as usize);
                    bytes.copy_within(from..from + 1_000, to);
                }
                _ => bytes.truncate(random.below(5_000) as usize),
            }
            disk.edit(&name, |file| *file = bytes.clone());
            if random.chance(1, 3) {
                let index = name.replace(".log", ".idx");
                disk.edit(&index, |file| *file = (0..random.below(500)).map(|_| random.next_u64() as u8).collect());
            }
        }
        let (mut journal, _) = open(&disk);
        let (found, _) = read_all(&mut journal, &disk);
        assert_sorted(&found);
        journal.append_message(b"head", std::iter::once(&body(99)[..]), &[target(1, 99)]).expect("small enough");
        pump(&mut journal, &disk);
        assert_eq!(read_all(&mut journal, &disk).0.last(), Some(&99));
    }
}

#[test]
fn a_newer_format_is_refused_by_name() {
    for suffix in ["log", "idx"] {
        let disk = store(6, false);
        let name = format!("segments/00000002.{suffix}");
        disk.edit(&name, |bytes| {
            bytes[8] = 9;
            let crc = crc_fast::crc32_iscsi(&bytes[..60]);
            bytes[60..64].copy_from_slice(&crc.to_le_bytes());
        });
        disk.edit("segments/00000002.spare.tmp", |bytes| bytes.push(1));
        let before = disk.list("segments").expect("a disk that answers");
        let Err(error) = recover(&disk, small(), 0) else { panic!("{name} must be refused") };
        assert_eq!(disk.list("segments").expect("a disk that answers"), before, "nothing is touched");
        assert!(matches!(&error, Error::Newer { file, version: 9, known: 1 } if *file == name), "{error}");
        assert!(error.to_string().contains("newer weft"), "{error}");
    }
}

#[test]
fn strangers_are_left_alone_and_unfinished_files_are_not() {
    let disk = store(7, false);
    let first = disk.contents("segments/00000001.log").expect("a log");
    disk.edit("segments/notes.txt", |bytes| bytes.extend_from_slice(b"mine"));
    disk.edit("segments/00000900.log", |bytes| *bytes = first.clone());
    disk.edit("segments/00000901.idx", |bytes| bytes.extend_from_slice(b"?"));
    disk.edit("segments/00000003.idx.tmp", |bytes| bytes.extend_from_slice(b"half"));
    let (mut journal, mut report) = open(&disk);
    report.strangers.sort();
    assert_eq!(report.strangers, ["notes.txt", "segments/00000900.log", "segments/00000901.idx"]);
    journal.ack_range(1, 0, MESSAGES);
    pump(&mut journal, &disk);
    assert_eq!(disk.contents("segments/00000900.log"), Some(first));
    assert!(disk.contents("segments/notes.txt").is_some());
    assert!(disk.contents("segments/00000003.idx.tmp").is_none());
    let logs = logs(&disk);
    assert!(logs.iter().all(|name| name.as_str() >= "segments/00000900.log"), "new segments are newer: {logs:?}");
}

#[test]
fn a_read_only_disk_can_be_opened_and_read() {
    let disk = store(8, true);
    disk.set_read_only(true);
    let (mut journal, report) = open(&disk);
    assert_eq!(report.queues[0].messages, MESSAGES);
    assert_eq!(read_all(&mut journal, &disk).0.len() as u64, MESSAGES);
    journal.append_message(b"head", std::iter::once(&body(60)[..]), &[target(1, 60)]).expect("small enough");
    let mut job = journal.poll_job().expect("a write");
    job.run(&disk);
    assert!(matches!(journal.job_done(job), Done::Failed(_)));
    disk.set_read_only(false);
    journal.retry();
    pump(&mut journal, &disk);
    disk.crash();
    let (mut journal, _) = open(&disk);
    assert_eq!(read_all(&mut journal, &disk).0.len() as u64, MESSAGES + 1);
}

#[test]
fn damage_that_cannot_be_copied_is_not_deleted() {
    let disk = store(9, false);
    let name = "segments/00000001.log";
    disk.flip(name, 8 * 500);
    disk.remove("segments/00000001.idx").expect("it was sealed");
    let before = disk.contents(name);
    disk.set_read_only(true);
    let (mut journal, report) = open(&disk);
    assert_eq!(report.damaged.len(), 1);
    assert_eq!(report.damaged[0].kept_as, None);
    disk.set_read_only(false);
    journal.ack_range(1, 0, MESSAGES);
    pump(&mut journal, &disk);
    assert_eq!(disk.contents(name), before, "kept as it is");
    let (mut journal, report) = open(&disk);
    assert!(report.damaged[0].kept_as.is_some());
    pump(&mut journal, &disk);
    assert_eq!(disk.contents(name), None, "copied, and then dead");
}

/// A store with one message on the disk, and a batch behind it that acknowledges the message and was torn.
fn torn_store(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let (mut journal, _) = recover(&disk, small(), 0).expect("an empty disk");
    journal.append_message(b"head", std::iter::once(&body(0)[..]), &[target(1, 0)]).expect("small enough");
    journal.sync();
    pump(&mut journal, &disk);
    journal.append_message(b"head", std::iter::once(&[1; 1_500][..]), &[target(1, 1)]).expect("small enough");
    assert!(journal.ack(1, 0));
    pump(&mut journal, &disk);
    assert_eq!((journal.written(), journal.synced()), (2, 1));
    disk.flip("segments/00000001.log", 8 * 1_000);
    disk
}

#[test]
fn a_torn_end_that_cannot_be_copied_is_not_cut() {
    let disk = torn_store(10);
    let before = disk.contents("segments/00000001.log").expect("a log");
    let used: u64 = disk.list("segments").expect("a disk that answers").iter().map(|file| file.bytes).sum();
    disk.set_capacity(Some(used + 500));
    let (mut journal, report) = open(&disk);
    assert_eq!((report.torn.len(), report.torn[0].kept_as.as_ref()), (1, None));
    let (offset, bytes) = (report.torn[0].offset as usize, report.torn[0].bytes as usize);
    assert!(disk.contents("segments/00000001.log").as_ref() == Some(&before), "there is no room for the copy");
    disk.set_capacity(None);
    journal.append_message(b"head", std::iter::once(&body(1)[..]), &[target(1, 1)]).expect("small enough");
    pump(&mut journal, &disk);
    assert_eq!(disk.contents("segments/00000001.log").map(|log| log.len()), Some(offset), "cut now");
    let copy = disk.contents(&format!("damaged/00000001-{offset:010}-torn-write.bin"));
    assert!(copy.as_deref() == Some(&before[offset..offset + bytes]), "and copied before");
}

#[test]
fn a_torn_end_does_not_come_back_when_the_sidecar_goes() {
    for seed in 0..20 {
        let disk = torn_store(seed);
        // A crash after the store was opened and before anything new is written.
        drop(open(&disk));
        disk.crash();
        let (mut journal, _) = open(&disk);
        for position in 1..3 {
            let body = body(position);
            journal.append_message(b"head", std::iter::once(&body[..]), &[target(1, position)]).expect("small enough");
            journal.sync();
            pump(&mut journal, &disk);
        }
        assert_eq!(journal.synced(), 3, "the number of the torn batch was given out again, and is told to be synced");
        disk.remove("segments/00000001.idx").expect("it was sealed");
        let (mut journal, report) = open(&disk);
        assert_eq!(read_all(&mut journal, &disk).0, [0, 1, 2], "seed {seed}: {report:?}");
    }
}

#[test]
fn a_store_whose_numbers_have_come_to_an_end_is_refused() {
    for name in ["4294967294.log", "4294967294.idx", "4294967294.spare", "2147483648.log"] {
        let disk = store(11, false);
        disk.edit(&format!("segments/{name}"), |_| {});
        let Err(error) = recover(&disk, small(), 0) else { panic!("{name} must be refused") };
        assert!(matches!(&error, Error::LastNumber { .. }) && error.to_string().contains("move it away"), "{error}");
    }
    for name in ["4294967295.log", "4294967295.idx", "4294967295.spare"] {
        let disk = store(11, false);
        disk.edit(&format!("segments/{name}"), |_| {});
        let (mut journal, report) = open(&disk);
        assert_eq!(report.strangers, [name]);
        assert_eq!(read_all(&mut journal, &disk).0.len() as u64, MESSAGES);
    }
}

#[test]
fn a_sidecar_that_names_another_message_costs_none() {
    let disk = SimDisk::new(12);
    let (mut journal, _) = recover(&disk, small(), 0).expect("an empty disk");
    for (queue, position) in (0..5).flat_map(|position| [(1, position), (2, position)]) {
        let body = body(position);
        journal.append_message(b"head", std::iter::once(&body[..]), &[target(queue, position)]).expect("small enough");
    }
    journal.close();
    pump(&mut journal, &disk);
    let (mut journal, _) = open(&disk);
    // The entries of one queue stand in the place of the other's.
    disk.edit("segments/00000001.idx", |bytes| {
        let entries = bytes.len() - 10 * 32;
        bytes[entries..].rotate_left(5 * 32);
    });
    let (found, damaged) = read_all(&mut journal, &disk);
    assert_eq!((found, damaged), ((0..5).collect::<Vec<_>>(), 0));
    assert!(disk.list("damaged").expect("a disk that answers").is_empty());
}
