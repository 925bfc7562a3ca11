//! A 1.0 message for a 0-9-1 consumer.
//!
//! Owns the translation of header, annotations, properties and body into basic properties and content. The message
//! comes in as it is kept; encoded properties and a body go out, the body borrowed where it is one data section. It
//! must never refuse a message: a body that is not data is passed on as the sections it is made of. Rules:
//! docs/reference/mapping.md.

use std::borrow::Cow;

use weft_wire::amqp10::sections::{self, BodyKind, Head, Span};
use weft_wire::amqp10::{Composite, Map, MessageId, Properties as Properties10, Value as Value10};
use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::{Table, TableWriter, Value as Value091};

use super::values::put_as_091;
use super::{SECTIONS_TYPE, TYPE_ANNOTATION, UUID_PREFIX, uuid_text};
use crate::message::{Body, Kind, Message};
use crate::relay;

/// Longest short string.
const SHORT_BYTES_MAX: usize = 255;

/// Properties of a 1.0 message as 0-9-1 knows them, into `properties`; its body as 0-9-1 carries it.
pub fn to_amqp091<'m>(message: &'m Message, properties: &mut Vec<u8>) -> Cow<'m, [u8]> {
    let Kind::Amqp10(head) = &message.kind else {
        properties.extend_from_slice(message.head());
        return Cow::Owned(message.body().gather());
    };
    let (body, is_data) = body_of(message.body());
    write_properties(properties, message, head, is_data);
    body
}

/// The content of the data sections; if there are others, the sections as they are, and false.
fn body_of(body: &Body) -> (Cow<'_, [u8]>, bool) {
    let bytes = match body.is_single() {
        true => Cow::Borrowed(body.first()),
        false => Cow::Owned(body.gather()),
    };
    match sections::scan(&bytes).map(|found| (found.kind, found.body)) {
        Ok((BodyKind::Absent, _)) => (Cow::Borrowed(&[]), true),
        Ok((BodyKind::Data(span), _)) => (cut(bytes, span), true),
        Ok((BodyKind::DataMany, span)) => {
            let values = sections::body_values(span.of(&bytes)).flatten();
            let parts: Vec<&[u8]> = values.filter_map(|value| value.as_binary()).collect();
            (Cow::Owned(parts.concat()), true)
        }
        _ => (bytes, false),
    }
}

fn cut(bytes: Cow<'_, [u8]>, span: Span) -> Cow<'_, [u8]> {
    match bytes {
        Cow::Borrowed(bytes) => Cow::Borrowed(span.of(bytes)),
        Cow::Owned(mut bytes) => {
            bytes.truncate(span.end());
            bytes.drain(..(span.start as usize).min(bytes.len()));
            Cow::Owned(bytes)
        }
    }
}

fn write_properties(out: &mut Vec<u8>, message: &Message, head: &Head, is_data: bool) {
    let bytes = message.head();
    let map = |span: Option<Span>| span.and_then(|span| sections::decode_map(span.of(bytes)).ok()).unwrap_or_default();
    let (annotations, application) = (map(head.message_annotations), map(head.application_properties));
    let own = head.properties.and_then(|span| Properties10::decode(span.of(bytes)).ok()).unwrap_or_default();
    let (message_id, correlation_id) = (own.message_id.map(id_text), own.correlation_id.map(id_text));
    let mut headers = Vec::new();
    TableWriter::write(&mut headers, |table| {
        write_headers(table, annotations, application);
        write_long_id(table, b"x-message-id", &message_id);
        write_long_id(table, b"x-correlation-id", &correlation_id);
    });
    let headers = Table::trusted(headers.get(4..).unwrap_or_default());
    let message_type = match is_data {
        true => annotations.get(TYPE_ANNOTATION).and_then(|value| short(value.as_str()?.as_bytes())),
        false => Some(SECTIONS_TYPE),
    };
    let expiration = message.traits.ttl_ms.map(|ms| ms.to_string());
    let properties = Properties {
        content_type: own.content_type.and_then(|symbol| short(symbol.0.as_bytes())),
        content_encoding: own.content_encoding.and_then(|symbol| short(symbol.0.as_bytes())),
        headers: (!headers.is_empty()).then_some(headers),
        delivery_mode: head.header.map(|_| if message.traits.durable { 2 } else { 1 }),
        priority: Some(message.traits.priority).filter(|priority| *priority > 0),
        correlation_id: correlation_id.as_ref().and_then(Id::short),
        reply_to: own.reply_to.and_then(|text| short(text.as_bytes())),
        expiration: expiration.as_ref().map(|text| text.as_bytes()),
        message_id: message_id.as_ref().and_then(Id::short),
        timestamp: own.creation_time.map(|at| (at.0 / 1_000).max(0) as u64),
        message_type,
        user_id: own.user_id.and_then(short).filter(|user| std::str::from_utf8(user).is_ok()),
        app_id: own.group_id.and_then(|text| short(text.as_bytes())),
        cluster_id: None,
    };
    properties.encode(out);
}

/// Application properties and x- annotations become headers.
fn write_headers(table: &mut TableWriter<'_>, annotations: Map<'_>, application: Map<'_>) {
    for (key, value) in annotations.iter() {
        match key.as_symbol() {
            Some("x-cc") => put_as_091(table, b"CC", value),
            Some(relay::ID) => put_as_091(table, relay::ID_HEADER, value),
            Some(relay::TRACE) => put_as_091(table, relay::TRACE_HEADER, value),
            // Nodes told each other; a client sees the same in its delivery and in x-death.
            Some(relay::EXCHANGE | relay::ROUTING_KEY | relay::DEATHS | relay::PROPERTIES) => {}
            Some(key) if key.starts_with("x-basic-") => {}
            Some(key) if key.starts_with("x-") && key.len() <= SHORT_BYTES_MAX => {
                put_as_091(table, key.as_bytes(), value);
            }
            _ => {}
        }
    }
    for (key, value) in application.iter() {
        if let Value10::String(key) = key
            && key.len() <= SHORT_BYTES_MAX
        {
            put_as_091(table, key.as_bytes(), value);
        }
    }
}

/// A message id where only text can stand; binary ones cannot.
enum Id<'a> {
    Text(Cow<'a, str>),
    Binary(&'a [u8]),
}

impl Id<'_> {
    fn short(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => short(text.as_bytes()),
            Self::Binary(_) => None,
        }
    }
}

fn id_text(id: MessageId<'_>) -> Id<'_> {
    match id {
        MessageId::String(text) => Id::Text(Cow::Borrowed(text)),
        MessageId::Ulong(number) => Id::Text(Cow::Owned(number.to_string())),
        MessageId::Uuid(uuid) => Id::Text(Cow::Owned(format!("{UUID_PREFIX}{}", uuid_text(&uuid)))),
        MessageId::Binary(bytes) => Id::Binary(bytes),
    }
}

/// An id that fits no short string goes with the headers.
fn write_long_id(table: &mut TableWriter<'_>, key: &[u8], id: &Option<Id<'_>>) {
    match id {
        Some(Id::Binary(bytes)) => table.value(key, Value091::Bytes(bytes)),
        Some(Id::Text(text)) if short(text.as_bytes()).is_none() => table.str(key, text.as_bytes()),
        _ => {}
    }
}

fn short(bytes: &[u8]) -> Option<&[u8]> {
    (bytes.len() <= SHORT_BYTES_MAX).then_some(bytes)
}
