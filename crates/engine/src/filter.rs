//! What a consumer wants to see.
//!
//! Owns the compiled filters of one consumer: a selector, a pattern on the subject, nothing of its own, nothing its
//! node has seen, nothing that other nodes brought. A queue's entry comes in, yes or no comes out. It must never change
//! or keep a message. Rule: the source filters of the Apache registry (docs/reference/filters.md).

use crate::fields;
use crate::message::{Message, Name};
use crate::queue::ready::Entry;
use crate::relay::Passed;
use crate::routing::selector::{Selector, SelectorError};
use crate::routing::topic::pattern_matches;

/// The filters of one consumer.
#[derive(Debug, Default)]
pub struct Filter {
    selector: Option<Selector>,
    subject: Option<Box<[u8]>>,
    /// The connection (raw id) whose own messages are not wanted.
    not_from: Option<u64>,
    /// The marks that are wanted of a stream's messages.
    marked: Option<Marked>,
    /// The node whose peers are not to see what passed it.
    not_through: Option<Name>,
    /// Is what other nodes brought not wanted?
    first_hand: bool,
}

/// Messages of a stream that carry one of these filter values; those that carry none as well, if `unmarked`.
#[derive(Debug)]
pub struct Marked {
    pub values: Vec<Box<[u8]>>,
    pub unmarked: bool,
}

impl Marked {
    fn wants(&self, message: &Message) -> bool {
        match fields::stream_filter_value(message) {
            None => self.unmarked,
            Some(value) => self.values.iter().any(|wanted| **wanted == *value),
        }
    }
}

impl Filter {
    /// Nothing that came in by the same connection.
    pub fn no_local(conn: u64) -> Self {
        Self { not_from: Some(conn), ..Self::default() }
    }

    /// Only what carries one of these marks.
    pub fn marked(marked: Marked) -> Self {
        Self { marked: Some(marked), ..Self::default() }
    }

    /// The same, and these marks.
    pub fn and_marked(own: Option<Box<Self>>, marked: Option<Marked>) -> Option<Box<Self>> {
        match (own, marked) {
            (own, None) => own,
            (None, Some(marked)) => Some(Box::new(Self::marked(marked))),
            (Some(own), marked) => Some(Box::new(Self { marked, ..*own })),
        }
    }

    /// Compiles what a link asks for; None when it asks for everything.
    pub fn compile(
        selector: Option<&str>,
        subject: Option<&str>,
        not_from: Option<u64>,
    ) -> Result<Option<Box<Self>>, SelectorError> {
        if selector.is_none() && subject.is_none() && not_from.is_none() {
            return Ok(None);
        }
        let selector = selector.map(Selector::parse).transpose()?;
        let subject = subject.map(|pattern| pattern.as_bytes().into());
        Ok(Some(Box::new(Self { selector, subject, not_from, ..Self::default() })))
    }

    /// The same, and nothing that passed this node.
    pub fn not_through(filter: Option<Box<Self>>, node: &str) -> Option<Box<Self>> {
        let filter = filter.map_or_else(Self::default, |filter| *filter);
        Some(Box::new(Self { not_through: Some(Name::from(node.as_bytes())), ..filter }))
    }

    /// The same, and nothing that another node brought.
    pub fn first_hand(filter: Option<Box<Self>>) -> Option<Box<Self>> {
        let filter = filter.map_or_else(Self::default, |filter| *filter);
        Some(Box::new(Self { first_hand: true, ..filter }))
    }

    pub fn wants(&self, entry: &Entry) -> bool {
        let message = &*entry.message;
        self.not_from != Some(message.traits.publisher)
            && self.marked.as_ref().is_none_or(|marked| marked.wants(message))
            && self.not_through.as_ref().is_none_or(|node| !Passed::of(message).trace.contains(node))
            && (!self.first_hand || Passed::of(message).trace.is_empty())
            && self.subject.as_ref().is_none_or(|pattern| pattern_matches(pattern, fields::subject(message)))
            && self
                .selector
                .as_ref()
                .is_none_or(|selector| selector.matches(&mut |name: &_| fields::operand(message, entry.failures, name)))
    }
}
