//! The value of an expression for one message, in three-valued logic.
//!
//! Owns the meaning of each operator. An expression and a callback that reads fields come in, an operand goes
//! out, where null stands for "unknown". It reads no further field once AND or OR is decided, and it must never
//! fail: what has no answer (unlike types, absent fields, an integer divided by zero) is unknown, and integers
//! that overflow go on as floats.
//! Rule: Jakarta Messaging 3.1 sections 3.8.1.1 to 3.8.1.3.

use std::borrow::Cow;
use std::cmp::Ordering;

use super::expr::{Arithmetic, Comparison, Expr};
use super::{LIKE_STEPS_MAX, Name, Operand};

/// One message being asked about.
pub(super) struct Evaluation<'e, 'm> {
    fields: &'e mut dyn FnMut(&Name) -> Operand<'m>,
    like_steps_left: usize,
}

impl<'e, 'm> Evaluation<'e, 'm> {
    pub(super) fn new(fields: &'e mut dyn FnMut(&Name) -> Operand<'m>) -> Self {
        Self { fields, like_steps_left: LIKE_STEPS_MAX }
    }

    /// The expression as a condition: anything that is no boolean is unknown.
    pub(super) fn truth(&mut self, expr: &Expr) -> Option<bool> {
        match self.value(expr) {
            Operand::Bool(truth) => Some(truth),
            _ => None,
        }
    }

    fn value<'v>(&mut self, expr: &'v Expr) -> Operand<'v>
    where
        'm: 'v,
    {
        match expr {
            Expr::Literal(value) => borrow(value),
            Expr::Field(name) => (self.fields)(name),
            Expr::DeliveryMode => match (self.fields)(&Name::Durable) {
                Operand::Bool(true) => Operand::Str(Cow::Borrowed("PERSISTENT")),
                Operand::Bool(false) => Operand::Str(Cow::Borrowed("NON_PERSISTENT")),
                _ => Operand::Null,
            },
            Expr::Or(parts) => self.first_decisive(parts, true),
            Expr::And(parts) => self.first_decisive(parts, false),
            Expr::Not(condition) => operand(self.truth(condition).map(|truth| !truth)),
            Expr::Compare { left, comparison, right } => {
                let left = self.value(left);
                operand(compare(&left, *comparison, &self.value(right)))
            }
            Expr::Between { value, low, high } => operand(self.between(value, low, high)),
            Expr::In { value, list } => operand(self.is_in(value, list)),
            Expr::Like { value, pattern } => match self.value(value) {
                Operand::Str(text) => operand(pattern.matches(&text, &mut self.like_steps_left)),
                _ => Operand::Null,
            },
            Expr::IsNull(value) => Operand::Bool(self.value(value) == Operand::Null),
            Expr::Arithmetic { first, rest } => {
                let first = self.value(first);
                rest.iter().fold(first, |left, (operator, right)| calculate(&left, *operator, &self.value(right)))
            }
            Expr::Signed { negative, value } => match self.value(value) {
                Operand::Int(value) if *negative => {
                    calculate(&Operand::Int(0), Arithmetic::Subtract, &Operand::Int(value))
                }
                Operand::Float(value) if *negative => Operand::Float(-value),
                number @ (Operand::Int(_) | Operand::Float(_)) => number,
                _ => Operand::Null,
            },
        }
    }

    /// `decisive` settles the whole (true for OR, false for AND); without it one unknown makes all unknown.
    fn first_decisive(&mut self, parts: &[Expr], decisive: bool) -> Operand<'static> {
        let mut whole = Some(!decisive);
        for part in parts {
            match self.truth(part) {
                Some(truth) if truth == decisive => return Operand::Bool(decisive),
                Some(_) => {}
                None => whole = None,
            }
        }
        operand(whole)
    }

    fn between(&mut self, value: &Expr, low: &Expr, high: &Expr) -> Option<bool> {
        let value = self.value(value);
        let from = compare(&value, Comparison::GreaterOrEqual, &self.value(low));
        if from == Some(false) {
            return from;
        }
        match compare(&value, Comparison::LessOrEqual, &self.value(high)) {
            Some(true) => from,
            below => below,
        }
    }

    fn is_in(&mut self, value: &Expr, list: &[Expr]) -> Option<bool> {
        let value = self.value(value);
        let mut whole = Some(false);
        for member in list {
            match compare(&value, Comparison::Equal, &self.value(member)) {
                Some(true) => return Some(true),
                Some(false) => {}
                None => whole = None,
            }
        }
        whole
    }
}

fn operand(truth: Option<bool>) -> Operand<'static> {
    truth.map_or(Operand::Null, Operand::Bool)
}

fn borrow<'v>(literal: &'v Operand<'static>) -> Operand<'v> {
    match literal {
        Operand::Str(text) => Operand::Str(Cow::Borrowed(text)),
        Operand::Null => Operand::Null,
        Operand::Bool(value) => Operand::Bool(*value),
        Operand::Int(value) => Operand::Int(*value),
        Operand::Float(value) => Operand::Float(*value),
    }
}

fn compare(left: &Operand<'_>, comparison: Comparison, right: &Operand<'_>) -> Option<bool> {
    let ordering = match (left, right) {
        (Operand::Str(left), Operand::Str(right)) => return equality(comparison, left == right),
        (Operand::Bool(left), Operand::Bool(right)) => return equality(comparison, left == right),
        (Operand::Int(left), Operand::Int(right)) => left.cmp(right),
        _ => float(left)?.partial_cmp(&float(right)?)?,
    };
    Some(match comparison {
        Comparison::Equal => ordering == Ordering::Equal,
        Comparison::NotEqual => ordering != Ordering::Equal,
        Comparison::Less => ordering == Ordering::Less,
        Comparison::LessOrEqual => ordering != Ordering::Greater,
        Comparison::Greater => ordering == Ordering::Greater,
        Comparison::GreaterOrEqual => ordering != Ordering::Less,
    })
}

/// Strings and booleans have no order, only equality.
fn equality(comparison: Comparison, equal: bool) -> Option<bool> {
    match comparison {
        Comparison::Equal => Some(equal),
        Comparison::NotEqual => Some(!equal),
        _ => None,
    }
}

fn calculate(left: &Operand<'_>, operator: Arithmetic, right: &Operand<'_>) -> Operand<'static> {
    if let (&Operand::Int(left), &Operand::Int(right)) = (left, right) {
        if right == 0 && matches!(operator, Arithmetic::Divide | Arithmetic::Remainder) {
            return Operand::Null;
        }
        let exact = match operator {
            Arithmetic::Add => left.checked_add(right),
            Arithmetic::Subtract => left.checked_sub(right),
            Arithmetic::Multiply => left.checked_mul(right),
            Arithmetic::Divide => left.checked_div(right),
            Arithmetic::Remainder => left.checked_rem(right),
        };
        if let Some(exact) = exact {
            return Operand::Int(exact);
        }
    }
    let (Some(left), Some(right)) = (float(left), float(right)) else {
        return Operand::Null;
    };
    Operand::Float(match operator {
        Arithmetic::Add => left + right,
        Arithmetic::Subtract => left - right,
        Arithmetic::Multiply => left * right,
        Arithmetic::Divide => left / right,
        Arithmetic::Remainder => left % right,
    })
}

fn float(number: &Operand<'_>) -> Option<f64> {
    match number {
        Operand::Int(value) => Some(*value as f64),
        Operand::Float(value) => Some(*value),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Selector;
    use super::*;

    fn message(name: &Name) -> Operand<'static> {
        match name {
            Name::Durable => Operand::Bool(true),
            Name::Priority => Operand::Int(7),
            Name::Subject => Operand::Str("order".into()),
            Name::DeliveryCount => Operand::Int(1),
            Name::Property(name) => match &**name {
                "t" => Operand::Bool(true),
                "f" => Operand::Bool(false),
                "one" => Operand::Int(1),
                "max" => Operand::Int(i64::MAX),
                "min" => Operand::Int(i64::MIN),
                "half" => Operand::Float(0.5),
                "nan" => Operand::Float(f64::NAN),
                "word" => Operand::Str(String::from("word").into()),
                "long" => Operand::Str("a".repeat(LIKE_STEPS_MAX / 4).into()),
                _ => Operand::Null,
            },
            _ => Operand::Null,
        }
    }

    /// Some(truth), or None for unknown.
    fn truth(text: &str) -> Option<bool> {
        let selector = Selector::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let truth = Evaluation::new(&mut message).truth(&selector.condition);
        assert_eq!(selector.matches(&mut message), truth == Some(true), "{text}: only true selects");
        truth
    }

    /// Checks each of the selectors that `;` separates.
    fn all(expected: Option<bool>, texts: &str) {
        for text in texts.split(';') {
            assert_eq!(truth(text), expected, "{text}");
        }
    }

    #[test]
    fn logic_has_three_values() {
        const VALUES: [(&str, Option<bool>); 3] = [("t", Some(true)), ("f", Some(false)), ("absent", None)];
        for (left_text, left) in VALUES {
            assert_eq!(truth(&format!("NOT {left_text}")), left.map(|value| !value));
            for (right_text, right) in VALUES {
                let and = match (left, right) {
                    (Some(false), _) | (_, Some(false)) => Some(false),
                    (Some(true), Some(true)) => Some(true),
                    _ => None,
                };
                let or = match (left, right) {
                    (Some(true), _) | (_, Some(true)) => Some(true),
                    (Some(false), Some(false)) => Some(false),
                    _ => None,
                };
                assert_eq!(truth(&format!("{left_text} AND {right_text}")), and, "{left_text} AND {right_text}");
                assert_eq!(truth(&format!("{left_text} OR {right_text}")), or, "{left_text} OR {right_text}");
            }
        }
    }

    #[test]
    fn a_decided_condition_reads_no_further() {
        let selector = Selector::parse("f AND a OR t OR b").unwrap();
        let mut asked = Vec::new();
        assert!(selector.matches(&mut |name| {
            asked.push(name.clone());
            message(name)
        }));
        assert_eq!(asked, [Name::Property("f".into()), Name::Property("t".into())]);
    }

    #[test]
    fn numbers_compare_by_value_across_types() {
        all(Some(true), "one = 1; one = 1.0; one <> 2; one != 2; one < 2; one <= 1; one > half");
        all(Some(true), "one >= 1; half < one; half = .5; max > min; one < 1.5");
        all(Some(true), "min = -9223372036854775808");
        all(Some(false), "one = 2; one <> 1; one < 1; one <= 0; one > 1; one >= 2; half > one");
        all(Some(true), "one = 0x1; 010 = 8; 1E3 = 1000; JMSPriority >= 7; amqp.priority = 7");
        all(None, "nan = nan; nan <> nan; nan < 1; absent = 1; 1 > absent; one = NULL");
        all(None, "NULL = NULL");
    }

    #[test]
    fn strings_and_booleans_know_equality_only() {
        all(Some(true), "word = 'word'; word <> 'Word'; t = TRUE; t <> f; (one = 1) = t");
        all(Some(true), "'it''s' = 'it''s'");
        all(Some(false), "word = 'other'; word <> 'word'; t = f; f = TRUE");
        all(None, "word < 'x'; word >= 'word'; t > f; t <= t");
    }

    #[test]
    fn unlike_types_are_unknown_and_so_is_their_negation() {
        all(None, "word = 1; NOT word = 1; word <> 1; t = 1; t = 'TRUE'; one = '1'; one < 'x'");
        all(None, "word; one; NOT NOT word; (NOT NOT one) = 1; 'a'; 5; NULL; absent");
        all(None, "word + 1 = 1; -word = 1; +word = 'word'; t * 2 = 2; absent + 1 = 1");
    }

    #[test]
    fn arithmetic_follows_precedence_and_types() {
        all(Some(true), "1 + 2 * 3 = 7; (1 + 2) * 3 = 9; 10 - 2 - 3 = 5; 7 / 2 = 3; 7.0 / 2 = 3.5");
        all(Some(true), "7 % 3 = 1; -7 % 3 = -1; 7.5 % 2 = 1.5; -one = -1; - -one = 1; +half = 0.5");
        all(Some(true), "-half < 0");
        all(Some(true), "8 / 2 * 3 = 12; one + half = 1.5; 2 * half = 1; -(one + 1) = -2");
    }

    #[test]
    fn arithmetic_never_fails() {
        all(None, "1 / 0 = 1; one % 0 = 0; 0.0 / 0 = 0");
        all(Some(true), "1 / 0 IS NULL; 1 / 0.0 > max; min % -1 = 0; min / -1 > 9.2E18; -min > 9.2E18");
        all(Some(true), "max + 1 > 9.2E18; min - 1 < -9.2E18; max * max > 8E37; max * 1E308 > max");
    }

    #[test]
    fn between_takes_both_ends() {
        all(Some(true), "one BETWEEN 1 AND 2; one BETWEEN 0 AND 1; half BETWEEN 0 AND one");
        all(Some(true), "one NOT BETWEEN 2 AND 3");
        all(Some(false), "one BETWEEN 2 AND 3; one BETWEEN 3 AND 0; one NOT BETWEEN 1 AND 1");
        all(Some(false), "one BETWEEN 2 AND absent; one BETWEEN absent AND 0");
        all(None, "one BETWEEN 0 AND absent; one BETWEEN absent AND 2; absent BETWEEN 1 AND 2");
        all(None, "word BETWEEN 'a' AND 'z'");
    }

    #[test]
    fn in_looks_for_an_equal_member() {
        all(Some(true), "word IN ('a', 'word'); one IN (3, 1.0); word NOT IN ('a'); one IN (0 + 1)");
        all(Some(true), "one IN (NULL, 1)");
        all(Some(false), "word IN ('a', 'b'); word NOT IN ('word')");
        all(None, "absent IN ('a'); absent NOT IN ('a'); word IN ('a', NULL)");
        all(None, "word NOT IN ('a', 1)");
    }

    #[test]
    fn like_holds_against_strings_only() {
        all(Some(true), "word LIKE 'w%d'; word LIKE '_ord'; word NOT LIKE 'w'");
        all(Some(true), "'50%' LIKE '50!%' ESCAPE '!'");
        all(Some(false), "word LIKE 'W%'; word NOT LIKE '%'; '500' LIKE '50!%' ESCAPE '!'");
        all(None, "one LIKE '1'; absent LIKE '%'; absent NOT LIKE '%'; t LIKE 'true'");
    }

    #[test]
    fn is_null_is_never_unknown() {
        all(Some(true), "absent IS NULL; word IS NOT NULL; NULL IS NULL; (absent = 1) IS NULL");
        all(Some(true), "absent + 1 IS NULL");
        all(Some(false), "word IS NULL; absent IS NOT NULL");
    }

    #[test]
    fn headers_read_as_jms_names_them() {
        all(Some(true), "JMSDeliveryMode = 'PERSISTENT'; JMSDeliveryMode <> 'NON_PERSISTENT'");
        all(Some(true), "JMSType = 'order'");
        all(Some(true), "JMSRedelivered; JMSRedelivered = TRUE; JMSXDeliveryCount = 2");
        all(Some(true), "JMSReplyTo IS NULL");
        let fresh =
            Selector::parse("JMSDeliveryMode = 'NON_PERSISTENT' AND NOT JMSRedelivered AND JMSXDeliveryCount = 1");
        assert!(fresh.unwrap().matches(&mut |name| match name {
            Name::Durable => Operand::Bool(false),
            Name::DeliveryCount => Operand::Int(0),
            other => panic!("asked for {other:?}"),
        }));
    }

    #[test]
    fn hostile_like_is_unknown_once_the_shared_budget_is_spent() {
        let hostile = "long LIKE '%aaaaaaaaaaaaaaaaab'";
        all(None, &format!("{hostile}; NOT {hostile}; {hostile} OR word LIKE 'w%'"));
        all(Some(true), "long LIKE '%'; long LIKE 'a%a'");
        all(Some(true), &format!("word LIKE 'w%' OR {hostile}"));
    }

    #[test]
    fn the_deepest_and_longest_selectors_evaluate() {
        let depth = super::super::SELECTOR_DEPTH_MAX;
        let nested = format!("{}t{}", "(NOT f AND ".repeat(depth), ")".repeat(depth));
        assert_eq!(truth(&nested), Some(true));
        let deep = format!("{}1{} > 0", "(1 + 2 * -".repeat(depth), ")".repeat(depth));
        assert!(truth(&deep).is_some());
        assert_eq!(truth(&format!("{} = 4000", vec!["1"; 4000].join("+"))), Some(true));
        assert_eq!(truth(&vec!["TRUE"; 900].join(" AND ")), Some(true));
        assert_eq!(truth(&format!("{}t", "NOT ".repeat(2001))), Some(false));
    }
}
