//! `make sim SEED=n`: lives through the world of one seed, or of many fresh ones, and says how each ended.
//!
//! Owns the command line. Without a seed, worlds follow each other from a random one until the time is over
//! (`WEFT_SIM_SECONDS`, 10 by default); the first mistake ends the run, with the seed that repeats it. It must never
//! decide what a mistake is. Rule: `weft_sim::fate`.

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weft_sim::fate;

fn main() -> ExitCode {
    let seed = std::env::args().nth(1).map(|text| text.parse::<u64>());
    let seconds = std::env::var("WEFT_SIM_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let (first, one) = match seed {
        Some(Ok(seed)) => (seed, true),
        Some(Err(error)) => {
            eprintln!("sim: SEED is a number: {error}");
            return ExitCode::from(2);
        }
        // Only the choice of the seed is left to chance; all that follows from it is printed with it.
        None => (SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_nanos() as u64), false),
    };
    let begun = Instant::now();
    for seed in first.. {
        let end = fate::live(seed);
        let counts = &end.counts;
        println!(
            "SEED={seed} deaths={} confirmed={} arrived={} redelivered={} read={} lost={} doubles={} trace={:016x}",
            end.deaths,
            counts.confirmed,
            counts.arrived,
            counts.redelivered,
            counts.read,
            counts.lost,
            counts.doubles,
            end.trace
        );
        if !end.mistakes.is_empty() {
            end.mistakes.iter().take(20).for_each(|mistake| println!("  {mistake}"));
            println!("repeat it with: make sim SEED={seed}");
            return ExitCode::FAILURE;
        }
        if one || begun.elapsed() > Duration::from_secs(seconds) {
            break;
        }
    }
    ExitCode::SUCCESS
}
