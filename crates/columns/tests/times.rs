//! Offsets by time, in a store whose messages are of more than one version of weft.
//!
//! Heads are encoded as a node does, and some are then said to be of another version. Rule: docs/reference/columns.md.

use std::sync::Arc;

use weft_columns::{find, times};
use weft_journal::{Config, Envelope, ReadError, SimDisk, Storage, Target, View, recover};

/// A store with messages that arrived at 0, 10, 20, …, those of `foreign` with heads that cannot be read.
fn store(count: u64, foreign: &[u64]) -> View {
    let disk = Arc::new(SimDisk::new(1));
    let config = Config { segment_bytes: 4 << 10, prepare_bytes: 1 << 10, ..Config::default() };
    let (mut journal, _) = recover(&*disk, config, 0).expect("an empty disk");
    for position in 0..count {
        let mut head = Vec::new();
        Envelope { arrived_us: position * 10, ..Envelope::default() }.encode(std::iter::empty(), &mut head);
        if foreign.contains(&position) {
            head[0] = 99;
        }
        let target = Target { queue_no: 1, position, expires_ms: 0, transient: false };
        journal.append_message(&head, std::iter::once(&b"x"[..]), &[target]).expect("small");
    }
    journal.sync();
    while let Some(mut job) = journal.poll_job() {
        job.run(&*disk);
        journal.job_done(job);
    }
    View::open(disk as Arc<dyn Storage>, 1).expect("a store")
}

#[test]
fn a_time_is_found_and_what_cannot_be_read_is_said() {
    let view = store(9, &[]);
    let found: Vec<u64> = [0, 1, 10, 79, 80, 81].iter().map(|at| find(&view, *at).expect("all is readable")).collect();
    assert_eq!(found, [0, 1, 1, 8, 8, 9]);
    assert_eq!(times(&view).expect("all is readable"), Some((0, 80)));
    // Looked at in the middle, it was taken for one that arrived later than anything.
    let view = store(9, &[4]);
    assert!(matches!(find(&view, 60), Err(ReadError::Foreign { position: 4 })));
    assert_eq!(times(&view).expect("both ends are readable"), Some((0, 80)));
    let view = store(9, &[8]);
    assert!(matches!(times(&view), Err(ReadError::Foreign { position: 8 })));
}
