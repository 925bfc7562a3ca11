//! Consumers of streams: what basic.consume says about where to begin and what to leave out.
//!
//! Owns the reading of a consumer's stream arguments, and the refusals of what a stream cannot do. Arguments come in;
//! what the reader wants, or a fault in RabbitMQ's words, goes out. It must never touch the stream. Rules: RabbitMQ's
//! streams as 0-9-1 clients see them (x-stream-offset, x-stream-filter, x-stream-match-unfiltered), with a name
//! (x-stream-consumer-name) under which the node remembers what was settled.

use weft_wire::amqp091::reply;
use weft_wire::amqp091::table::{Table, Value};

use super::{Fault, Session, show};
use crate::broker::Broker;
use crate::filter::{Filter, Marked};
use crate::message::Name;
use crate::queue::QueueId;
use crate::stream::reader::{Reader, Wanted};
use crate::stream::start::Start;

/// A consumer of a stream.
pub(super) struct Reading {
    pub reader: Box<Reader>,
    pub filter: Option<Box<Filter>>,
}

impl Session {
    /// What a consumer of this queue wants to read; None if it is no stream.
    pub(super) fn reading(
        &mut self,
        broker: &Broker,
        number: u16,
        (id, name): (QueueId, &[u8]),
        no_ack: bool,
        arguments: Table<'_>,
    ) -> Result<Option<Reading>, Fault> {
        if broker.queues.get(id).is_none_or(|queue| queue.stream.is_none()) {
            return Ok(None);
        }
        let queue = format!("queue '{}' in vhost '{}'", show(name), self.vhost_name(broker));
        let whole = self.abilities.channel_qos;
        let Some(channel) = self.channel(number) else { return Ok(None) };
        if channel.limit > 0 && !whole {
            return Err(Fault::connection(reply::NOT_IMPLEMENTED, format!("{queue} does not support global qos")));
        }
        if channel.prefetch == 0 && channel.limit == 0 {
            let text = format!("consumer prefetch count is not set for stream {queue}");
            return Err(Fault::channel(reply::PRECONDITION_FAILED, text));
        }
        if no_ack {
            let text = format!("automatic acknowledgement not supported by stream {queue}");
            return Err(Fault::connection(reply::NOT_IMPLEMENTED, text));
        }
        let wrong = |key: &str, wanted: &str| {
            Fault::channel(reply::PRECONDITION_FAILED, format!("invalid arg '{key}' for {queue}: {wanted}"))
        };
        let now_ms = broker.wall_ns / 1_000_000;
        let start = start_of(arguments.get(b"x-stream-offset"), now_ms).ok_or_else(|| {
            wrong("x-stream-offset", "first, last, next, an offset, a timestamp or an age such as 7D is wanted")
        })?;
        let reader_name = match arguments.get(NAME) {
            None => None,
            Some(value) => {
                let own = value.as_bytes().filter(|own| broker.may_track(id, own));
                Some(Name::from(own.ok_or_else(|| wrong("x-stream-consumer-name", "not a name, or one too many"))?))
            }
        };
        let values = match arguments.get(b"x-stream-filter") {
            None => Vec::new(),
            Some(Value::Array(values)) => {
                values.iter().map(|value| value.as_bytes().map(Box::from)).collect::<Option<_>>().unwrap_or_default()
            }
            Some(value) => value.as_bytes().map(Box::from).into_iter().collect(),
        };
        if values.is_empty() && arguments.get(b"x-stream-filter").is_some() {
            return Err(wrong("x-stream-filter", "a string or an array of strings is wanted"));
        }
        let unmarked = arguments.get(b"x-stream-match-unfiltered").and_then(|value| value.as_bool()).unwrap_or(false);
        let filter = (!values.is_empty()).then(|| Box::new(Filter::marked(Marked { values, unmarked })));
        let reader = Box::new(Reader::new(Wanted { start, name: reader_name }));
        Ok(Some(Reading { reader, filter }))
    }

    /// Refuses what a stream does not do.
    pub(super) fn refuse_stream(&self, broker: &Broker, id: QueueId, name: &[u8], method: &str) -> Result<(), Fault> {
        if broker.queues.get(id).is_none_or(|queue| queue.stream.is_none()) {
            return Ok(());
        }
        let vhost = self.vhost_name(broker);
        let text = format!("{method} not supported by stream queues queue '{}' in vhost '{vhost}'", show(name));
        Err(Fault::connection(reply::NOT_IMPLEMENTED, text))
    }
}

const NAME: &[u8] = b"x-stream-consumer-name";

fn start_of(value: Option<Value<'_>>, now_ms: u64) -> Option<Start> {
    match value {
        None => Some(Start::default()),
        Some(Value::Timestamp(seconds)) => Some(Start::Time(seconds.saturating_mul(1_000))),
        Some(value) => match value.as_bytes() {
            Some(text) => Start::of_text(std::str::from_utf8(text).ok()?, now_ms),
            None => Start::of_number(value.as_i64()?),
        },
    }
}
