//! Message selectors: a condition over one message's header, properties and application properties.
//!
//! Owns the compiled selector. Its text comes in once; then for each message a callback that reads single
//! fields comes in, and yes or no goes out. It must never know how a message is kept, and nothing a peer writes
//! may make it panic, recurse deeply or run long: text, nesting, references to fields and the work of LIKE are
//! all bounded below.
//! Rule: Jakarta Messaging 3.1 section 3.8, carried by `apache.org:selector-filter:string`, with two liberties:
//! comparing unlike types is unknown rather than false, so that neither a condition nor its negation selects a
//! message it says nothing about; and either side of an operator may be any value.

mod eval;
mod expr;
mod lexer;
mod like;
mod names;
mod parser;

use std::borrow::Cow;
use std::fmt;

use self::eval::Evaluation;
use self::expr::Expr;

/// Longest selector accepted; compiling and keeping one costs memory in proportion.
pub const SELECTOR_BYTES_MAX: usize = 8 * 1024;

/// Deepest nesting of parentheses accepted; it bounds recursion in parsing, evaluating and dropping.
pub const SELECTOR_DEPTH_MAX: usize = 64;

/// Most references to fields in one selector; each may cost the caller a search through the message.
pub const SELECTOR_FIELDS_MAX: usize = 128;

/// Work all LIKEs together may do for one message, in characters compared; beyond it they are unknown.
/// Real patterns stay near the length of the value, hostile ones reach the product of both lengths.
pub const LIKE_STEPS_MAX: usize = 1 << 20;

/// A compiled condition.
#[derive(Clone, Debug)]
pub struct Selector {
    condition: Expr,
}

impl Selector {
    /// Compiles `text`. As JMS has it, an empty text is no condition at all and selects every message.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parser::parse(text).map(|condition| Self { condition })
    }

    /// Whether the message whose fields `fields` reads is selected; unknown counts as no.
    pub fn matches<'m>(&self, fields: &mut impl FnMut(&Name) -> Operand<'m>) -> bool {
        Evaluation::new(fields).truth(&self.condition) == Some(true)
    }
}

/// A field of a message that a selector asks for. Absent fields are [`Operand::Null`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// `amqp.to`, `JMSDestination`: a string.
    To,
    /// `amqp.subject`, `JMSType`: a string.
    Subject,
    /// `amqp.durable`: a boolean; also asked for `JMSDeliveryMode`.
    Durable,
    /// `amqp.priority`, `JMSPriority`: an integer.
    Priority,
    /// `amqp.ttl`: milliseconds.
    Ttl,
    /// `amqp.message_id`, `JMSMessageID`: a string.
    MessageId,
    /// `amqp.user_id`, `JMSXUserID`: a string.
    UserId,
    /// `amqp.reply_to`, `JMSReplyTo`: a string.
    ReplyTo,
    /// `amqp.correlation_id`, `JMSCorrelationID`: a string.
    CorrelationId,
    /// `amqp.content_type`: a string.
    ContentType,
    /// `amqp.content_encoding`: a string.
    ContentEncoding,
    /// `amqp.absolute_expiry_time`, `JMSExpiration`: milliseconds since 1970.
    AbsoluteExpiryTime,
    /// `amqp.creation_time`, `JMSTimestamp`: milliseconds since 1970.
    CreationTime,
    /// `amqp.group_id`, `JMSXGroupID`: a string.
    GroupId,
    /// `amqp.group_sequence`, `JMSXGroupSeq`: an integer.
    GroupSequence,
    /// `amqp.reply_to_group_id`: a string.
    ReplyToGroupId,
    /// `amqp.first_acquirer`: a boolean.
    FirstAcquirer,
    /// `amqp.delivery_count`: failed deliveries so far; also asked for `JMSRedelivered` and `JMSXDeliveryCount`.
    DeliveryCount,
    /// An application property.
    Property(Box<str>),
}

/// The value of a field, and of every expression; null is also the truth value "unknown".
#[derive(Clone, Debug, PartialEq)]
pub enum Operand<'m> {
    /// Absent, or of a type a selector cannot compare.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer of any width that fits.
    Int(i64),
    /// A float of either width.
    Float(f64),
    /// Text, usually borrowed from the message.
    Str(Cow<'m, str>),
}

/// Why a selector was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectorError {
    position: usize,
    what: Cow<'static, str>,
}

impl SelectorError {
    fn new(position: usize, what: impl Into<Cow<'static, str>>) -> Self {
        Self { position, what: what.into() }
    }

    /// Where: characters counted from one.
    pub fn position(&self) -> usize {
        self.position
    }
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "selector, character {}: {}", self.position, self.what)
    }
}

impl std::error::Error for SelectorError {}
