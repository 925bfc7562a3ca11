//! Permissions on routing keys: which keys a user may publish with to a topic exchange.
//!
//! Owns the compiled patterns of one principal. Patterns come in with the principal's row; a refusal, or nothing, goes
//! out. It must never ask anybody: a key is looked at once per change of key, and a question for each would be one
//! per message. Rule: RabbitMQ's topic authorisation; an exchange without a pattern is open (decision 0003).

use regex_lite::{Regex, RegexBuilder};

use super::Broker;
use crate::change::ExchangeKind;
use crate::message::Name;
use crate::routing::ExchangeId;

/// Memory that one pattern may take: everyday ones take a few hundred bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Patterns by exchange. A text that is no pattern lets nothing through.
#[derive(Debug, Default)]
pub struct Topics(Vec<(Name, Option<Regex>)>);

impl Topics {
    /// Compiles rows of (exchange, pattern).
    pub fn new(rows: Vec<(String, String)>) -> Self {
        let compile = |text: &str| RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build().ok();
        Self(rows.into_iter().map(|(exchange, text)| (Name::from(exchange.as_bytes()), compile(&text))).collect())
    }

    fn allow(&self, exchange: &[u8], key: &[u8]) -> bool {
        let Some((_, pattern)) = self.0.iter().find(|(name, _)| **name == *exchange) else { return true };
        match (pattern, std::str::from_utf8(key)) {
            (Some(pattern), Ok(key)) => pattern.is_match(key),
            _ => false,
        }
    }
}

impl Broker {
    /// Why this principal may not publish to this exchange with this key; None if it may.
    #[inline]
    pub fn refused_topic(&self, principal: u32, exchange: ExchangeId, key: &[u8]) -> Option<String> {
        let topics = &self.principals.get(&principal)?.topics;
        if topics.0.is_empty() {
            return None;
        }
        let exchange = self.exchanges.get(exchange).filter(|exchange| exchange.kind == ExchangeKind::Topic)?;
        if topics.allow(&exchange.name, key) {
            return None;
        }
        let principal = self.principals.get(&principal)?;
        let vhost = self.vhosts.get(principal.vhost)?;
        Some(format!(
            "write access to topic '{}' in exchange '{}' in vhost '{}' refused for user '{}'",
            String::from_utf8_lossy(key),
            String::from_utf8_lossy(&exchange.name),
            String::from_utf8_lossy(&vhost.name),
            String::from_utf8_lossy(&principal.user),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_must_match_where_its_exchange_has_a_pattern() {
        let topics = Topics::new(vec![("news".into(), "^eu\\.".into()), ("bad".into(), "(".into())]);
        assert!(topics.allow(b"news", b"eu.de"));
        assert!(!topics.allow(b"news", b"us.eu.de"));
        assert!(!topics.allow(b"news", b"eu.\xff"));
        assert!(topics.allow(b"other", b"us"));
        assert!(!topics.allow(b"bad", b"("));
    }
}
