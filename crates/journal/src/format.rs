//! The bytes of a segment file: its header, and the header in front of every record.
//!
//! Owns sizes, kinds, flags and checksums. Values come in and bytes go out, or the other way round with `None` where
//! bytes are not what they claim. A record's header checksum begins with its segment and offset, so that bytes left
//! over from another life of the file, or found at the wrong place, are never taken for a record. It must never read
//! a file. Rule: docs/internals/segment.md.

use crate::bytes::Reader;
use crate::checksum::{crc32c, crc32c_append};

/// The newest format this program writes and reads.
pub const FORMAT_VERSION: u16 = 1;
/// The largest position: the top bit stays free, so that sums of positions cannot overflow.
pub const POSITION_MAX: u64 = (1 << 63) - 1;

pub(crate) const FILE_HEADER_BYTES: usize = 64;
pub(crate) const RECORD_HEADER_BYTES: usize = 16;
pub(crate) const RECORD_ALIGN: usize = 8;
/// The largest payload: a record must be read into memory whole.
pub(crate) const PAYLOAD_BYTES_MAX: usize = 1 << 30;

/// The largest number of a file in a store that is opened: more are left than one process can give out.
pub(crate) const NUMBER_MAX: u32 = u32::MAX / 2;

const LOG_MAGIC: &[u8; 8] = b"weft-log";

/// What a record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The first record of every batch.
    Batch = 1,
    Message = 2,
    Acks = 3,
    QueueDeleted = 4,
    Barrier = 5,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Batch, Self::Message, Self::Acks, Self::QueueDeleted, Self::Barrier]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Flag of a BATCH record: no batch follows in this segment.
pub(crate) const FLAG_LAST: u8 = 1;
/// Flag of a MESSAGE record: a copy, moved here from an older segment.
pub(crate) const FLAG_MOVED: u8 = 1;

/// What stands in front of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) length: u32,
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) payload_crc: u32,
}

/// The bytes a record with this payload takes, padding included.
pub(crate) fn span(payload: usize) -> usize {
    RECORD_HEADER_BYTES + payload.next_multiple_of(RECORD_ALIGN)
}

/// Where the header checksum starts from: for one offset, every segment has another value.
fn seed(segment: u32, offset: u32) -> u32 {
    segment.wrapping_mul(0x9E37_79B1) ^ offset
}

impl Header {
    /// The header's bytes, for a record at this place.
    pub(crate) fn encode(&self, segment: u32, offset: u32) -> [u8; RECORD_HEADER_BYTES] {
        let mut out = [0; RECORD_HEADER_BYTES];
        out[..4].copy_from_slice(&self.length.to_le_bytes());
        out[4] = self.kind as u8;
        out[5] = self.flags;
        out[8..12].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c_append(seed(segment, offset), &out[..12]);
        out[12..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// The header that was written for this place, if these bytes are one.
    #[inline]
    pub(crate) fn decode(bytes: &[u8], segment: u32, offset: u32) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let (length, kind, flags, zero) = (reader.u32()?, reader.u8()?, reader.u8()?, reader.u16()?);
        let (payload_crc, crc) = (reader.u32()?, reader.u32()?);
        // The cheap tests come first: a search for a header tries every eighth byte.
        if zero != 0 || length as usize > PAYLOAD_BYTES_MAX {
            return None;
        }
        let kind = Kind::from_byte(kind)?;
        let valid = crc32c_append(seed(segment, offset), bytes.get(..12)?) == crc;
        valid.then_some(Self { length, kind, flags, payload_crc })
    }

    /// Moves a header to another place: only its checksum changes.
    pub(crate) fn moved(bytes: &[u8], segment: u32, offset: u32) -> Option<[u8; RECORD_HEADER_BYTES]> {
        let mut out: [u8; RECORD_HEADER_BYTES] = bytes.get(..RECORD_HEADER_BYTES)?.try_into().ok()?;
        let crc = crc32c_append(seed(segment, offset), &out[..12]);
        out[12..].copy_from_slice(&crc.to_le_bytes());
        Some(out)
    }

    /// The bytes the whole record takes.
    pub(crate) fn span(&self) -> usize {
        span(self.length as usize)
    }
}

/// What the first 64 bytes of a log say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogHeader {
    pub(crate) segment: u32,
    /// How many times the node had been started when it made this segment.
    pub(crate) incarnation: u64,
    pub(crate) first_batch: u64,
}

/// What the first bytes of a log turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opened<T> {
    Known(T),
    /// Written by a newer program.
    Newer(u16),
    Damaged,
}

impl LogHeader {
    pub(crate) fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut out = [0; FILE_HEADER_BYTES];
        out[..8].copy_from_slice(LOG_MAGIC);
        out[8..10].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.segment.to_le_bytes());
        out[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        out[24..32].copy_from_slice(&self.first_batch.to_le_bytes());
        seal_header(&mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Opened<Self> {
        match open_header(bytes, LOG_MAGIC) {
            Opened::Known(reader) => Self::fields(reader).map_or(Opened::Damaged, Opened::Known),
            Opened::Newer(version) => Opened::Newer(version),
            Opened::Damaged => Opened::Damaged,
        }
    }

    fn fields(mut reader: Reader<'_>) -> Option<Self> {
        Some(Self { segment: reader.u32()?, incarnation: reader.u64()?, first_batch: reader.u64()? })
    }
}

/// Puts the checksum at the end of a file header.
pub(crate) fn seal_header(header: &mut [u8; FILE_HEADER_BYTES]) {
    let crc = crc32c(&header[..FILE_HEADER_BYTES - 4]);
    header[FILE_HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
}

/// Checks magic, checksum and version, and answers with what follows them.
pub(crate) fn open_header<'a>(bytes: &'a [u8], magic: &[u8; 8]) -> Opened<Reader<'a>> {
    let Some(body) = bytes.get(..FILE_HEADER_BYTES) else { return Opened::Damaged };
    let (body, crc) = body.split_at(FILE_HEADER_BYTES - 4);
    if !body.starts_with(magic) || crc32c(body).to_le_bytes() != crc {
        return Opened::Damaged;
    }
    let mut reader = Reader::new(&body[8..]);
    match (reader.u16(), reader.u16()) {
        (Some(version), Some(_)) if version <= FORMAT_VERSION => Opened::Known(reader),
        (Some(version), _) => Opened::Newer(version),
        _ => Opened::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_valid_at_its_own_place_only() {
        let header = Header { length: 77, kind: Kind::Message, flags: FLAG_MOVED, payload_crc: 0xABCD_1234 };
        let bytes = header.encode(9, 4096);
        assert_eq!(Header::decode(&bytes, 9, 4096), Some(header));
        for segment in 0..2_000 {
            assert!(segment == 9 || Header::decode(&bytes, segment, 4096).is_none());
        }
        assert_eq!(Header::decode(&bytes, 9, 4104), None);
        let moved = Header::moved(&bytes, 10, 64).expect("a whole header");
        assert_eq!(Header::decode(&moved, 10, 64), Some(header));
    }

    #[test]
    fn no_flipped_bit_goes_unseen() {
        let record = Header { length: 5, kind: Kind::Acks, flags: 0, payload_crc: 7 }.encode(1, 64);
        let file = LogHeader { segment: 3, incarnation: 4, first_batch: 5 }.encode();
        for bit in 0..record.len() * 8 {
            let mut bytes = record;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bytes, 1, 64), None);
        }
        for bit in 0..file.len() * 8 {
            let mut bytes = file;
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(LogHeader::decode(&bytes), Opened::Damaged);
        }
    }

    #[test]
    fn a_newer_file_is_named_as_such() {
        let mut bytes = LogHeader { segment: 3, incarnation: 4, first_batch: 5 }.encode();
        bytes[8] = 2;
        seal_header(&mut bytes);
        assert_eq!(LogHeader::decode(&bytes), Opened::Newer(2));
        assert_eq!(LogHeader::decode(&bytes[..63]), Opened::Damaged);
    }
}
