//! The properties of a message: the second half of a content header of class basic.
//!
//! Owns their flags and order. Raw bytes come in; a full view, or the few fields a broker needs per message, go out,
//! and a view can be written back. It must never judge a value: priorities, expirations and user names are checked
//! where they are used. Rules: AMQP 0-9-1 section 4.2.6.1 (flags) and the basic class (fields).

use super::WireError;
use super::cursor::{Reader, Writer};
use super::table::Table;

const CONTENT_TYPE: u16 = 1 << 15;
const CONTENT_ENCODING: u16 = 1 << 14;
const HEADERS: u16 = 1 << 13;
const DELIVERY_MODE: u16 = 1 << 12;
const PRIORITY: u16 = 1 << 11;
const CORRELATION_ID: u16 = 1 << 10;
const REPLY_TO: u16 = 1 << 9;
const EXPIRATION: u16 = 1 << 8;
const MESSAGE_ID: u16 = 1 << 7;
const TIMESTAMP: u16 = 1 << 6;
const MESSAGE_TYPE: u16 = 1 << 5;
const USER_ID: u16 = 1 << 4;
const APP_ID: u16 = 1 << 3;
const CLUSTER_ID: u16 = 1 << 2;

/// Bit 1 names no property, and bit 0 would announce a second word of flags, which basic has no use for.
const UNDEFINED: u16 = 0b11;

/// All fourteen, in the order of their flags.
#[derive(Default, Clone, Copy, Debug, PartialEq)]
pub struct Properties<'a> {
    pub content_type: Option<&'a [u8]>,
    pub content_encoding: Option<&'a [u8]>,
    pub headers: Option<Table<'a>>,
    pub delivery_mode: Option<u8>,
    pub priority: Option<u8>,
    pub correlation_id: Option<&'a [u8]>,
    pub reply_to: Option<&'a [u8]>,
    pub expiration: Option<&'a [u8]>,
    pub message_id: Option<&'a [u8]>,
    pub timestamp: Option<u64>,
    /// The property the specification calls "type".
    pub message_type: Option<&'a [u8]>,
    pub user_id: Option<&'a [u8]>,
    pub app_id: Option<&'a [u8]>,
    pub cluster_id: Option<&'a [u8]>,
}

/// What a broker looks at in every message.
#[derive(Default, Clone, Copy, Debug, PartialEq)]
pub struct Peek<'a> {
    /// Zero if absent; two asks for durability.
    pub delivery_mode: u8,
    /// Zero if absent.
    pub priority: u8,
    pub expiration: Option<&'a [u8]>,
    pub headers: Option<Table<'a>>,
    pub reply_to: Option<&'a [u8]>,
    pub user_id: Option<&'a [u8]>,
    pub message_id: Option<&'a [u8]>,
}

/// Checks the whole structure, headers included, and returns the fields of `Peek`.
#[inline]
pub fn peek(raw: &[u8]) -> Result<Peek<'_>, WireError> {
    let all = Properties::decode(raw)?;
    Ok(Peek {
        delivery_mode: all.delivery_mode.unwrap_or(0),
        priority: all.priority.unwrap_or(0),
        expiration: all.expiration,
        headers: all.headers,
        reply_to: all.reply_to,
        user_id: all.user_id,
        message_id: all.message_id,
    })
}

/// Do these properties, which were decoded before, have a `type`?
#[inline]
pub fn has_type(raw: &[u8]) -> bool {
    raw.get(1).is_some_and(|flags| u16::from(*flags) & MESSAGE_TYPE != 0)
}

impl<'a> Properties<'a> {
    /// Reads flags and values, which must fill `raw` exactly.
    #[inline]
    pub fn decode(raw: &'a [u8]) -> Result<Self, WireError> {
        Self::read(raw, Reader::table)
    }

    /// The same for bytes that were decoded before: the inside of the headers is not checked again.
    #[inline]
    pub fn view(raw: &'a [u8]) -> Result<Self, WireError> {
        Self::read(raw, |r| r.long().map(Table::trusted))
    }

    #[inline]
    fn read(
        raw: &'a [u8],
        table: impl FnOnce(&mut Reader<'a>) -> Result<Table<'a>, WireError>,
    ) -> Result<Self, WireError> {
        let mut r = Reader::new(raw);
        let flags = r.u16()?;
        if flags & UNDEFINED != 0 {
            return Err(WireError::BadFlags);
        }
        macro_rules! field {
            ($flag:ident, $read:ident) => {
                if flags & $flag != 0 { Some(r.$read()?) } else { None }
            };
        }
        let properties = Self {
            content_type: field!(CONTENT_TYPE, short),
            content_encoding: field!(CONTENT_ENCODING, short),
            headers: if flags & HEADERS != 0 { Some(table(&mut r)?) } else { None },
            delivery_mode: field!(DELIVERY_MODE, u8),
            priority: field!(PRIORITY, u8),
            correlation_id: field!(CORRELATION_ID, short),
            reply_to: field!(REPLY_TO, short),
            expiration: field!(EXPIRATION, short),
            message_id: field!(MESSAGE_ID, short),
            timestamp: field!(TIMESTAMP, u64),
            message_type: field!(MESSAGE_TYPE, short),
            user_id: field!(USER_ID, short),
            app_id: field!(APP_ID, short),
            cluster_id: field!(CLUSTER_ID, short),
        };
        if r.is_empty() { Ok(properties) } else { Err(WireError::Trailing) }
    }

    /// Appends flags and values.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mark = out.len();
        let mut flags = 0u16;
        let mut w = Writer::new(out);
        w.u16(0);
        macro_rules! field {
            ($flag:ident, $field:ident, $write:ident) => {
                if let Some(value) = self.$field {
                    flags |= $flag;
                    w.$write(value);
                }
            };
        }
        field!(CONTENT_TYPE, content_type, short);
        field!(CONTENT_ENCODING, content_encoding, short);
        field!(HEADERS, headers, table);
        field!(DELIVERY_MODE, delivery_mode, u8);
        field!(PRIORITY, priority, u8);
        field!(CORRELATION_ID, correlation_id, short);
        field!(REPLY_TO, reply_to, short);
        field!(EXPIRATION, expiration, short);
        field!(MESSAGE_ID, message_id, short);
        field!(TIMESTAMP, timestamp, u64);
        field!(MESSAGE_TYPE, message_type, short);
        field!(USER_ID, user_id, short);
        field!(APP_ID, app_id, short);
        field!(CLUSTER_ID, cluster_id, short);
        out[mark..mark + 2].copy_from_slice(&flags.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY_PROPERTY: Properties<'static> = Properties {
        content_type: Some(b"text/plain"),
        content_encoding: Some(b"gzip"),
        headers: Some(Table::trusted(b"\x01kt\x01")),
        delivery_mode: Some(2),
        priority: Some(9),
        correlation_id: Some(b"c"),
        reply_to: Some(b"r"),
        expiration: Some(b"60000"),
        message_id: Some(b"m"),
        timestamp: Some(0x0102_0304_0506_0708),
        message_type: Some(b"t"),
        user_id: Some(b"u"),
        app_id: Some(b"a"),
        cluster_id: Some(b""),
    };

    const EVERY_PROPERTY_RAW: &[u8] = b"\xFF\xFC\x0Atext/plain\x04gzip\0\0\0\x04\x01kt\x01\x02\x09\x01c\x01r\x0560000\
        \x01m\x01\x02\x03\x04\x05\x06\x07\x08\x01t\x01u\x01a\0";

    fn encoded(properties: &Properties<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        properties.encode(&mut out);
        out
    }

    #[test]
    fn every_property_has_its_bytes_and_reads_back() {
        assert_eq!(encoded(&EVERY_PROPERTY), EVERY_PROPERTY_RAW);
        assert_eq!(Properties::decode(EVERY_PROPERTY_RAW), Ok(EVERY_PROPERTY));
        assert_eq!(encoded(&Properties::default()), b"\0\0");
        assert_eq!(Properties::decode(b"\0\0"), Ok(Properties::default()));
    }

    #[test]
    fn each_flag_stands_for_one_property() {
        for bit in 2..16 {
            let flag = 1u16 << bit;
            // Twelve zero octets hold one value of any type; the rest is trailing, so trim to what is used.
            let raw = [&flag.to_be_bytes()[..], &[0; 12]].concat();
            let used = (2..=raw.len()).find(|len| Properties::decode(&raw[..*len]).is_ok());
            let raw = &raw[..used.unwrap()];
            let properties = Properties::decode(raw).unwrap();
            assert_ne!(properties, Properties::default());
            assert_eq!(encoded(&properties), raw);
        }
    }

    #[test]
    fn undefined_flags_are_refused() {
        for flags in [1u16, 2, 3, 0x8001, 0xFFFF] {
            let raw = [&flags.to_be_bytes()[..], &[0; 32]].concat();
            assert_eq!(Properties::decode(&raw), Err(WireError::BadFlags));
        }
    }

    #[test]
    fn properties_cut_short_or_followed_by_more_are_refused() {
        for len in 0..EVERY_PROPERTY_RAW.len() {
            assert_eq!(peek(&EVERY_PROPERTY_RAW[..len]), Err(WireError::Short), "{len} bytes");
        }
        assert_eq!(peek(&[EVERY_PROPERTY_RAW, b"\0"].concat()), Err(WireError::Trailing));
    }

    #[test]
    fn headers_are_vouched_for() {
        assert_eq!(peek(b"\x20\0\0\0\0\x03\x01k?"), Err(WireError::BadTag(b'?')));
        assert_eq!(peek(b"\x20\0\0\0\0\x02\x01k"), Err(WireError::Short));
    }

    #[test]
    fn a_peek_sees_what_a_broker_needs() {
        let expected = Peek {
            delivery_mode: 2,
            priority: 9,
            expiration: EVERY_PROPERTY.expiration,
            headers: EVERY_PROPERTY.headers,
            reply_to: EVERY_PROPERTY.reply_to,
            user_id: EVERY_PROPERTY.user_id,
            message_id: EVERY_PROPERTY.message_id,
        };
        assert_eq!(peek(EVERY_PROPERTY_RAW), Ok(expected));
        assert_eq!(peek(b"\0\0"), Ok(Peek::default()));
    }
}
