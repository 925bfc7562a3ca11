//! The tree a selector compiles to.
//!
//! Owns the shapes of expressions and nothing else: the parser builds them, the evaluation walks them. It must
//! never hold a reference to the selector's text. Rule: the operators of Jakarta Messaging 3.1 section 3.8.1.

use super::like::LikePattern;
use super::{Name, Operand};

/// An expression. Three-valued logic lets `x NOT IN (...)` be `Not(In)`, and so on for every negated form.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Literal(Operand<'static>),
    Field(Name),
    DeliveryMode,
    Or(Vec<Self>),
    And(Vec<Self>),
    Not(Box<Self>),
    Compare {
        left: Box<Self>,
        comparison: Comparison,
        right: Box<Self>,
    },
    Between {
        value: Box<Self>,
        low: Box<Self>,
        high: Box<Self>,
    },
    In {
        value: Box<Self>,
        list: Vec<Self>,
    },
    Like {
        value: Box<Self>,
        pattern: LikePattern,
    },
    IsNull(Box<Self>),
    /// Applied from left to right.
    Arithmetic {
        first: Box<Self>,
        rest: Vec<(Arithmetic, Self)>,
    },
    Signed {
        negative: bool,
        value: Box<Self>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}
