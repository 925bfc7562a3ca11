//! Disk jobs as Python sees them, and the opening of the store.
//!
//! Owns `DiskJob`: a job of the journal with the files it works on. The engine hands jobs out, a disk thread runs each
//! without the interpreter's lock, the engine takes them back. It must never run a job by itself. Rule:
//! `src/weft/node/disk.py`.

use std::path::Path;
use std::sync::Arc;

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

    /// Does the work.
    fn run(&mut self, py: Python<'_>) {
        let (job, files) = (&mut self.job, &self.files);
        py.detach(|| job.iter_mut().for_each(|job| job.run(&**files)));
    }
}

/// Opens the store in a folder, and tells what was found there.
pub(crate) fn open(folder: &str, now_ms: u64) -> Result<(Store, Arc<Files>, Recovered), String> {
    let files = Files::open(Path::new(folder)).map_err(|error| format!("cannot open {folder}: {error}"))?;
    let (journal, mut found) = recover(&files, Config::default(), now_ms).map_err(|error| error.to_string())?;
    Ok((Store::new(journal, found.queues.clone(), std::mem::take(&mut found.barriers)), Arc::new(files), found))
}
