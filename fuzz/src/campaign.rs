//! One target, many inputs: the loop of the fuzzer.
//!
//! Owns the population. Inputs of the corpus and new ones are damaged and tried; those that make something new happen
//! are kept and damaged further. It must never try an input that is not on disk. Rule: the same seed tries the same
//! inputs in the same order.

use std::collections::BTreeSet;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use weft_fuzz::{Target, mutate, take_features};
use weft_sim::Random;

/// Inputs that are kept in memory; more would only be visited less.
const POPULATION_MAX: usize = 4_000;
/// Inputs longer than this are not fit for the corpus that everybody checks out.
const CORPUS_BYTES_MAX: usize = 1_500;
const GROW: Duration = Duration::from_secs(20);

/// A number to name an input by.
pub fn name_of(input: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    hasher.finish()
}

struct Campaign {
    target: &'static Target,
    random: Random,
    population: Vec<Vec<u8>>,
    seen: BTreeSet<u64>,
}

impl Campaign {
    fn new(target: &'static Target, seed: u64) -> Self {
        let mut population = Vec::new();
        if let Ok(files) = std::fs::read_dir(super::home().join("corpus").join(target.name)) {
            let mut paths: Vec<_> = files.flatten().map(|file| file.path()).collect();
            paths.sort();
            population.extend(paths.iter().filter_map(|path| std::fs::read(path).ok()));
        }
        Self { target, random: Random::new(seed), population, seen: BTreeSet::new() }
    }

    /// The next input: an old one damaged, or a new one, damaged or not.
    fn next(&mut self) -> Vec<u8> {
        let random = &mut self.random;
        let count = self.population.len();
        let mut input = match count > 0 && !random.one_in(3) {
            true => self.population[random.below(count)].clone(),
            false => (self.target.generate)(random),
        };
        if !random.one_in(8) {
            let other = self.population.get(random.below(count)).cloned().unwrap_or_default();
            mutate(random, &mut input, &other, self.target.words);
        }
        input
    }

    /// Tries an input; how many things happened for the first time.
    fn try_out(&mut self, input: Vec<u8>) -> usize {
        (self.target.run)(&input);
        let before = self.seen.len();
        self.seen.extend(take_features());
        let new = self.seen.len() - before;
        if new > 0 && self.population.len() < POPULATION_MAX {
            self.population.push(input);
        }
        new
    }
}

/// Fuzzes for some time, each input in `file` while it is tried.
pub fn run(target: &'static Target, seed: u64, time: Duration, file: &Path) -> Result<bool, String> {
    let file = File::create(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut campaign = Campaign::new(target, seed);
    let (start, mut count) = (Instant::now(), 0_u64);
    while start.elapsed() < time {
        let input = campaign.next();
        file.write_all_at(&input, 0)
            .and_then(|()| file.set_len(input.len() as u64))
            .map_err(|error| error.to_string())?;
        campaign.try_out(input);
        count += 1;
    }
    let per_second = count as f64 / start.elapsed().as_secs_f64();
    println!("{:<15} {count:>9} inputs, {per_second:>8.0}/s, {} behaviours", target.name, campaign.seen.len());
    Ok(true)
}

/// Adds inputs to the corpus: after a short campaign, those that show most that the others do not.
pub fn grow(target: &'static Target, count: usize) -> Result<bool, String> {
    let mut campaign = Campaign::new(target, 1);
    let known = campaign.population.clone();
    let start = Instant::now();
    while start.elapsed() < GROW {
        let input = campaign.next();
        campaign.try_out(input);
    }
    let mut shown = BTreeSet::new();
    let features = |input: &[u8]| {
        (target.run)(input);
        take_features()
    };
    known.iter().for_each(|input| shown.extend(features(input)));
    let short = campaign.population.iter().filter(|input| input.len() <= CORPUS_BYTES_MAX);
    let mut rest: Vec<_> = short.map(|input| (features(input), input)).collect();
    let folder = super::home().join("corpus").join(target.name);
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    for _ in 0..count {
        let gain = |(features, _): &&(BTreeSet<u64>, &Vec<u8>)| features.difference(&shown).count();
        let Some((features, input)) = rest.iter().max_by_key(gain).cloned() else { break };
        rest.retain(|(_, other)| *other != input);
        shown.extend(features);
        let file = folder.join(format!("{:016x}", name_of(input)));
        std::fs::write(file, input).map_err(|error| error.to_string())?;
    }
    println!("{}: the corpus shows {} of {} behaviours", target.name, shown.len(), campaign.seen.len());
    Ok(true)
}
