//! The life of segments: one body for many queues, removal, checkpoints, compaction, spares, barriers.
//!
//! Each test drives one journal over a simulated disk and looks at the files that are left. It must never reach into
//! the journal's memory: what counts is what is on the disk and what comes back. Rule: docs/internals/segment.md,
//! "The life of a segment".

mod support;

use std::io::ErrorKind;

use support::{drain, pump, small, target};
use weft_journal::{Config, Done, FaultKind, JobKind, Journal, Operation, Read, SimDisk, Storage, Target, recover};

fn open(disk: &SimDisk) -> Journal {
    recover(disk, small(), 0).expect("a disk that answers").0
}

fn append(journal: &mut Journal, body: &[u8], targets: &[Target]) -> u64 {
    journal.append_message(b"exchange/key", std::iter::once(body), targets).expect("small enough")
}

fn names(disk: &SimDisk, suffix: &str) -> Vec<String> {
    let listed = disk.list("segments").expect("a disk that answers");
    listed.into_iter().map(|file| file.name).filter(|name| name.ends_with(suffix)).collect()
}

fn bytes_on(disk: &SimDisk) -> u64 {
    let listed = disk.list("segments").expect("a disk that answers");
    listed.iter().filter(|file| file.name.ends_with(".log")).map(|file| file.bytes).sum()
}

#[test]
fn one_body_is_stored_for_any_number_of_queues() {
    let disk = SimDisk::new(1);
    let mut journal = open(&disk);
    let body = vec![0xE7; 2_000];
    let targets: Vec<Target> = (0..5).map(|queue| target(queue, 0)).collect();
    append(&mut journal, &body, &targets);
    pump(&mut journal, &disk);
    let log = disk.contents("segments/00000001.log").expect("the first segment");
    let copies = log.windows(body.len()).filter(|window| *window == body).count();
    assert_eq!(copies, 1);
    for queue in 0..5 {
        assert_eq!(drain(&mut journal, &disk, queue, 10), [(0, body.clone(), false)]);
    }
    (0..4).for_each(|queue| assert!(journal.ack(queue, 0)));
    pump(&mut journal, &disk);
    disk.crash();
    let mut journal = open(&disk);
    assert_eq!(drain(&mut journal, &disk, 4, 10), [(0, body, false)]);
    assert!(matches!(journal.read(3, 0, 10, 1000), Read::Empty));
}

#[test]
fn segments_go_when_nothing_in_them_waits_and_their_files_are_used_again() {
    let disk = SimDisk::new(2);
    let mut journal = open(&disk);
    for position in 0..400 {
        append(&mut journal, &[1; 200], &[target(1, position)]);
        if position >= 8 {
            assert!(journal.ack(1, position - 8));
        }
        journal.sync();
        pump(&mut journal, &disk);
    }
    let status = journal.status();
    assert!(status.segments <= 3, "{status:?}");
    assert!((1..=2).contains(&status.spares), "{status:?}");
    assert_eq!(names(&disk, ".spare").len(), status.spares);
    assert_eq!(names(&disk, ".log").len(), status.segments);
    disk.crash();
    let mut journal = open(&disk);
    let positions: Vec<u64> = drain(&mut journal, &disk, 1, 3).iter().map(|message| message.0).collect();
    assert_eq!(positions, (392..400).collect::<Vec<_>>());
}

#[test]
fn what_a_dead_segment_settled_in_older_ones_stays_settled() {
    let disk = SimDisk::new(3);
    let config = Config { compact_bytes: u64::MAX, ..small() };
    let (mut journal, _) = recover(&disk, config.clone(), 0).expect("a disk that answers");
    // Segment 1: a straggler of queue 9 beside messages of queue 1, which are settled by records in later segments.
    append(&mut journal, &[9; 100], &[target(9, 0)]);
    (0..8).for_each(|position| {
        append(&mut journal, &[1; 300], &[target(1, position)]);
    });
    journal.close();
    pump(&mut journal, &disk);
    assert_eq!(journal.ack_range(1, 0, 7), 8);
    for position in 8..80 {
        append(&mut journal, &[1; 300], &[target(1, position)]);
        assert!(journal.ack(1, position));
        pump(&mut journal, &disk);
    }
    assert!(journal.status().segments <= 4, "{:?}", journal.status());
    assert!(names(&disk, ".log").contains(&"00000001.log".to_owned()), "the straggler keeps its segment");
    disk.crash();
    let (mut journal, report) = recover(&disk, config, 0).expect("a disk that answers");
    assert_eq!(drain(&mut journal, &disk, 1, 10), []);
    assert_eq!(drain(&mut journal, &disk, 9, 10), [(0, vec![9; 100], false)]);
    assert!(report.queues.iter().all(|queue| queue.queue_no != 1 || queue.next_position >= 80));
}

#[test]
fn an_old_message_does_not_hold_gigabytes() {
    let disk = SimDisk::new(4);
    let mut journal = open(&disk);
    // One message in sixteen is for a queue nobody reads.
    for position in 0..3_000 {
        let queue = if position % 16 == 0 { 2 } else { 1 };
        append(&mut journal, &[queue as u8; 100], &[target(queue, position)]);
        if queue == 1 {
            assert!(journal.ack(1, position));
        }
        if position % 20 == 0 {
            pump(&mut journal, &disk);
        }
    }
    journal.sync();
    pump(&mut journal, &disk);
    let live = 188 * (16 + 8 + 24 + 12 + 104);
    let held = bytes_on(&disk);
    // A segment is left alone while a quarter of its messages live, so four times what lives is the most it comes to.
    assert!(held < 5 * live, "{held} bytes for {live}: {:?}", journal.status());
    let expected: Vec<u64> = (0..3_000).step_by(16).collect();
    let positions =
        |journal: &mut Journal| drain(journal, &disk, 2, 7).iter().map(|message| message.0).collect::<Vec<_>>();
    assert_eq!(positions(&mut journal), expected);
    disk.crash();
    let mut journal = open(&disk);
    assert_eq!(positions(&mut journal), expected);
    assert_eq!(journal.ack_range(2, 0, 2_000), 126);
    pump(&mut journal, &disk);
    assert_eq!(positions(&mut journal)[0], 2_016);
}

#[test]
fn a_deleted_queue_frees_its_segments_at_once() {
    let disk = SimDisk::new(5);
    let mut journal = open(&disk);
    (0..200).for_each(|position| {
        append(&mut journal, &[1; 200], &[target(1, position)]);
    });
    append(&mut journal, &[2; 10], &[target(2, 0)]);
    pump(&mut journal, &disk);
    assert!(journal.status().segments > 10);
    journal.delete_queue(1);
    pump(&mut journal, &disk);
    assert!(journal.status().segments <= 2, "{:?}", journal.status());
    assert_eq!(journal.messages(1), 0);
    disk.crash();
    let mut journal = open(&disk);
    assert_eq!(drain(&mut journal, &disk, 1, 10), []);
    assert_eq!(drain(&mut journal, &disk, 2, 10).len(), 1);
}

#[test]
fn a_segment_number_is_never_given_out_twice() {
    let disk = SimDisk::new(6);
    let newest = || names(&disk, ".log").iter().filter_map(|name| name[..8].parse::<u32>().ok()).max().unwrap_or(0);
    let mut last = 0;
    for _ in 0..6 {
        let mut journal = open(&disk);
        (0..18).for_each(|position| {
            append(&mut journal, &[1; 180], &[target(1, position)]);
        });
        journal.ack_range(1, 0, 1_000);
        journal.sync();
        pump(&mut journal, &disk);
        assert!(newest() > last, "{} after {last}", newest());
        last = newest();
        disk.crash();
        // Nothing waits, so everything may go, but not the last number.
        let mut journal = open(&disk);
        pump(&mut journal, &disk);
        assert!(newest() >= last, "{} after {last}", newest());
        last = newest();
        disk.crash();
    }
}

#[test]
fn a_message_larger_than_a_segment_gets_one_of_its_own() {
    let disk = SimDisk::new(7);
    let mut journal = open(&disk);
    append(&mut journal, &[1; 10], &[target(1, 0)]);
    append(&mut journal, &[2; 50_000], &[target(1, 1)]);
    append(&mut journal, &[3; 10], &[target(1, 2)]);
    pump(&mut journal, &disk);
    assert_eq!(journal.status().segments, 3);
    disk.crash();
    let mut journal = open(&disk);
    let sizes: Vec<usize> = drain(&mut journal, &disk, 1, 10).iter().map(|message| message.1.len()).collect();
    assert_eq!(sizes, [10, 50_000, 10]);
    let parts = vec![0; 64 << 20];
    let huge = std::iter::repeat_n(&parts[..], 17);
    assert!(journal.append_message(b"", huge, &[target(1, 3)]).is_err());
    assert_eq!(journal.messages(1), 3);
}

#[test]
fn transactions_alone_fill_one_segment_after_the_other() {
    let disk = SimDisk::new(8);
    let mut journal = open(&disk);
    for position in 0..400 {
        journal.begin();
        append(&mut journal, &[1; 200], &[target(1, position)]);
        if position >= 8 {
            assert!(journal.ack(1, position - 8));
        }
        journal.commit();
        journal.sync();
        pump(&mut journal, &disk);
    }
    let status = journal.status();
    assert!(status.segments <= 3, "{status:?}");
    let longest = u64::from(small().segment_bytes) + 500;
    assert!(bytes_on(&disk) <= 3 * longest, "{} bytes", bytes_on(&disk));
    assert!(names(&disk, ".log").iter().all(|name| name.as_str() > "00000002.log"), "{:?}", names(&disk, ".log"));
}

#[test]
fn one_write_is_out_at_a_time_and_what_comes_meanwhile_is_the_next_batch() {
    let disk = SimDisk::new(8);
    let mut journal = open(&disk);
    let first = append(&mut journal, &[1; 10], &[target(1, 0)]);
    journal.sync();
    let mut job = journal.poll_job().expect("a write");
    assert_eq!((job.kind(), job.must_sync()), (JobKind::Write, true));
    let second = append(&mut journal, &[2; 10], &[target(1, 1)]);
    let third = append(&mut journal, &[3; 10], &[target(1, 2)]);
    assert_eq!((second, third), (first + 1, first + 1));
    assert!(journal.poll_job().is_none());
    // What is not written yet is read from memory.
    assert!(matches!(journal.read(1, 0, 10, 1000), Read::Ready(messages) if messages.len() == 3));
    job.run(&disk);
    assert!(matches!(journal.job_done(job), Done::Written));
    assert_eq!((journal.written(), journal.synced()), (first, first));
    let mut job = journal.poll_job().expect("the next write");
    assert!(!job.must_sync());
    job.run(&disk);
    journal.job_done(job);
    assert_eq!((journal.written(), journal.synced()), (second, first));
}

#[test]
fn a_write_that_fails_is_tried_again_and_a_failed_sync_leaves_the_segment() {
    let disk = SimDisk::new(9);
    let mut journal = open(&disk);
    append(&mut journal, &[1; 100], &[target(1, 0)]);
    pump(&mut journal, &disk);
    for (operation, kind, expected) in [
        (Operation::Write, ErrorKind::StorageFull, FaultKind::Full),
        (Operation::Write, ErrorKind::ReadOnlyFilesystem, FaultKind::ReadOnly),
        (Operation::Sync, ErrorKind::Other, FaultKind::Io),
    ] {
        let position = journal.messages(1);
        let batch = append(&mut journal, &[position as u8; 100], &[target(1, position)]);
        journal.sync();
        disk.fail_next(operation, kind);
        let mut job = journal.poll_job().expect("a write");
        job.run(&disk);
        let Done::Failed(fault) = journal.job_done(job) else { panic!("it must fail") };
        assert_eq!(fault.kind, expected, "{fault}");
        assert!(journal.synced() < batch);
        assert!(journal.poll_job().is_none(), "nothing is tried again before `retry`");
        assert!(matches!(journal.read(1, position, 1, 1000), Read::Ready(_)));
        journal.retry();
        pump(&mut journal, &disk);
        assert!(journal.synced() >= batch);
    }
    assert_eq!(names(&disk, ".log"), ["00000001.log", "00000002.log"]);
    disk.crash();
    let mut journal = open(&disk);
    assert_eq!(drain(&mut journal, &disk, 1, 10).len(), 4);
}

#[test]
fn ids_of_a_barrier_come_back_until_their_time_and_keep_their_segment() {
    let disk = SimDisk::new(10);
    let mut journal = open(&disk);
    journal.append_barrier(7, 5_000, b"id-1 id-2").expect("small enough");
    append(&mut journal, &[1; 3_900], &[target(1, 0)]);
    append(&mut journal, &[1; 10], &[target(1, 1)]);
    journal.append_barrier(7, 9_000, b"id-3").expect("small enough");
    journal.sync();
    pump(&mut journal, &disk);
    journal.ack_range(1, 0, 1);
    pump(&mut journal, &disk);
    for (now_ms, expected) in [(0, 2), (4_999, 2), (5_000, 1), (9_000, 0)] {
        let (mut journal, report) = recover(&disk, small(), now_ms).expect("a disk that answers");
        let ids: Vec<&[u8]> = report.barriers.iter().map(|barrier| &barrier.ids[..]).collect();
        assert_eq!(ids, [&b"id-1 id-2"[..], b"id-3"][2 - expected..]);
        pump(&mut journal, &disk);
    }
    assert!(!names(&disk, ".log").contains(&"00000001.log".to_owned()), "its time is over");
    let (mut journal, _) = recover(&disk, small(), 9_000).expect("a disk that answers");
    journal.append_barrier(1, 20_000, b"x").expect("small enough");
    journal.close();
    pump(&mut journal, &disk);
    let before = journal.status().segments;
    journal.advance(20_000);
    pump(&mut journal, &disk);
    assert!(journal.status().segments < before);
}

#[test]
fn ids_leave_segments_that_are_kept_for_nothing_else() {
    let disk = SimDisk::new(11);
    let config = Config { segment_messages: 1_000, ..small() };
    let (mut journal, _) = recover(&disk, config.clone(), 0).expect("a disk that answers");
    for position in 0..400 {
        append(&mut journal, &[1; 1_000], &[target(1, position)]);
        journal.remember(7, 1_000_000, &position.to_le_bytes());
        journal.ack(1, position);
        journal.sync();
        pump(&mut journal, &disk);
    }
    // All messages together are 400 kB; what is left is at most sixteen times the ids and their records.
    assert!(journal.status().bytes < 140 << 10, "{:?}", journal.status());
    drop(journal);
    disk.crash();
    let (mut journal, report) = recover(&disk, config.clone(), 1).expect("a disk that answers");
    let mut ids: Vec<u8> = report.barriers.iter().flat_map(|barrier| barrier.ids.clone()).collect();
    let mut expected: Vec<u8> = (0..400_u64).flat_map(u64::to_le_bytes).collect();
    ids.as_chunks_mut::<8>().0.sort_by_key(|id| u64::from_le_bytes(*id));
    expected.as_chunks_mut::<8>().0.sort_by_key(|id| u64::from_le_bytes(*id));
    assert!(ids == expected, "{} ids of 400", ids.len() / 8);
    journal.advance(1_000_000);
    pump(&mut journal, &disk);
    append(&mut journal, &[1; 10], &[target(1, 400)]);
    journal.sync();
    pump(&mut journal, &disk);
    assert!(journal.status().bytes < 8 << 10, "{:?}", journal.status());
}

#[test]
fn what_nobody_waits_for_is_written_in_company_and_can_be_read_before() {
    let disk = SimDisk::new(30);
    let mut journal = recover(&disk, Config::default(), 0).expect("a disk that answers").0;
    let transient = |position| [Target { transient: true, ..target(1, position) }];
    let body = vec![7; 1_000];
    append(&mut journal, &body, &transient(0));
    pump(&mut journal, &disk);
    assert_eq!(names(&disk, ".log").len(), 0, "one message is no reason to write");
    assert_eq!(drain(&mut journal, &disk, 1, 10), [(0, body.clone(), true)]);
    (1..1_200).for_each(|position| assert!(append(&mut journal, &body, &transient(position)) > 0));
    pump(&mut journal, &disk);
    assert_eq!(journal.written(), 1, "many together are");
    append(&mut journal, &body, &transient(1_200));
    let batch = append(&mut journal, &body, &[target(2, 0)]);
    pump(&mut journal, &disk);
    assert_eq!(journal.written(), batch, "and so is what must be kept, with those that wait beside it");
    assert_eq!(drain(&mut journal, &disk, 1, 10).len(), 1_201);
    journal.append_idly(b"", std::iter::once(&body[..]), &[target(2, 1)]).expect("small enough");
    pump(&mut journal, &disk);
    assert_eq!(journal.written(), batch, "what is kept can be in no hurry too");
    journal.sync();
    pump(&mut journal, &disk);
    assert_eq!(journal.synced(), batch + 1, "until somebody is");
}

#[test]
fn a_segment_that_ends_with_a_failed_sync_tells_nothing_of_a_batch_that_is_yet_to_be_written() {
    let disk = SimDisk::new(31);
    let mut journal = open(&disk);
    (0..2).for_each(|position| assert_eq!(append(&mut journal, &[1; 100], &[target(1, position)]), 1));
    journal.sync();
    pump(&mut journal, &disk);
    append(&mut journal, &[1; 100], &[target(1, 2)]);
    journal.sync();
    disk.fail_next(Operation::Sync, ErrorKind::Other);
    let mut job = journal.poll_job().expect("a write");
    job.run(&disk);
    // Meanwhile a transaction moves a message from one queue to another.
    journal.begin();
    assert!(journal.ack(1, 0));
    append(&mut journal, &[1; 100], &[target(2, 0)]);
    let batch = journal.commit();
    journal.sync();
    assert!(matches!(journal.job_done(job), Done::Failed(_)));
    journal.retry();
    // Everything is done but the write of that transaction.
    let mut held = None;
    while let Some(mut job) = journal.poll_job() {
        if job.kind() == JobKind::Write && journal.written() + 1 == batch {
            held = Some(job);
            continue;
        }
        job.run(&disk);
        journal.job_done(job);
    }
    assert!(held.is_some() && journal.synced() + 1 == batch);
    disk.crash();
    let mut journal = open(&disk);
    let positions: Vec<u64> = drain(&mut journal, &disk, 1, 10).iter().map(|message| message.0).collect();
    assert_eq!((positions, journal.messages(2)), (vec![0, 1, 2], 0), "the whole transaction or nothing of it");
}

/// Segments that are kept for the sake of a few ids, each with a record of its own.
fn thin_segments(disk: &SimDisk) -> Journal {
    let config = Config { compact_bytes: 1 << 20, ..small() };
    let (mut journal, _) = recover(disk, config, 0).expect("a disk that answers");
    append(&mut journal, &[1; 100], &[target(1, 0)]);
    for position in 1..12 {
        append(&mut journal, &[1; 3_000], &[target(1, position)]);
        journal.remember(7, 1_000_000, &position.to_le_bytes());
        journal.sync();
        pump(&mut journal, disk);
    }
    journal.close();
    pump(&mut journal, disk);
    journal
}

fn ids_after(disk: &SimDisk) -> Vec<u64> {
    let (_, report) = recover(disk, small(), 1).expect("a disk that answers");
    let bytes: Vec<u8> = report.barriers.into_iter().flat_map(|barrier| barrier.ids).collect();
    let mut ids: Vec<u64> = bytes.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id)).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn ids_leave_their_segment_although_its_sidecar_is_damaged() {
    let disk = SimDisk::new(32);
    drop(thin_segments(&disk));
    let mut journal = open(&disk);
    for name in names(&disk, ".idx") {
        disk.edit(&format!("segments/{name}"), |bytes| bytes.fill(0xFF));
    }
    journal.ack_range(1, 0, 20);
    journal.sync();
    pump(&mut journal, &disk);
    assert!(journal.status().segments <= 4, "{:?}", journal.status());
    assert_eq!(ids_after(&disk), (1..12).collect::<Vec<_>>());
}

#[test]
fn damaged_ids_are_copied_before_their_segment_goes() {
    let disk = SimDisk::new(33);
    drop(thin_segments(&disk));
    let mut journal = open(&disk);
    let name = "segments/00000003.log";
    let log = disk.contents(name).expect("a log");
    let at = log.windows(8).position(|bytes| bytes == 1_000_000_u64.to_le_bytes()).expect("the end of its ids");
    disk.flip(name, at as u64 * 8 + 70);
    journal.ack_range(1, 0, 20);
    journal.sync();
    pump(&mut journal, &disk);
    assert_eq!(disk.contents(name), None);
    assert_eq!(ids_after(&disk).len(), 10);
    let copies = disk.list("damaged").expect("a disk that answers");
    assert_eq!(copies.iter().map(|file| file.bytes).collect::<Vec<_>>(), [16 + 24], "{copies:?}");
}
