//! The 0-9-1 codec under any bytes: frames, methods, tables.
//!
//! Owns three targets. What decodes must encode to something that decodes to the same; a stream must split the same
//! however it is cut; the shortcuts of the hot path must agree with the long way. It must never accept a panic. Rules:
//! AMQP 0-9-1 section 4.2.

use weft_wire::amqp091::frame::{self, FRAME_END, Frame, FrameError};
use weft_wire::amqp091::properties::{Properties, peek};
use weft_wire::amqp091::table::{Array, Table, TableWriter, Value};
use weft_wire::amqp091::{Method, encode_deliver, publish_fast};

use crate::feature::note;

const FRAME_MAX: usize = 4_096;

type Split = (Vec<(u8, u16, Vec<u8>)>, Option<FrameError>);

fn own(frame: &Frame<'_>) -> (u8, u16, Vec<u8>) {
    (frame.kind, frame.channel, frame.payload.to_vec())
}

fn split_whole(input: &[u8]) -> Split {
    let (mut at, mut frames) = (0, Vec::new());
    loop {
        match frame::split(&input[at..], FRAME_MAX) {
            Ok(Some(frame)) => {
                let mut again = frame::frame_header(frame.kind, frame.channel, frame.payload.len() as u32).to_vec();
                again.extend_from_slice(frame.payload);
                again.push(FRAME_END);
                assert_eq!(again, input[at..at + frame.size]);
                frames.push(own(&frame));
                at += frame.size;
            }
            Ok(None) => return (frames, None),
            Err(error) => return (frames, Some(error)),
        }
    }
}

fn split_byte_by_byte(input: &[u8]) -> Split {
    let (mut pending, mut frames) = (Vec::new(), Vec::new());
    for byte in input {
        pending.push(*byte);
        match frame::split(&pending, FRAME_MAX) {
            Ok(Some(frame)) => {
                assert_eq!(frame.size, pending.len(), "a frame ends with its last byte");
                frames.push(own(&frame));
                pending.clear();
            }
            Ok(None) => assert!(pending.len() < FRAME_MAX, "an oversized frame is waited for"),
            Err(error) => return (frames, Some(error)),
        }
    }
    (frames, None)
}

/// Frames and content headers.
pub fn frame(input: &[u8]) {
    let whole = split_whole(input);
    assert_eq!(whole, split_byte_by_byte(input));
    note(("error", std::mem::discriminant(&whole.1), whole.1.map(|error| std::mem::discriminant(&error))));
    for (kind, _, payload) in &whole.0 {
        note(("kind", kind, payload.len().min(20)));
        content_header(payload);
    }
    content_header(input);
}

fn content_header(payload: &[u8]) {
    let header = match frame::content_header(payload) {
        Ok(header) => header,
        Err(error) => return note(("header", std::mem::discriminant(&error))),
    };
    let properties = Properties::decode(header.properties).expect("checked by the header");
    assert_eq!(peek(header.properties), Ok(header.peek));
    let mut again = Vec::new();
    properties.encode(&mut again);
    assert_eq!(again, header.properties, "properties have one form");
    note(("properties", header.properties.first_chunk::<2>()));
}

/// Methods.
pub fn method(input: &[u8]) {
    let fast = publish_fast(input);
    let method = match Method::decode(input) {
        Ok(method) => method,
        Err(error) => {
            assert!(fast.is_none(), "read as a publish, but {error}");
            return note((std::mem::discriminant(&error), method_name(input)));
        }
    };
    note(("method", method.ids()));
    let mut again = Vec::new();
    method.encode(&mut again);
    assert_eq!(Method::decode(&again), Ok(method));
    assert!(!format!("{method:?}").is_empty());
    assert!(!method.name().is_empty());
    match method {
        Method::BasicPublish { exchange, routing_key, mandatory, immediate } => {
            assert_eq!(fast, Some((exchange, routing_key, mandatory, immediate)));
        }
        Method::BasicDeliver { consumer_tag, delivery_tag, redelivered, exchange, routing_key } => {
            let (mut short, mut long) = (Vec::new(), Vec::new());
            encode_deliver(&mut short, 7, consumer_tag, delivery_tag, redelivered, exchange, routing_key);
            method.encode_frame(7, &mut long);
            assert_eq!(short, long);
        }
        _ => assert!(fast.is_none()),
    }
}

fn method_name(input: &[u8]) -> Option<&'static str> {
    let [a, b, c, d] = *input.first_chunk()?;
    weft_wire::amqp091::method_name(u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
}

/// Field tables.
pub fn table(input: &[u8]) {
    // Bytes that nobody vouched for may be read as well, and end where they make no sense.
    let unchecked = walk(Table::trusted(input), 0);
    assert!(!format!("{:?}", Table::trusted(input)).is_empty());
    let table = match Table::parse(input) {
        Ok(table) => table,
        Err(error) => return note(std::mem::discriminant(&error)),
    };
    note(("entries", unchecked.min(30)));
    let written = rewrite(table);
    let read = Table::parse(&written).expect("what we write can be read");
    assert_eq!(walk(read, 0), unchecked);
    assert_eq!(rewrite(read), written, "one form is reached at once");
    if let Some((key, value)) = table.iter().next() {
        let found = table.get(key).expect("its first entry");
        assert_eq!(format!("{found:?}"), format!("{value:?}"));
    }
}

fn rewrite(table: Table<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    TableWriter::write(&mut out, |writer| table.iter().for_each(|(key, value)| writer.value(key, value)));
    out.split_off(4)
}

/// Looks at every value down to some depth; how many there are.
fn walk(table: Table<'_>, depth: usize) -> usize {
    table.iter().map(|(_, value)| walk_value(value, depth)).sum()
}

fn walk_array(array: Array<'_>, depth: usize) -> usize {
    array.iter().map(|value| walk_value(value, depth)).sum()
}

fn walk_value(value: Value<'_>, depth: usize) -> usize {
    note(("value", std::mem::discriminant(&value), depth.min(4)));
    let _ = (value.as_i64(), value.as_bytes(), value.as_bool());
    match value {
        Value::Table(inner) if depth < 40 => 1 + walk(inner, depth + 1),
        Value::Array(inner) if depth < 40 => 1 + walk_array(inner, depth + 1),
        _ => 1,
    }
}
