//! The words of a selector: text comes in, tokens with the place of their first character go out.
//!
//! Owns what is a name, a keyword, a literal or a symbol, and nothing about how they may follow each other. It
//! must never echo the text into an error or keep a reference to it. Rule: Jakarta Messaging 3.1 section
//! 3.8.1.1, plus what AMQP names need: '.' inside a name, and any name at all between double quotes.

use super::SelectorError;

const KEYWORDS: [&str; 11] = ["AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"];

/// Longer symbols first, so that "<=" is not read as "<" and "=".
const SYMBOLS: [&str; 15] = ["<>", "!=", "<=", ">=", "<", ">", "=", "(", ")", ",", "+", "-", "*", "/", "%"];

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(String),
    Text(String),
    /// The digits of an integer without its sign, which the parser knows.
    Integer(u64),
    Float(f64),
    /// One of `KEYWORDS`, in capitals.
    Keyword(&'static str),
    /// One of `SYMBOLS`.
    Symbol(&'static str),
    End,
}

/// Splits `text` into tokens, each with its position; the last is always `Token::End`.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, SelectorError> {
    let mut lexer = Lexer { rest: text, position: 1 };
    let mut tokens = Vec::new();
    loop {
        lexer.take_while(char::is_whitespace);
        let position = lexer.position;
        let token = lexer.token()?;
        let is_end = token == Token::End;
        tokens.push((position, token));
        if is_end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'s> {
    rest: &'s str,
    position: usize,
}

impl<'s> Lexer<'s> {
    fn token(&mut self) -> Result<Token, SelectorError> {
        let mut ahead = self.rest.chars();
        let Some(first) = ahead.next() else {
            return Ok(Token::End);
        };
        match first {
            '\'' => self.quoted('\'').map(Token::Text),
            '"' => self.quoted('"').map(Token::Name),
            '.' if ahead.next().is_some_and(|c| c.is_ascii_digit()) => self.number(),
            '0'..='9' => self.number(),
            _ if starts_name(first) => Ok(self.name_or_keyword()),
            _ => self.symbol(),
        }
    }

    fn name_or_keyword(&mut self) -> Token {
        let word = self.take_while(|c| starts_name(c) || c.is_alphanumeric() || c == '.');
        match KEYWORDS.iter().find(|keyword| keyword.eq_ignore_ascii_case(word)) {
            Some(keyword) => Token::Keyword(keyword),
            None => Token::Name(word.to_owned()),
        }
    }

    fn symbol(&mut self) -> Result<Token, SelectorError> {
        match SYMBOLS.iter().find(|symbol| self.rest.starts_with(**symbol)) {
            Some(symbol) => {
                self.advance(symbol.len());
                Ok(Token::Symbol(symbol))
            }
            None => Err(SelectorError::new(self.position, "a character that has no meaning here")),
        }
    }

    /// Text up to the closing `quote`; two quotes in a row are one that belongs to the text.
    fn quoted(&mut self, quote: char) -> Result<String, SelectorError> {
        let start = self.position;
        self.advance(quote.len_utf8());
        let mut content = String::new();
        loop {
            content.push_str(self.take_while(|c| c != quote));
            if self.rest.is_empty() {
                return Err(SelectorError::new(start, format!("the quote {quote} is never closed")));
            }
            self.advance(quote.len_utf8());
            if !self.rest.starts_with(quote) {
                return Ok(content);
            }
            content.push(quote);
            self.advance(quote.len_utf8());
        }
    }

    fn number(&mut self) -> Result<Token, SelectorError> {
        let start = self.position;
        let whole = self.rest;
        let digits = self.take_while(|c| c.is_alphanumeric() || c == '.' || c == '_');
        let is_hex = digits.starts_with("0x") || digits.starts_with("0X");
        let mut text = digits;
        // "1e-5": the sign is part of the number only right behind the exponent's letter.
        if !is_hex && digits.ends_with(['e', 'E']) && self.rest.starts_with(['+', '-']) {
            self.advance(1);
            let exponent = self.take_while(|c| c.is_alphanumeric() || c == '.' || c == '_');
            text = &whole[..digits.len() + 1 + exponent.len()];
        }
        number_value(text).ok_or_else(|| SelectorError::new(start, "not a number, or one out of range"))
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'s str {
        let rest = self.rest;
        let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.advance(end);
        &rest[..end]
    }

    /// `byte_count` ends on a character: it is always the length of something found at the front of `rest`.
    fn advance(&mut self, byte_count: usize) {
        let (taken, rest) = self.rest.split_at(byte_count);
        self.position += taken.chars().count();
        self.rest = rest;
    }
}

fn starts_name(c: char) -> bool {
    c.is_alphabetic() || c == '_' || c == '$'
}

/// Java's numerals: 10, 012 (octal), 0xA, each with an optional L; 1., .5, 1.5e3, 2d, 2f.
fn number_value(text: &str) -> Option<Token> {
    let integer = text.strip_suffix(['l', 'L']).unwrap_or(text);
    if let Some(digits) = integer.strip_prefix("0x").or_else(|| integer.strip_prefix("0X")) {
        return u64::from_str_radix(digits, 16).ok().map(Token::Integer);
    }
    if integer.bytes().all(|byte| byte.is_ascii_digit()) {
        let radix = if integer.len() > 1 && integer.starts_with('0') { 8 } else { 10 };
        return u64::from_str_radix(integer, radix).ok().map(Token::Integer);
    }
    let float = text.strip_suffix(['d', 'D', 'f', 'F']).unwrap_or(text);
    float.parse().ok().filter(|value: &f64| value.is_finite()).map(Token::Float)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<Token> {
        tokens(text).unwrap().into_iter().map(|(_, token)| token).collect()
    }

    fn one(text: &str) -> Token {
        let mut found = kinds(text);
        assert_eq!(found.len(), 2, "{text}: {found:?}");
        found.swap_remove(0)
    }

    #[test]
    fn symbols_are_taken_longest_first_with_or_without_space() {
        let expected: Vec<_> = ["<>", "<=", ">=", "!=", "<", "=", ">", "(", ")"]
            .map(Token::Symbol)
            .into_iter()
            .chain([Token::End])
            .collect();
        assert_eq!(kinds("<><=>=!=< =\t>\n()"), expected);
        assert_eq!(kinds("+-*/%,").len(), 7);
    }

    #[test]
    fn keywords_ignore_case_and_names_do_not() {
        assert_eq!(one("bEtWeEn"), Token::Keyword("BETWEEN"));
        assert_eq!(one("Betweens"), Token::Name("Betweens".into()));
        assert_eq!(one("_a$.b9"), Token::Name("_a$.b9".into()));
        assert_eq!(one("größe"), Token::Name("größe".into()));
        assert_eq!(one("\"and\""), Token::Name("and".into()));
        assert_eq!(one("\"x-opt \"\"q\"\"\""), Token::Name("x-opt \"q\"".into()));
    }

    #[test]
    fn strings_keep_everything_between_the_quotes() {
        assert_eq!(one("'it''s \"é\"'"), Token::Text("it's \"é\"".into()));
        assert_eq!(one("''"), Token::Text(String::new()));
        assert_eq!(one("''''"), Token::Text("'".into()));
    }

    #[test]
    fn integers_in_three_bases() {
        for (text, value) in [
            ("0", 0),
            ("57", 57),
            ("57L", 57),
            ("0x1F", 31),
            ("0XffL", 255),
            ("0xe", 14),
            ("017", 15),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(one(text), Token::Integer(value), "{text}");
        }
        assert_eq!(kinds("0xe+5").len(), 4, "no exponent in hexadecimal");
    }

    #[test]
    fn floats_in_all_their_spellings() {
        for (text, value) in [
            ("7.", 7.0),
            (".5", 0.5),
            ("57.9E2", 5790.0),
            ("1e-3", 0.001),
            ("1E+3", 1000.0),
            ("2d", 2.0),
            ("2.5F", 2.5),
            ("09.5", 9.5),
        ] {
            assert_eq!(one(text), Token::Float(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_token_is_refused_at_its_place() {
        for (text, position) in [
            ("a = 'open", 5),
            ("\"open", 1),
            ("é = #", 5),
            ("a.b & c", 5),
            ("08", 1),
            ("0x", 1),
            ("1 + 1.2.3", 5),
            ("1e", 1),
            ("1e+", 1),
            ("1_000", 1),
            ("12abc", 1),
            ("1e999", 1),
            ("18446744073709551616", 1),
            (".", 1),
        ] {
            assert_eq!(tokens(text).unwrap_err().position(), position, "{text}");
        }
    }

    #[test]
    fn positions_count_characters_not_bytes() {
        let found = tokens("'éé' = größe").unwrap();
        assert_eq!(found.iter().map(|(position, _)| *position).collect::<Vec<_>>(), [1, 6, 8, 13]);
    }
}
