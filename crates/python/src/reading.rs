//! Rows of the engine's tables and spans as Python values, and the search for a page of them.
//!
//! Owns the classes `Scan` and `Tally` and the making of dictionaries from rows. A question comes in; the places,
//! names and numbers of what was found go out. It must never keep the interpreter's lock while it sorts. Rule:
//! `src/weft/_kernel.pyi`, `Scan`; a scan owns what it found, so that any thread may choose from it.

use std::collections::BTreeMap;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use weft_engine::inspect::{self, Cell, Question, Row};
use weft_engine::stats::Span;

use crate::engine::Engine;
use crate::tables;

/// A page that is being looked for.
#[pyclass(module = "weft._kernel")]
pub(crate) struct Scan(pub(crate) inspect::Scan);

#[pymethods]
impl Scan {
    #[new]
    #[pyo3(signature = (
        table, *, vhosts = None, contains = None, ids = None, sort = None, descending = false, offset = 0, count = None,
        whole = false
    ))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn new(
        table: &str,
        vhosts: Option<Vec<String>>,
        contains: Option<String>,
        ids: Option<Vec<u64>>,
        sort: Option<String>,
        descending: bool,
        offset: usize,
        count: Option<usize>,
        whole: bool,
    ) -> Self {
        let question = Question { vhosts, contains, ids, sort, descending, offset, count, columns: None };
        Self(inspect::Scan::new(table, question, whole))
    }

    /// (rows in the virtual hosts asked for, rows that fit), as far as was looked.
    fn found(&self) -> (usize, usize) {
        self.0.found()
    }

    /// How many rows `choose` will choose from.
    fn held(&self) -> usize {
        self.0.held()
    }

    /// Names of what was found, from one place on.
    #[pyo3(signature = (start, count))]
    fn names(&self, start: usize, count: usize) -> Vec<String> {
        self.0.names(start, count).map(tables::text).collect()
    }

    /// Keeps what was found at these places, which rise.
    #[expect(clippy::needless_pass_by_value, reason = "Python's list is copied in any case")]
    fn keep(&mut self, places: Vec<usize>) {
        self.0.keep(&places);
    }

    /// The numbers of the rows on the page, in order; the scan is empty then.
    fn choose(&mut self, py: Python<'_>) -> Vec<u64> {
        let mut scan = std::mem::take(&mut self.0);
        py.detach(move || scan.choose())
    }
}

/// Sums over queues and connections that are being taken.
#[pyclass(module = "weft._kernel")]
pub(crate) struct Tally(inspect::Tally);

#[pymethods]
impl Tally {
    #[new]
    fn new() -> Self {
        Self(inspect::Tally::default())
    }

    /// Counts so many more queues or connections; are there more still?
    fn count(&mut self, engine: &Engine, count: usize) -> bool {
        engine.native.tally(&mut self.0, count)
    }

    /// Node-wide counters and gauges.
    fn stats(&self, engine: &Engine) -> BTreeMap<&'static str, u64> {
        engine.native.stats_of(&self.0)
    }

    /// (name, queues, ready, unsettled, connections) of every virtual host.
    fn vhosts(&self, engine: &Engine) -> Vec<(String, u64, u64, u64, u64)> {
        engine.native.vhosts_of(&self.0)
    }
}

/// Rows as dictionaries.
pub(crate) fn rows<'py>(py: Python<'py>, rows: &[Row]) -> PyResult<Bound<'py, PyList>> {
    let list = PyList::empty(py);
    for row in rows {
        let dict = PyDict::new(py);
        for (name, cell) in row {
            match cell {
                Cell::Absent => dict.set_item(name, py.None())?,
                Cell::Text(text) => dict.set_item(name, text)?,
                Cell::Number(number) => dict.set_item(name, number)?,
                Cell::Integer(number) => dict.set_item(name, number)?,
                Cell::Flag(flag) => dict.set_item(name, flag)?,
            }
        }
        list.append(dict)?;
    }
    Ok(list)
}

/// Spans as tuples, with their virtual host and queue.
pub(crate) fn spans(py: Python<'_>, taken: Vec<(String, String, Span)>) -> PyResult<Bound<'_, PyList>> {
    let list = PyList::empty(py);
    for (vhost, queue, span) in taken {
        let ids = (tables::text(&span.trace_id), tables::text(&span.parent_id));
        let names = (tables::text(&span.exchange), tables::text(&span.routing_key));
        list.append((ids.0, ids.1, vhost, queue, names.0, names.1, span.arrived_us, span.left_us, span.bytes))?;
    }
    Ok(list)
}
