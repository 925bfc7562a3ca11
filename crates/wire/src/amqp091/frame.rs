//! The envelope: frames and the content header.
//!
//! Owns where a frame begins and ends. A byte stream comes in and frames that borrow from it go out; the other way,
//! a header is reserved in the output and its length filled in once the payload is there. It must never know which
//! frame a connection expects next. Rules: AMQP 0-9-1 sections 4.2.3 (frames) and 4.2.6.1 (content header).

use super::WireError;
use super::cursor::Reader;
use super::properties::{Peek, peek};

/// The four frame types; a heartbeat has no payload and belongs to channel zero.
pub const FRAME_METHOD: u8 = 1;
pub const FRAME_HEADER: u8 = 2;
pub const FRAME_BODY: u8 = 3;
pub const FRAME_HEARTBEAT: u8 = 8;

/// The octet that closes every frame.
pub const FRAME_END: u8 = 0xCE;

pub const HEADER_LEN: usize = 7;

/// What a frame adds to its payload: the header and the end octet.
pub const FRAME_OVERHEAD: usize = HEADER_LEN + 1;

/// A complete frame, borrowed from the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: u8,
    pub channel: u16,
    pub payload: &'a [u8],
    /// Bytes of the whole frame, overhead included: what to consume from the input.
    pub size: usize,
}

/// Why a byte stream is not a sequence of frames. Each ends the connection with `reply::FRAME_ERROR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The whole frame is larger than was negotiated.
    TooLarge {
        size: usize,
    },
    BadEnd,
    BadKind(u8),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge { size } => {
                write!(f, "a frame of {size} bytes is larger than negotiated")
            }
            Self::BadEnd => f.write_str("a frame does not end with the frame-end octet"),
            Self::BadKind(kind) => write!(f, "unknown frame type {kind}"),
        }
    }
}

impl std::error::Error for FrameError {}

/// The first frame of `data`, or `None` if more bytes are needed. `frame_max` bounds the whole frame. A frame that is
/// oversized or of unknown kind is refused by its header alone, so nobody waits for, or buffers, the rest of it.
#[inline]
pub fn split(data: &[u8], frame_max: usize) -> Result<Option<Frame<'_>>, FrameError> {
    let Some((&[kind, c0, c1, l0, l1, l2, l3], rest)) = data.split_first_chunk::<HEADER_LEN>() else {
        return Ok(None);
    };
    if !matches!(kind, FRAME_METHOD | FRAME_HEADER | FRAME_BODY | FRAME_HEARTBEAT) {
        return Err(FrameError::BadKind(kind));
    }
    let payload_len = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    let size = payload_len.saturating_add(FRAME_OVERHEAD);
    if size > frame_max {
        return Err(FrameError::TooLarge { size });
    }
    let Some((payload, after)) = rest.split_at_checked(payload_len) else {
        return Ok(None);
    };
    match after.first() {
        None => Ok(None),
        Some(&FRAME_END) => Ok(Some(Frame { kind, channel: u16::from_be_bytes([c0, c1]), payload, size })),
        Some(_) => Err(FrameError::BadEnd),
    }
}

/// The seven octets in front of a payload of known length.
#[inline]
pub fn frame_header(kind: u8, channel: u16, payload_len: u32) -> [u8; HEADER_LEN] {
    let [c0, c1] = channel.to_be_bytes();
    let [l0, l1, l2, l3] = payload_len.to_be_bytes();
    [kind, c0, c1, l0, l1, l2, l3]
}

/// Starts a frame whose length is not known yet; hand the returned mark to `end_frame` after appending the payload.
#[inline]
pub fn begin_frame(out: &mut Vec<u8>, kind: u8, channel: u16) -> usize {
    let mark = out.len();
    out.extend_from_slice(&frame_header(kind, channel, 0));
    mark
}

/// Fills in the length of the frame begun at `mark` and closes it.
#[inline]
pub fn end_frame(out: &mut Vec<u8>, mark: usize) {
    let payload_len = (out.len() - mark - HEADER_LEN) as u32;
    out[mark + 3..mark + HEADER_LEN].copy_from_slice(&payload_len.to_be_bytes());
    out.push(FRAME_END);
}

/// The content header in front of a message's body.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ContentHeader<'a> {
    pub class_id: u16,
    pub body_size: u64,
    /// Flags and values as they came, known to parse: fit to be stored and sent on as they are.
    pub properties: &'a [u8],
    /// What the check of `properties` saw on its way; saves a second pass.
    pub peek: Peek<'a>,
}

/// Reads the payload of a header frame, checking the properties fully.
#[inline]
pub fn content_header(payload: &[u8]) -> Result<ContentHeader<'_>, WireError> {
    let mut r = Reader::new(payload);
    let (class_id, weight, body_size) = (r.u16()?, r.u16()?, r.u64()?);
    if weight != 0 {
        return Err(WireError::BadFlags);
    }
    let properties = r.rest();
    Ok(ContentHeader { class_id, body_size, properties, peek: peek(properties)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp091::properties::Properties;

    const FRAME_MAX: usize = 4096;

    fn frames(data: &[u8]) -> Result<Vec<(u8, u16, Vec<u8>)>, FrameError> {
        let (mut rest, mut found) = (data, Vec::new());
        while let Some(frame) = split(rest, FRAME_MAX)? {
            found.push((frame.kind, frame.channel, frame.payload.to_vec()));
            rest = &rest[frame.size..];
        }
        assert!(rest.is_empty(), "{} bytes left over", rest.len());
        Ok(found)
    }

    fn stream() -> Vec<u8> {
        let mut out = Vec::new();
        for (kind, channel, payload) in [
            (FRAME_METHOD, 1, &b"\0\x3c\0\x28"[..]),
            (FRAME_HEADER, 0x0203, &[FRAME_END; 3][..]),
            (FRAME_BODY, u16::MAX, &[7; FRAME_MAX - FRAME_OVERHEAD][..]),
            (FRAME_HEARTBEAT, 0, &b""[..]),
        ] {
            let mark = begin_frame(&mut out, kind, channel);
            out.extend_from_slice(payload);
            end_frame(&mut out, mark);
        }
        out
    }

    #[test]
    fn a_stream_fed_byte_by_byte_splits_as_it_does_whole() {
        let whole = stream();
        let (mut pending, mut found) = (Vec::new(), Vec::new());
        for byte in &whole {
            pending.push(*byte);
            if let Some(frame) = split(&pending, FRAME_MAX).unwrap() {
                assert_eq!(frame.size, pending.len());
                found.push((frame.kind, frame.channel, frame.payload.to_vec()));
                pending.clear();
            }
        }
        assert!(pending.is_empty());
        assert_eq!(found.len(), 4);
        assert_eq!(found, frames(&whole).unwrap());
    }

    #[test]
    fn a_frame_has_the_octets_the_specification_draws() {
        let mut out = vec![0xAA];
        let mark = begin_frame(&mut out, FRAME_BODY, 0x0102);
        out.extend_from_slice(b"abc");
        end_frame(&mut out, mark);
        assert_eq!(out, b"\xAA\x03\x01\x02\0\0\0\x03abc\xCE");
        assert_eq!(frame_header(FRAME_BODY, 0x0102, 3), out[1..8]);
    }

    #[test]
    fn the_header_alone_condemns_a_frame() {
        let header = frame_header(FRAME_BODY, 1, (FRAME_MAX - FRAME_OVERHEAD) as u32);
        assert_eq!(split(&header, FRAME_MAX), Ok(None));
        assert_eq!(split(&header, FRAME_MAX - 1), Err(FrameError::TooLarge { size: FRAME_MAX }));
        let huge = frame_header(FRAME_BODY, 1, u32::MAX);
        assert!(matches!(split(&huge, FRAME_MAX), Err(FrameError::TooLarge { .. })));
        for kind in (0..=u8::MAX).filter(|kind| ![1, 2, 3, 8].contains(kind)) {
            assert_eq!(split(&frame_header(kind, 0, 0), FRAME_MAX), Err(FrameError::BadKind(kind)));
        }
        assert_eq!(split(b"AMQP\0\0\x09\x01", FRAME_MAX), Err(FrameError::BadKind(b'A')));
    }

    #[test]
    fn a_wrong_end_octet_is_refused() {
        let mut out = stream();
        *out.last_mut().unwrap() = 0;
        assert_eq!(frames(&out), Err(FrameError::BadEnd));
    }

    #[test]
    fn a_content_header_reads_back_and_is_short_everywhere_before_its_end() {
        let properties = Properties { delivery_mode: Some(2), ..Properties::default() };
        let mut payload = b"\0\x3c\0\0\0\0\0\0\0\0\x12\x34".to_vec();
        properties.encode(&mut payload);
        let header = content_header(&payload).unwrap();
        assert_eq!((header.class_id, header.body_size), (60, 0x1234));
        assert_eq!(header.properties, b"\x10\0\x02");
        assert_eq!(header.peek.delivery_mode, 2);
        for len in 0..payload.len() {
            assert_eq!(content_header(&payload[..len]), Err(WireError::Short), "{len} bytes");
        }
        payload.push(0);
        assert_eq!(content_header(&payload), Err(WireError::Trailing));
    }

    #[test]
    fn a_content_header_with_a_weight_is_refused() {
        assert_eq!(content_header(b"\0\x3c\0\x01\0\0\0\0\0\0\0\0\0\0"), Err(WireError::BadFlags));
    }
}
