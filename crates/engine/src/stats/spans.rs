//! Spans of traced messages: when each came to this node, and when it left a queue.
//!
//! Owns a bounded list of what happened to messages whose W3C trace context says that their trace is recorded. The pump
//! adds to it while tracing is on; Python takes it away in batches and sends it on. It must never hold up or change a
//! message: with the list full, spans are dropped and counted. Rule: W3C Trace Context, `traceparent` version 00; a
//! trace is taken or left by its id, so that every node of a fabric takes the same ones.

use std::collections::VecDeque;

use crate::broker::Broker;
use crate::fields;
use crate::message::Name;
use crate::queue::QueueId;
use crate::queue::ready::Entry;

/// Spans that wait to be taken; more are dropped.
pub const SPANS_MAX: usize = 8_192;
/// `00-`, a trace id of 32 digits, `-`, a span id of 16, `-`, flags of 2.
const PARENT_BYTES: usize = 55;

/// A message that left a queue.
#[derive(Clone, Debug)]
pub struct Span {
    /// Hexadecimal digits, as the message has them.
    pub trace_id: [u8; 32],
    pub parent_id: [u8; 16],
    pub queue: QueueId,
    pub exchange: Name,
    pub routing_key: Name,
    /// Both in microseconds since 1970.
    pub arrived_us: u64,
    pub left_us: u64,
    pub bytes: u64,
}

/// Spans that wait.
#[derive(Debug)]
pub struct Spans {
    /// Of so many traces one is taken.
    one_in: u64,
    waiting: VecDeque<Span>,
    /// Spans that found no room.
    pub dropped: u64,
}

impl Spans {
    pub fn new(one_in: u32) -> Self {
        Self { one_in: u64::from(one_in.max(1)), waiting: VecDeque::new(), dropped: 0 }
    }

    /// Takes some of them away.
    pub fn take(&mut self, count_max: usize) -> Vec<Span> {
        let count = count_max.min(self.waiting.len());
        self.waiting.drain(..count).collect()
    }

    fn wants(&self, trace_id: &[u8; 32]) -> bool {
        // The last digits are random in every version of the rule.
        let last = trace_id[16..]
            .iter()
            .fold(0_u64, |sum, digit| (sum << 4) | (u64::from(digit & 0xF) + u64::from(digit >> 6) * 9));
        last % self.one_in == 0
    }
}

impl Broker {
    /// A message leaves its queue, and tracing is on.
    #[cold]
    pub fn note_span(&mut self, queue: QueueId, entry: &Entry) {
        let left_us = self.wall_ns / 1_000;
        let Some(spans) = &mut self.spans else { return };
        let message = &*entry.message;
        let Some((trace_id, parent_id)) = fields::trace_parent(message).and_then(parse) else { return };
        if !spans.wants(&trace_id) {
            return;
        }
        if spans.waiting.len() >= SPANS_MAX {
            spans.dropped += 1;
            return;
        }
        spans.waiting.push_back(Span {
            trace_id,
            parent_id,
            queue,
            exchange: Name::clone(&message.exchange),
            routing_key: Name::clone(&message.routing_key),
            arrived_us: message.traits.arrived_us,
            left_us: left_us.max(message.traits.arrived_us),
            bytes: message.body_len() as u64,
        });
    }
}

/// Trace and span of a context that says that it is recorded; None of any other, or of what is no context.
fn parse(text: &[u8]) -> Option<([u8; 32], [u8; 16])> {
    let is_hex = |part: &[u8]| part.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let text = text.get(..PARENT_BYTES).filter(|_| text.len() == PARENT_BYTES)?;
    let (trace, span, flags) = (text.get(3..35)?, text.get(36..52)?, text.get(53..55)?);
    if !text.starts_with(b"00-")
        || text[35] != b'-'
        || text[52] != b'-'
        || ![trace, span, flags].into_iter().all(is_hex)
    {
        return None;
    }
    let is_recorded = matches!(flags[1], b'1' | b'3' | b'5' | b'7' | b'9' | b'b' | b'd' | b'f');
    if !is_recorded || trace.iter().all(|digit| *digit == b'0') || span.iter().all(|digit| *digit == b'0') {
        return None;
    }
    Some((trace.try_into().ok()?, span.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &[u8] = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn only_a_recorded_context_is_one() {
        let (trace, span) = parse(GOOD).unwrap_or(([0; 32], [0; 16]));
        assert_eq!((&trace[..], &span[..]), (&GOOD[3..35], &GOOD[36..52]));
        for wrong in [
            &b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"[..],
            b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            b"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            b"00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            b"",
        ] {
            assert_eq!(parse(wrong), None, "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn one_in_so_many_traces_is_taken_by_its_id() {
        let spans = Spans::new(10);
        let taken = (0..1_000_u64).filter(|number| {
            let text = format!("{number:032x}");
            spans.wants(text.as_bytes().try_into().unwrap_or(&[0; 32]))
        });
        assert_eq!(taken.count(), 100);
    }
}
