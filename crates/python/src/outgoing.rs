//! Messages on their way out: a dictionary of properties and a body become an encoded message.
//!
//! Owns the names under which a Python program gives properties, and which section each stands in. One dictionary
//! serves a whole batch of bodies; ids that differ are made here. It must never keep a reference to anything Python
//! owns. Rule: `src/weft/_kernel.pyi`, `Client.send`.

use std::fmt::Write;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};
use weft_wire::amqp10::{
    Composite, Header, MapBuf, MessageId, Properties, Symbol, Timestamp, descriptor, sections, writer,
};

use crate::values;

/// A batch's properties, held while its messages are encoded.
#[derive(Default)]
pub(crate) struct Words<'py> {
    durable: bool,
    priority: Option<u8>,
    ttl: Option<u32>,
    texts: Vec<(Text, Bound<'py, PyString>)>,
    ids: [Option<Bound<'py, PyAny>>; 2],
    user_id: Option<Vec<u8>>,
    expires: Option<Timestamp>,
    created: Option<Timestamp>,
    group_sequence: Option<u32>,
    headers: Option<MapBuf>,
    annotations: Option<MapBuf>,
}

/// A property that is text.
#[derive(Clone, Copy)]
enum Text {
    To,
    Subject,
    ReplyTo,
    ContentType,
    ContentEncoding,
    GroupId,
    ReplyToGroupId,
}

impl<'py> Words<'py> {
    /// Reads the dictionary once.
    pub(crate) fn read(properties: Option<&Bound<'py, PyDict>>) -> PyResult<Self> {
        let mut words = Self::default();
        let Some(properties) = properties else { return Ok(words) };
        for (key, value) in properties.iter() {
            let key = key.cast_into::<PyString>().map_err(|_| PyTypeError::new_err("names of properties are str"))?;
            if !value.is_none() {
                words.take(key.to_str()?, value)?;
            }
        }
        Ok(words)
    }

    fn take(&mut self, key: &str, value: Bound<'py, PyAny>) -> PyResult<()> {
        let text = match key {
            "to" => Text::To,
            "subject" => Text::Subject,
            "reply_to" => Text::ReplyTo,
            "content_type" => Text::ContentType,
            "content_encoding" => Text::ContentEncoding,
            "group_id" => Text::GroupId,
            "reply_to_group_id" => Text::ReplyToGroupId,
            _ => return self.take_other(key, value),
        };
        let wrong = |_| PyTypeError::new_err(format!("property {key} is str"));
        self.texts.push((text, value.cast_into().map_err(wrong)?));
        Ok(())
    }

    fn take_other(&mut self, key: &str, value: Bound<'py, PyAny>) -> PyResult<()> {
        let dict = || value.cast::<PyDict>().map_err(|_| PyTypeError::new_err(format!("property {key} is a dict")));
        match key {
            "durable" => self.durable = value.extract()?,
            "priority" => self.priority = Some(value.extract()?),
            "ttl_ms" => self.ttl = Some(value.extract()?),
            "headers" => self.headers = Some(values::map(dict()?, false)?),
            "annotations" => self.annotations = Some(values::map(dict()?, true)?),
            "user_id" => self.user_id = Some(value.extract::<String>()?.into_bytes()),
            "expires_at" => self.expires = Some(Timestamp(values::moment_ms(&value)?)),
            "created_at" => self.created = Some(Timestamp(values::moment_ms(&value)?)),
            "group_sequence" => self.group_sequence = Some(value.extract()?),
            "message_id" => self.ids[0] = Some(value),
            "correlation_id" => self.ids[1] = Some(value),
            _ => return Err(PyTypeError::new_err(format!("there is no property {key:?}"))),
        }
        Ok(())
    }

    /// Whether the caller chose the id itself.
    pub(crate) fn has_id(&self) -> bool {
        self.ids[0].is_some()
    }

    /// Appends all sections before the body; `made_id` stands in where the caller gave none. Answers with where the
    /// bare message begins, which nobody on the way changes.
    pub(crate) fn put(&self, out: &mut Vec<u8>, made_id: Option<&str>) -> PyResult<usize> {
        if self.durable || self.priority.is_some() || self.ttl.is_some() {
            let plain = Header::default();
            let priority = self.priority.unwrap_or(plain.priority);
            Header { durable: self.durable, priority, ttl: self.ttl, ..plain }.encode(out);
        }
        if let Some(map) = &self.annotations {
            sections::put_map(out, descriptor::MESSAGE_ANNOTATIONS, map.as_map());
        }
        let bare = out.len();
        let mut properties = Properties {
            message_id: made_id.map(MessageId::String),
            user_id: self.user_id.as_deref(),
            absolute_expiry_time: self.expires,
            creation_time: self.created,
            group_sequence: self.group_sequence,
            ..Properties::default()
        };
        let (mut uuids, mut kept) = ([[0; 16]; 2], [None, None]);
        for ((given, uuid), kept) in self.ids.iter().zip(&mut uuids).zip(&mut kept) {
            *kept = given.as_ref().map(|given| id(given, uuid)).transpose()?;
        }
        properties.message_id = kept[0].or(properties.message_id);
        properties.correlation_id = kept[1];
        for (name, text) in &self.texts {
            let text = text.to_str()?;
            match name {
                Text::To => properties.to = Some(text),
                Text::Subject => properties.subject = Some(text),
                Text::ReplyTo => properties.reply_to = Some(text),
                Text::ContentType => properties.content_type = Some(Symbol(values::ascii(text)?)),
                Text::ContentEncoding => properties.content_encoding = Some(Symbol(values::ascii(text)?)),
                Text::GroupId => properties.group_id = Some(text),
                Text::ReplyToGroupId => properties.reply_to_group_id = Some(text),
            }
        }
        if properties != Properties::default() {
            properties.encode(out);
        }
        if let Some(map) = &self.headers {
            sections::put_map(out, descriptor::APPLICATION_PROPERTIES, map.as_map());
        }
        Ok(bare)
    }
}

/// An id in one of its four types.
fn id<'a>(given: &'a Bound<'_, PyAny>, uuid: &mut [u8; 16]) -> PyResult<MessageId<'a>> {
    if let Ok(text) = given.cast::<PyString>() {
        return Ok(MessageId::String(text.to_str()?));
    }
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(MessageId::Binary(bytes.as_bytes()));
    }
    if given.get_type().name()?.to_str()? == "UUID" {
        *uuid = given.getattr("bytes")?.extract()?;
        return Ok(MessageId::Uuid(*uuid));
    }
    match given.extract() {
        Ok(number) => Ok(MessageId::Ulong(number)),
        Err(_) => Err(PyTypeError::new_err("an id is str, bytes, a UUID or an int that is not negative")),
    }
}

/// Appends a body: text and bytes as a data section, anything with `as_value` as one AMQP value.
pub(crate) fn put_body(out: &mut Vec<u8>, body: &Bound<'_, PyAny>, as_value: bool) -> PyResult<()> {
    if as_value {
        writer::put_descriptor(out, descriptor::AMQP_VALUE);
        return values::put(out, body);
    }
    if let Ok(bytes) = body.cast::<PyBytes>() {
        sections::put_data(out, bytes.as_bytes());
    } else if let Ok(text) = body.cast::<PyString>() {
        sections::put_data(out, text.to_str()?.as_bytes());
    } else {
        let wrong = |_| PyTypeError::new_err("a body is bytes or str: anything else has to be encoded first");
        let buffer: PyBuffer<u8> = PyBuffer::get(body).map_err(wrong)?;
        sections::put_data(out, &buffer.to_vec(body.py())?);
    }
    Ok(())
}

/// Appends the footer that a signer makes of the bare message; None for none.
pub(crate) fn put_footer(out: &mut Vec<u8>, bare: usize, sign: &Bound<'_, PyAny>) -> PyResult<()> {
    let footer = sign.call1((PyBytes::new(sign.py(), &out[bare..]),))?;
    if footer.is_none() {
        return Ok(());
    }
    let footer = footer.cast::<PyDict>().map_err(|_| PyTypeError::new_err("a footer is a dict or None"))?;
    sections::put_map(out, descriptor::FOOTER, values::map(footer, true)?.as_map());
    Ok(())
}

/// The id of a client's nth message: the same whenever it is sent again, and no other message's.
pub(crate) fn make_id(text: &mut String, publisher: &str, number: u64) {
    text.clear();
    let _always = write!(text, "{publisher}:{number}");
}
