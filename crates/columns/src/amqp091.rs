//! The head of a 0-9-1 message, as columns want it.
//!
//! Owns which property is which fact. Encoded properties come in, borrowed facts go out; bytes that are not properties
//! give none. It must never look at a header unless headers or trace are wanted. Rule: docs/reference/columns.md.

use weft_wire::amqp091::properties::Properties;
use weft_wire::amqp091::table::Value;

use crate::facts::{Facts, Headers, Text, Trace, Wants};

/// The header that lists the nodes a message has passed.
pub(crate) const TRACE: &[u8] = b"x-weft-trace";

pub(crate) fn facts(head: &[u8], wants: Wants) -> Facts<'_> {
    let own = Properties::view(head).unwrap_or_default();
    let trace = match own.headers.filter(|_| wants.trace).and_then(|headers| headers.get(TRACE)) {
        Some(Value::Array(nodes)) => Trace::Array(nodes),
        _ => Trace::Absent,
    };
    Facts {
        message_id: own.message_id.map(Text::Bytes),
        correlation_id: own.correlation_id.map(Text::Bytes),
        reply_to: own.reply_to.map(Text::Bytes),
        content_type: own.content_type.map(Text::Bytes),
        content_encoding: own.content_encoding.map(Text::Bytes),
        message_type: own.message_type.map(Text::Bytes),
        app_id: own.app_id.map(Text::Bytes),
        user_id: own.user_id.map(Text::Bytes),
        created_us: own.timestamp.and_then(|seconds| i64::try_from(seconds).ok()?.checked_mul(1_000_000)),
        headers: own.headers.filter(|_| wants.headers).map_or(Headers::Absent, Headers::Table),
        trace,
    }
}
