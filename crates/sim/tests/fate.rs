//! Worlds in which a node dies: seeds that once found something, and fresh ones for a few seconds.
//!
//! Owns the choice of seeds and how long to try; `WEFT_SIM_SECONDS` sets the latter. A mistake is printed with its
//! seed, and `make sim SEED=n` lives through it again. It must never know what a mistake is. Rule: `weft_sim::fate`.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weft_sim::fate::live;

/// Seed 1 was killed after a sync had failed, and then lost its power: what the system showed was not on the disk.
/// Seed 2 delivered what was not yet safe behind a barrier, and then again.
/// Seed 1794812777613793434 refused a read for a reader of a stream that had more to read, and the node ended.
const FOUND: [u64; 3] = [1, 2, 1_794_812_777_613_793_434];
/// How long fresh seeds are tried.
const SECONDS: u64 = 5;

fn must_end_well(seed: u64) {
    let end = live(seed);
    assert!(end.mistakes.is_empty(), "make sim SEED={seed}: {:?}", &end.mistakes[..end.mistakes.len().min(5)]);
    assert!(end.deaths > 0 && end.counts.confirmed > 100, "make sim SEED={seed}: hardly anything happened: {end:?}");
}

#[test]
fn seeds_that_found_something_end_well() {
    FOUND.into_iter().for_each(must_end_well);
}

#[test]
fn fresh_seeds_end_well() {
    let first = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_nanos() as u64);
    let seconds = std::env::var("WEFT_SIM_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SECONDS);
    let begun = Instant::now();
    println!("from SEED={first} on");
    for seed in first.. {
        must_end_well(seed);
        if begun.elapsed() > Duration::from_secs(seconds) {
            break;
        }
    }
}

#[test]
fn a_seed_repeats_everything() {
    let end = live(42);
    assert_eq!(end, live(42));
    assert_ne!(end.trace, live(43).trace);
}
