//! Methods: the generated table of arguments, wrapped with class and method number.
//!
//! Owns the step between a method frame's payload and `Method`, and the two shortcuts of the hot path: reading
//! basic.publish and writing basic.deliver. Payloads come in and borrowed arguments go out, or the reverse.
//! It must never judge whether a method may come now. Rules: AMQP 0-9-1 section 4.2.4 and `generated.rs`.

use super::WireError;
use super::cursor::{Reader, Writer, short_prefix};
use super::frame::{FRAME_END, FRAME_METHOD, FRAME_OVERHEAD, begin_frame, end_frame, frame_header};
use super::generated::{Method, decode_arguments, method_name};

/// Why a method frame's payload is not a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MethodError {
    /// No such class or method: `reply::NOT_IMPLEMENTED` or `reply::COMMAND_INVALID`.
    Unknown { class_id: u16, method_id: u16 },
    /// The arguments do not parse, or bytes follow them: `reply::SYNTAX_ERROR`.
    Malformed { class_id: u16, method_id: u16 },
    /// Too few bytes even for class and method number: `reply::FRAME_ERROR`.
    Short,
}

impl std::fmt::Display for MethodError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown { class_id, method_id } => {
                write!(f, "no method {method_id} in class {class_id}")
            }
            Self::Malformed { class_id, method_id } => {
                let name = method_name(*class_id, *method_id).unwrap_or("unknown method");
                write!(f, "malformed arguments of {name}")
            }
            Self::Short => f.write_str("a method frame without a method"),
        }
    }
}

impl std::error::Error for MethodError {}

/// What the generated decoders say; `Method::decode` adds of which method.
pub(super) enum ArgumentsError {
    Unknown,
    Malformed,
}

impl From<WireError> for ArgumentsError {
    fn from(_: WireError) -> Self {
        Self::Malformed
    }
}

impl<'a> Method<'a> {
    /// Reads the payload of a method frame; bytes left over after the arguments are an error.
    #[inline]
    pub fn decode(payload: &'a [u8]) -> Result<Self, MethodError> {
        let mut r = Reader::new(payload);
        let (Ok(class_id), Ok(method_id)) = (r.u16(), r.u16()) else {
            return Err(MethodError::Short);
        };
        match decode_arguments(class_id, method_id, &mut r) {
            Ok(method) if r.is_empty() => Ok(method),
            Err(ArgumentsError::Unknown) => Err(MethodError::Unknown { class_id, method_id }),
            Ok(_) | Err(ArgumentsError::Malformed) => Err(MethodError::Malformed { class_id, method_id }),
        }
    }

    /// Appends the payload of a method frame. Reserved arguments are written as zero or empty.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (class_id, method_id) = self.ids();
        let mut w = Writer::new(out);
        w.u16(class_id);
        w.u16(method_id);
        self.encode_arguments(class_id, &mut w);
    }

    /// Appends a whole method frame.
    pub fn encode_frame(&self, channel: u16, out: &mut Vec<u8>) {
        let mark = begin_frame(out, FRAME_METHOD, channel);
        self.encode(out);
        end_frame(out, mark);
    }

    /// The name as the specification writes it, "basic.publish".
    pub fn name(&self) -> &'static str {
        let (class_id, method_id) = self.ids();
        method_name(class_id, method_id).unwrap_or_default()
    }
}

const BASIC_PUBLISH: [u8; 4] = [0, 60, 0, 40];
const BASIC_DELIVER: [u8; 4] = [0, 60, 0, 60];

/// Exchange, routing key, `mandatory` and `immediate` of a well-formed basic.publish; `None` for any other payload,
/// which `Method::decode` then explains.
#[inline]
pub fn publish_fast(payload: &[u8]) -> Option<(&[u8], &[u8], bool, bool)> {
    let (_ticket, rest) = payload.strip_prefix(&BASIC_PUBLISH)?.split_first_chunk::<2>()?;
    let (&exchange_len, rest) = rest.split_first()?;
    let (exchange, rest) = rest.split_at_checked(exchange_len.into())?;
    let (&key_len, rest) = rest.split_first()?;
    let (routing_key, rest) = rest.split_at_checked(key_len.into())?;
    let &[bits] = rest else { return None };
    Some((exchange, routing_key, bits & 1 != 0, bits & 2 != 0))
}

/// Appends a whole basic.deliver frame, as `Method::encode_frame` would, with a single reservation.
#[inline]
pub fn encode_deliver(
    out: &mut Vec<u8>,
    channel: u16,
    consumer_tag: &[u8],
    delivery_tag: u64,
    redelivered: bool,
    exchange: &[u8],
    routing_key: &[u8],
) -> usize {
    let strings = [short_prefix(consumer_tag), short_prefix(exchange), short_prefix(routing_key)];
    let [consumer_tag, exchange, routing_key] = strings;
    let strings_len = 3 + consumer_tag.len() + exchange.len() + routing_key.len();
    let payload_len = BASIC_DELIVER.len() + size_of::<u64>() + 1 + strings_len;
    out.reserve(payload_len + FRAME_OVERHEAD);
    out.extend_from_slice(&frame_header(FRAME_METHOD, channel, payload_len as u32));
    out.extend_from_slice(&BASIC_DELIVER);
    out.push(consumer_tag.len() as u8);
    out.extend_from_slice(consumer_tag);
    let tag_at = out.len();
    out.extend_from_slice(&delivery_tag.to_be_bytes());
    out.extend_from_slice(&[redelivered.into(), exchange.len() as u8]);
    out.extend_from_slice(exchange);
    out.push(routing_key.len() as u8);
    out.extend_from_slice(routing_key);
    out.push(FRAME_END);
    tag_at
}

#[cfg(test)]
mod tests {
    use super::super::frame::split;
    use super::super::samples::SAMPLES;
    use super::*;

    fn encoded(method: &Method<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        method.encode(&mut out);
        out
    }

    #[test]
    fn every_method_has_the_bytes_the_schema_gives_and_reads_back() {
        for (method, name, payload) in SAMPLES {
            assert_eq!(encoded(method), *payload, "{name}");
            assert_eq!(Method::decode(payload).as_ref(), Ok(method), "{name}");
            assert_eq!(method.name(), *name);
        }
    }

    #[test]
    fn every_method_cut_short_or_followed_by_more_is_refused() {
        for (method, name, payload) in SAMPLES {
            let (class_id, method_id) = method.ids();
            let malformed = Err(MethodError::Malformed { class_id, method_id });
            for len in 0..payload.len() {
                let expected = if len < 4 { Err(MethodError::Short) } else { malformed };
                assert_eq!(Method::decode(&payload[..len]), expected, "{name} at {len}");
            }
            assert_eq!(Method::decode(&[payload, &b"\0"[..]].concat()), malformed, "{name}");
        }
    }

    #[test]
    fn any_changed_byte_is_refused_or_read_without_panic() {
        for (_, _, payload) in SAMPLES {
            let mut bytes = payload.to_vec();
            for at in 0..bytes.len() {
                for changed in [0, 1, 0x7F, 0x80, 0xFF] {
                    let original = std::mem::replace(&mut bytes[at], changed);
                    if let Ok(method) = Method::decode(&bytes) {
                        let canonical = encoded(&method);
                        assert_eq!(Method::decode(&canonical), Ok(method));
                    }
                    bytes[at] = original;
                }
            }
        }
    }

    #[test]
    fn unknown_classes_and_methods_are_named() {
        for (class_id, method_id) in [(61, 40), (60, 41), (0, 0), (u16::MAX, u16::MAX)] {
            let payload = [class_id.to_be_bytes(), method_id.to_be_bytes()].concat();
            assert_eq!(Method::decode(&payload), Err(MethodError::Unknown { class_id, method_id }));
        }
    }

    #[test]
    fn only_four_methods_carry_content() {
        let names: Vec<_> = SAMPLES.iter().filter(|(m, ..)| m.has_content()).map(|(m, ..)| m.name()).collect();
        assert_eq!(names, ["basic.publish", "basic.return", "basic.deliver", "basic.get-ok"]);
    }

    #[test]
    fn a_method_in_its_frame_splits_back() {
        for (method, name, payload) in SAMPLES {
            let mut out = Vec::new();
            method.encode_frame(7, &mut out);
            let frame = split(&out, 4096).unwrap().unwrap();
            assert_eq!((frame.kind, frame.channel, frame.size), (FRAME_METHOD, 7, out.len()));
            assert_eq!(frame.payload, *payload, "{name}");
        }
    }

    #[test]
    fn the_publish_shortcut_agrees_with_the_full_decoder() {
        for bits in 0..4u8 {
            let payload = [&b"\0\x3c\0\x28\0\0\x04logs\x03a.b"[..], &[bits]].concat();
            let Ok(Method::BasicPublish { exchange, routing_key, mandatory, immediate }) = Method::decode(&payload)
            else {
                panic!("not a publish")
            };
            assert_eq!((mandatory, immediate), (bits & 1 != 0, bits & 2 != 0));
            assert_eq!(publish_fast(&payload), Some((exchange, routing_key, mandatory, immediate)));
            for len in 0..payload.len() {
                assert_eq!(publish_fast(&payload[..len]), None, "{len} bytes");
            }
            assert_eq!(publish_fast(&[&payload[..], b"\0"].concat()), None);
        }
        for (method, name, payload) in SAMPLES {
            let is_publish = matches!(method, Method::BasicPublish { .. });
            assert_eq!(publish_fast(payload).is_some(), is_publish, "{name}");
        }
    }

    #[test]
    fn the_deliver_shortcut_agrees_with_the_full_encoder() {
        let long_key = [b'k'; 300];
        for routing_key in [&b""[..], b"a.b", &long_key] {
            for redelivered in [false, true] {
                let delivery_tag = 0x0102_0304_0506_0708;
                let (consumer_tag, exchange) = (&b"ctag"[..], &b"logs"[..]);
                let (mut fast, mut full) = (vec![1], vec![1]);
                encode_deliver(&mut fast, 9, consumer_tag, delivery_tag, redelivered, exchange, routing_key);
                let method = Method::BasicDeliver { consumer_tag, delivery_tag, redelivered, exchange, routing_key };
                method.encode_frame(9, &mut full);
                assert_eq!(fast, full);
            }
        }
    }
}
