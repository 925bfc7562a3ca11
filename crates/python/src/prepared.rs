//! Prepared transactions as Python sees them.
//!
//! Owns the form of one row. The broker's table comes in, tuples go out. It must never decide on one: management asks
//! the engine for that. Rule: `src/weft/_kernel.pyi`, `Engine.prepared`.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use weft_engine::broker::{Broker, Prepared};

/// A prepared transaction: global id, virtual host, user, when, messages, deliveries, bytes.
pub(crate) type PreparedRow<'py> = (Bound<'py, PyBytes>, String, String, u64, usize, usize, u64);

/// Every prepared transaction.
pub(crate) fn prepared<'py>(py: Python<'py>, broker: &Broker) -> Vec<PreparedRow<'py>> {
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let row = |(id, row): (&[u8], &Prepared)| {
        let (vhost, user) = (text(&row.vhost), text(&row.user));
        (PyBytes::new(py, id), vhost, user, row.since_ms, row.posts.len(), row.holds.len(), row.bytes)
    };
    broker.prepared().map(row).collect()
}
