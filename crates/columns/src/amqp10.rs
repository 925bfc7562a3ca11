//! The head and body of an AMQP 1.0 message, as columns want them.
//!
//! Owns which section and field is which fact, and what counts as the body. Encoded sections come in, borrowed facts
//! go out; sections that are not well formed give none. It must never decode a section that nobody asked for. Rules:
//! docs/reference/columns.md; docs/reference/mapping.md where a fact has its place in both protocols.

use std::borrow::Cow;

use weft_wire::amqp10::peek::{self, HeaderPeek};
use weft_wire::amqp10::sections::{self, BodyKind, Span};
use weft_wire::amqp10::{Composite, Header, MessageId, Properties, Value};

use crate::facts::{Facts, Headers, Text, Trace, Wants};
use crate::row::Row;
use crate::text;

/// The annotation that lists the nodes a message has passed.
const TRACE: &str = "x-opt-weft-trace";
/// The annotation that names a message in all of a fabric, and the header it is shown as.
const ID: (&str, &str) = ("x-opt-weft-id", "x-weft-id");
/// Annotations that nodes write for each other.
const OWN: &str = "x-opt-weft-";
/// Annotations with what has columns of its own, or is told of a delivery and not of the message.
const TOLD: [&str; 5] = [EXCHANGE, ROUTING_KEY, OFFSET, "x-stream-partition", "x-opt-deaths"];
const EXCHANGE: &str = "x-exchange";
const ROUTING_KEY: &str = "x-routing-key";
const OFFSET: &str = "x-stream-offset";
/// When the node took a message, in microseconds since 1970.
const ARRIVED: &str = "x-opt-weft-arrived";
/// The annotation that carries the `type` property of 0-9-1.
const TYPE: &str = "x-basic-type";
/// Annotations that carry a property of 0-9-1.
const BASIC: &str = "x-basic-";

pub(crate) fn facts(head: &[u8], wants: Wants) -> Facts<'_> {
    let Ok(found) = sections::scan(head).map(|found| found.head) else { return Facts::default() };
    let map = |span: Option<Span>, wanted: bool| {
        let span = span.filter(|_| wanted)?;
        sections::decode_map(span.of(head)).ok()
    };
    let annotations = map(found.message_annotations, wants.trace || wants.message_type);
    let annotation = |key: &str| annotations.and_then(|map| map.get(key));
    let span = found.properties.filter(|_| wants.properties);
    let own = span.and_then(|span| Properties::decode(span.of(head)).ok()).unwrap_or_default();
    let message_type = if wants.message_type { annotation(TYPE).and_then(|value| value.as_str()) } else { None };
    let trace = if wants.trace { annotation(TRACE).and_then(|value| value.as_list()) } else { None };
    let section = |span: Option<Span>| span.map_or(&[][..], |span| span.of(head));
    let headers = match (found.message_annotations, found.application_properties) {
        (annotations, application) if wants.headers && annotations.or(application).is_some() => {
            Headers::Sections { annotations: section(annotations), application: section(application) }
        }
        _ => Headers::Absent,
    };
    Facts {
        message_id: own.message_id.map(id_text),
        correlation_id: own.correlation_id.map(id_text),
        reply_to: own.reply_to.map(Text::Str),
        content_type: own.content_type.map(|symbol| Text::Str(symbol.0)),
        content_encoding: own.content_encoding.map(|symbol| Text::Str(symbol.0)),
        message_type: message_type.or(own.subject).map(Text::Str),
        app_id: own.group_id.map(Text::Str),
        user_id: own.user_id.map(Text::Bytes),
        created_us: own.creation_time.and_then(|at| at.0.checked_mul(1_000)),
        headers,
        trace: trace.map_or(Trace::Absent, Trace::List),
    }
}

fn id_text(id: MessageId<'_>) -> Text<'_> {
    match id {
        MessageId::String(text) => Text::Str(text),
        MessageId::Ulong(number) => Text::Made(number.to_string()),
        MessageId::Uuid(uuid) => Text::Made(format!("urn:uuid:{}", text::uuid(&uuid))),
        MessageId::Binary(bytes) => {
            let mut hex = String::new();
            text::hex(&mut hex, bytes, false);
            Text::Made(hex)
        }
    }
}

/// What is shown as headers: application properties, and those annotations that begin with `x-`.
pub(crate) fn header_entries<'a>(
    annotations: &'a [u8],
    application: &'a [u8],
) -> impl Iterator<Item = (&'a str, Value<'a>)> {
    let [annotations, application] =
        [annotations, application].map(|section| sections::decode_map(section).unwrap_or_default());
    let shown = annotations.iter().filter_map(|(key, value)| match key.as_symbol()? {
        key if key == ID.0 => Some((ID.1, value)),
        key if TOLD.contains(&key) || key.starts_with(OWN) || key.starts_with(BASIC) || !key.starts_with("x-") => None,
        key => Some((key, value)),
    });
    shown.chain(application.iter().filter_map(|(key, value)| Some((key.as_str()?, value))))
}

/// A message as a node delivers it from a stream. `stream` is where it was sent to if it went there directly.
pub(crate) fn delivered<'a>(message: &'a [u8], stream: &'a str) -> Option<Row<'a>> {
    let found = sections::scan(message).ok()?.head;
    let (head, body) = message.split_at_checked(found.body_start as usize)?;
    let annotations = sections::decode_map(found.message_annotations?.of(message)).ok()?;
    let number = |key: &str| annotations.get(key).and_then(|value| value.as_u64().or(value.as_i64()?.try_into().ok()));
    let name = |key: &str| annotations.get(key).and_then(|value| value.as_str());
    let header = found.header.map(|span| header(span.of(message))).unwrap_or_default();
    Some(Row {
        offset: number(OFFSET)?,
        arrived_us: number(ARRIVED).unwrap_or(0),
        exchange: name(EXCHANGE).unwrap_or("").as_bytes(),
        routing_key: name(ROUTING_KEY).unwrap_or(stream).as_bytes(),
        priority: header.priority.unwrap_or(0),
        ttl_ms: header.ttl.map(u64::from),
        durable: header.durable,
        redelivered: header.delivery_count > 0,
        is_amqp10: true,
        head,
        body,
    })
}

fn header(section: &[u8]) -> HeaderPeek {
    peek::header(section).unwrap_or_else(|| {
        let Header { durable, priority, ttl, delivery_count, .. } = Header::decode(section).unwrap_or_default();
        HeaderPeek { durable, priority: Some(priority), ttl, delivery_count }
    })
}

/// The bytes of a single data section, which most bodies are: there is nothing to look for behind it.
#[inline]
fn only_data(bytes: &[u8]) -> Option<&[u8]> {
    let (length, data) = match bytes {
        [0, 0x53, 0x75, 0xb0, a, b, c, d, data @ ..] => (u32::from_be_bytes([*a, *b, *c, *d]) as usize, data),
        [0, 0x53, 0x75, 0xa0, length, data @ ..] => (usize::from(*length), data),
        _ => return None,
    };
    (length == data.len()).then_some(data)
}

/// What a reader wants of the body sections: the bytes in data sections, or in a value that is text or binary; anything
/// else as it is encoded.
pub(crate) fn body(bytes: &[u8]) -> Cow<'_, [u8]> {
    if let Some(data) = only_data(bytes) {
        return Cow::Borrowed(data);
    }
    let Ok(found) = sections::scan(bytes) else { return Cow::Borrowed(bytes) };
    let sections = found.body.of(bytes);
    match found.kind {
        BodyKind::Absent => Cow::Borrowed(&[]),
        BodyKind::Data(span) => Cow::Borrowed(span.of(bytes)),
        BodyKind::DataMany => {
            let parts = sections::body_values(sections).flatten().filter_map(|value| value.as_binary());
            Cow::Owned(parts.collect::<Vec<_>>().concat())
        }
        BodyKind::Value => match sections::body_values(sections).next() {
            Some(Ok(Value::String(text))) => Cow::Borrowed(text.as_bytes()),
            Some(Ok(Value::Binary(bytes))) => Cow::Borrowed(bytes),
            _ => Cow::Borrowed(sections),
        },
        BodyKind::Sequence => Cow::Borrowed(sections),
    }
}
