//! Python values as AMQP 1.0 values, and message bodies that are such a value.
//!
//! Owns the one mapping in that direction; `tables.rs` has the other. None, bool, int, float, str, bytes, list, tuple,
//! dict, datetime and UUID come in and encoded values go out; `encode_value` and `decode_value` make and read the
//! bodies that management speaks in. It must never nest deeper than the codec reads. Rules: an int is a long where it
//! fits and an ulong where not; a datetime without a time zone is taken as UTC; AMQP 1.0 section 3.2.8.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use weft_wire::amqp10::sections::body_values;
use weft_wire::amqp10::{Compound, MapBuf, Value, descriptor, writer};

use crate::tables::value10;

/// Nesting of lists and maps: less than a decoder refuses.
const DEPTH_MAX: u32 = 24;

/// A value as an amqp-value section.
#[pyfunction]
pub(crate) fn encode_value<'py>(py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    writer::put_descriptor(&mut out, descriptor::AMQP_VALUE);
    put(&mut out, value)?;
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

/// Appends one value.
pub(crate) fn put(out: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    put_within(out, value, DEPTH_MAX)
}

fn put_within(out: &mut Vec<u8>, value: &Bound<'_, PyAny>, depth: u32) -> PyResult<()> {
    let Some(inner) = depth.checked_sub(1) else {
        return Err(PyValueError::new_err("values are nested too deep"));
    };
    if value.is_none() {
        writer::put_null(out);
    } else if let Ok(text) = value.cast::<PyString>() {
        writer::put_str(out, text.to_str()?);
    } else if let Ok(yes) = value.cast::<PyBool>() {
        writer::put_bool(out, yes.is_true());
    } else if value.is_instance_of::<PyInt>() {
        match value.extract::<i64>() {
            Ok(number) => writer::put_long(out, number),
            Err(_) => writer::put_ulong(out, value.extract()?),
        }
    } else if let Ok(number) = value.cast::<PyFloat>() {
        writer::put_value(out, &Value::Double(number.value()));
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        writer::put_binary(out, bytes.as_bytes());
    } else if let Ok(bytes) = value.cast::<PyByteArray>() {
        writer::put_binary(out, &bytes.to_vec());
    } else if let Ok(dict) = value.cast::<PyDict>() {
        let mut map = Compound::map(out);
        for (key, item) in dict.iter() {
            put_item(&mut map, &key, inner)?;
            put_item(&mut map, &item, inner)?;
        }
        map.finish();
    } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let mut list = Compound::list(out);
        for item in value.try_iter()? {
            put_item(&mut list, &item?, inner)?;
        }
        list.finish();
    } else {
        return put_rare(out, value);
    }
    Ok(())
}

fn put_item(compound: &mut Compound<'_>, item: &Bound<'_, PyAny>, depth: u32) -> PyResult<()> {
    let mut result = Ok(());
    compound.item(|out| result = put_within(out, item, depth));
    result
}

/// Moments and UUIDs, told by what they can do.
fn put_rare(out: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    if value.hasattr("tzinfo")? && value.hasattr("timestamp")? {
        writer::put_timestamp(out, moment_ms(value)?);
        return Ok(());
    }
    if value.get_type().name()?.to_str()? == "UUID" {
        let bytes: [u8; 16] = value.getattr("bytes")?.extract()?;
        writer::put_value(out, &Value::Uuid(bytes));
        return Ok(());
    }
    let kind = value.get_type().name()?;
    Err(PyTypeError::new_err(format!("{kind} is not a value AMQP has: use str, bytes, int, float, bool, list, dict …")))
}

/// Milliseconds since the epoch of a number of seconds or a datetime.
pub(crate) fn moment_ms(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let seconds: f64 = match value.extract() {
        Ok(seconds) => seconds,
        Err(_) if value.getattr("tzinfo")?.is_none() => {
            let utc = value.py().import("datetime")?.getattr("timezone")?.getattr("utc")?;
            let options = PyDict::new(value.py());
            options.set_item("tzinfo", utc)?;
            value.call_method("replace", (), Some(&options))?.call_method0("timestamp")?.extract()?
        }
        Err(_) => value.call_method0("timestamp")?.extract()?,
    };
    Ok((seconds * 1000.0) as i64)
}

/// A dictionary as a map whose keys are symbols (annotations, link properties) or strings (application properties).
pub(crate) fn map(dict: &Bound<'_, PyDict>, symbols: bool) -> PyResult<MapBuf> {
    let mut map = MapBuf::new();
    for (key, item) in dict.iter() {
        let name = key.cast::<PyString>().map_err(|_| PyTypeError::new_err("keys are str"))?;
        let name = name.to_str()?;
        let key = if symbols { Value::Symbol(ascii(name)?) } else { Value::String(name) };
        let mut result = Ok(());
        map.put_with(key, |out| {
            let start = out.len();
            result = put(out, &item);
            if result.is_err() {
                out.truncate(start);
                writer::put_null(out);
            }
        });
        result?;
    }
    Ok(map)
}

/// Filters by their symbols: each value is described by its own name.
pub(crate) fn filters(dict: &Bound<'_, PyDict>) -> PyResult<MapBuf> {
    let mut map = MapBuf::new();
    for (key, item) in dict.iter() {
        let name: String = key.extract()?;
        let mut value = vec![0];
        writer::put_symbol(&mut value, ascii(&name)?);
        put(&mut value, &item)?;
        map.put_with(Value::Symbol(&name), |out| out.extend_from_slice(&value));
    }
    Ok(map)
}

pub(crate) fn ascii(text: &str) -> PyResult<&str> {
    if text.is_ascii() {
        Ok(text)
    } else {
        Err(PyValueError::new_err(format!("{text:?} is not ASCII, which symbols are")))
    }
}
