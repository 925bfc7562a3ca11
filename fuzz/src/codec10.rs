//! The 1.0 codec under any bytes: frames, performatives, values, message sections.
//!
//! Owns three targets. What decodes must encode to something that decodes to the same; a stream must split the same
//! however it is cut; a message that may still become whole is never called broken. It must never accept a panic.
//! Rules: AMQP 1.0 parts 1 to 3.

use weft_wire::amqp10::frame::{self, Frame, FrameError, FrameKind};
use weft_wire::amqp10::sections::{self, SectionError, Span};
use weft_wire::amqp10::*;

use crate::feature::note;

const FRAME_MAX: u32 = 4_096;
/// Prefixes of a message that are looked at; all of a short one.
const PREFIXES_MAX: usize = 64;

type Split = (Vec<(FrameKind, u16, Vec<u8>)>, Option<FrameError>);

fn own(frame: &Frame<'_>) -> (FrameKind, u16, Vec<u8>) {
    (frame.kind, frame.channel, frame.body.to_vec())
}

fn split_whole(input: &[u8]) -> Split {
    let (mut at, mut frames) = (0, Vec::new());
    loop {
        match frame::split(&input[at..], FRAME_MAX) {
            Ok(Some(frame)) => {
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
            Ok(None) => assert!(pending.len() < FRAME_MAX as usize, "an oversized frame is waited for"),
            Err(error) => return (frames, Some(error)),
        }
    }
    (frames, None)
}

/// Frames, and what is in them.
pub fn frame(input: &[u8]) {
    let whole = split_whole(input);
    assert_eq!(whole, split_byte_by_byte(input));
    note(("error", whole.1.map(|error| std::mem::discriminant(&error))));
    for (kind, _, body) in &whole.0 {
        match kind {
            FrameKind::Amqp => performative(body),
            FrameKind::Sasl => sasl(body),
        }
    }
}

/// What encodes the same is the same; comparing values themselves would stumble over not-a-number.
fn encoded<'a>(composite: &impl Composite<'a>) -> Vec<u8> {
    let mut out = Vec::new();
    composite.encode(&mut out);
    out
}

fn encoded_performative(performative: &Performative<'_>) -> Vec<u8> {
    match performative {
        Performative::Open(open) => encoded(&**open),
        Performative::Begin(begin) => encoded(begin),
        Performative::Attach(attach) => encoded(&**attach),
        Performative::Flow(flow) => encoded(flow),
        Performative::Transfer(transfer) => encoded(transfer),
        Performative::Disposition(disposition) => encoded(disposition),
        Performative::Detach(detach) => encoded(detach),
        Performative::End(end) => encoded(end),
        Performative::Close(close) => encoded(close),
    }
}

/// Performatives; any bytes are also read as a bare value, as SASL and as a request to the coordinator.
pub fn performative(input: &[u8]) {
    value(input);
    sasl(input);
    if let Ok(request) = TransactionRequest::decode(input) {
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(TransactionRequest::decode(&again), Ok(request));
    }
    let fast = transfer::decode_fast(input);
    let (performative, payload) = match Performative::decode(input) {
        Ok(decoded) => decoded,
        Err(error) => {
            assert!(fast.is_none(), "read as a transfer, but {error}");
            return note(("performative", std::mem::discriminant(&error)));
        }
    };
    note(("performative", std::mem::discriminant(&performative), input.get(3), payload.len().min(3)));
    let again = encoded_performative(&performative);
    let (second, rest) = Performative::decode(&again).expect("what we write can be read");
    assert!(rest.is_empty());
    assert_eq!(encoded_performative(&second), again);
    assert!(!format!("{performative:?}").is_empty());
    if let Some((transfer, after)) = fast {
        assert_eq!((encoded(&transfer), after), (again, payload));
    }
}

fn sasl(input: &[u8]) {
    let frame = match SaslFrame::decode(input) {
        Ok(frame) => frame,
        Err(error) => return note(("sasl", std::mem::discriminant(&error))),
    };
    note(("sasl", std::mem::discriminant(&frame)));
    let again = match frame {
        SaslFrame::Mechanisms(own) => encoded(&own),
        SaslFrame::Init(own) => encoded(&own),
        SaslFrame::Challenge(own) => encoded(&own),
        SaslFrame::Response(own) => encoded(&own),
        SaslFrame::Outcome(own) => encoded(&own),
    };
    assert!(SaslFrame::decode(&again).is_ok_and(|second| second == frame));
}

fn value(input: &[u8]) {
    let mut reader = Reader::new(input);
    let read = match reader.read() {
        Ok(value) => value,
        Err(error) => return note(("value", std::mem::discriminant(&error), input.first())),
    };
    let mut skipped = Reader::new(input);
    assert_eq!(skipped.skip(), Ok(()), "what can be read can be skipped");
    assert_eq!(skipped.rest(), reader.rest());
    walk(read, 0);
    let mut again = Vec::new();
    writer::put_value(&mut again, &read);
    let mut second = Reader::new(&again);
    let reread = second.read().expect("what we write can be read");
    assert!(second.is_empty());
    let mut third = Vec::new();
    writer::put_value(&mut third, &reread);
    assert_eq!(third, again, "one form is reached at once");
}

fn walk(value: Value<'_>, depth: u32) {
    assert!(depth <= DEPTH_MAX, "checked by the reader");
    note(("type", std::mem::discriminant(&value), depth.min(3)));
    match value {
        Value::List(list) => {
            assert_eq!(list.iter().count(), list.len());
            list.iter().for_each(|item| walk(item, depth + 1));
        }
        Value::Map(map) => {
            assert_eq!(map.iter().count(), map.len());
            for (key, item) in map.iter() {
                walk(key, depth + 1);
                walk(item, depth + 1);
            }
        }
        Value::Array(array) => {
            assert_eq!(array.iter().count(), array.len());
            array.iter().for_each(|item| walk(item, depth + 1));
        }
        Value::Described(described) => {
            walk(described.descriptor(), depth + 1);
            walk(described.value(), depth + 1);
        }
        _ => {}
    }
}

/// Messages.
pub fn sections(input: &[u8]) {
    let found = match sections::scan(input) {
        Ok(found) => found,
        Err(error) => {
            note(("scan", std::mem::discriminant(&error)));
            if let Ok(head) = sections::scan_head(input) {
                assert!(head.bare_start <= head.body_start && head.body_start as usize <= input.len());
            }
            return;
        }
    };
    note(("kind", std::mem::discriminant(&found.kind), found.footer.is_some()));
    let head = found.head;
    match sections::scan_head(input) {
        Ok(early) => assert_eq!(early, head),
        Err(error) => assert_eq!((error, found.body.len), (SectionError::Incomplete, 0)),
    }
    let step = input.len() / PREFIXES_MAX + 1;
    for len in (0..input.len()).step_by(step) {
        match sections::scan_head(&input[..len]) {
            Ok(early) => assert_eq!(early, head, "after {len} bytes"),
            Err(error) => assert_eq!(error, SectionError::Incomplete, "after {len} bytes"),
        }
    }
    let spans = [head.header, head.delivery_annotations, head.message_annotations, head.properties];
    let spans = spans.into_iter().chain([head.application_properties, Some(found.body), found.footer]);
    let pieces: Vec<&[u8]> = spans.flatten().map(|span: Span| span.of(input)).collect();
    assert_eq!(pieces.concat(), input, "the sections are all there is");
    for section in pieces {
        let _ = (sections::decode_map(section), Header::decode(section), Properties::decode(section));
    }
    for value in sections::body_values(found.body.of(input)).flatten() {
        walk(value, 0);
    }
}
