//! Python values as JSON.
//!
//! Owns one function, `encode_json`, which management writes its pages, events and documents with. Dictionaries, lists
//! and plain values come in; compact UTF-8 goes out, and what JSON has no form for goes out as its text. It must
//! never fail on a value that was read from JSON or from a table. Rules: RFC 8259; numbers that are none (NaN,
//! infinity) are `null`, bytes are text.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// Nesting of lists and maps: more than Python's own reader lets in.
const DEPTH_MAX: u32 = 2_000;

/// A value as JSON.
#[pyfunction]
pub(crate) fn encode_json<'py>(py: Python<'py>, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::with_capacity(512);
    put(&mut out, value, DEPTH_MAX)?;
    Ok(PyBytes::new(py, &out))
}

fn put(out: &mut Vec<u8>, value: &Bound<'_, PyAny>, depth: u32) -> PyResult<()> {
    let Some(inner) = depth.checked_sub(1) else {
        return Err(PyValueError::new_err("values are nested too deep"));
    };
    if let Ok(text) = value.cast::<PyString>() {
        put_text(out, &text.to_string_lossy());
    } else if value.is_none() {
        out.extend_from_slice(b"null");
    } else if let Ok(yes) = value.cast::<PyBool>() {
        out.extend_from_slice(if yes.is_true() { b"true" } else { b"false" });
    } else if value.is_instance_of::<PyInt>() {
        put_integer(out, value)?;
    } else if let Ok(number) = value.cast::<PyFloat>() {
        put_float(out, number.value());
    } else if let Ok(dict) = value.cast::<PyDict>() {
        put_map(out, dict, inner)?;
    } else if let Ok(list) = value.cast::<PyList>() {
        put_items(out, list.iter(), inner)?;
    } else if let Ok(tuple) = value.cast::<PyTuple>() {
        put_items(out, tuple.iter(), inner)?;
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        put_text(out, &String::from_utf8_lossy(bytes.as_bytes()));
    } else {
        put_text(out, &value.str()?.to_string_lossy());
    }
    Ok(())
}

fn put_map(out: &mut Vec<u8>, dict: &Bound<'_, PyDict>, depth: u32) -> PyResult<()> {
    out.push(b'{');
    for (at, (key, item)) in dict.iter().enumerate() {
        if at > 0 {
            out.push(b',');
        }
        match key.cast::<PyString>() {
            Ok(text) => put_text(out, &text.to_string_lossy()),
            Err(_) => put_text(out, &key.str()?.to_string_lossy()),
        }
        out.push(b':');
        put(out, &item, depth)?;
    }
    out.push(b'}');
    Ok(())
}

fn put_items<'py>(out: &mut Vec<u8>, items: impl Iterator<Item = Bound<'py, PyAny>>, depth: u32) -> PyResult<()> {
    out.push(b'[');
    for (at, item) in items.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        put(out, &item, depth)?;
    }
    out.push(b']');
    Ok(())
}

fn put_integer(out: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    match value.extract::<i64>() {
        Ok(number) => put_display(out, number),
        // A number of any length has a text; `int.__repr__`, since an enumeration's own says more than its number.
        Err(_) => {
            let text = value.py().get_type::<PyInt>().call_method1("__repr__", (value,))?;
            out.extend_from_slice(text.extract::<String>()?.as_bytes());
        }
    }
    Ok(())
}

fn put_float(out: &mut Vec<u8>, number: f64) {
    if number.is_finite() {
        put_display(out, format_args!("{number:?}"));
    } else {
        out.extend_from_slice(b"null");
    }
}

fn put_display(out: &mut Vec<u8>, value: impl std::fmt::Display) {
    use std::io::Write;
    // Writing to a vector cannot fail.
    let _ = write!(out, "{value}");
}

/// Text in quotes; runs without anything to escape are copied whole.
fn put_text(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte < 0x20 || *byte == b'"' || *byte == b'\\') {
        let (plain, escaped) = rest.split_at(at);
        out.extend_from_slice(plain);
        if let Some((byte, after)) = escaped.split_first() {
            match byte {
                b'"' | b'\\' => out.extend_from_slice(&[b'\\', *byte]),
                b'\n' => out.extend_from_slice(b"\\n"),
                _ => {
                    out.extend_from_slice(b"\\u00");
                    out.extend([byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]));
                }
            }
            rest = after;
        }
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}
