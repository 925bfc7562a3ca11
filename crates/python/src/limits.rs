//! The bounds of an engine, from Python.
//!
//! Owns the one place where `weft.model.limits.Limits` becomes the kernel's own. An object with the same names comes
//! in; a number that does not fit is an error of Python's. It must never have a default of its own: they are in the
//! model.
//! Rule: every limit of the kernel has its line here.

use pyo3::prelude::*;
use weft_engine::Limits;

/// The same numbers.
pub(crate) fn limits(object: &Bound<'_, PyAny>) -> PyResult<Limits> {
    fn get<'py, T>(object: &Bound<'py, PyAny>, name: &str) -> PyResult<T>
    where
        T: for<'x> FromPyObject<'x, 'py, Error = PyErr>,
    {
        object.getattr(name)?.extract()
    }
    Ok(Limits {
        frame_bytes_max: get(object, "frame_bytes_max")?,
        channels_max: get(object, "channels_max")?,
        links_max: get(object, "links_max")?,
        consumers_max: get(object, "consumers_max")?,
        heartbeat_s: get(object, "heartbeat_s")?,
        message_bytes_max: get(object, "message_bytes_max")?,
        memory_bytes_max: get(object, "memory_bytes_max")?,
        output_bytes_max: get(object, "output_bytes_max")?,
        flush_bytes: get(object, "flush_bytes")?,
        work_max: get(object, "work_max")?,
        link_credit: get(object, "link_credit")?,
        session_window: get(object, "session_window")?,
        unauthenticated_s: get(object, "unauthenticated_s")?,
        unfinished_s: get(object, "unfinished_s")?,
        connections_max: get(object, "connections_max")?,
        addresses_max: get(object, "addresses_max")?,
        transactions_max: get(object, "transactions_max")?,
        transaction_bytes_max: get(object, "transaction_bytes_max")?,
        prepared_max: get(object, "prepared_max")?,
        prepared_bytes_max: get(object, "prepared_bytes_max")?,
        relay_window_s: get(object, "relay_window_s")?,
        relay_ids_max: get(object, "relay_ids_max")?,
        doubt_s: get(object, "doubt_s")?,
        end_to_end_max: get(object, "end_to_end_max")?,
    })
}
