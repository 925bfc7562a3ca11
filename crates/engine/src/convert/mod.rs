//! Between the two protocols: one message, two ways of writing it.
//!
//! Owns the mapping of properties, headers, annotations and bodies, in both directions. A message stays as it was
//! sent and is converted only when a consumer of the other protocol gets it; a plain body is passed on without being
//! looked at. It must never route or change what a queue holds. Rules: docs/reference/mapping.md, which follows
//! RabbitMQ 4 so that clients agree.

mod to_amqp091;
mod to_amqp10;
mod values;

pub use to_amqp10::{add_headers, head_to_amqp10, open_data};
pub use to_amqp091::to_amqp091;

/// The `type` of a 0-9-1 message whose body is 1.0 body sections.
const SECTIONS_TYPE: &[u8] = b"amqp-1.0";
/// Carries the `type` property through 1.0.
const TYPE_ANNOTATION: &str = "x-basic-type";
/// What a UUID looks like where only text can stand.
const UUID_PREFIX: &str = "urn:uuid:";

/// A UUID as text.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The UUID that `urn:uuid:…` stands for.
fn uuid_of_urn(text: &[u8]) -> Option<[u8; 16]> {
    let text = text.strip_prefix(UUID_PREFIX.as_bytes()).filter(|text| text.len() == 36)?;
    let dashes = text.iter().enumerate().all(|(at, byte)| (*byte == b'-') == matches!(at, 8 | 13 | 18 | 23));
    let digits: Vec<u8> = text.iter().copied().filter(|byte| *byte != b'-').collect();
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = (digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8;
    }
    dashes.then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_survive_as_text_and_other_text_is_no_uuid() {
        let uuid = *b"\x00\x11\x22\x33\x44\x55\x66\x77\x88\x99\xaa\xbb\xcc\xdd\xee\xff";
        assert_eq!(uuid_text(&uuid), "00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(uuid_of_urn(b"urn:uuid:00112233-4455-6677-8899-AABBccddeeff"), Some(uuid));
        let wrong: [&[u8]; 5] = [
            b"00112233-4455-6677-8899-aabbccddeeff",
            b"urn:uuid:",
            b"urn:uuid:00112233-4455-6677-8899-aabbccddeef",
            b"urn:uuid:0011223304455-6677-8899-aabbccddeeff",
            b"urn:uuid:g0112233-4455-6677-8899-aabbccddeeff",
        ];
        wrong.iter().for_each(|text| assert_eq!(uuid_of_urn(text), None));
    }
}
