//! The grammar of a selector: tokens come in, an expression tree goes out.
//!
//! Owns precedence and the limits on a selector's text. Chains of AND, OR, + and the like become one node with
//! many parts, runs of NOT or of signs become at most two, so the tree is only as deep as the parentheses,
//! which are counted. It must never evaluate or check types: a comparison that makes no sense is unknown later
//! on.
//! Rule: Jakarta Messaging 3.1 section 3.8.1.

use super::expr::{Arithmetic, Comparison, Expr};
use super::lexer::{Token, tokens};
use super::like::LikePattern;
use super::names::named;
use super::{Operand, SELECTOR_BYTES_MAX, SELECTOR_DEPTH_MAX, SELECTOR_FIELDS_MAX, SelectorError};

const COMPARISONS: [(&str, Comparison); 7] = [
    ("=", Comparison::Equal),
    ("<>", Comparison::NotEqual),
    ("!=", Comparison::NotEqual),
    ("<", Comparison::Less),
    ("<=", Comparison::LessOrEqual),
    (">", Comparison::Greater),
    (">=", Comparison::GreaterOrEqual),
];
const SUMS: [(&str, Arithmetic); 2] = [("+", Arithmetic::Add), ("-", Arithmetic::Subtract)];
const PRODUCTS: [(&str, Arithmetic); 3] =
    [("*", Arithmetic::Multiply), ("/", Arithmetic::Divide), ("%", Arithmetic::Remainder)];

pub(super) fn parse(text: &str) -> Result<Expr, SelectorError> {
    if text.len() > SELECTOR_BYTES_MAX {
        let what = format!("{} bytes, more than the {SELECTOR_BYTES_MAX} allowed", text.len());
        return Err(SelectorError::new(1, what));
    }
    let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0, field_count: 0 };
    if *parser.peek() == Token::End {
        return Ok(Expr::Literal(Operand::Bool(true)));
    }
    let condition = parser.any_of()?;
    match parser.peek() {
        Token::End => Ok(condition),
        _ => Err(parser.expected("AND, OR or the end")),
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    depth: usize,
    field_count: usize,
}

impl Parser {
    /// condition OR condition ...
    fn any_of(&mut self) -> Result<Expr, SelectorError> {
        self.chain("OR", Self::all_of, Expr::Or)
    }

    /// condition AND condition ...
    fn all_of(&mut self) -> Result<Expr, SelectorError> {
        self.chain("AND", Self::negation, Expr::And)
    }

    fn chain(
        &mut self,
        keyword: &'static str,
        part: fn(&mut Self) -> Result<Expr, SelectorError>,
        join: fn(Vec<Expr>) -> Expr,
    ) -> Result<Expr, SelectorError> {
        let first = part(self)?;
        if !self.take(&Token::Keyword(keyword)) {
            return Ok(first);
        }
        let mut parts = vec![first, part(self)?];
        while self.take(&Token::Keyword(keyword)) {
            parts.push(part(self)?);
        }
        Ok(join(parts))
    }

    /// NOT ... condition
    fn negation(&mut self) -> Result<Expr, SelectorError> {
        let mut count = 0;
        while self.take(&Token::Keyword("NOT")) {
            count += 1;
        }
        let condition = self.predicate()?;
        Ok(match count {
            0 => condition,
            _ if count % 2 == 1 => not(condition),
            // Two are kept: they still turn a value that is no truth value into unknown.
            _ => not(not(condition)),
        })
    }

    /// value, optionally compared with something
    fn predicate(&mut self) -> Result<Expr, SelectorError> {
        let value = self.sum()?;
        if let Some(comparison) = self.operator(&COMPARISONS) {
            let right = Box::new(self.sum()?);
            return Ok(Expr::Compare { left: Box::new(value), comparison, right });
        }
        if self.take(&Token::Keyword("IS")) {
            let negated = self.take(&Token::Keyword("NOT"));
            self.require(Token::Keyword("NULL"), "NULL")?;
            let is_null = Expr::IsNull(Box::new(value));
            return Ok(if negated { not(is_null) } else { is_null });
        }
        let negated = self.take(&Token::Keyword("NOT"));
        let condition = if self.take(&Token::Keyword("BETWEEN")) {
            self.between(value)?
        } else if self.take(&Token::Keyword("IN")) {
            self.in_list(value)?
        } else if self.take(&Token::Keyword("LIKE")) {
            self.like(value)?
        } else if negated {
            return Err(self.expected("BETWEEN, IN or LIKE"));
        } else {
            return Ok(value);
        };
        Ok(if negated { not(condition) } else { condition })
    }

    fn between(&mut self, value: Expr) -> Result<Expr, SelectorError> {
        let low = Box::new(self.sum()?);
        self.require(Token::Keyword("AND"), "AND")?;
        let high = Box::new(self.sum()?);
        Ok(Expr::Between { value: Box::new(value), low, high })
    }

    fn in_list(&mut self, value: Expr) -> Result<Expr, SelectorError> {
        self.require(Token::Symbol("("), "(")?;
        let mut list = vec![self.sum()?];
        while self.take(&Token::Symbol(",")) {
            list.push(self.sum()?);
        }
        self.require(Token::Symbol(")"), ", or )")?;
        Ok(Expr::In { value: Box::new(value), list })
    }

    fn like(&mut self, value: Expr) -> Result<Expr, SelectorError> {
        let pattern_position = self.position();
        let pattern = self.text("a pattern in single quotes")?;
        let mut escape = None;
        if self.take(&Token::Keyword("ESCAPE")) {
            let position = self.position();
            let text = self.text("an escape character in single quotes")?;
            let mut chars = text.chars();
            escape = chars.next();
            if escape.is_none() || chars.next().is_some() {
                return Err(SelectorError::new(position, "the escape must be one character"));
            }
        }
        let pattern = LikePattern::compile(&pattern, escape)
            .ok_or_else(|| SelectorError::new(pattern_position, "the escape may stand only before %, _ or itself"))?;
        Ok(Expr::Like { value: Box::new(value), pattern })
    }

    /// product + product - ...
    fn sum(&mut self) -> Result<Expr, SelectorError> {
        self.arithmetic(&SUMS, Self::product)
    }

    /// signed * signed / ...
    fn product(&mut self) -> Result<Expr, SelectorError> {
        self.arithmetic(&PRODUCTS, Self::signed)
    }

    fn arithmetic(
        &mut self,
        operators: &[(&str, Arithmetic)],
        part: fn(&mut Self) -> Result<Expr, SelectorError>,
    ) -> Result<Expr, SelectorError> {
        let first = part(self)?;
        let mut rest = Vec::new();
        while let Some(operator) = self.operator(operators) {
            rest.push((operator, part(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Arithmetic { first: Box::new(first), rest } })
    }

    /// - + - ... primary
    fn signed(&mut self) -> Result<Expr, SelectorError> {
        let start = self.position();
        let (mut signed, mut negative) = (false, false);
        while let Some(sign) = self.operator(&SUMS) {
            signed = true;
            negative ^= sign == Arithmetic::Subtract;
        }
        // The sign belongs to a literal: the smallest integer has no positive twin.
        if let Token::Integer(magnitude) = *self.peek() {
            self.next += 1;
            let value = if negative { -i128::from(magnitude) } else { i128::from(magnitude) };
            let value = i64::try_from(value).map_err(|_| SelectorError::new(start, "an integer beyond 64 bits"))?;
            return Ok(Expr::Literal(Operand::Int(value)));
        }
        let value = self.primary()?;
        Ok(if signed { Expr::Signed { negative, value: Box::new(value) } } else { value })
    }

    /// literal, name or ( condition )
    fn primary(&mut self) -> Result<Expr, SelectorError> {
        let position = self.position();
        let literal = match self.peek() {
            Token::Name(name) => {
                let field = named(name).map_err(|what| SelectorError::new(position, what))?;
                self.next += 1;
                self.field_count += 1;
                if self.field_count > SELECTOR_FIELDS_MAX {
                    let what = format!("more than {SELECTOR_FIELDS_MAX} references to fields");
                    return Err(SelectorError::new(position, what));
                }
                return Ok(field);
            }
            Token::Symbol("(") => return self.parenthesised(position),
            Token::Text(text) => Operand::Str(text.clone().into()),
            Token::Float(value) => Operand::Float(*value),
            Token::Keyword("TRUE") => Operand::Bool(true),
            Token::Keyword("FALSE") => Operand::Bool(false),
            Token::Keyword("NULL") => Operand::Null,
            _ => return Err(self.expected("a value")),
        };
        self.next += 1;
        Ok(Expr::Literal(literal))
    }

    fn parenthesised(&mut self, position: usize) -> Result<Expr, SelectorError> {
        self.next += 1;
        self.depth += 1;
        if self.depth > SELECTOR_DEPTH_MAX {
            let what = format!("parentheses nested more than {SELECTOR_DEPTH_MAX} deep");
            return Err(SelectorError::new(position, what));
        }
        let inner = self.any_of()?;
        self.require(Token::Symbol(")"), ")")?;
        self.depth -= 1;
        Ok(inner)
    }

    /// The next token; behind the last one there is only ever the end.
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(_, token)| token)
    }

    fn position(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(1, |(position, _)| *position)
    }

    fn take(&mut self, wanted: &Token) -> bool {
        let found = self.peek() == wanted;
        self.next += usize::from(found);
        found
    }

    fn require(&mut self, wanted: Token, what: &str) -> Result<(), SelectorError> {
        if self.take(&wanted) { Ok(()) } else { Err(self.expected(what)) }
    }

    fn operator<O: Copy>(&mut self, operators: &[(&str, O)]) -> Option<O> {
        let Token::Symbol(found) = self.peek() else {
            return None;
        };
        let (_, operator) = operators.iter().find(|(symbol, _)| symbol == found)?;
        self.next += 1;
        Some(*operator)
    }

    fn text(&mut self, what: &str) -> Result<String, SelectorError> {
        let Token::Text(text) = self.peek() else {
            return Err(self.expected(what));
        };
        let text = text.clone();
        self.next += 1;
        Ok(text)
    }

    fn expected(&self, what: &str) -> SelectorError {
        let found = match self.peek() {
            Token::Name(_) => "a name",
            Token::Text(_) => "a string",
            Token::Integer(_) | Token::Float(_) => "a number",
            Token::Keyword(word) | Token::Symbol(word) => word,
            Token::End => "the end",
        };
        SelectorError::new(self.position(), format!("expected {what}, found {found}"))
    }
}

fn not(condition: Expr) -> Expr {
    Expr::Not(Box::new(condition))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> SelectorError {
        match parse(text) {
            Err(error) => error,
            Ok(tree) => panic!("{text} was accepted as {tree:?}"),
        }
    }

    fn same(left: &str, right: &str) {
        assert_eq!(parse(left).unwrap(), parse(right).unwrap(), "{left}   ~   {right}");
    }

    #[test]
    fn precedence_is_that_of_sql() {
        same("a OR b AND c", "a OR (b AND c)");
        same("NOT a = b AND c", "(NOT (a = b)) AND c");
        same("a + b * c > d - e", "(a + (b * c)) > (d - e)");
        same("a - b - c = 0", "((a - b - c)) = 0");
        same("a BETWEEN 1 AND 2 AND b", "(a BETWEEN 1 AND 2) AND b");
        same("-a * b = 1", "(-a) * b = 1");
        same("a NOT IN (1, 2)", "NOT (a IN (1, 2))");
        same("a NOT LIKE 'x'", "NOT (a LIKE 'x')");
        same("a NOT BETWEEN 1 AND 2", "NOT (a BETWEEN 1 AND 2)");
        same("a IS NOT NULL", "NOT (a IS NULL)");
        same("a != 1", "a <> 1");
        assert_ne!(parse("a - b - c = 0"), parse("a - (b - c) = 0"));
        assert_ne!(parse("(a OR b) AND c"), parse("a OR b AND c"));
    }

    #[test]
    fn signs_belong_to_integer_literals() {
        assert_eq!(parse("-9223372036854775808").unwrap(), Expr::Literal(Operand::Int(i64::MIN)));
        assert_eq!(parse("- + -5").unwrap(), Expr::Literal(Operand::Int(5)));
        assert_eq!(refused("9223372036854775808").position(), 1);
        assert_eq!(refused("a = --9223372036854775808").position(), 5);
    }

    #[test]
    fn an_empty_selector_is_no_condition() {
        same("", "TRUE");
        same(" \t\n ", "TRUE");
    }

    #[test]
    fn mistakes_are_told_where_they_are() {
        for (text, position) in [
            ("a =", 4),
            ("= a", 1),
            ("a = 1 b", 7),
            ("a = b = c", 7),
            ("(a = 1", 7),
            ("a = 1)", 6),
            ("()", 2),
            ("a IN ()", 7),
            ("a IN (1", 8),
            ("a IN 1", 6),
            ("a NOT 5", 7),
            ("a IS 5", 6),
            ("a BETWEEN 1 OR 2", 13),
            ("a LIKE b", 8),
            ("a LIKE 'x' ESCAPE 'ab'", 19),
            ("a LIKE 'x' ESCAPE ''", 19),
            ("a LIKE 'x' ESCAPE", 18),
            ("a LIKE '!x' ESCAPE '!'", 8),
            ("1 + NOT a", 5),
            ("a AND", 6),
            ("NOT", 4),
            ("a, b", 2),
            ("é = #", 5),
        ] {
            assert_eq!(refused(text).position(), position, "{text}");
        }
        assert_eq!(refused("a = 1 AND amqp.nonsense = 2").position(), 11);
        assert_eq!(refused("a IN 1").to_string(), "selector, character 6: expected (, found a number");
    }

    #[test]
    fn limits_hold() {
        let nested = |depth: usize| format!("{}a{}", "(".repeat(depth), ")".repeat(depth));
        assert!(parse(&nested(SELECTOR_DEPTH_MAX)).is_ok());
        assert_eq!(refused(&nested(SELECTOR_DEPTH_MAX + 1)).position(), SELECTOR_DEPTH_MAX + 1);
        assert!(parse(&"(".repeat(SELECTOR_BYTES_MAX)).is_err());
        assert!(parse(&vec!["(a)"; SELECTOR_FIELDS_MAX].join(" OR ")).is_ok(), "depth is given back");
        assert!(parse(&vec!["a"; SELECTOR_FIELDS_MAX + 1].join("+")).is_err());
        assert!(parse(&" ".repeat(SELECTOR_BYTES_MAX)).is_ok());
        assert!(parse(&" ".repeat(SELECTOR_BYTES_MAX + 1)).is_err());
    }

    #[test]
    fn long_chains_stay_flat() {
        same(&format!("{}a", "NOT ".repeat(2001)), "NOT a");
        same(&format!("{}a", "NOT ".repeat(2000)), "NOT NOT a");
        same(&format!("{}a", "-".repeat(8001)), "-a");
        let Expr::Arithmetic { rest, .. } = parse(&vec!["1"; 4000].join("+")).unwrap() else { panic!("not a sum") };
        assert_eq!(rest.len(), 3999);
        let Expr::Or(parts) = parse(&vec!["1=1"; 1000].join(" OR ")).unwrap() else { panic!("not an OR") };
        assert_eq!(parts.len(), 1000);
    }

    #[test]
    fn random_token_soup_never_panics() {
        let soup: Vec<_> =
            "a 's' 1 2.5 ( ) , = < + - * / AND OR NOT IN LIKE BETWEEN IS NULL TRUE ESCAPE é".split(' ').collect();
        let mut state = 9_u64;
        let mut accepted = 0;
        for _ in 0..50_000 {
            let mut text = String::new();
            for _ in 0..1 + (state >> 60) {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text.push_str(soup[(state >> 33) as usize % soup.len()]);
                text.push(' ');
            }
            accepted += usize::from(parse(&text).is_ok());
        }
        assert!(accepted > 500, "the soup is too thin: {accepted}");
    }
}
