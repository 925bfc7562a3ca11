//! Receivers from streams: what the source's filters say about where to begin and what to leave out.
//!
//! Owns the reading of a link's stream filters and of the name under which the node remembers what was settled. An
//! attach comes in; what the reader wants, or the reason why it cannot be, goes out. It must never touch the stream.
//! Rules: RabbitMQ's stream filters for AMQP 1.0, under RabbitMQ's symbols or those of the 0-9-1 arguments.

use weft_wire::amqp10::{Attach, Map, Symbol, Value, condition};

use super::terminus::symbol_of;
use crate::broker::Broker;
use crate::filter::Marked;
use crate::message::Name;
use crate::queue::QueueId;
use crate::stream::reader::{Reader, Wanted};
use crate::stream::start::Start;

const OFFSET: [&str; 2] = ["rabbitmq:stream-offset-spec", "x-stream-offset"];
const FILTER: [&str; 2] = ["rabbitmq:stream-filter", "x-stream-filter"];
const UNMARKED: [&str; 2] = ["rabbitmq:stream-match-unfiltered", "x-stream-match-unfiltered"];
const NAME: &str = "x-stream-consumer-name";

type Wish = (Box<Reader>, Option<Marked>);

/// What a receiver from this queue wants to read; None if it is no stream.
pub(super) fn reading(
    broker: &Broker,
    queue: QueueId,
    attach: &Attach<'_>,
) -> Result<Option<Wish>, (Symbol<'static>, String)> {
    if broker.queues.get(queue).is_none_or(|queue| queue.stream.is_none()) {
        return Ok(None);
    }
    let wrong = |what: &str, wanted: &str| (condition::INVALID_FIELD, format!("bad {what}: {wanted}"));
    let filters = attach.source.and_then(|source| source.filter);
    let start = match value_of(filters, OFFSET) {
        None => Start::default(),
        Some(value) => start_of(value, broker.wall_ns / 1_000_000).ok_or_else(|| {
            wrong("stream offset", "first, last, next, an offset, a timestamp or an age such as 7D is wanted")
        })?,
    };
    let values = value_of(filters, FILTER).map(texts).transpose();
    let values = values.map_err(|()| wrong("stream filter", "a string or a list of strings is wanted"))?;
    let unmarked = value_of(filters, UNMARKED).and_then(|value| value.as_bool()).unwrap_or(false);
    let name = match attach.properties.and_then(|map| map.get(NAME)) {
        None => None,
        Some(value) => {
            let own = value.as_str().filter(|own| broker.may_track(queue, own.as_bytes()));
            Some(Name::from(own.ok_or_else(|| wrong(NAME, "not a name, or one too many"))?.as_bytes()))
        }
    };
    let reader = Box::new(Reader::new(Wanted { start, name }));
    Ok(Some((reader, values.map(|values| Marked { values, unmarked }))))
}

/// The value of the filter with one of these symbols.
fn value_of<'a>(filters: Option<Map<'a>>, symbols: [&str; 2]) -> Option<Value<'a>> {
    let mut all = filters.into_iter().flat_map(|map| map.iter());
    let (_, value) = all.find(|(key, value)| symbol_of(*key, *value).is_some_and(|own| symbols.contains(&own)))?;
    Some(value.as_described().map_or(value, |described| described.value()))
}

fn start_of(value: Value<'_>, now_ms: u64) -> Option<Start> {
    match value {
        Value::Timestamp(ms) => Some(Start::Time(u64::try_from(ms).unwrap_or(0))),
        Value::Ulong(offset) => Some(Start::Offset(offset)),
        value => match value.as_str() {
            Some(text) => Start::of_text(text, now_ms),
            None => Start::of_number(value.as_i64()?),
        },
    }
}

fn texts(value: Value<'_>) -> Result<Vec<Box<[u8]>>, ()> {
    let text = |value: Value<'_>| value.as_str().or(value.as_symbol()).map(|text| text.as_bytes().into()).ok_or(());
    match value {
        Value::List(list) => list.iter().map(text).collect(),
        Value::Array(array) => array.iter().map(text).collect(),
        value => text(value).map(|one| vec![one]),
    }
}
