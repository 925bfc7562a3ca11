//! Streams as columns, for Python: `LogReader` and `ArrowStream`.
//!
//! Owns the two classes. A store's folder and a number come in; Arrow's C stream interface goes out by capsule, so that
//! pyarrow, polars and Spark read batches without this module knowing any of them. Batches are built on the thread that
//! pulls them, without the interpreter's lock. It must never make a Python object per message, nor write a file. Rule:
//! `src/weft/_kernel.pyi`, docs/reference/columns.md.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule};
use weft_columns::{Batches, Column, Constants, LogStream, Options, export, find, first_as_ipc, times};
use weft_engine::log::Tail;
use weft_journal::{Cursor, Files, ReadError, SimDisk, Storage, View};

use crate::errors::{corrupt, unavailable};

/// A table on its way out, to be taken once.
#[pyclass(module = "weft._kernel")]
pub(crate) struct ArrowStream {
    stream: Mutex<Option<Batches>>,
}

impl ArrowStream {
    pub(crate) fn new(stream: Batches) -> Self {
        Self { stream: Mutex::new(Some(stream)) }
    }

    fn take(&self) -> PyResult<Batches> {
        let taken = locked(&self.stream).take();
        taken.ok_or_else(|| PyValueError::new_err("the stream was taken before: read the range again"))
    }
}

#[pymethods]
impl ArrowStream {
    /// Arrow's C stream interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets a producer answer with its own schema.
        let _ = requested_schema;
        PyCapsule::new_with_value(py, export(self.take()?), c"arrow_array_stream")
    }

    /// The first batch in Arrow's IPC format.
    fn first_as_ipc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let stream = self.take()?;
        let made = py.detach(|| first_as_ipc(stream)).map_err(|error| unavailable(py, &error.to_string()))?;
        Ok(PyBytes::new(py, &made))
    }
}

/// Reads one stream, or what waits in one queue, from the files of a store.
#[pyclass(module = "weft._kernel", frozen)]
pub(crate) struct LogReader {
    path: PathBuf,
    view: Mutex<View>,
    constants: Constants,
}

#[pymethods]
impl LogReader {
    #[new]
    #[pyo3(signature = (path, number, *, stream = "", shard = 0, origin = ""))]
    fn new(py: Python<'_>, path: PathBuf, number: u64, stream: &str, shard: i32, origin: &str) -> PyResult<Self> {
        if !path.join("segments").is_dir() {
            return Err(unavailable(py, &format!("there is no store in {}", path.display())));
        }
        let files = Arc::new(Files::read_only(&path));
        let view = py.detach(|| View::open(files, number)).map_err(|error| failed(py, &path, error.into()))?;
        let constants = Constants { stream: stream.to_owned(), shard, origin: origin.to_owned() };
        Ok(Self { path, view: Mutex::new(view), constants })
    }

    /// The first offset that is kept, and the one after the last.
    fn offsets(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        self.refreshed(py, |view| Ok(view.offsets()))
    }

    /// The same, how many messages are kept, and about the bytes of their bodies, at one look.
    fn extent(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        self.refreshed(py, |view| {
            let (first, end) = view.offsets();
            Ok((first, end, view.messages(), view.bytes()))
        })
    }

    /// When the first and the last message arrived.
    fn times(&self, py: Python<'_>) -> PyResult<Option<(u64, u64)>> {
        self.refreshed(py, times)
    }

    /// The first offset whose message arrived at or after a time.
    fn find(&self, py: Python<'_>, timestamp_us: u64) -> PyResult<u64> {
        self.refreshed(py, |view| find(view, timestamp_us))
    }

    /// Stretches of the files that are damaged.
    fn damaged(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.refreshed(py, |view| Ok(view.damaged()))
    }

    /// Messages from one offset up to another, without it.
    #[pyo3(signature = (start = 0, end = None, columns = None, *,
                        batch_rows = 4096, batch_bytes = 4_194_304, whole = false))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn read(
        &self,
        py: Python<'_>,
        start: u64,
        end: Option<u64>,
        columns: Option<Vec<String>>,
        batch_rows: usize,
        batch_bytes: usize,
        whole: bool,
    ) -> PyResult<ArrowStream> {
        let asked = Asked::new(columns, batch_rows, batch_bytes, whole)?;
        let view = self.refreshed(py, |view| Ok(view.clone()))?;
        let end = end.unwrap_or(u64::MAX).min(view.offsets().1);
        let whole = asked.whole;
        let open = move || Ok(Cursor::new(view, start, end).whole(whole));
        Ok(ArrowStream::new(Box::new(LogStream::new(asked.options(self.constants.clone()), open))))
    }
}

impl LogReader {
    /// Looks at the files again, then answers; other threads run meanwhile.
    fn refreshed<T: Send>(
        &self,
        py: Python<'_>,
        answer: impl FnOnce(&View) -> Result<T, ReadError> + Send,
    ) -> PyResult<T> {
        let answered = py.detach(|| {
            let mut view = locked(&self.view);
            view.refresh()?;
            answer(&view)
        });
        answered.map_err(|error| failed(py, &self.path, error))
    }
}

/// The columns of some names; of none, all.
pub(crate) fn named(names: Option<&[String]>) -> PyResult<Vec<Column>> {
    let Some(names) = names else { return Ok(Column::ALL.to_vec()) };
    let mut columns = Vec::with_capacity(Column::ALL.len());
    for name in names {
        let column = Column::named(name).map_err(|unknown| PyValueError::new_err(unknown.to_string()))?;
        if columns.contains(&column) {
            return Err(PyValueError::new_err(format!("column {name} is asked for twice")));
        }
        columns.push(column);
    }
    Ok(columns)
}

/// What a caller asks of a range.
pub(crate) struct Asked {
    columns: Vec<Column>,
    batch_rows: usize,
    batch_bytes: usize,
    whole: bool,
}

impl Asked {
    /// With the columns of some names; of none, all.
    pub(crate) fn new(
        names: Option<Vec<String>>,
        batch_rows: usize,
        batch_bytes: usize,
        whole: bool,
    ) -> PyResult<Self> {
        Ok(Self { columns: named(names.as_deref())?, batch_rows, batch_bytes, whole })
    }

    fn options(self, constants: Constants) -> Options {
        let Self { columns, batch_rows, batch_bytes, .. } = self;
        Options { columns, constants, batch_rows, batch_bytes }
    }
}

/// A range of a queue as a live node has it: its files, if it has a disk, and behind them what only memory is sure to
/// have.
pub(crate) fn snapshot(
    files: Option<&Files>,
    tail: Tail,
    range: Range<u64>,
    constants: Constants,
    asked: Asked,
) -> ArrowStream {
    let files: Arc<dyn Storage> = match files {
        Some(files) => Arc::new(Files::read_only(files.root())),
        None => Arc::new(SimDisk::new(0)),
    };
    let whole = asked.whole;
    let (first, end) = (tail.bounds.start, range.end.min(tail.bounds.end));
    let open = move || {
        // The files may not yet say that what stood before is settled.
        if whole && range.start < first.min(end) {
            return Err(ReadError::Gap { position: range.start, next: Some(first) });
        }
        let view = View::open(files, tail.number)?;
        Ok(Cursor::new(view, range.start.max(first), end).with_tail(tail.messages).whole(whole))
    };
    ArrowStream::new(Box::new(LogStream::new(asked.options(constants), open)))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failed(py: Python<'_>, path: &Path, error: ReadError) -> PyErr {
    let text = format!("{}: {error}", path.display());
    match error {
        ReadError::Damaged { .. } => corrupt(py, &text),
        ReadError::Store(_) | ReadError::Gap { .. } | ReadError::Foreign { .. } => unavailable(py, &text),
    }
}
