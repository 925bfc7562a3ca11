//! Disk jobs as Python sees them, the threads they run on, and the opening of the store.
//!
//! Owns `DiskJob`, a job of the journal with the files it works on, and `DiskThreads`, which run jobs and hand them
//! back in their order. The engine hands jobs out and takes them back; a pipe says when some have run. A disk thread
//! must never take the interpreter's lock: the loop would wait for it, and it for the loop. Rule:
//! `src/weft/node/disk.py`.

use std::collections::HashMap;
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use pyo3::prelude::*;
use weft_engine::broker::Store;
use weft_journal::{Config, Files, Job, JobKind, Recovered, recover};

/// A piece of disk work.
#[pyclass(module = "weft._kernel")]
pub(crate) struct DiskJob {
    job: Option<Job>,
    files: Arc<Files>,
}

impl DiskJob {
    pub(crate) fn new(job: Job, files: &Arc<Files>) -> Self {
        Self { job: Some(job), files: Arc::clone(files) }
    }

    pub(crate) fn take(&mut self) -> Option<Job> {
        self.job.take()
    }
}

#[pymethods]
impl DiskJob {
    /// `write`, `read` or `background`.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.job.as_ref().map(Job::kind) {
            Some(JobKind::Write) => "write",
            Some(JobKind::Read) => "read",
            _ => "background",
        }
    }

    /// Does this write wait for the disk itself?
    #[getter]
    fn must_sync(&self) -> bool {
        self.job.as_ref().is_some_and(Job::must_sync)
    }

    /// Does the work.
    fn run(&mut self, py: Python<'_>) {
        let (job, files) = (&mut self.job, &self.files);
        py.detach(|| job.iter_mut().for_each(|job| job.run(&**files)));
    }
}

/// Jobs that have run and were not yet taken back, at most as many as the journal hands out. While some are ready,
/// there is one byte in the pipe: both change under one lock, so that neither side ever waits for the other.
#[derive(Default)]
struct Finished {
    ready: Vec<DiskJob>,
    /// Those that ran before one that was started before them, by number.
    early: HashMap<u64, DiskJob>,
    /// The number of the next one that becomes ready.
    next: u64,
}

/// Threads that run disk jobs; one of them, one job after the other.
#[pyclass(module = "weft._kernel")]
pub(crate) struct DiskThreads {
    waiting: Option<Sender<(u64, DiskJob)>>,
    started: u64,
    finished: Arc<Mutex<Finished>>,
    bell: PipeReader,
    threads: Vec<JoinHandle<()>>,
}

#[pymethods]
impl DiskThreads {
    #[new]
    fn new(name: &str, count: usize) -> PyResult<Self> {
        let (bell, rope) = pipe()?;
        let (waiting, jobs) = channel();
        let (jobs, rope) = (Arc::new(Mutex::new(jobs)), Arc::new(rope));
        let finished = Arc::<Mutex<Finished>>::default();
        let start = |_| {
            let (jobs, rope, finished) = (Arc::clone(&jobs), Arc::clone(&rope), Arc::clone(&finished));
            Builder::new().name(name.to_owned()).spawn(move || run_all(&jobs, &finished, &rope))
        };
        let threads = (0..count).map(start).collect::<Result<_, _>>()?;
        Ok(Self { waiting: Some(waiting), started: 0, finished, bell, threads })
    }

    /// The file descriptor that can be read once jobs have run.
    fn fileno(&self) -> i32 {
        self.bell.as_raw_fd()
    }

    /// Runs a job; it comes back after those that were started before it.
    fn start(&mut self, job: &mut DiskJob) {
        let job = DiskJob { job: job.take(), files: Arc::clone(&job.files) };
        if let Some(waiting) = &self.waiting {
            // Only `close` ends the threads, and who has closed them hands out no more.
            let _taken = waiting.send((self.started, job));
            self.started += 1;
        }
    }

    /// Jobs that have run since the last call.
    fn finished(&mut self) -> PyResult<Vec<DiskJob>> {
        let mut finished = lock(&self.finished);
        if !finished.ready.is_empty() {
            self.bell.read_exact(&mut [0])?;
        }
        Ok(std::mem::take(&mut finished.ready))
    }

    /// Ends the threads, after the jobs they have.
    fn close(&mut self, py: Python<'_>) {
        self.waiting = None;
        for thread in self.threads.drain(..) {
            py.detach(|| thread.join().ok());
        }
    }
}

fn run_all(jobs: &Mutex<Receiver<(u64, DiskJob)>>, finished: &Mutex<Finished>, mut rope: &PipeWriter) {
    loop {
        let Ok((number, mut job)) = lock(jobs).recv() else { return };
        let files = Arc::clone(&job.files);
        job.job.iter_mut().for_each(|job| job.run(&*files));
        let mut finished = lock(finished);
        let Finished { ready, early, next } = &mut *finished;
        let silent = ready.is_empty();
        early.insert(number, job);
        while let Some(job) = early.remove(next) {
            ready.push(job);
            *next += 1;
        }
        if silent && !ready.is_empty() && rope.write_all(&[1]).is_err() {
            return; // nobody is left to hear it
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the store in a folder, and tells what was found there.
pub(crate) fn open(folder: &str, now_ms: u64) -> Result<(Store, Arc<Files>, Recovered), String> {
    let files = Files::open(Path::new(folder)).map_err(|error| format!("cannot open {folder}: {error}"))?;
    let (journal, mut found) = recover(&files, Config::default(), now_ms).map_err(|error| error.to_string())?;
    Ok((Store::new(journal, found.queues.clone(), std::mem::take(&mut found.barriers)), Arc::new(files), found))
}
