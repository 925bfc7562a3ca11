//! Transfers the fast way: the one performative that is read and written once per message.
//!
//! Owns a decoder for the shapes that peers really send, which leaves everything unusual to the general one, and an
//! encoder that opens a frame for a payload. Bytes come in and go out without allocation. It must never accept what
//! `Performative::decode` refuses, nor read it differently. Rules: AMQP 1.0 part 2, section 2.7.5.

use super::frame::{FrameKind, begin_frame};
use super::generated::{Transfer, descriptor, format};
use super::writer::{put_binary, put_bool, put_uint};

/// The largest delivery tag (part 2, section 2.8.7).
pub const DELIVERY_TAG_BYTES_MAX: usize = 32;

const TRANSFER: u8 = descriptor::TRANSFER as u8;

/// What the first transfer of a delivery says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferHead<'a> {
    pub handle: u32,
    pub delivery_id: u32,
    /// At most `DELIVERY_TAG_BYTES_MAX` bytes.
    pub tag: &'a [u8],
    pub message_format: u32,
    pub settled: bool,
    pub more: bool,
    /// Its outcome may be told with others, later.
    pub batchable: bool,
}

/// Reads a transfer of the usual shape and the payload behind it; `None` sends the caller to `Performative::decode`.
#[inline]
pub fn decode_fast(body: &[u8]) -> Option<(Transfer<'_>, &[u8])> {
    let (fields, payload) = match body {
        [format::DESCRIBED, format::SMALLULONG, TRANSFER, format::LIST8, size, rest @ ..] => {
            rest.split_at_checked(usize::from(*size))?
        }
        [format::DESCRIBED, format::SMALLULONG, TRANSFER, format::LIST32, a, b, c, d, rest @ ..] => {
            let size = u32::from_be_bytes([*a, *b, *c, *d]);
            let (fields, payload) = rest.split_at_checked(size as usize)?;
            // The count keeps its low octet: the other three are zero for any transfer there is.
            (fields.strip_prefix(&[0, 0, 0])?, payload)
        }
        _ => return None,
    };
    let (count, rest) = fields.split_first()?;
    let mut fields = FastFields { left: *count, rest };
    let transfer = Transfer {
        handle: fields.uint()??,
        delivery_id: fields.uint()?,
        delivery_tag: fields.binary()?,
        message_format: fields.uint()?,
        settled: fields.flag()?,
        more: fields.flag()?.unwrap_or(false),
        rcv_settle_mode: fields.null()?,
        state: fields.null()?,
        resume: fields.flag()?.unwrap_or(false),
        aborted: fields.flag()?.unwrap_or(false),
        batchable: fields.flag()?.unwrap_or(false),
    };
    (fields.left == 0 && fields.rest.is_empty()).then_some((transfer, payload))
}

/// Fields of a transfer in their most common encodings; the outer `None` is anything else.
struct FastFields<'a> {
    left: u8,
    rest: &'a [u8],
}

impl<'a> FastFields<'a> {
    /// The format code of the next field; null once there are no more.
    #[inline]
    fn code(&mut self) -> Option<u8> {
        let Some(left) = self.left.checked_sub(1) else {
            return Some(format::NULL);
        };
        let (code, rest) = self.rest.split_first()?;
        (self.left, self.rest) = (left, rest);
        Some(*code)
    }

    #[inline]
    fn uint(&mut self) -> Option<Option<u32>> {
        match self.code()? {
            format::SMALLUINT => {
                let (n, rest) = self.rest.split_first()?;
                self.rest = rest;
                Some(Some((*n).into()))
            }
            format::UINT => {
                let (n, rest) = self.rest.split_first_chunk()?;
                self.rest = rest;
                Some(Some(u32::from_be_bytes(*n)))
            }
            format::UINT0 => Some(Some(0)),
            format::NULL => Some(None),
            _ => None,
        }
    }

    #[inline]
    fn binary(&mut self) -> Option<Option<&'a [u8]>> {
        match self.code()? {
            format::VBIN8 => {
                let (size, rest) = self.rest.split_first()?;
                let (bytes, rest) = rest.split_at_checked(usize::from(*size))?;
                self.rest = rest;
                Some(Some(bytes))
            }
            format::NULL => Some(None),
            _ => None,
        }
    }

    #[inline]
    fn flag(&mut self) -> Option<Option<bool>> {
        match self.code()? {
            format::TRUE => Some(Some(true)),
            format::FALSE => Some(Some(false)),
            format::NULL => Some(None),
            _ => None,
        }
    }

    #[inline]
    fn null<T>(&mut self) -> Option<Option<T>> {
        (self.code()? == format::NULL).then_some(None)
    }
}

/// Opens the frame of a delivery's first transfer. The caller appends the payload and calls `end_frame`.
#[must_use = "the frame must be closed with end_frame"]
#[inline]
pub fn encode_transfer(out: &mut Vec<u8>, channel: u16, head: &TransferHead<'_>) -> usize {
    debug_assert!(head.tag.len() <= DELIVERY_TAG_BYTES_MAX);
    let mark = begin_frame(out, FrameKind::Amqp, channel);
    let null = format::NULL;
    let list = begin_list(out, if head.batchable { 11 } else { 5 + u8::from(head.more) });
    put_uint(out, head.handle);
    put_uint(out, head.delivery_id);
    put_binary(out, head.tag);
    put_uint(out, head.message_format);
    put_bool(out, head.settled);
    if head.batchable {
        // The receiver's settle mode, a state, resume and aborted are as usual.
        out.extend_from_slice(&[if head.more { format::TRUE } else { null }, null, null, null, null, format::TRUE]);
    } else if head.more {
        out.push(format::TRUE);
    }
    end_list(out, list);
    mark
}

/// Opens the frame of a delivery's second or later transfer. The caller appends the payload and calls `end_frame`.
#[must_use = "the frame must be closed with end_frame"]
pub fn encode_continuation(out: &mut Vec<u8>, channel: u16, handle: u32, more: bool) -> usize {
    let mark = begin_frame(out, FrameKind::Amqp, channel);
    let list = begin_list(out, if more { 6 } else { 1 });
    put_uint(out, handle);
    if more {
        let null = format::NULL;
        out.extend_from_slice(&[null, null, null, null, format::TRUE]);
    }
    end_list(out, list);
    mark
}

/// Opens a list that is known to stay below 256 bytes; returns where its size goes.
fn begin_list(out: &mut Vec<u8>, count: u8) -> usize {
    out.extend_from_slice(&[format::DESCRIBED, format::SMALLULONG, TRANSFER, format::LIST8, 0, count]);
    out.len() - 2
}

fn end_list(out: &mut [u8], size_at: usize) {
    out[size_at] = (out.len() - size_at - 1) as u8;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp10::frame::{end_frame, split};
    use crate::amqp10::samples::{CLIENT_FRAMES, bytes, damage};
    use crate::amqp10::{Composite, Performative};

    /// What the general decoder makes of it.
    fn decode_slowly(body: &[u8]) -> Option<(Transfer<'_>, &[u8])> {
        match Performative::decode(body) {
            Ok((Performative::Transfer(transfer), payload)) => Some((transfer, payload)),
            _ => None,
        }
    }

    #[test]
    fn the_first_transfer_has_the_specified_bytes() {
        let head = TransferHead {
            handle: 0,
            delivery_id: 300,
            tag: b"t",
            message_format: 0,
            settled: false,
            more: true,
            batchable: false,
        };
        let mut out = Vec::new();
        let mark = encode_transfer(&mut out, 1, &head);
        out.extend_from_slice(b"payload");
        end_frame(&mut out, mark);
        let frame = split(&out, 512).unwrap().unwrap();
        assert_eq!(frame.channel, 1);
        assert_eq!(frame.body, b"\x00\x53\x14\xc0\x0d\x06\x43\x70\x00\x00\x01\x2c\xa0\x01t\x43\x42\x41payload");
        let (transfer, payload) = decode_fast(frame.body).unwrap();
        let expected = Transfer {
            delivery_id: Some(300),
            delivery_tag: Some(b"t"),
            message_format: Some(0),
            settled: Some(false),
            more: true,
            ..Transfer::default()
        };
        assert_eq!((transfer, payload), (expected, &b"payload"[..]));
    }

    #[test]
    fn a_sender_that_is_not_waiting_says_so() {
        let (tag, batchable) = (&b"t"[..], true);
        let head =
            TransferHead { handle: 0, delivery_id: 1, tag, message_format: 0, settled: false, more: false, batchable };
        let mut out = Vec::new();
        let mark = encode_transfer(&mut out, 0, &head);
        end_frame(&mut out, mark);
        let (transfer, _) = decode_fast(&out[8..]).unwrap();
        assert!(transfer.batchable && !transfer.more && !transfer.aborted);
        assert_eq!(Some(transfer), decode_slowly(&out[8..]).map(|(transfer, _)| transfer));
    }

    #[test]
    fn later_transfers_say_only_what_is_new() {
        for (more, expected) in [
            (true, &b"\x00\x53\x14\xc0\x08\x06\x52\x05\x40\x40\x40\x40\x41"[..]),
            (false, b"\x00\x53\x14\xc0\x03\x01\x52\x05"),
        ] {
            let mut out = Vec::new();
            let mark = encode_continuation(&mut out, 0, 5, more);
            end_frame(&mut out, mark);
            assert_eq!(out[8..], *expected);
            let (transfer, payload) = decode_fast(expected).unwrap();
            assert_eq!(transfer, Transfer { handle: 5, more, ..Transfer::default() });
            assert!(payload.is_empty());
        }
    }

    #[test]
    fn the_longest_tag_is_written() {
        let tag = [7; DELIVERY_TAG_BYTES_MAX];
        let head = TransferHead {
            handle: 1,
            delivery_id: 2,
            tag: &tag,
            message_format: 3,
            settled: true,
            more: false,
            batchable: false,
        };
        let mut out = Vec::new();
        let mark = encode_transfer(&mut out, 0, &head);
        end_frame(&mut out, mark);
        let (transfer, _) = decode_slowly(&out[8..]).unwrap();
        assert_eq!(transfer.delivery_tag, Some(&tag[..]));
    }

    #[test]
    fn the_fast_way_agrees_with_the_general_one() {
        let wide = b"\x00\x53\x14\xd0\0\0\0\x10\0\0\0\x0b\x43\x43\xa0\x00\x40\x42\x41\x40\x40\x42\x42\x41rest";
        let short = b"\x00\x53\x14\xc0\x0a\x04\x43\x43\xa0\x04tag1\x43";
        let real = bytes(CLIENT_FRAMES[7]);
        for sample in [&wide[..], short, &real[8..]] {
            assert!(decode_fast(sample).is_some());
            assert_eq!(decode_fast(sample), decode_slowly(sample));
            damage(&sample[..sample.len().min(32)], |copy| {
                if let Some(read) = decode_fast(copy) {
                    assert_eq!(Some(read), decode_slowly(copy));
                }
            });
            for cut in 0..sample.len() {
                assert_eq!(decode_fast(&sample[..cut]).is_some(), decode_slowly(&sample[..cut]).is_some());
            }
        }
    }

    #[test]
    fn unusual_transfers_are_left_to_the_general_decoder() {
        let mut body = Vec::new();
        let state = Some(crate::amqp10::DeliveryState::ACCEPTED);
        let transfer = Transfer { state, ..Transfer::default() };
        transfer.encode(&mut body);
        assert_eq!(decode_fast(&body), None);
        assert_eq!(decode_slowly(&body), Some((transfer, &[][..])));
    }
}
