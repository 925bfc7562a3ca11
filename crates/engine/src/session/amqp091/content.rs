//! Content on the wire: a message as header and body frames.
//!
//! Owns how a message is written for a 0-9-1 client and what publishing reads from its headers. A message of the same
//! protocol passes through byte for byte; one that died before, failed before, or came by 1.0 gets its properties
//! written anew. It must never change a body. Rules: AMQP 0-9-1 section 4.2.6, RabbitMQ's x-death, CC and BCC headers.

use weft_wire::amqp091::frame::{FRAME_BODY, FRAME_END, FRAME_HEADER, FRAME_OVERHEAD, HEADER_LEN, frame_header};
use weft_wire::amqp091::properties::{Properties, peek};
use weft_wire::amqp091::reply;
use weft_wire::amqp091::table::{Table, TableWriter, Value};

use super::Fault;
use crate::broker::Death;
use crate::convert;
use crate::message::{Kind, Message};

/// The header that tells a message's place in a stream.
const OFFSET_HEADER: &[u8] = b"x-stream-offset";
/// The header that tells which part of a stream it is in.
const PART_HEADER: &[u8] = b"x-stream-partition";
/// Property flags of the fields up to the headers (section 4.2.6.1).
const FLAG_CONTENT_TYPE: u16 = 1 << 15;
const FLAG_CONTENT_ENCODING: u16 = 1 << 14;
const FLAG_HEADERS: u16 = 1 << 13;
/// What the place of a message takes as headers, and more.
const PLACE_BYTES: usize = 96;
/// Routing keys that one message may have besides its own: each is matched, in one go.
const COPIES_MAX: usize = 1_000;
/// Longest delay of a message: 2^32 - 1 ms, 49 days.
const DELAY_MS_MAX: i64 = u32::MAX as i64;

/// Writes header and body frames of a message.
#[inline]
pub fn write_content(out: &mut Vec<u8>, channel: u16, frame_max: u32, message: &Message, failures: Option<u32>) {
    if matches!(message.kind, Kind::Amqp091) && message.deaths.is_none() && failures.is_none() {
        let body = message.body();
        write_header(out, channel, message.head(), body.len());
        for part in body.parts() {
            write_body(out, channel, frame_max, part);
        }
        return;
    }
    write_converted(out, channel, frame_max, message, Told { failures, offset: None, part: None });
}

/// What the node tells a consumer in headers of its own.
#[derive(Clone, Copy)]
pub(super) struct Told {
    /// Failed deliveries.
    pub failures: Option<u32>,
    /// The place in a stream, and the stream's own among the parts of another.
    pub offset: Option<u64>,
    pub part: Option<u32>,
}

impl Told {
    fn write_place(&self, table: &mut TableWriter<'_>) {
        if let Some(offset) = self.offset {
            table.i64(OFFSET_HEADER, offset as i64);
        }
        if let Some(part) = self.part {
            table.i64(PART_HEADER, i64::from(part));
        }
    }
}

/// Writes a message of a stream: the same with its offset, and the part it is in, as headers.
pub fn write_read(out: &mut Vec<u8>, channel: u16, frame_max: u32, message: &Message, offset: u64, part: Option<u32>) {
    let told = Told { failures: None, offset: Some(offset), part };
    let plain = matches!(message.kind, Kind::Amqp091) && message.deaths.is_none();
    let body = message.body();
    out.reserve(message.head().len() + PLACE_BYTES + body.len() + 3 * FRAME_OVERHEAD);
    if plain && put_header(out, channel, message.head(), body.len(), told).is_some() {
        return body.parts().for_each(|part| write_body(out, channel, frame_max, part));
    }
    write_converted(out, channel, frame_max, message, told);
}

/// Writes the header frame of a message of a stream, with its place put among its properties; where its offset stands
/// then. None if they have to be written anew.
pub(super) fn put_header(
    out: &mut Vec<u8>,
    channel: u16,
    properties: &[u8],
    body_len: usize,
    told: Told,
) -> Option<usize> {
    let start = out.len();
    begin_header(out, channel, 0, body_len);
    let Some(offset_at) = put_place(out, properties, told) else {
        out.truncate(start);
        return None;
    };
    // The properties are written in their place: how long they are is known only now.
    let length = (out.len() - start - HEADER_LEN) as u32;
    out[start..start + HEADER_LEN].copy_from_slice(&frame_header(FRAME_HEADER, channel, length));
    out.push(FRAME_END);
    Some(offset_at)
}

/// Properties with a header or two more, put where they belong without reading the others; where the offset stands.
/// None if they are there already, or the properties are not what they should be.
fn put_place(out: &mut Vec<u8>, head: &[u8], told: Told) -> Option<usize> {
    let own = peek(head).ok()?;
    let is_place = |(key, _): (&[u8], Value<'_>)| key == OFFSET_HEADER || key == PART_HEADER;
    if own.headers.is_some_and(|headers| headers.iter().any(is_place)) {
        return None;
    }
    let (flags, rest) = head.split_first_chunk::<2>()?;
    let flags = u16::from_be_bytes(*flags);
    let short = |at: usize| rest.get(at).map_or(at, |len| at + 1 + usize::from(*len));
    let mut at = if flags & FLAG_CONTENT_TYPE != 0 { short(0) } else { 0 };
    at = if flags & FLAG_CONTENT_ENCODING != 0 { short(at) } else { at };
    let table = own.headers.map_or(&[][..], |headers| headers.raw());
    let after = at + if own.headers.is_some() { 4 + table.len() } else { 0 };
    let (before, after) = (rest.get(..at)?, rest.get(after..)?);
    out.extend_from_slice(&(flags | FLAG_HEADERS).to_be_bytes());
    out.extend_from_slice(before);
    // The table's length, the headers before, the name and its length, the type.
    let offset_at = out.len() + 4 + table.len() + 1 + OFFSET_HEADER.len() + 1;
    TableWriter::write(out, |writer| {
        writer.raw(table);
        told.write_place(writer);
    });
    out.extend_from_slice(after);
    Some(offset_at)
}

#[inline]
fn write_header(out: &mut Vec<u8>, channel: u16, properties: &[u8], body_len: usize) {
    out.reserve(properties.len() + body_len + 3 * FRAME_OVERHEAD);
    begin_header(out, channel, 12 + properties.len() as u32, body_len);
    out.extend_from_slice(properties);
    out.push(FRAME_END);
}

/// The content header up to its properties.
#[inline]
fn begin_header(out: &mut Vec<u8>, channel: u16, length: u32, body_len: usize) {
    out.extend_from_slice(&frame_header(FRAME_HEADER, channel, length));
    out.extend_from_slice(&[0, 60, 0, 0]);
    out.extend_from_slice(&(body_len as u64).to_be_bytes());
}

#[inline]
pub(super) fn write_body(out: &mut Vec<u8>, channel: u16, frame_max: u32, bytes: &[u8]) {
    for chunk in bytes.chunks((frame_max as usize).saturating_sub(FRAME_OVERHEAD).max(1)) {
        out.extend_from_slice(&frame_header(FRAME_BODY, channel, chunk.len() as u32));
        out.extend_from_slice(chunk);
        out.push(FRAME_END);
    }
}

fn write_converted(out: &mut Vec<u8>, channel: u16, frame_max: u32, message: &Message, told: Told) {
    let mut properties = Vec::new();
    match message.kind {
        Kind::Amqp091 => {
            let own = Properties::decode(message.head()).unwrap_or_default();
            write_properties(&mut properties, own, message, told);
            write_header(out, channel, &properties, message.body_len());
            message.body().parts().for_each(|part| write_body(out, channel, frame_max, part));
        }
        Kind::Amqp10(_) => {
            let mut converted = Vec::new();
            let body = convert::to_amqp091(message, &mut converted);
            let own = Properties::decode(&converted).unwrap_or_default();
            write_properties(&mut properties, own, message, told);
            write_header(out, channel, &properties, body.len());
            write_body(out, channel, frame_max, &body);
        }
    }
}

/// Properties with what the node has to add: the death record, the count of failed deliveries, the offset.
fn write_properties(out: &mut Vec<u8>, own: Properties<'_>, message: &Message, told: Told) {
    let deaths = message.deaths.as_deref().unwrap_or_default();
    let ours = |key: &[u8]| match key {
        b"x-delivery-count" => told.failures.is_some(),
        OFFSET_HEADER | PART_HEADER => told.offset.is_some(),
        // The record takes the place of an older one; a CC that no longer routes is not told.
        b"CC" => !deaths.is_empty() && !message.traits.copied,
        key => !deaths.is_empty() && (key == b"x-death" || key.starts_with(b"x-first-death-")),
    };
    let mut headers = Vec::new();
    TableWriter::write(&mut headers, |table| {
        for (key, value) in own.headers.unwrap_or(Table::EMPTY).iter() {
            if !ours(key) {
                table.value(key, value);
            }
        }
        write_deaths(table, deaths);
        if let Some(failures) = told.failures {
            table.i64(b"x-delivery-count", i64::from(failures));
        }
        told.write_place(table);
    });
    let table = Table::trusted(headers.get(4..).unwrap_or_default());
    let headers = if table.is_empty() && own.headers.is_none() { None } else { Some(table) };
    let expiration = if deaths.is_empty() { own.expiration } else { None };
    Properties { headers, expiration, ..own }.encode(out);
}

fn write_deaths(table: &mut TableWriter<'_>, deaths: &[Death]) {
    let Some(first) = deaths.last() else { return };
    table.array(b"x-death", |array| {
        for death in deaths {
            array.table(|row| {
                row.i64(b"count", death.count as i64);
                row.str(b"exchange", &death.exchange);
                row.str(b"queue", &death.queue);
                row.str(b"reason", death.reason.word().as_bytes());
                row.array(b"routing-keys", |keys| death.routing_keys.iter().for_each(|key| keys.str(key)));
                row.value(b"time", Value::Timestamp(death.time_s));
                if let Some(ms) = death.expiration_ms {
                    row.str(b"original-expiration", ms.to_string().as_bytes());
                }
            });
        }
    });
    table.str(b"x-first-death-exchange", &first.exchange);
    table.str(b"x-first-death-queue", &first.queue);
    table.str(b"x-first-death-reason", first.reason.word().as_bytes());
}

/// What publishing reads from a message's headers.
#[derive(Default)]
pub(super) struct Extras {
    /// Routing keys of the CC and BCC headers.
    pub more_keys: Vec<Box<[u8]>>,
    pub has_bcc: bool,
    pub delay_ms: u64,
}

/// Reads the headers that mean something to the node.
pub(super) fn extras(headers: Table<'_>) -> Result<Extras, Fault> {
    let mut extras = Extras::default();
    for (key, value) in headers.iter() {
        match key {
            b"CC" | b"BCC" => {
                let Value::Array(keys) = value else {
                    let text = format!("unsupported type of the {} header: an array is wanted", super::show(key));
                    return Err(Fault::channel(reply::PRECONDITION_FAILED, text));
                };
                extras.has_bcc |= key == b"BCC";
                extras.more_keys.extend(keys.iter().filter_map(|key| key.as_bytes()).map(Box::from));
                if extras.more_keys.len() > COPIES_MAX {
                    let text = format!("more than {COPIES_MAX} routing keys in CC and BCC");
                    return Err(Fault::channel(reply::PRECONDITION_FAILED, text));
                }
            }
            b"x-delay" => extras.delay_ms = value.as_i64().unwrap_or(0).clamp(0, DELAY_MS_MAX) as u64,
            _ => {}
        }
    }
    Ok(extras)
}

/// Properties without the BCC header, and with another reply-to if there is one.
pub(super) fn rewritten(head: &[u8], reply_to: Option<&[u8]>) -> Box<[u8]> {
    let own = Properties::decode(head).unwrap_or_default();
    let mut headers = Vec::new();
    TableWriter::write(&mut headers, |table| {
        let kept = own.headers.unwrap_or(Table::EMPTY);
        kept.iter().filter(|(key, _)| *key != b"BCC").for_each(|(key, value)| table.value(key, value));
    });
    let table = Table::trusted(headers.get(4..).unwrap_or_default());
    let headers = own.headers.map(|_| table);
    let mut out = Vec::new();
    Properties { headers, reply_to: reply_to.or(own.reply_to), ..own }.encode(&mut out);
    out.into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Told = Told { failures: None, offset: Some(77), part: Some(3) };

    /// Properties after a place was put in.
    fn with_offset(own: &Properties<'_>) -> Option<Vec<u8>> {
        let (mut head, mut out) = (Vec::new(), Vec::new());
        own.encode(&mut head);
        let at = put_place(&mut out, &head, PLACE)?;
        assert_eq!(out[at..at + 8], 77_u64.to_be_bytes());
        Some(out)
    }

    #[test]
    fn an_offset_is_put_beside_whatever_is_there() {
        let mut headers = Vec::new();
        TableWriter::write(&mut headers, |table| {
            table.str(b"a", b"b");
            table.i64(b"c", 1);
        });
        let table = Table::trusted(&headers[4..]);
        let alone = Properties { message_id: Some(b"one"), ..Properties::default() };
        let full = Properties { content_type: Some(b"text/plain"), content_encoding: Some(b""), ..alone };
        for own in [Properties::default(), alone, full, Properties { headers: Some(table), ..full }] {
            let bytes = with_offset(&own).expect("it fits");
            let back = Properties::decode(&bytes).expect("well-formed");
            let told = back.headers.expect("a header");
            assert_eq!(told.get(OFFSET_HEADER).and_then(|value| value.as_i64()), Some(77));
            assert_eq!(told.get(PART_HEADER).and_then(|value| value.as_i64()), Some(3));
            assert_eq!(told.iter().count(), 2 + own.headers.map_or(0, |headers| headers.iter().count()));
            assert_eq!((back.content_type, back.content_encoding), (own.content_type, own.content_encoding));
            assert_eq!(back.message_id, own.message_id);
        }
    }

    #[test]
    fn an_offset_of_another_stream_is_not_told_twice() {
        let mut headers = Vec::new();
        TableWriter::write(&mut headers, |table| table.i64(OFFSET_HEADER, 5));
        let own = Properties { headers: Some(Table::trusted(&headers[4..])), ..Properties::default() };
        assert!(with_offset(&own).is_none());
        let mut out = Vec::new();
        let message = crate::testing::message(b"", 0);
        write_properties(&mut out, own, &message, PLACE);
        let told = Properties::decode(&out).expect("well-formed").headers.expect("a header");
        assert_eq!((told.iter().count(), told.get(OFFSET_HEADER).and_then(|value| value.as_i64())), (2, Some(77)));
    }
}
