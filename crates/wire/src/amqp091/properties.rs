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

impl<'a> Properties<'a> {
    /// Reads flags and values, which must fill `raw` exactly.
    #[inline]
    pub fn decode(raw: &'a [u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(raw);
        let flags = r.u16()?;
        if flags & UNDEFINED != 0 {
            return Err(WireError::BadFlags);
        }
        macro_rules! field {
            ($flag:ident, $read:ident) => {
                if flags & $flag != 0 {
                    Some(r.$read()?)
                } else {
                    None
                }
            };
        }
        let properties = Self {
            content_type: field!(CONTENT_TYPE, short),
            content_encoding: field!(CONTENT_ENCODING, short),
            headers: field!(HEADERS, table),
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
        if r.is_empty() {
            Ok(properties)
        } else {
            Err(WireError::Trailing)
        }
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
