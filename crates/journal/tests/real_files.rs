//! The journal on the file system: what waits opens quickly, memory stays flat, nothing is left behind.
//!
//! Tests write real files under the system's temporary folder and remove them. Bounds on time are generous: they
//! catch a scan of every message, not a slow machine. It must never be the place for exact figures: those are in
//! `examples/journal_bench.rs`. Rule: docs/internals/segment.md, "Recovery".

mod support;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use support::{drain, pump, target};
use weft_journal::{Config, Files, Read, recover};

/// A folder that is removed again.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("weft-journal-{name}-{}", std::process::id()));
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_store_survives_being_dropped_and_opened_again() {
    let folder = Folder::new("again");
    let config = Config { segment_bytes: 64 << 10, ..Config::default() };
    for round in 0..4_u64 {
        let files = Files::open(&folder.0).expect("a folder that can be made");
        let (mut journal, report) = recover(&files, config.clone(), 0).expect("a store that can be opened");
        let held: u64 = report.queues.iter().map(|queue| queue.messages).sum();
        assert_eq!(held, round * 400, "{report:?}");
        assert!(report.damaged.is_empty() && report.torn.is_empty(), "{report:?}");
        for position in round * 500..(round + 1) * 500 {
            let body = [round as u8; 300];
            journal.append_message(b"exchange/key", std::iter::once(&body[..]), &[target(1, position)]).expect("small");
            if position % 5 == 0 {
                assert!(journal.ack(1, position));
            }
            if position % 50 == 0 {
                journal.sync();
                pump(&mut journal, &files);
            }
        }
        journal.sync();
        pump(&mut journal, &files);
        let messages = drain(&mut journal, &files, 1, 100);
        assert_eq!(messages.len() as u64, (round + 1) * 400);
        assert!(messages.iter().all(|message| message.0 % 5 != 0 && message.1[0] == (message.0 / 500) as u8));
    }
}

#[test]
fn a_million_waiting_messages_open_in_a_moment() {
    const MESSAGES: u64 = 1_000_000;
    let folder = Folder::new("million");
    let files = Files::open(&folder.0).expect("a folder that can be made");
    let config = Config { prepare_bytes: 0, ..Config::default() };
    let (mut journal, _) = recover(&files, config.clone(), 0).expect("a store that can be opened");
    for position in 0..MESSAGES {
        let body = position.to_le_bytes();
        journal
            .append_message(b"", std::iter::once(&body[..]), &[target(position % 10, position / 10)])
            .expect("small");
        if position % 20_000 == 0 {
            pump(&mut journal, &files);
        }
    }
    journal.sync();
    pump(&mut journal, &files);
    drop(journal);
    let started = Instant::now();
    let (mut journal, report) = recover(&files, config, 0).expect("a store that can be opened");
    let took = started.elapsed();
    assert_eq!(report.queues.iter().map(|queue| queue.messages).sum::<u64>(), MESSAGES);
    let bound = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 2 });
    assert!(took < bound, "{took:?}");
    assert_eq!(report.scanned, 1, "only the segment that was open is read");
    assert_eq!(journal.ack_range(3, 0, 99_989), 99_990);
    assert!(matches!(journal.read(3, 0, 100, 1 << 20), Read::Waits(_)));
    let reads = pump(&mut journal, &files);
    let left: Vec<u64> = reads[0].messages.iter().map(|message| message.position).collect();
    assert_eq!(left, (99_990..100_000).collect::<Vec<_>>());
}
