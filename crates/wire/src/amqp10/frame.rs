//! Protocol headers and the frame layer: where one frame ends and the next begins.
//!
//! Owns the eight-byte header of the protocol negotiation and the eight-byte header of every frame. Bytes come in as a
//! slice that may hold less or more than one frame; a frame goes out as a view of its body, or is opened and closed
//! around bytes appended by the caller. It must never look into a body. Rules: AMQP 1.0 part 2, sections 2.2 and 2.3.

/// Every peer accepts frames up to this size, and no larger ones before `open` (or at all, for SASL).
pub const MIN_MAX_FRAME_SIZE: u32 = 512;
/// Bytes of a frame header without extension.
pub const FRAME_HEADER_BYTES: usize = 8;
/// Bytes of a protocol header.
pub const PROTOCOL_HEADER_BYTES: usize = 8;

/// The layer a protocol header asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Amqp,
    Tls,
    Sasl,
}

impl Protocol {
    /// The header that asks for this layer in version 1.0.0.
    pub const fn header(self) -> [u8; PROTOCOL_HEADER_BYTES] {
        let id = match self {
            Self::Amqp => 0,
            Self::Tls => 2,
            Self::Sasl => 3,
        };
        [b'A', b'M', b'Q', b'P', id, 1, 0, 0]
    }

    /// The layer a header asks for; `None` if it is no AMQP 1.0.0 header.
    pub fn from_header(header: &[u8; PROTOCOL_HEADER_BYTES]) -> Option<Self> {
        [Self::Amqp, Self::Tls, Self::Sasl].into_iter().find(|protocol| protocol.header() == *header)
    }
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    Amqp,
    Sasl,
}

/// One whole frame at the start of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: FrameKind,
    pub channel: u16,
    /// What follows the data offset; empty for a heartbeat.
    pub body: &'a [u8],
    /// Bytes of the whole frame: where the next one starts.
    pub size: usize,
}

/// Why the bytes are no frame; the connection cannot go on (`amqp:connection:framing-error`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The size is smaller than the header it is part of.
    SizeTooSmall(u32),
    /// The size is above what was negotiated.
    SizeTooLarge { size: u32, frame_bytes_max: u32 },
    /// The data offset points into the header or past the frame.
    DataOffset(u8),
    /// No frame has this type.
    Kind(u8),
}

impl std::fmt::Display for FrameError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SizeTooSmall(size) => write!(f, "frame size {size} is below its header of 8 bytes"),
            Self::SizeTooLarge { size, frame_bytes_max } => {
                write!(f, "frame size {size} is above the limit of {frame_bytes_max} bytes")
            }
            Self::DataOffset(doff) => write!(f, "data offset {doff} lies outside the frame body"),
            Self::Kind(kind) => write!(f, "frame type {kind} is unknown"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Splits the first frame off `data`; `None` until all of it is there. A bad header is refused before its body comes.
pub fn split(data: &[u8], frame_bytes_max: u32) -> Result<Option<Frame<'_>>, FrameError> {
    let Some(header) = data.first_chunk::<FRAME_HEADER_BYTES>() else {
        return Ok(None);
    };
    let [s0, s1, s2, s3, doff, kind, c0, c1] = *header;
    let size = u32::from_be_bytes([s0, s1, s2, s3]);
    let body_start = usize::from(doff) * 4;
    let kind = match kind {
        0 => FrameKind::Amqp,
        1 => FrameKind::Sasl,
        other => return Err(FrameError::Kind(other)),
    };
    if size < FRAME_HEADER_BYTES as u32 {
        return Err(FrameError::SizeTooSmall(size));
    }
    if size > frame_bytes_max {
        return Err(FrameError::SizeTooLarge { size, frame_bytes_max });
    }
    let size = size as usize;
    if body_start < FRAME_HEADER_BYTES || body_start > size {
        return Err(FrameError::DataOffset(doff));
    }
    let Some(body) = data.get(body_start..size) else {
        return Ok(None);
    };
    Ok(Some(Frame { kind, channel: u16::from_be_bytes([c0, c1]), body, size }))
}

/// Appends a frame header whose size is still open; `end_frame` closes it.
#[must_use = "the frame must be closed with end_frame"]
#[inline]
pub fn begin_frame(out: &mut Vec<u8>, kind: FrameKind, channel: u16) -> usize {
    let mark = out.len();
    let [c0, c1] = channel.to_be_bytes();
    out.extend_from_slice(&[0, 0, 0, 0, 2, u8::from(kind == FrameKind::Sasl), c0, c1]);
    mark
}

/// Closes the frame opened at `mark`: all bytes appended since belong to it.
#[inline]
pub fn end_frame(out: &mut [u8], mark: usize) {
    let size = u32::try_from(out.len() - mark).expect("a frame is below 4 GiB");
    out[mark..mark + 4].copy_from_slice(&size.to_be_bytes());
}

/// Appends the empty frame that keeps an idle connection alive.
pub fn heartbeat(out: &mut Vec<u8>) {
    let mark = begin_frame(out, FrameKind::Amqp, 0);
    end_frame(out, mark);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_headers_are_the_specified_bytes() {
        assert_eq!(&Protocol::Amqp.header(), b"AMQP\x00\x01\x00\x00");
        assert_eq!(&Protocol::Tls.header(), b"AMQP\x02\x01\x00\x00");
        assert_eq!(&Protocol::Sasl.header(), b"AMQP\x03\x01\x00\x00");
        assert_eq!(Protocol::from_header(b"AMQP\x03\x01\x00\x00"), Some(Protocol::Sasl));
        assert_eq!(Protocol::from_header(b"AMQP\x00\x00\x09\x01"), None);
        assert_eq!(Protocol::from_header(b"AMQP\x01\x01\x00\x00"), None);
    }

    #[test]
    fn frames_are_split_only_when_whole() {
        let mut bytes = Vec::new();
        let mark = begin_frame(&mut bytes, FrameKind::Amqp, 0x0102);
        bytes.extend_from_slice(b"body");
        end_frame(&mut bytes, mark);
        heartbeat(&mut bytes);
        assert_eq!(bytes[..12], *b"\x00\x00\x00\x0c\x02\x00\x01\x02body");
        for cut in 0..12 {
            assert_eq!(split(&bytes[..cut], 512), Ok(None));
        }
        let frame = split(&bytes, 512).unwrap().unwrap();
        assert_eq!(frame, Frame { kind: FrameKind::Amqp, channel: 0x0102, body: b"body", size: 12 });
        let beat = split(&bytes[12..], 512).unwrap().unwrap();
        assert_eq!((beat.body.len(), beat.size), (0, 8));
    }

    #[test]
    fn the_extended_header_is_skipped() {
        let bytes = b"\x00\x00\x00\x0e\x03\x01\xff\xffEXTRok";
        let frame = split(bytes, 512).unwrap().unwrap();
        assert_eq!((frame.kind, frame.body), (FrameKind::Sasl, &b"ok"[..]));
    }

    #[test]
    fn bad_headers_are_refused_before_the_body_arrives() {
        let refused = |header: &[u8; 8]| split(header, 512).unwrap_err();
        assert_eq!(refused(b"\x00\x00\x00\x07\x02\x00\x00\x00"), FrameError::SizeTooSmall(7));
        assert_eq!(
            refused(b"\x00\x00\x02\x01\x02\x00\x00\x00"),
            FrameError::SizeTooLarge { size: 513, frame_bytes_max: 512 }
        );
        assert_eq!(refused(b"\x00\x00\x00\x08\x01\x00\x00\x00"), FrameError::DataOffset(1));
        assert_eq!(refused(b"\x00\x00\x00\x0b\x03\x00\x00\x00"), FrameError::DataOffset(3));
        assert_eq!(refused(b"\x00\x00\x00\x08\x02\x02\x00\x00"), FrameError::Kind(2));
    }
}
