//! The engine and its disk: promises that wait for it, jobs that go out to it and come back.
//!
//! Owns the calls by which a driver runs disk work, and what follows when some is done. Promises come in from sessions
//! and leave when the disk has what they are about. It must never run a job itself, nor wait. Rules: decision 0005;
//! docs/guides/durability.md, "When a confirm is sent".

use weft_journal::{Done, Job, ReadDone};

use crate::conn::{ConnId, Promise, Wait};
use crate::engine::Engine;
use crate::event::Event;
use crate::timers::Due;

/// How long a disk that refused a write is left alone.
const DISK_RETRY_NS: u64 = 1_000_000_000;

impl Engine {
    /// Sends the promises a session made, or keeps them until the disk has what they are about.
    pub(crate) fn keep_promises(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id) else { return };
        let io = &mut conn.io;
        let now_ns = self.broker.now_ns;
        if io.confirmed > 0 {
            self.broker.latency.to_confirm.add(0, std::mem::take(&mut io.confirmed) as u32, now_ns);
        }
        let Some(store) = &mut self.broker.store else { return };
        let reached = store.reached();
        io.stored = io.stored.and(std::mem::take(&mut store.last));
        io.stores |= !io.stored.is_none() || std::mem::take(&mut store.watched);
        if !io.promises.is_empty() {
            let needs = io.stored;
            if needs.synced > reached.synced {
                store.journal.sync();
            }
            io.deferred
                .extend(std::mem::take(&mut io.promises).into_iter().map(|promise| Promise { needs, ..promise }));
        }
        while io.deferred.front().is_some_and(|promise| promise.needs.are_met(reached)) {
            let Some(promise) = io.deferred.pop_front() else { break };
            io.output.extend_from_slice(&promise.bytes);
            if promise.count > 0 {
                let us = now_ns.saturating_sub(promise.made_ns) / 1_000;
                self.broker.latency.to_confirm.add(us, promise.count, now_ns);
            }
        }
        io.direct = io.deferred.is_empty() && io.stored.are_met(reached);
        let waits = !io.deferred.is_empty();
        if waits && !std::mem::replace(&mut io.unsynced, true) {
            self.unsynced.push(id);
        }
        if !waits && io.parked == Some(Wait::Sync) {
            self.resume(id);
        }
    }

    /// Takes the journal's next jobs.
    pub(crate) fn collect_jobs(&mut self) {
        self.broker.store_offsets();
        self.broker.store_counts();
        if let Some(store) = &mut self.broker.store {
            while let Some(job) = store.journal.poll_job() {
                self.jobs.push(job);
            }
        }
    }

    /// Disk work to be run, each on any thread; writes in order.
    pub fn poll_disk(&mut self) -> Vec<Job> {
        std::mem::take(&mut self.jobs)
    }

    /// Nothing more comes: the store is brought into the shape that opens fastest.
    pub fn finish(&mut self) -> u32 {
        self.broker.store.iter_mut().for_each(|store| store.journal.close());
        self.collect_jobs();
        self.signals()
    }

    /// A read has come back. Whoever waits for one that was refused would ask again at once, and a disk that refuses
    /// needs a moment.
    fn read_done(&mut self, read: ReadDone) {
        let Some(store) = &mut self.broker.store else { return };
        let fault = read.fault.as_ref().map(ToString::to_string);
        let raised = fault.is_some();
        if std::mem::replace(&mut store.unreadable, raised) != raised {
            self.broker.events.push(Event::ReadAlarm { raised, text: fault.unwrap_or_default() });
        }
        if raised {
            store.resting.push(read);
            self.broker.timers.set(self.broker.now_ns + DISK_RETRY_NS, Due::Disk);
        } else {
            self.broker.fetched(read);
        }
    }

    /// A disk job has run.
    pub fn disk_done(&mut self, job: Job) -> u32 {
        self.broker.work_left = self.broker.limits.work_max;
        let Some(store) = &mut self.broker.store else { return self.signals() };
        match store.journal.job_done(job) {
            Done::Read(read) => self.read_done(read),
            Done::Failed(fault) => {
                let text = fault.to_string();
                if store.fault.replace(text.clone()).is_none() {
                    self.broker.events.push(Event::DiskAlarm { raised: true, text });
                }
                self.broker.timers.set(self.broker.now_ns + DISK_RETRY_NS, Due::Disk);
                // Who waits for a confirm sends nothing more, and would not be told otherwise.
                let held = self.unsynced.iter().chain(&self.held).copied();
                for id in held.collect::<Vec<_>>() {
                    self.hold_back(id);
                }
            }
            Done::Written => {
                if store.fault.take().is_some() {
                    self.broker.events.push(Event::DiskAlarm { raised: false, text: String::new() });
                }
                self.broker.show_hidden();
                for id in std::mem::take(&mut self.unsynced) {
                    self.conns.get_mut(id).into_iter().for_each(|conn| conn.io.unsynced = false);
                    self.note(id);
                }
                self.broker.streams_synced();
            }
            Done::Background(_) => {}
        }
        self.work();
        self.signals()
    }
}
