//! What a node reads from the head of a message.
//!
//! Owns the few facts that routing and queues need of header, properties and annotations. The sections come in as bytes
//! and are read once, at arrival; what is wrong in them is told by its decoding error. It must never read a body.
//! Rules: AMQP 1.0 sections 3.2.1 to 3.2.4; x-cc and x-delay as RabbitMQ has them, x-opt-delivery-time as Artemis has.

use weft_wire::amqp10::peek::{self, HeaderPeek, PropertiesPeek};
use weft_wire::amqp10::sections::{self, Head};
use weft_wire::amqp10::{Composite, DecodeError, Header, Properties, Value};

use crate::broker::Broker;
use crate::conn::Io;
use crate::message::Traits;

/// Longest delay of a message: 2^32 - 1 ms, 49 days.
const DELAY_MS_MAX: u64 = u32::MAX as u64;

/// What a message's annotations ask of the node.
#[derive(Default)]
pub(super) struct Extras {
    /// Routing keys of the x-cc annotation.
    pub more_keys: Vec<Box<[u8]>>,
    /// x-opt-delivery-time or x-opt-delivery-delay.
    pub delay_ms: u64,
    /// x-delay, which only delayed exchanges obey.
    pub exchange_delay_ms: u64,
}

/// What the header and the properties say to a queue. A priority that is left out counts as none, as in 0-9-1, so
/// that messages of both protocols agree on their order.
#[inline]
pub(super) fn traits_of(
    io: &Io,
    broker: &mut Broker,
    head_bytes: &[u8],
    head: &Head,
    properties: &PropertiesPeek<'_>,
) -> Result<Traits, DecodeError> {
    let (arrived_us, serial) = broker.stamp();
    let untyped = properties.subject.is_none();
    let mut traits = Traits { publisher: io.id.raw(), untyped, arrived_us, serial, ..Traits::default() };
    if let Some(span) = head.header {
        let header = header_of(span.of(head_bytes))?;
        traits.durable = header.durable;
        traits.priority = header.priority.unwrap_or(0);
        traits.ttl_ms = header.ttl.map(u64::from);
        traits.delivery_count = header.delivery_count;
    }
    if let Some(at_ms) = properties.absolute_expiry_time {
        let left_ms = u64::try_from(at_ms).unwrap_or(0).saturating_sub(broker.wall_ns / 1_000_000);
        traits.ttl_ms = Some(traits.ttl_ms.map_or(left_ms, |ttl_ms| ttl_ms.min(left_ms)));
    }
    Ok(traits)
}

#[inline]
fn header_of(section: &[u8]) -> Result<HeaderPeek, DecodeError> {
    if let Some(peek) = peek::header(section) {
        return Ok(peek);
    }
    let Header { durable, priority, ttl, delivery_count, .. } = Header::decode(section)?;
    Ok(HeaderPeek { durable, priority: Some(priority).filter(|priority| *priority != 4), ttl, delivery_count })
}

/// The properties, as far as a node needs them.
#[inline]
pub(super) fn properties_of(section: &[u8]) -> Result<PropertiesPeek<'_>, DecodeError> {
    if let Some(peek) = peek::properties(section) {
        return Ok(peek);
    }
    let Properties { user_id, to, subject, absolute_expiry_time, .. } = Properties::decode(section)?;
    Ok(PropertiesPeek { user_id, to, subject, absolute_expiry_time: absolute_expiry_time.map(|at| at.0) })
}

/// Reads the annotations that mean something to the node.
pub(super) fn extras_of(section: &[u8], wall_ns: u64) -> Result<Extras, DecodeError> {
    let mut extras = Extras::default();
    for (key, value) in sections::decode_map(section)?.iter() {
        match key.as_str() {
            Some("x-cc") => {
                let keys = value.as_list().into_iter().flat_map(|list| list.iter().collect::<Vec<_>>());
                extras.more_keys.extend(keys.filter_map(|key| key.as_str()).map(|key| Box::from(key.as_bytes())));
            }
            Some("x-opt-delivery-time") => {
                let at_ms = match value {
                    Value::Timestamp(at_ms) => u64::try_from(at_ms).ok(),
                    other => other.as_u64(),
                };
                extras.delay_ms = at_ms.unwrap_or(0).saturating_sub(wall_ns / 1_000_000).min(DELAY_MS_MAX);
            }
            Some("x-opt-delivery-delay") => extras.delay_ms = value.as_u64().unwrap_or(0).min(DELAY_MS_MAX),
            Some("x-delay") => extras.exchange_delay_ms = value.as_u64().unwrap_or(0).min(DELAY_MS_MAX),
            _ => {}
        }
    }
    Ok(extras)
}
