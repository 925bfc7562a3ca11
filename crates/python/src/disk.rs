//! Disk jobs as Python sees them, the threads they run on, and the opening of the store.
//!
//! Owns `DiskJob`, a job of the journal with the files it works on, and `DiskThread`, which runs jobs in their order.
//! The engine hands jobs out and takes them back; a pipe says when some have run. A disk thread must never take the
//! interpreter's lock: the loop would wait for it, and it for the loop. Rule: `src/weft/node/disk.py`.

use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
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

/// Jobs that have run and were not yet taken back, at most as many as the journal hands out. While there are any, there
/// is one byte in the pipe: both change under this lock, so that neither side ever waits for the other.
type Finished = Arc<Mutex<Vec<DiskJob>>>;

/// A thread that runs disk jobs, one after the other.
#[pyclass(module = "weft._kernel")]
pub(crate) struct DiskThread {
    waiting: Option<Sender<DiskJob>>,
    finished: Finished,
    bell: PipeReader,
    thread: Option<JoinHandle<()>>,
}

#[pymethods]
impl DiskThread {
    #[new]
    fn new(name: String) -> PyResult<Self> {
        let (bell, rope) = pipe()?;
        let (waiting, jobs) = channel();
        let finished = Finished::default();
        let done = Arc::clone(&finished);
        let thread = Builder::new().name(name).spawn(move || run_all(&jobs, &done, rope))?;
        Ok(Self { waiting: Some(waiting), finished, bell, thread: Some(thread) })
    }

    /// The file descriptor that can be read once jobs have run.
    fn fileno(&self) -> i32 {
        self.bell.as_raw_fd()
    }

    /// Runs a job after those before it.
    fn start(&self, job: &mut DiskJob) {
        let job = DiskJob { job: job.take(), files: Arc::clone(&job.files) };
        if let Some(waiting) = &self.waiting {
            // Only `close` ends the thread, and who has closed it hands out no more.
            let _taken = waiting.send(job);
        }
    }

    /// Jobs that have run since the last call.
    fn finished(&mut self) -> PyResult<Vec<DiskJob>> {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        if !finished.is_empty() {
            self.bell.read_exact(&mut [0])?;
        }
        Ok(std::mem::take(&mut *finished))
    }

    /// Ends the thread, after the jobs it has.
    fn close(&mut self, py: Python<'_>) {
        self.waiting = None;
        if let Some(thread) = self.thread.take() {
            py.detach(|| thread.join().ok());
        }
    }
}

fn run_all(jobs: &Receiver<DiskJob>, finished: &Finished, mut rope: PipeWriter) {
    while let Ok(mut job) = jobs.recv() {
        let files = Arc::clone(&job.files);
        job.job.iter_mut().for_each(|job| job.run(&*files));
        let mut finished = finished.lock().unwrap_or_else(PoisonError::into_inner);
        if finished.is_empty() && rope.write_all(&[1]).is_err() {
            return; // nobody is left to hear it
        }
        finished.push(job);
    }
}

/// Opens the store in a folder, and tells what was found there.
pub(crate) fn open(folder: &str, now_ms: u64) -> Result<(Store, Arc<Files>, Recovered), String> {
    let files = Files::open(Path::new(folder)).map_err(|error| format!("cannot open {folder}: {error}"))?;
    let (journal, mut found) = recover(&files, Config::default(), now_ms).map_err(|error| error.to_string())?;
    Ok((Store::new(journal, found.queues.clone(), std::mem::take(&mut found.barriers)), Arc::new(files), found))
}
