//! Field tables and maps as Python dictionaries, and back.
//!
//! Owns the one mapping between wire values and Python values. Decoded tables go out as dict, list, int, str and so on;
//! dictionaries come in and become 0-9-1 tables. It must never recurse deeper than the codecs allow. Rule:
//! `weft.model.events.Table`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString};
use weft_engine::event::Fields;
use weft_wire::amqp10::{Reader, Value as Value10};
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::{ArrayWriter, TABLE_DEPTH_MAX, Table, TableWriter, Value};

/// Text as Python text, whatever the peer sent.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn fields<'py>(py: Python<'py>, fields: &Fields) -> PyResult<Bound<'py, PyAny>> {
    match fields {
        Fields::Empty => Ok(PyDict::new(py).into_any()),
        Fields::Amqp091(raw) => Ok(table(py, Table::trusted(raw))?.into_any()),
        Fields::Amqp10(raw) => match Reader::new(raw).read() {
            Ok(value) => value10(py, value),
            Err(_) => Ok(PyDict::new(py).into_any()),
        },
    }
}

pub(crate) fn table<'py>(py: Python<'py>, table: Table<'_>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (key, item) in table.iter() {
        dict.set_item(text(key), value(py, item)?)?;
    }
    Ok(dict)
}

pub(crate) fn stamp<'py>(py: Python<'py>, seconds: f64) -> PyResult<Bound<'py, PyAny>> {
    let datetime = py.import("datetime")?;
    let utc = datetime.getattr("timezone")?.getattr("utc")?;
    match datetime.getattr("datetime")?.call_method1("fromtimestamp", (seconds, utc)) {
        Ok(at) => Ok(at),
        // Beyond what a date can hold: the number says it.
        Err(_) => Ok(PyFloat::new(py, seconds).into_any()),
    }
}

fn value<'py>(py: Python<'py>, value: Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::Void => py.None().into_bound(py),
        Value::Bool(yes) => PyBool::new(py, yes).to_owned().into_any(),
        Value::F32(number) => PyFloat::new(py, f64::from(number)).into_any(),
        Value::F64(number) => PyFloat::new(py, number).into_any(),
        Value::Decimal { scale, value } => {
            PyFloat::new(py, f64::from(value) / 10_f64.powi(i32::from(scale))).into_any()
        }
        Value::LongString(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => PyString::new(py, text).into_any(),
            Err(_) => PyBytes::new(py, bytes).into_any(),
        },
        Value::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Value::Timestamp(seconds) => stamp(py, seconds as f64)?,
        Value::Table(inner) => table(py, inner)?.into_any(),
        Value::Array(items) => {
            let list = PyList::empty(py);
            for item in items.iter() {
                list.append(self::value(py, item)?)?;
            }
            list.into_any()
        }
        other => PyInt::new(py, other.as_i64().unwrap_or(0)).into_any(),
    })
}

/// A 1.0 value as Python's.
pub(crate) fn value10<'py>(py: Python<'py>, value: Value10<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value10::Null => py.None().into_bound(py),
        Value10::Bool(yes) => PyBool::new(py, yes).to_owned().into_any(),
        Value10::Float(number) => PyFloat::new(py, f64::from(number)).into_any(),
        Value10::Double(number) => PyFloat::new(py, number).into_any(),
        Value10::String(text) | Value10::Symbol(text) => PyString::new(py, text).into_any(),
        Value10::Char(letter) => PyString::new(py, &letter.to_string()).into_any(),
        Value10::Binary(bytes) => PyBytes::new(py, bytes).into_any(),
        Value10::Uuid(bytes) => PyBytes::new(py, &bytes).into_any(),
        Value10::Timestamp(ms) => stamp(py, ms as f64 / 1000.0)?,
        Value10::Described(described) => value10(py, described.value())?,
        Value10::Map(map) => {
            let dict = PyDict::new(py);
            for (key, item) in map.iter() {
                dict.set_item(key.as_str().map_or_else(|| format!("{key:?}"), str::to_owned), value10(py, item)?)?;
            }
            dict.into_any()
        }
        Value10::List(items) => list10(py, items.iter())?,
        Value10::Array(items) => list10(py, items.iter())?,
        other => match other.as_u64() {
            Some(number) => PyInt::new(py, number).into_any(),
            None => PyInt::new(py, other.as_i64().unwrap_or(0)).into_any(),
        },
    })
}

fn list10<'py, 'v>(py: Python<'py>, items: impl Iterator<Item = Value10<'v>>) -> PyResult<Bound<'py, PyAny>> {
    let list = PyList::empty(py);
    for item in items {
        list.append(value10(py, item)?)?;
    }
    Ok(list.into_any())
}

/// A dictionary as the content of a 0-9-1 table (without its length).
pub(crate) fn encode(dict: &Bound<'_, PyDict>) -> PyResult<Vec<u8>> {
    let mut out = Vec::new();
    let mut result = Ok(());
    TableWriter::write(&mut out, |writer| result = write_dict(writer, dict, TABLE_DEPTH_MAX));
    result?;
    Ok(out.split_off(4))
}

fn write_dict(writer: &mut TableWriter<'_>, dict: &Bound<'_, PyDict>, depth: usize) -> PyResult<()> {
    for (key, item) in dict.iter() {
        let key: String = key.extract()?;
        if key.len() > 255 {
            return Err(PyValueError::new_err(format!("a table key of {} bytes: 255 is the most", key.len())));
        }
        let mut result = Ok(());
        if let Ok(inner) = item.cast::<PyDict>() {
            nested(depth)?;
            writer.table(key.as_bytes(), |writer| result = write_dict(writer, inner, depth - 1));
        } else if let Ok(items) = item.cast::<PyList>() {
            nested(depth)?;
            writer.array(key.as_bytes(), |writer| result = write_list(writer, items, depth - 1));
        } else {
            result = with_scalar(&item, |value| writer.value(key.as_bytes(), value));
        }
        result?;
    }
    Ok(())
}

fn write_list(writer: &mut ArrayWriter<'_>, items: &Bound<'_, PyList>, depth: usize) -> PyResult<()> {
    for item in items.iter() {
        let mut result = Ok(());
        if let Ok(inner) = item.cast::<PyDict>() {
            nested(depth)?;
            writer.table(|writer| result = write_dict(writer, inner, depth - 1));
        } else if let Ok(inner) = item.cast::<PyList>() {
            nested(depth)?;
            writer.array(|writer| result = write_list(writer, inner, depth - 1));
        } else {
            result = with_scalar(&item, |value| writer.value(value));
        }
        result?;
    }
    Ok(())
}

fn nested(depth: usize) -> PyResult<()> {
    if depth <= 1 { Err(PyValueError::new_err("tables are nested too deeply")) } else { Ok(()) }
}

fn with_scalar(item: &Bound<'_, PyAny>, write: impl FnOnce(Value<'_>)) -> PyResult<()> {
    if item.is_none() {
        write(Value::Void);
    } else if let Ok(yes) = item.cast::<PyBool>() {
        write(Value::Bool(yes.is_true()));
    } else if let Ok(number) = item.cast::<PyInt>() {
        write(Value::I64(number.extract()?));
    } else if let Ok(number) = item.cast::<PyFloat>() {
        write(Value::F64(number.extract()?));
    } else if let Ok(text) = item.cast::<PyString>() {
        let text: String = text.extract()?;
        write(Value::LongString(text.as_bytes()));
    } else if let Ok(bytes) = item.cast::<PyBytes>() {
        write(Value::Bytes(bytes.as_bytes()));
    } else if let Ok(at) = item.call_method0("timestamp").and_then(|at| at.extract::<f64>()) {
        write(Value::Timestamp(at.max(0.0) as u64));
    } else {
        let name = item.get_type().name()?;
        return Err(PyTypeError::new_err(format!("a table cannot hold a value of type {name}")));
    }
    Ok(())
}

/// Message properties as keyword-style dictionary, absent ones left out.
pub(crate) fn properties<'py>(py: Python<'py>, own: &Properties<'_>) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let texts = [
        ("content_type", own.content_type),
        ("content_encoding", own.content_encoding),
        ("correlation_id", own.correlation_id),
        ("reply_to", own.reply_to),
        ("expiration", own.expiration),
        ("message_id", own.message_id),
        ("type", own.message_type),
        ("user_id", own.user_id),
        ("app_id", own.app_id),
    ];
    for (name, bytes) in texts {
        if let Some(bytes) = bytes {
            dict.set_item(name, text(bytes))?;
        }
    }
    if let Some(mode) = own.delivery_mode {
        dict.set_item("delivery_mode", mode)?;
    }
    if let Some(priority) = own.priority {
        dict.set_item("priority", priority)?;
    }
    if let Some(seconds) = own.timestamp {
        dict.set_item("timestamp", seconds)?;
    }
    if let Some(headers) = own.headers {
        dict.set_item("headers", table(py, headers)?)?;
    }
    Ok(dict)
}

/// The reverse of `properties`: encoded 0-9-1 properties.
pub(crate) fn encode_properties(dict: Option<&Bound<'_, PyDict>>) -> PyResult<Vec<u8>> {
    let mut out = Vec::new();
    let Some(dict) = dict else {
        Properties::default().encode(&mut out);
        return Ok(out);
    };
    let mut texts: std::collections::HashMap<String, String> = std::collections::HashMap::new();
    let (mut headers, mut numbers) = (None, [None::<u64>; 3]);
    for (key, item) in dict.iter() {
        let key: String = key.extract()?;
        match key.as_str() {
            "headers" => headers = Some(encode(item.cast::<PyDict>().map_err(PyErr::from)?)?),
            "delivery_mode" => numbers[0] = Some(item.extract()?),
            "priority" => numbers[1] = Some(item.extract()?),
            "timestamp" => numbers[2] = Some(item.extract()?),
            "content_type" | "content_encoding" | "correlation_id" | "reply_to" | "expiration" | "message_id"
            | "type" | "user_id" | "app_id" => {
                let value: String = item.extract()?;
                if value.len() > 255 {
                    return Err(PyValueError::new_err(format!("property {key} is longer than 255 bytes")));
                }
                texts.insert(key, value);
            }
            _ => return Err(PyValueError::new_err(format!("no such message property: {key}"))),
        }
    }
    let get = |name: &str| texts.get(name).map(|text| text.as_bytes());
    Properties {
        content_type: get("content_type"),
        content_encoding: get("content_encoding"),
        headers: headers.as_deref().map(Table::trusted),
        delivery_mode: numbers[0].map(|mode| mode.min(2) as u8),
        priority: numbers[1].map(|priority| priority.min(255) as u8),
        correlation_id: get("correlation_id"),
        reply_to: get("reply_to"),
        expiration: get("expiration"),
        message_id: get("message_id"),
        timestamp: numbers[2],
        message_type: get("type"),
        user_id: get("user_id"),
        app_id: get("app_id"),
        cluster_id: None,
    }
    .encode(&mut out);
    Ok(out)
}
