//! What a consumer wants to see.
//!
//! Owns the compiled filters of one consumer: a selector, a pattern on the subject, nothing of its own. A queue's entry
//! comes in, yes or no comes out. It must never change or keep a message. Rule: the source filters of the Apache
//! registry (docs/reference/filters.md).

use crate::fields;
use crate::queue::ready::Entry;
use crate::routing::selector::{Selector, SelectorError};
use crate::routing::topic::pattern_matches;

/// The filters of one consumer.
#[derive(Debug, Default)]
pub struct Filter {
    selector: Option<Selector>,
    subject: Option<Box<[u8]>>,
    /// The connection (raw id) whose own messages are not wanted.
    not_from: Option<u64>,
}

impl Filter {
    /// Nothing that came in by the same connection.
    pub fn no_local(conn: u64) -> Self {
        Self { not_from: Some(conn), ..Self::default() }
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
        Ok(Some(Box::new(Self { selector, subject: subject.map(|pattern| pattern.as_bytes().into()), not_from })))
    }

    pub fn wants(&self, entry: &Entry) -> bool {
        let message = &*entry.message;
        self.not_from != Some(message.traits.publisher)
            && self.subject.as_ref().is_none_or(|pattern| pattern_matches(pattern, fields::subject(message)))
            && self
                .selector
                .as_ref()
                .is_none_or(|selector| selector.matches(&mut |name: &_| fields::operand(message, entry.failures, name)))
    }
}
