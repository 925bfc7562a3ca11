//! The journal against a model, over a disk that tears, loses, fills up and fails.
//!
//! Every test is a family of seeds: operations, the order of jobs, the moment of a crash and the disk's moods all
//! come from the seed, so a failure is found again by its number. It must never look inside the journal. Rule:
//! docs/internals/segment.md, "What is promised".

mod support;

use support::{Harness, small};

/// `SEED=n` runs one seed again, `SEEDS=n` as many as that.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SEEDS").unwrap_or(count),
    }
}

#[test]
fn what_waits_is_read_in_order_whatever_the_disk_is_busy_with() {
    for seed in seeds(12) {
        let mut harness = Harness::new(seed, small());
        for round in 0..8 {
            (0..150).for_each(|_| harness.step());
            if round % 2 == 0 {
                harness.settle();
            }
            harness.check();
        }
    }
}

#[test]
fn after_a_power_cut_a_whole_number_of_batches_is_back_and_no_synced_one_is_missing() {
    for seed in seeds(40) {
        let mut harness = Harness::new(seed, small());
        for round in 0..10 {
            for _ in 0..20 + harness.random.below(150) {
                harness.step();
            }
            harness.crash(round % 3 != 0);
        }
        harness.settle();
        harness.check();
    }
}

#[test]
fn a_disk_that_fails_now_and_then_loses_nothing() {
    for seed in seeds(25) {
        let mut harness = Harness::new(seed, small());
        harness.damage_allowed = true;
        for _ in 0..8 {
            harness.disk.set_fault_rate(30);
            for _ in 0..20 + harness.random.below(150) {
                harness.step();
            }
            if harness.random.chance(1, 2) {
                harness.disk.set_fault_rate(0);
                harness.check();
            }
            harness.crash(true);
        }
        harness.settle();
        harness.check();
    }
}

#[test]
fn a_full_disk_stops_writes_and_goes_on_when_there_is_space() {
    for seed in seeds(12) {
        let mut harness = Harness::new(seed, small());
        (0..100).for_each(|_| harness.step());
        harness.disk.set_capacity(Some(24 << 10));
        (0..200).for_each(|_| harness.step());
        harness.disk.set_capacity(None);
        harness.settle();
        assert!(harness.journal.is_idle());
        harness.check();
        harness.crash(true);
    }
}

#[test]
fn a_clean_end_leaves_nothing_torn_and_little_to_scan() {
    for seed in seeds(20) {
        let mut harness = Harness::new(seed, small());
        (0..300).for_each(|_| harness.step());
        harness.journal.close();
        harness.settle();
        assert!(harness.journal.is_idle());
        let report = harness.crash(true);
        // The one that may be left was begun to let an older one go.
        assert!(report.scanned <= 1 && report.torn.is_empty(), "seed {seed}: {report:?}");
    }
}
