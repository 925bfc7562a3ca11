//! A journal under test, beside a model that says what it must hold.
//!
//! Owns the harness: operations from a seed, jobs run in any order, crashes between and within jobs, and the
//! judgement afterwards: what comes back is what some whole number of batches say, none of the synced ones missing.
//! It must never ask the journal what is right. Rule: docs/internals/segment.md, "What is promised".
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use weft_journal::{
    Config, Done, FileInfo, Job, Journal, Random, Read, ReadDone, Recovered, SimDisk, Storage, Target, recover,
};

pub const HEAD: &[u8] = b"exchange/key";

/// Queue → position → body, and whether it is transient.
pub type State = BTreeMap<u64, BTreeMap<u64, (Vec<u8>, bool)>>;

#[derive(Clone, Debug)]
pub enum Effect {
    Put(u64, u64, Vec<u8>, bool),
    Settle(u64, u64, u64),
    Delete(u64),
}

pub fn apply(state: &mut State, effect: &Effect) {
    match effect {
        Effect::Put(queue, position, body, transient) => {
            state.entry(*queue).or_default().insert(*position, (body.clone(), *transient));
        }
        Effect::Settle(queue, first, last) => {
            let messages = state.entry(*queue).or_default();
            messages.retain(|position, _| position < first || position > last);
        }
        Effect::Delete(queue) => {
            state.remove(queue);
        }
    }
}

/// A disk that stops answering after some operations: the process died there.
pub struct Fuse {
    pub disk: Arc<SimDisk>,
    pub left: AtomicI64,
}

impl Fuse {
    fn burn(&self) -> io::Result<()> {
        if self.left.fetch_sub(1, Ordering::Relaxed) > 0 {
            Ok(())
        } else {
            Err(io::Error::other("the process is dead"))
        }
    }
}

impl Storage for Fuse {
    fn list(&self, folder: &str) -> io::Result<Vec<FileInfo>> {
        self.burn().and_then(|()| self.disk.list(folder))
    }
    fn create(&self, name: &str, bytes: u64) -> io::Result<()> {
        self.burn().and_then(|()| self.disk.create(name, bytes))
    }
    fn read_at(&self, name: &str, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.burn().and_then(|()| self.disk.read_at(name, offset, buffer))
    }
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.burn().and_then(|()| self.disk.write_at(name, offset, bytes))
    }
    fn sync(&self, name: &str) -> io::Result<()> {
        self.burn().and_then(|()| self.disk.sync(name))
    }
    fn set_len(&self, name: &str, bytes: u64) -> io::Result<()> {
        self.burn().and_then(|()| self.disk.set_len(name, bytes))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.burn().and_then(|()| self.disk.rename(from, to))
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.burn().and_then(|()| self.disk.remove(name))
    }
    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.burn().and_then(|()| self.disk.sync_folder(folder))
    }
}

pub fn small() -> Config {
    Config {
        segment_bytes: 4 << 10,
        segment_messages: 40,
        unsynced_bytes_max: 2 << 10,
        compact_bytes: 8 << 10,
        spares_max: 2,
        prepare_bytes: 1 << 10,
    }
}

pub fn target(queue_no: u64, position: u64) -> Target {
    Target { queue_no, position, expires_ms: 0, transient: false }
}

/// Runs every job until there is none; the reads that came back.
pub fn pump(journal: &mut Journal, storage: &dyn Storage) -> Vec<ReadDone> {
    let mut reads = Vec::new();
    while let Some(mut job) = journal.poll_job() {
        job.run(storage);
        match journal.job_done(job) {
            Done::Read(read) => reads.push(read),
            Done::Failed(fault) => panic!("{fault}"),
            Done::Written | Done::Background(_) => {}
        }
    }
    reads
}

/// Everything that waits in a queue, as the journal reads it.
pub fn drain(journal: &mut Journal, storage: &dyn Storage, queue: u64, count: usize) -> Vec<(u64, Vec<u8>, bool)> {
    let mut found: Vec<(u64, Vec<u8>, bool)> = Vec::new();
    let mut from = 0;
    for _ in 0..100_000 {
        let messages = match journal.read(queue, from, count, 4 << 10) {
            Read::Empty => return found,
            Read::Ready(messages) => messages,
            Read::Waits(token) => {
                let mut answer = None;
                while answer.is_none() {
                    let mut job = journal.poll_job().expect("the read is a job");
                    job.run(storage);
                    if let Done::Read(read) = journal.job_done(job) {
                        assert_eq!(read.token, token);
                        answer = Some(read);
                    }
                }
                answer.map(|read| read.messages).unwrap_or_default()
            }
        };
        for message in messages.iter() {
            assert!(message.position >= from, "out of order");
            assert_eq!(message.head, HEAD);
            from = message.position + 1;
            found.push((message.position, message.body.to_vec(), message.transient));
        }
    }
    panic!("reading queue {queue} does not end");
}

/// A journal, its disk and its model.
pub struct Harness {
    pub disk: Arc<SimDisk>,
    pub journal: Journal,
    pub random: Random,
    pub config: Config,
    /// What held when the journal was opened, and what each batch did since.
    base: State,
    batches: BTreeMap<u64, Vec<Effect>>,
    next: BTreeMap<u64, u64>,
    holes: Vec<(u64, u64)>,
    jobs: Vec<Job>,
    next_queue: u64,
    pub damage_allowed: bool,
}

impl Harness {
    pub fn new(seed: u64, config: Config) -> Self {
        let disk = Arc::new(SimDisk::new(seed));
        let (journal, _) = recover(&*disk, config.clone(), 0).expect("an empty disk");
        Self {
            disk,
            journal,
            random: Random::new(seed ^ 0xABCD),
            config,
            base: State::new(),
            batches: BTreeMap::new(),
            next: BTreeMap::new(),
            holes: Vec::new(),
            jobs: Vec::new(),
            next_queue: 6,
            damage_allowed: false,
        }
    }

    fn note(&mut self, batch: u64, effect: Effect) {
        self.batches.entry(batch).or_default().push(effect);
    }

    /// What the first batches up to `last` say.
    pub fn state_after(&self, last: u64) -> State {
        let mut state = self.base.clone();
        self.batches.range(..=last).flat_map(|(_, effects)| effects).for_each(|effect| apply(&mut state, effect));
        state.retain(|_, messages| !messages.is_empty());
        state
    }

    pub fn now(&self) -> State {
        self.state_after(u64::MAX)
    }

    fn queue(&mut self) -> u64 {
        let oldest = self.next_queue.saturating_sub(6);
        oldest + self.random.below(6)
    }

    pub fn append(&mut self) {
        let (count, size) = (1 + self.random.below(3), [10, 100, 700, 3_000][self.random.below(4) as usize]);
        let body: Vec<u8> = (0..1 + self.random.below(size)).map(|_| self.random.next_u64() as u8).collect();
        let mut targets: Vec<Target> = Vec::new();
        for _ in 0..count {
            let queue = self.queue();
            let next = self.next.entry(queue).or_default();
            if targets.iter().any(|target| target.queue_no == queue) {
                continue;
            }
            if self.random.chance(1, 10) {
                self.holes.push((queue, *next));
                *next += 1;
            }
            let transient = self.random.chance(1, 6);
            let expires_ms = self.random.below(1000);
            targets.push(Target { queue_no: queue, position: *next, expires_ms, transient });
            *next += 1;
        }
        self.store(&body, &targets);
    }

    fn store(&mut self, body: &[u8], targets: &[Target]) {
        let (left, right) = body.split_at(body.len() / 2);
        let batch = self.journal.append_message(HEAD, [left, right].into_iter(), targets).expect("small enough");
        for target in targets {
            self.note(batch, Effect::Put(target.queue_no, target.position, body.to_vec(), target.transient));
        }
    }

    /// A transient message goes to disk late, behind messages that came after it.
    fn spill(&mut self) {
        if let Some((queue, position)) = self.holes.pop() {
            let body = vec![7; 50];
            self.store(&body, &[Target { queue_no: queue, position, expires_ms: 0, transient: true }]);
        }
    }

    fn ack(&mut self) {
        let queue = self.queue();
        let waiting: Vec<u64> = self.now().remove(&queue).unwrap_or_default().keys().copied().collect();
        if waiting.is_empty() {
            assert!(!self.journal.ack(queue, self.random.below(1000)) || !self.holes.is_empty());
            return;
        }
        let some = self.random.below(waiting.len() as u64) as usize;
        // Mostly from the front, as consumers do; at times anywhere.
        let from = if self.random.chance(3, 4) { 0 } else { some };
        for position in waiting.iter().skip(from).take(1 + some / 2) {
            assert!(self.journal.ack(queue, *position));
            self.note(self.journal.batch(), Effect::Settle(queue, *position, *position));
        }
    }

    fn ack_range(&mut self) {
        let queue = self.queue();
        let waiting = self.now().remove(&queue).unwrap_or_default();
        let first = self.random.below(20) + waiting.keys().next().copied().unwrap_or(0);
        let last = first + self.random.below(30);
        let gone = waiting.range(first..=last).count() as u64;
        assert_eq!(self.journal.ack_range(queue, first, last), gone);
        self.note(self.journal.batch(), Effect::Settle(queue, first, last));
        self.holes.retain(|(hole, position)| *hole != queue || *position < first || *position > last);
    }

    fn delete(&mut self) {
        let queue = self.next_queue.saturating_sub(6);
        self.next_queue += 1;
        self.journal.delete_queue(queue);
        self.note(self.journal.batch(), Effect::Delete(queue));
        self.holes.retain(|(hole, _)| *hole != queue);
    }

    /// All of it in one batch.
    fn transaction(&mut self) {
        self.journal.begin();
        let before = self.journal.batch();
        for _ in 0..1 + self.random.below(6) {
            if self.random.chance(2, 3) { self.append() } else { self.ack() }
        }
        let batch = self.journal.commit();
        assert_eq!(batch, before);
        self.journal.sync();
    }

    /// One random step of the engine.
    pub fn step(&mut self) {
        match self.random.below(40) {
            0..=13 => self.append(),
            14..=22 => self.ack(),
            23 => self.ack_range(),
            24 => self.transaction(),
            25 => self.spill(),
            26 if self.random.chance(1, 6) => self.delete(),
            27..=28 => self.journal.sync(),
            29 if self.random.chance(1, 10) => self.journal.close(),
            _ => self.work(),
        }
    }

    /// Takes a job, or runs one that was taken.
    pub fn work(&mut self) {
        if self.random.chance(1, 2) {
            self.jobs.extend(self.journal.poll_job());
        }
        if !self.jobs.is_empty() && self.random.chance(3, 4) {
            let at = self.random.below(self.jobs.len() as u64) as usize;
            let mut job = self.jobs.swap_remove(at);
            job.run(&*self.disk);
            self.finish(job);
        }
    }

    fn finish(&mut self, job: Job) {
        match self.journal.job_done(job) {
            Done::Failed(_) | Done::Background(Some(_)) => self.journal.retry(),
            _ => {}
        }
        assert!(self.journal.synced() <= self.journal.written());
        assert!(self.journal.written() < self.journal.batch());
    }

    /// Runs everything that is to be done.
    pub fn settle(&mut self) {
        for mut job in std::mem::take(&mut self.jobs) {
            job.run(&*self.disk);
            self.finish(job);
        }
        for _ in 0..10_000 {
            let Some(mut job) = self.journal.poll_job() else { return };
            job.run(&*self.disk);
            self.finish(job);
        }
        panic!("housekeeping does not end: {:?}", self.journal.status());
    }

    /// The journal holds what the model holds.
    pub fn check(&mut self) {
        for mut job in std::mem::take(&mut self.jobs) {
            job.run(&*self.disk);
            self.finish(job);
        }
        let expected = self.now();
        let count = 1 + self.random.below(40) as usize;
        for queue in 0..self.next_queue {
            let model = expected.get(&queue).cloned().unwrap_or_default();
            assert_eq!(self.journal.messages(queue), model.len() as u64, "queue {queue}");
            let found = drain(&mut self.journal, &*self.disk, queue, count);
            let model: Vec<_> = model.into_iter().map(|(at, (body, transient))| (at, body, transient)).collect();
            assert_eq!(found.iter().map(|m| m.0).collect::<Vec<_>>(), model.iter().map(|m| m.0).collect::<Vec<_>>());
            assert!(found == model, "queue {queue} has other bodies");
        }
    }

    /// The process or the power goes, perhaps in the middle of jobs; then everything is opened again and judged.
    pub fn crash(&mut self, power: bool) -> Recovered {
        if self.random.chance(1, 2) {
            self.jobs.extend(self.journal.poll_job());
        }
        let fuse = Fuse { disk: Arc::clone(&self.disk), left: AtomicI64::new(self.random.below(12) as i64) };
        for mut job in std::mem::take(&mut self.jobs) {
            job.run(&fuse);
        }
        self.disk.set_fault_rate(0);
        let (synced, last) = (self.journal.synced(), self.journal.batch());
        if power {
            self.disk.crash();
        } else {
            self.disk.kill();
        }
        // Whoever survives only in the page cache of a killed process counts too.
        let least = if power { synced } else { self.journal.written() };
        self.reopen(least, last)
    }

    fn reopen(&mut self, least: u64, last: u64) -> Recovered {
        let (journal, report) = recover(&*self.disk, self.config.clone(), 0).expect("a disk that answers");
        self.journal = journal;
        assert!(self.damage_allowed || report.damaged.is_empty(), "{:?}", report.damaged);
        assert!(report.strangers.is_empty(), "{:?}", report.strangers);
        let found = self.everything();
        let candidates: Vec<u64> = (least..=last).collect();
        let matching = candidates.iter().map(|batch| durable(self.state_after(*batch))).find(|state| *state == found);
        let Some(state) = matching else {
            let (low, high) = (durable(self.state_after(least)), durable(self.state_after(last)));
            panic!("no prefix fits: {}", differences(&low, &found, &high));
        };
        self.judge_report(&report, &state);
        self.base = state;
        self.batches.clear();
        self.holes.clear();
        self.next = report.queues.iter().map(|queue| (queue.queue_no, queue.next_position)).collect();
        report
    }

    fn judge_report(&self, report: &Recovered, state: &State) {
        let told = report.queues.iter().filter(|q| q.messages > 0);
        let told: Vec<_> = told.map(|q| (q.queue_no, q.messages, q.body_bytes, q.first_position)).collect();
        let held: Vec<_> = state
            .iter()
            .map(|(queue, messages)| {
                let bytes = messages.values().map(|(body, _)| body.len() as u64).sum::<u64>();
                (*queue, messages.len() as u64, bytes, messages.keys().next().copied().unwrap_or(0))
            })
            .collect();
        assert_eq!(told, held);
    }

    fn everything(&mut self) -> State {
        let mut state = State::new();
        for queue in 0..self.next_queue + 1 {
            let messages = drain(&mut self.journal, &*self.disk, queue, 16);
            assert!(messages.iter().all(|message| !message.2), "a transient message came back");
            if !messages.is_empty() {
                state
                    .insert(queue, messages.into_iter().map(|(at, body, transient)| (at, (body, transient))).collect());
            }
        }
        state
    }
}

fn durable(mut state: State) -> State {
    for messages in state.values_mut() {
        messages.retain(|_, (_, transient)| !*transient);
    }
    state.retain(|_, messages| !messages.is_empty());
    state
}

fn differences(low: &State, found: &State, high: &State) -> String {
    let positions = |state: &State, queue: &u64| state.get(queue).map(|m| m.keys().copied().collect::<Vec<_>>());
    let mut out = String::new();
    let mut queues: Vec<u64> = low.keys().chain(found.keys()).chain(high.keys()).copied().collect();
    queues.sort_unstable();
    queues.dedup();
    for queue in &queues {
        let (a, b, c) = (positions(low, queue), positions(found, queue), positions(high, queue));
        if !(a == b && b == c) {
            out += &format!("\nqueue {queue}\n least {a:?}\n found {b:?}\n  most {c:?}");
        }
    }
    out
}
