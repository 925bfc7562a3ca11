//! A message as a Python program gets it: bytes until someone asks.
//!
//! Owns the native `Delivery`: the encoded message and the number that settles it. Nothing is decoded before a getter
//! is called, and then only that section. It must never settle itself: its receiver does. Rule: `src/weft/_kernel.pyi`.

use std::sync::OnceLock;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};
use weft_client::Arrived;
use weft_wire::amqp10::sections::{self, BodyKind, Sections, Span};
use weft_wire::amqp10::{Composite, Header, MessageId, Properties, Symbol, Timestamp};

use crate::tables;

/// A message that was received.
#[pyclass(module = "weft._kernel", frozen)]
pub(crate) struct Delivery {
    arrived: Arrived,
    sections: OnceLock<Option<Sections>>,
}

type Object<'py> = PyResult<Bound<'py, PyAny>>;

impl Delivery {
    pub(crate) fn new(arrived: Arrived) -> Self {
        Self { arrived, sections: OnceLock::new() }
    }

    fn sections(&self) -> PyResult<&Sections> {
        let found = self.sections.get_or_init(|| sections::scan(&self.arrived.payload).ok());
        found.as_ref().ok_or_else(|| PyValueError::new_err("the message is not well-formed AMQP"))
    }

    fn bytes(&self, span: Option<Span>) -> Option<&[u8]> {
        span.map(|span| span.of(&self.arrived.payload))
    }

    fn properties(&self) -> PyResult<Properties<'_>> {
        match self.bytes(self.sections()?.head.properties) {
            Some(section) => Properties::decode(section).map_err(|error| PyValueError::new_err(error.to_string())),
            None => Ok(Properties::default()),
        }
    }

    fn header(&self) -> PyResult<Header> {
        match self.bytes(self.sections()?.head.header) {
            Some(section) => Header::decode(section).map_err(|error| PyValueError::new_err(error.to_string())),
            None => Ok(Header::default()),
        }
    }

    fn map<'py>(&self, py: Python<'py>, span: Option<Span>) -> Object<'py> {
        let Some(section) = self.bytes(span) else { return Ok(PyDict::new(py).into_any()) };
        let map = sections::decode_map(section).map_err(|error| PyValueError::new_err(error.to_string()))?;
        tables::value10(py, weft_wire::amqp10::Value::Map(map))
    }
}

fn id<'py>(py: Python<'py>, id: Option<MessageId<'_>>) -> Object<'py> {
    match id {
        None => Ok(py.None().into_bound(py)),
        Some(MessageId::String(text)) => Ok(PyString::new(py, text).into_any()),
        Some(MessageId::Binary(bytes)) => Ok(PyBytes::new(py, bytes).into_any()),
        Some(MessageId::Ulong(number)) => Ok(number.into_pyobject(py)?.into_any()),
        Some(MessageId::Uuid(bytes)) => {
            let options = PyDict::new(py);
            options.set_item("bytes", PyBytes::new(py, &bytes))?;
            py.import("uuid")?.getattr("UUID")?.call((), Some(&options))
        }
    }
}

fn moment<'py>(py: Python<'py>, at: Option<Timestamp>) -> Object<'py> {
    match at {
        Some(at) => tables::stamp(py, at.0 as f64 / 1000.0),
        None => Ok(py.None().into_bound(py)),
    }
}

#[pymethods]
impl Delivery {
    #[getter]
    fn number(&self) -> u64 {
        self.arrived.number
    }

    #[getter]
    fn tag<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.arrived.tag)
    }

    #[getter]
    fn settled(&self) -> bool {
        self.arrived.settled
    }

    /// Bytes of a data section, several of them together, or the value.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Object<'py> {
        let found = self.sections()?;
        let body = || sections::body_values(found.body.of(&self.arrived.payload)).map_while(Result::ok);
        Ok(match found.kind {
            BodyKind::Data(span) => PyBytes::new(py, span.of(&self.arrived.payload)).into_any(),
            BodyKind::Absent => PyBytes::new(py, b"").into_any(),
            BodyKind::DataMany => {
                let parts: Vec<&[u8]> = body().filter_map(|value| value.as_binary()).collect();
                PyBytes::new(py, &parts.concat()).into_any()
            }
            BodyKind::Value => match body().next() {
                Some(value) => tables::value10(py, value)?,
                None => return Err(PyValueError::new_err("the body is not well-formed AMQP")),
            },
            BodyKind::Sequence => {
                let list = PyList::empty(py);
                for item in body().filter_map(|value| value.as_list()).flat_map(|items| items.iter()) {
                    list.append(tables::value10(py, item)?)?;
                }
                list.into_any()
            }
        })
    }

    /// `data`, `value`, `sequence` or `none`.
    #[getter]
    fn body_kind(&self) -> PyResult<&'static str> {
        Ok(match self.sections()?.kind {
            BodyKind::Data(_) | BodyKind::DataMany => "data",
            BodyKind::Value => "value",
            BodyKind::Sequence => "sequence",
            BodyKind::Absent => "none",
        })
    }

    #[getter]
    fn message_id<'py>(&self, py: Python<'py>) -> Object<'py> {
        id(py, self.properties()?.message_id)
    }

    #[getter]
    fn correlation_id<'py>(&self, py: Python<'py>) -> Object<'py> {
        id(py, self.properties()?.correlation_id)
    }

    #[getter]
    fn user_id(&self) -> PyResult<Option<String>> {
        Ok(self.properties()?.user_id.map(tables::text))
    }

    #[getter]
    fn to(&self) -> PyResult<Option<&str>> {
        Ok(self.properties()?.to)
    }

    #[getter]
    fn subject(&self) -> PyResult<Option<&str>> {
        Ok(self.properties()?.subject)
    }

    #[getter]
    fn reply_to(&self) -> PyResult<Option<&str>> {
        Ok(self.properties()?.reply_to)
    }

    #[getter]
    fn content_type(&self) -> PyResult<Option<&str>> {
        Ok(self.properties()?.content_type.map(|Symbol(name)| name))
    }

    #[getter]
    fn content_encoding(&self) -> PyResult<Option<&str>> {
        Ok(self.properties()?.content_encoding.map(|Symbol(name)| name))
    }

    #[getter]
    fn expires_at<'py>(&self, py: Python<'py>) -> Object<'py> {
        moment(py, self.properties()?.absolute_expiry_time)
    }

    /// The same in seconds since 1970.
    #[getter]
    fn expires_s(&self) -> PyResult<Option<f64>> {
        Ok(self.properties()?.absolute_expiry_time.map(|at| at.0 as f64 / 1000.0))
    }

    #[getter]
    fn created_at<'py>(&self, py: Python<'py>) -> Object<'py> {
        moment(py, self.properties()?.creation_time)
    }

    #[getter]
    fn group_id(&self) -> PyResult<Option<&str>> {
        Ok(self.properties()?.group_id)
    }

    #[getter]
    fn group_sequence(&self) -> PyResult<Option<u32>> {
        Ok(self.properties()?.group_sequence)
    }

    #[getter]
    fn reply_to_group_id(&self) -> PyResult<Option<&str>> {
        Ok(self.properties()?.reply_to_group_id)
    }

    #[getter]
    fn durable(&self) -> PyResult<bool> {
        Ok(self.header()?.durable)
    }

    #[getter]
    fn priority(&self) -> PyResult<u8> {
        Ok(self.header()?.priority)
    }

    #[getter]
    fn ttl_ms(&self) -> PyResult<Option<u32>> {
        Ok(self.header()?.ttl)
    }

    #[getter]
    fn delivery_count(&self) -> PyResult<u32> {
        Ok(self.header()?.delivery_count)
    }

    #[getter]
    fn first_acquirer(&self) -> PyResult<bool> {
        Ok(self.header()?.first_acquirer)
    }

    /// Application properties.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> Object<'py> {
        self.map(py, self.sections()?.head.application_properties)
    }

    /// Message annotations.
    #[getter]
    fn annotations<'py>(&self, py: Python<'py>) -> Object<'py> {
        self.map(py, self.sections()?.head.message_annotations)
    }

    /// Delivery annotations.
    #[getter]
    fn delivery_annotations<'py>(&self, py: Python<'py>) -> Object<'py> {
        self.map(py, self.sections()?.head.delivery_annotations)
    }

    /// What stands behind the body: a signature, perhaps.
    #[getter]
    fn footer<'py>(&self, py: Python<'py>) -> Object<'py> {
        self.map(py, self.sections()?.footer)
    }

    /// The bare message, as its sender wrote it: properties, application properties and body.
    #[getter]
    fn bare<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let found = self.sections()?;
        let sections = [found.head.properties, found.head.application_properties, Some(found.body)];
        let bare: Vec<&[u8]> = sections.into_iter().filter_map(|span| self.bytes(span)).collect();
        Ok(PyBytes::new(py, &bare.concat()))
    }

    /// The whole encoded message.
    #[getter]
    fn encoded<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.arrived.payload)
    }
}
