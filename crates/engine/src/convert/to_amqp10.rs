//! A 0-9-1 message for a 1.0 consumer.
//!
//! Owns the translation of basic properties and headers into header, message annotations, properties and application
//! properties, and the opening of the data section around the content, which is passed on as it is. It must never
//! copy a content. Rules: docs/reference/mapping.md: x- headers are annotations, other headers application properties
//! where their type allows it.

use weft_wire::amqp10::sections::{self, BodyKind};
use weft_wire::amqp10::{
    Composite, Compound, Header, Map, MapBuf, MessageId, Properties as Properties10, Symbol, Timestamp,
    Value as Value10, descriptor, format, writer,
};
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::{Table, TableWriter, Value as Value091};

use super::values::{put_as_10, put_as_091, symbol, text};
use super::{SECTIONS_TYPE, TYPE_ANNOTATION, uuid_of_urn};
use crate::message::{Kind, Message};
use crate::relay;

/// Appends all sections before the body's own bytes. `header` has what the node knows of the delivery, `mark` adds what
/// it has to annotate; if it is `stamped`, identity and trace are among that.
pub fn head_to_amqp10(
    out: &mut Vec<u8>,
    message: &Message,
    header: Header,
    stamped: bool,
    mark: impl FnOnce(&mut Compound<'_>),
) {
    let own = Properties::decode(message.head()).unwrap_or_default();
    let headers = own.headers.unwrap_or(Table::EMPTY);
    let header =
        Header { durable: own.delivery_mode == Some(2), priority: own.priority.unwrap_or(header.priority), ..header };
    header.encode(out);
    let is_sections = own.message_type == Some(SECTIONS_TYPE) && holds_sections(message);
    let mut application = MapBuf::new();
    let start = out.len();
    writer::put_descriptor(out, descriptor::MESSAGE_ANNOTATIONS);
    let mut annotations = Compound::map(out);
    mark(&mut annotations);
    for (key, value) in headers.iter() {
        match (key, value) {
            (b"CC", Value091::Array(_)) => {
                annotations.value(&Value10::Symbol("x-cc"));
                annotations.item(|out| put_as_10(out, value));
            }
            (relay::ID_HEADER | relay::TRACE_HEADER, _) if stamped => {}
            ([b'x', b'-', ..], _) => put_annotation(&mut annotations, key, value, message.deaths.is_some()),
            (_, Value091::Array(_) | Value091::Table(_)) => {}
            _ => {
                if let Ok(key) = std::str::from_utf8(key) {
                    application.put_with(Value10::String(key), |out| put_as_10(out, value));
                }
            }
        }
    }
    if let Some(name) = own.message_type.filter(|_| !is_sections).and_then(text) {
        annotations.value(&Value10::Symbol(TYPE_ANNOTATION));
        annotations.value(&Value10::String(name));
    }
    let is_bare = annotations.is_empty();
    annotations.finish();
    if is_bare {
        out.truncate(start);
    }
    let properties = properties_of(&own);
    if properties != Properties10::default() {
        properties.encode(out);
    }
    if !application.is_empty() {
        sections::put_map(out, descriptor::APPLICATION_PROPERTIES, application.as_map());
    }
    if !is_sections {
        open_data(out, message.body_len());
    }
}

fn put_annotation(annotations: &mut Compound<'_>, key: &[u8], value: Value091<'_>, has_deaths: bool) {
    // The record of this node says the same, and more.
    let is_old_record = has_deaths && (key == b"x-death" || key.starts_with(b"x-first-death-"));
    let key = match key {
        relay::ID_HEADER => Some(relay::ID),
        relay::TRACE_HEADER => Some(relay::TRACE),
        key => symbol(key),
    };
    if let Some(key) = key.filter(|_| !is_old_record) {
        annotations.value(&Value10::Symbol(key));
        annotations.item(|out| put_as_10(out, value));
    }
}

fn properties_of<'a>(own: &Properties<'a>) -> Properties10<'a> {
    let ascii = |bytes: Option<&'a [u8]>| bytes.and_then(symbol).map(Symbol);
    Properties10 {
        message_id: own.message_id.map(id_of),
        user_id: own.user_id,
        reply_to: own.reply_to.and_then(text),
        correlation_id: own.correlation_id.map(id_of),
        content_type: ascii(own.content_type),
        content_encoding: ascii(own.content_encoding),
        creation_time: own.timestamp.map(|seconds| Timestamp((seconds as i64).saturating_mul(1_000))),
        group_id: own.app_id.and_then(text),
        ..Properties10::default()
    }
}

fn id_of(bytes: &[u8]) -> MessageId<'_> {
    match (uuid_of_urn(bytes), std::str::from_utf8(bytes)) {
        (Some(uuid), _) => MessageId::Uuid(uuid),
        (None, Ok(text)) => MessageId::String(text),
        (None, Err(_)) => MessageId::Binary(bytes),
    }
}

/// Is the content really what its type says: body sections of a 1.0 message?
fn holds_sections(message: &Message) -> bool {
    let body = message.body().gather();
    sections::scan(&body).is_ok_and(|found| found.head.body_start == 0 && found.kind != BodyKind::Absent)
}

/// Opens a data section of `len` bytes; the caller appends them.
pub fn open_data(out: &mut Vec<u8>, len: usize) {
    writer::put_descriptor(out, descriptor::DATA);
    match u8::try_from(len) {
        Ok(len) => out.extend_from_slice(&[format::VBIN8, len]),
        Err(_) => {
            out.push(format::VBIN32);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

/// A 0-9-1 message with annotations of a 1.0 consumer among its headers; they win over headers of the same name.
pub fn add_headers(message: &Message, added: Map<'_>) -> Message {
    let own = Properties::decode(message.head()).unwrap_or_default();
    let mut headers = Vec::new();
    TableWriter::write(&mut headers, |table| {
        for (key, value) in own.headers.unwrap_or(Table::EMPTY).iter() {
            if std::str::from_utf8(key).is_ok_and(|key| added.get(key).is_none()) {
                table.value(key, value);
            }
        }
        for (key, value) in added.iter() {
            if let Some(key) = key.as_str().filter(|key| key.starts_with("x-") && key.len() <= 255) {
                put_as_091(table, key.as_bytes(), value);
            }
        }
    });
    let mut head = Vec::new();
    Properties { headers: Some(Table::trusted(headers.get(4..).unwrap_or_default())), ..own }.encode(&mut head);
    message.with_head(Kind::Amqp091, head.into_boxed_slice())
}
