//! Reading single fields of a message, whichever protocol wrote it.
//!
//! Owns the answer to "what does this message say about X?" for headers exchanges and selectors. A message and a name
//! come in, a borrowed value comes out; only the section that holds it is read. It must never touch a body.
//! Rules: docs/reference/mapping.md (how properties of the two protocols correspond), Jakarta Messaging 3.1 section
//! 3.8.1.1.

use std::borrow::Cow;

use weft_wire::amqp10::peek::properties as peek10;
use weft_wire::amqp10::sections::{self, Span};
use weft_wire::amqp10::{Composite, MessageId, Properties as Properties10, Value as Value10};
use weft_wire::amqp091::properties::{self, Properties, peek};
use weft_wire::amqp091::table::{Table, Value};

use crate::broker::{Death, Reason};
use crate::message::{Kind, Message};
use crate::relay;
use crate::routing::field_ref;
use crate::routing::headers::FieldRef;
use crate::routing::selector::{Name, Operand};

const TRACE_PARENT: &str = "traceparent";

/// The headers (0-9-1) or application properties (1.0) of one message. They are read and put in order at the first
/// question, so that a thousand bindings may ask of a message with a thousand headers.
pub struct Headers<'m> {
    message: &'m Message,
    sorted: Option<Vec<(&'m [u8], FieldRef<'m>)>>,
}

impl<'m> Headers<'m> {
    pub fn of(message: &'m Message) -> Self {
        Self { message, sorted: None }
    }

    /// The first header of that name.
    pub fn get(&mut self, name: &[u8]) -> Option<FieldRef<'m>> {
        let sorted = self.sorted.get_or_insert_with(|| sorted_headers(self.message));
        let at = sorted.partition_point(|(key, _)| *key < name);
        sorted.get(at).filter(|(key, _)| *key == name).map(|(_, value)| *value)
    }
}

fn sorted_headers(message: &Message) -> Vec<(&[u8], FieldRef<'_>)> {
    let mut all: Vec<(&[u8], FieldRef<'_>)> = match &message.kind {
        Kind::Amqp091 => {
            let headers = peek(message.head()).ok().and_then(|peek| peek.headers).unwrap_or(Table::EMPTY);
            headers.iter().map(|(key, value)| (key, field_ref(value))).collect()
        }
        Kind::Amqp10(head) => {
            let section = head.application_properties.map(|span| span.of(message.head()));
            let map = section.and_then(|section| sections::decode_map(section).ok());
            let pairs = map.into_iter().flat_map(|map| map.iter());
            pairs.filter_map(|(key, value)| Some((key.as_str()?.as_bytes(), field_of(value)))).collect()
        }
    };
    all.sort_by_key(|(key, _)| *key);
    all
}

/// The routing keys of a message's CC header (0-9-1) or x-cc annotation (1.0).
pub fn copy_keys(message: &Message) -> Vec<&[u8]> {
    match &message.kind {
        Kind::Amqp091 => match peek(message.head()).ok().and_then(|peek| peek.headers?.get(b"CC")) {
            Some(Value::Array(keys)) => keys.iter().filter_map(|key| key.as_bytes()).collect(),
            _ => Vec::new(),
        },
        Kind::Amqp10(head) => match property(message, head.message_annotations, "x-cc") {
            Some(Value10::List(keys)) => keys.iter().filter_map(|key| key.as_str()).map(str::as_bytes).collect(),
            _ => Vec::new(),
        },
    }
}

/// The filter value that a publisher gave a message for a stream: a header (0-9-1) or an annotation (1.0).
pub fn stream_filter_value(message: &Message) -> Option<&[u8]> {
    match &message.kind {
        Kind::Amqp091 => peek(message.head()).ok()?.headers?.get(b"x-stream-filter-value")?.as_bytes(),
        Kind::Amqp10(head) => {
            property(message, head.message_annotations, "x-stream-filter-value")?.as_str().map(str::as_bytes)
        }
    }
}

/// The death record that a client sent along (0-9-1): a message published again goes on counting.
pub fn deaths(message: &Message) -> Vec<Death> {
    let headers = match &message.kind {
        Kind::Amqp091 => peek(message.head()).ok().and_then(|peek| peek.headers),
        Kind::Amqp10(_) => None,
    };
    match headers.and_then(|headers| headers.get(b"x-death")) {
        Some(Value::Array(rows)) => rows.iter().filter_map(death).collect(),
        _ => Vec::new(),
    }
}

fn death(row: Value<'_>) -> Option<Death> {
    let Value::Table(row) = row else { return None };
    let name = |key: &[u8]| row.get(key).and_then(|value| value.as_bytes()).map(crate::message::Name::from);
    let Some(Value::Array(keys)) = row.get(b"routing-keys") else { return None };
    Some(Death {
        queue: name(b"queue")?,
        reason: Reason::from_word(&name(b"reason")?)?,
        count: row.get(b"count").and_then(|value| value.as_i64()).unwrap_or(1).max(0) as u64,
        time_s: match row.get(b"time") {
            Some(Value::Timestamp(seconds)) => seconds,
            _ => 0,
        },
        exchange: name(b"exchange")?,
        routing_keys: keys.iter().filter_map(|key| key.as_bytes()).map(crate::message::Name::from).collect(),
        expiration_ms: name(b"original-expiration").and_then(|text| std::str::from_utf8(&text).ok()?.parse().ok()),
    })
}

fn property<'m>(message: &'m Message, section: Option<Span>, name: &str) -> Option<Value10<'m>> {
    sections::decode_map(section?.of(message.head())).ok()?.get(name)
}

/// One header (0-9-1) or application property (1.0).
pub fn header<'m>(message: &'m Message, name: &str) -> Option<FieldRef<'m>> {
    match &message.kind {
        Kind::Amqp091 => peek(message.head()).ok()?.headers?.get(name.as_bytes()).map(field_ref),
        Kind::Amqp10(head) => property(message, head.application_properties, name).map(field_of),
    }
}

/// The message id, spelled alike whichever protocol and type it was written in.
pub fn message_id(message: &Message) -> Option<Cow<'_, [u8]>> {
    let Kind::Amqp10(head) = &message.kind else {
        return Properties::decode(message.head()).ok()?.message_id.map(Cow::Borrowed);
    };
    Some(match Properties10::decode(head.properties?.of(message.head())).ok()?.message_id? {
        MessageId::String(text) => Cow::Borrowed(text.as_bytes()),
        MessageId::Binary(bytes) => Cow::Borrowed(bytes),
        MessageId::Ulong(number) => Cow::Owned(number.to_string().into_bytes()),
        MessageId::Uuid(uuid) => Cow::Owned(crate::convert::uuid_text(&uuid).into_bytes()),
    })
}

/// The identity of a message in the fabric, if it came from another node.
pub fn fabric_id(message: &Message) -> Option<&[u8]> {
    if !message.traits.relayed {
        return None;
    }
    match &message.kind {
        Kind::Amqp091 => relay::id_amqp091(message.head()),
        Kind::Amqp10(head) => match property(message, head.message_annotations, relay::ID)? {
            Value10::String(text) | Value10::Symbol(text) => Some(text.as_bytes()),
            _ => None,
        },
    }
}

fn field_of(value: Value10<'_>) -> FieldRef<'_> {
    match value {
        Value10::Null => FieldRef::Void,
        Value10::Bool(yes) => FieldRef::Bool(yes),
        Value10::Float(number) => FieldRef::Float(f64::from(number)),
        Value10::Double(number) => FieldRef::Float(number),
        Value10::String(text) | Value10::Symbol(text) => FieldRef::Str(text.as_bytes()),
        Value10::Binary(bytes) => FieldRef::Bytes(bytes),
        Value10::Timestamp(stamp) => FieldRef::Timestamp((stamp / 1000).max(0) as u64),
        other => other.as_i64().map_or(FieldRef::Other(b""), FieldRef::Int),
    }
}

/// The subject: of a 1.0 message its own, else the routing key.
pub fn subject(message: &Message) -> &[u8] {
    match &message.kind {
        Kind::Amqp10(head) => {
            let own = head.properties.and_then(|span| Properties10::decode(span.of(message.head())).ok());
            match own.and_then(|properties| properties.subject) {
                Some(subject) => subject.as_bytes(),
                None => &message.routing_key,
            }
        }
        Kind::Amqp091 => &message.routing_key,
    }
}

/// The type of a message: what 0-9-1 calls so, or the subject of a 1.0 message.
#[inline]
pub fn type_of(message: &Message) -> Option<&[u8]> {
    match &message.kind {
        Kind::Amqp091 => {
            let head = message.head();
            if properties::has_type(head) { Properties::view(head).ok()?.message_type } else { None }
        }
        Kind::Amqp10(head) => match peek10(head.properties?.of(message.head())) {
            Some(properties) => properties.subject.map(str::as_bytes),
            None => Properties10::decode(head.properties?.of(message.head())).ok()?.subject.map(str::as_bytes),
        },
    }
}

/// The W3C trace context of a message: a header (0-9-1), an application property or an annotation (1.0).
pub fn trace_parent(message: &Message) -> Option<&[u8]> {
    let annotated = || match &message.kind {
        Kind::Amqp091 => None,
        Kind::Amqp10(head) => property(message, head.message_annotations, TRACE_PARENT).map(field_of),
    };
    match header(message, TRACE_PARENT).or_else(annotated)? {
        FieldRef::Str(text) => Some(text),
        _ => None,
    }
}

/// What a selector asks of a message; `failures` is its delivery count.
pub fn operand<'m>(message: &'m Message, failures: u32, name: &Name) -> Operand<'m> {
    match name {
        Name::Durable => Operand::Bool(message.traits.durable),
        Name::Priority => Operand::Int(i64::from(message.traits.priority)),
        Name::Ttl => message.traits.ttl_ms.map_or(Operand::Null, |ms| Operand::Int(ms as i64)),
        Name::DeliveryCount => Operand::Int(i64::from(failures)),
        Name::FirstAcquirer => Operand::Bool(failures == 0),
        name => match &message.kind {
            Kind::Amqp091 => operand_091(message, name),
            Kind::Amqp10(head) => {
                let properties = head.properties.and_then(|span| Properties10::decode(span.of(message.head())).ok());
                match name {
                    Name::Property(key) => {
                        property(message, head.application_properties, key).map_or(Operand::Null, operand_of)
                    }
                    name => operand_10(properties.unwrap_or_default(), name),
                }
            }
        },
    }
}

fn operand_of(value: Value10<'_>) -> Operand<'_> {
    match value {
        Value10::Bool(yes) => Operand::Bool(yes),
        Value10::Float(number) => Operand::Float(f64::from(number)),
        Value10::Double(number) => Operand::Float(number),
        Value10::String(text) | Value10::Symbol(text) => Operand::Str(Cow::Borrowed(text)),
        Value10::Timestamp(stamp) => Operand::Int(stamp),
        other => other.as_i64().map_or(Operand::Null, Operand::Int),
    }
}

fn text(value: Option<&str>) -> Operand<'_> {
    value.map_or(Operand::Null, |text| Operand::Str(Cow::Borrowed(text)))
}

fn bytes(value: Option<&[u8]>) -> Operand<'_> {
    value.map_or(Operand::Null, |bytes| Operand::Str(String::from_utf8_lossy(bytes)))
}

fn id_text(id: Option<MessageId<'_>>) -> Operand<'_> {
    match id {
        None => Operand::Null,
        Some(MessageId::String(text)) => Operand::Str(Cow::Borrowed(text)),
        Some(MessageId::Ulong(number)) => Operand::Str(Cow::Owned(number.to_string())),
        Some(MessageId::Binary(bytes)) => Operand::Str(String::from_utf8_lossy(bytes)),
        Some(MessageId::Uuid(uuid)) => Operand::Str(Cow::Owned(crate::convert::uuid_text(&uuid))),
    }
}

fn operand_10<'m>(properties: Properties10<'m>, name: &Name) -> Operand<'m> {
    match name {
        Name::To => text(properties.to),
        Name::Subject => text(properties.subject),
        Name::MessageId => id_text(properties.message_id),
        Name::UserId => bytes(properties.user_id),
        Name::ReplyTo => text(properties.reply_to),
        Name::CorrelationId => id_text(properties.correlation_id),
        Name::ContentType => text(properties.content_type.map(|symbol| symbol.0)),
        Name::ContentEncoding => text(properties.content_encoding.map(|symbol| symbol.0)),
        Name::AbsoluteExpiryTime => properties.absolute_expiry_time.map_or(Operand::Null, |at| Operand::Int(at.0)),
        Name::CreationTime => properties.creation_time.map_or(Operand::Null, |at| Operand::Int(at.0)),
        Name::GroupId => text(properties.group_id),
        Name::GroupSequence => properties.group_sequence.map_or(Operand::Null, |n| Operand::Int(i64::from(n))),
        Name::ReplyToGroupId => text(properties.reply_to_group_id),
        _ => Operand::Null,
    }
}

fn operand_091<'m>(message: &'m Message, name: &Name) -> Operand<'m> {
    let Ok(properties) = Properties::decode(message.head()) else { return Operand::Null };
    match name {
        Name::To => bytes(Some(&message.routing_key)),
        Name::Subject => bytes(properties.message_type),
        Name::MessageId => bytes(properties.message_id),
        Name::UserId => bytes(properties.user_id),
        Name::ReplyTo => bytes(properties.reply_to),
        Name::CorrelationId => bytes(properties.correlation_id),
        Name::ContentType => bytes(properties.content_type),
        Name::ContentEncoding => bytes(properties.content_encoding),
        Name::CreationTime => {
            properties.timestamp.map_or(Operand::Null, |s| Operand::Int((s as i64).saturating_mul(1000)))
        }
        Name::Property(key) => {
            let value = properties.headers.and_then(|headers| headers.get(key.as_bytes()));
            match value.map(field_ref) {
                Some(FieldRef::Bool(yes)) => Operand::Bool(yes),
                Some(FieldRef::Int(number)) => Operand::Int(number),
                Some(FieldRef::Float(number)) => Operand::Float(number),
                Some(FieldRef::Str(text) | FieldRef::Bytes(text)) => Operand::Str(String::from_utf8_lossy(text)),
                Some(FieldRef::Timestamp(seconds)) => Operand::Int((seconds as i64).saturating_mul(1000)),
                _ => Operand::Null,
            }
        }
        _ => Operand::Null,
    }
}
