//! Message bodies that are AMQP 1.0 values, for Python itself.
//!
//! Owns `encode_value` and `decode_value`: a Python value becomes an amqp-value section and back. Management speaks in
//! such bodies; messages between peers never come here. It must never recurse deeper than the codec allows. Rule: AMQP
//! 1.0 section 3.2.8; docs/reference/mapping.md says how such a body travels as `type` `amqp-1.0`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use weft_wire::amqp10::sections::body_values;
use weft_wire::amqp10::{Compound, descriptor, writer};

use crate::tables::value10;

/// Nesting of lists and maps: less than a decoder refuses.
const DEPTH_MAX: u32 = 24;

/// A value as an amqp-value section.
#[pyfunction]
pub(crate) fn encode_value<'py>(py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    writer::put_descriptor(&mut out, descriptor::AMQP_VALUE);
    put(&mut out, value, DEPTH_MAX)?;
    Ok(PyBytes::new(py, &out))
}

/// The value in the first body section; ValueError if there is none.
#[pyfunction]
pub(crate) fn decode_value<'py>(py: Python<'py>, body: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match body_values(body).next() {
        Some(Ok(value)) => value10(py, value),
        Some(Err(error)) => Err(PyValueError::new_err(format!("not an AMQP body section: {error}"))),
        None => Err(PyValueError::new_err("no body section")),
    }
}

fn put(out: &mut Vec<u8>, item: &Bound<'_, PyAny>, depth: u32) -> PyResult<()> {
    if depth == 0 {
        return Err(PyValueError::new_err("lists and maps are nested too deeply"));
    }
    if item.is_none() {
        writer::put_null(out);
    } else if let Ok(yes) = item.cast::<PyBool>() {
        writer::put_bool(out, yes.is_true());
    } else if let Ok(number) = item.cast::<PyInt>() {
        match number.extract::<i64>() {
            Ok(number) => writer::put_long(out, number),
            Err(_) => writer::put_ulong(out, number.extract()?),
        }
    } else if let Ok(number) = item.cast::<PyFloat>() {
        writer::put_value(out, &weft_wire::amqp10::Value::Double(number.extract()?));
    } else if let Ok(text) = item.cast::<PyString>() {
        writer::put_str(out, &text.to_cow()?);
    } else if let Ok(bytes) = item.cast::<PyBytes>() {
        writer::put_binary(out, bytes.as_bytes());
    } else if let Ok(dict) = item.cast::<PyDict>() {
        put_map(out, dict, depth)?;
    } else if item.is_instance_of::<PyList>() || item.is_instance_of::<PyTuple>() {
        let mut list = Compound::list(out);
        let mut result = Ok(());
        for item in item.try_iter()? {
            let item = item?;
            list.item(|out| result = put(out, &item, depth - 1));
            std::mem::replace(&mut result, Ok(()))?;
        }
        list.finish();
    } else if let Ok(at) = item.call_method0("timestamp").and_then(|at| at.extract::<f64>()) {
        writer::put_timestamp(out, (at * 1000.0) as i64);
    } else {
        let name = item.get_type().name()?;
        return Err(PyTypeError::new_err(format!("AMQP has no type for a {name}")));
    }
    Ok(())
}

fn put_map(out: &mut Vec<u8>, dict: &Bound<'_, PyDict>, depth: u32) -> PyResult<()> {
    let mut map = Compound::map(out);
    for (key, item) in dict.iter() {
        let key: String = key.extract()?;
        map.item(|out| writer::put_str(out, &key));
        let mut result = Ok(());
        map.item(|out| result = put(out, &item, depth - 1));
        result?;
    }
    map.finish();
    Ok(())
}
