//! How long things take: a sketch of many durations in little memory.
//!
//! Owns counts by duration, four buckets to each doubling, from a microsecond to more than an hour. Durations come in
//! by the run; quantiles and the longest go out, to within an eighth. Two sketches can be merged. It must never
//! allocate or look at a clock. Rule: old durations fade: once there are many, the counts are halved every minute.

/// Buckets to each doubling.
const STEPS: u64 = 4;
const STEP_BITS: u32 = 2;
/// Doublings: durations of 2^32 microseconds (71 minutes) and more are counted together.
const DOUBLINGS: u32 = 32;
const BUCKETS: usize = (DOUBLINGS as usize) * STEPS as usize;
/// How often counts are halved, and how many there must be: few durations are worth keeping however old they are.
const FADE_NS: u64 = 60_000_000_000;
const FADE_COUNT_MIN: u64 = 1_024;

/// Durations of one kind.
#[derive(Clone, Debug)]
pub struct Sketch {
    counts: [u32; BUCKETS],
    total: u64,
    max_us: u64,
    /// The longest before the counts were halved last.
    past_max_us: u64,
    fade_ns: u64,
}

/// What a sketch tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    pub p50_us: u64,
    pub p90_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], total: 0, max_us: 0, past_max_us: 0, fade_ns: 0 }
    }
}

impl Sketch {
    /// Counts as many equal durations that ended now.
    pub fn add(&mut self, us: u64, count: u32, now_ns: u64) {
        if now_ns >= self.fade_ns {
            self.fade(now_ns);
        }
        let bucket = &mut self.counts[index(us)];
        *bucket = bucket.saturating_add(count);
        self.total += u64::from(count);
        self.max_us = self.max_us.max(us);
    }

    #[cold]
    fn fade(&mut self, now_ns: u64) {
        self.fade_ns = now_ns + FADE_NS;
        if self.total < FADE_COUNT_MIN {
            return;
        }
        self.counts.iter_mut().for_each(|count| *count /= 2);
        self.total = self.counts.iter().map(|count| u64::from(*count)).sum();
        self.past_max_us = std::mem::take(&mut self.max_us);
    }

    /// Adds what another sketch has counted.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
        self.total += other.total;
        self.max_us = self.max_us.max(other.max_us);
        self.past_max_us = self.past_max_us.max(other.past_max_us);
    }

    /// Durations counted, faded ones left out.
    pub fn len(&self) -> u64 {
        self.total
    }

    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Quantiles; None before the first duration.
    pub fn quantiles(&self) -> Option<Quantiles> {
        if self.is_empty() {
            return None;
        }
        let max_us = self.max_us.max(self.past_max_us);
        let at = |share: f64| self.quantile(share).min(max_us);
        Some(Quantiles { p50_us: at(0.5), p90_us: at(0.9), p99_us: at(0.99), max_us })
    }

    /// The duration that this share is not longer than: between the ends of its bucket, by its place among those there.
    fn quantile(&self, share: f64) -> u64 {
        let rank = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut before = 0;
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let count = u64::from(*count);
            if before + count >= rank {
                let (low, high) = (floor(index), floor(index + 1));
                return low + (high - low - 1) * (rank - before) / count;
            }
            before += count;
        }
        0
    }
}

/// The bucket of a duration.
#[inline]
fn index(us: u64) -> usize {
    if us < STEPS {
        return us as usize;
    }
    let exponent = 63 - us.leading_zeros();
    let step = (us >> (exponent - STEP_BITS)) & (STEPS - 1);
    ((u64::from(exponent - 1) * STEPS + step) as usize).min(BUCKETS - 1)
}

/// The shortest duration of a bucket.
fn floor(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    (STEPS + index % STEPS) << (index / STEPS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_duration_lies_within_its_bucket() {
        for us in (0..5_000).chain([1 << 20, (1 << 31) + 12_345, (1 << 32) - 1]) {
            let at = index(us);
            assert!(floor(at) <= us && us < floor(at + 1), "{us} in {at}: {}..{}", floor(at), floor(at + 1));
        }
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_right_to_an_eighth() {
        let mut sketch = Sketch::default();
        assert_eq!(sketch.quantiles(), None);
        (1..=10_000).for_each(|us| sketch.add(us, 1, 0));
        let found = sketch.quantiles().unwrap_or_default();
        for (told, right) in [(found.p50_us, 5_000_u64), (found.p90_us, 9_000), (found.p99_us, 9_900)] {
            assert!(told.abs_diff(right) <= right / 8, "{told} is not {right}");
        }
        assert_eq!((found.max_us, sketch.len()), (10_000, 10_000));
    }

    #[test]
    fn merged_sketches_tell_what_one_would_have_told() {
        let (mut one, mut other, mut all) = (Sketch::default(), Sketch::default(), Sketch::default());
        for us in 0..3_000 {
            if us % 3 == 0 {
                one.add(us, 1, 0);
            } else {
                other.add(us, 1, 0);
            }
            all.add(us, 1, 0);
        }
        one.merge(&other);
        assert_eq!(one.quantiles(), all.quantiles());
    }

    #[test]
    fn what_was_long_ago_fades() {
        let mut sketch = Sketch::default();
        sketch.add(1_000_000, 2_000, 0);
        for minute in 1..=12 {
            sketch.add(10, 2_000, minute * FADE_NS);
        }
        let found = sketch.quantiles().unwrap_or_default();
        assert!(found.p99_us < 20 && found.max_us < 20, "{found:?}");
        let mut rare = Sketch::default();
        rare.add(7, 1, 0);
        rare.add(7, 1, 100 * FADE_NS);
        assert_eq!(rare.len(), 2);
    }
}
