//! The elementary types of AMQP 0-9-1: big-endian integers, packed bits, short and long strings.
//!
//! Owns the two cursors every other file of the codec is written with: `Reader` takes values off a borrowed slice,
//! `Writer` appends them to a vector. Neither may know what a value means, and no input makes them panic.
//! Rule: AMQP 0-9-1 section 4.2.5.

use super::WireError;
use super::table::Table;

pub(super) struct Reader<'a> {
    rest: &'a [u8],
    /// The octet that consecutive bit fields share.
    bits: u8,
}

impl<'a> Reader<'a> {
    #[inline]
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self { rest: data, bits: 0 }
    }

    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    #[inline]
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(*head)
    }

    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (head, rest) = self.rest.split_at_checked(len).ok_or(WireError::Short)?;
        self.rest = rest;
        Ok(head)
    }

    #[inline]
    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    /// The bit field at `index` in a run of bit fields; the first one takes the octet they share.
    #[inline]
    pub(super) fn bit(&mut self, index: u8) -> Result<bool, WireError> {
        if index == 0 {
            self.bits = self.u8()?;
        }
        Ok((self.bits >> index) & 1 == 1)
    }

    #[inline]
    pub(super) fn short(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.u8()?;
        self.take(len.into())
    }

    #[inline]
    pub(super) fn long(&mut self) -> Result<&'a [u8], WireError> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    #[inline]
    pub(super) fn table(&mut self) -> Result<Table<'a>, WireError> {
        Table::parse(self.long()?)
    }
}

pub(super) struct Writer<'o> {
    out: &'o mut Vec<u8>,
}

impl<'o> Writer<'o> {
    #[inline]
    pub(super) fn new(out: &'o mut Vec<u8>) -> Self {
        Self { out }
    }

    #[inline]
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    #[inline]
    pub(super) fn u8(&mut self, value: u8) {
        self.out.push(value);
    }

    #[inline]
    pub(super) fn u16(&mut self, value: u16) {
        self.raw(&value.to_be_bytes());
    }

    #[inline]
    pub(super) fn u32(&mut self, value: u32) {
        self.raw(&value.to_be_bytes());
    }

    #[inline]
    pub(super) fn u64(&mut self, value: u64) {
        self.raw(&value.to_be_bytes());
    }

    /// A run of consecutive bit fields; no method has more than eight, so they share one octet.
    #[inline]
    pub(super) fn bits<const N: usize>(&mut self, bits: [bool; N]) {
        const { assert!(N <= 8) }
        let octet = bits.iter().rev().fold(0, |octet, bit| (octet << 1) | u8::from(*bit));
        self.u8(octet);
    }

    #[inline]
    pub(super) fn short(&mut self, bytes: &[u8]) {
        let bytes = short_prefix(bytes);
        self.u8(bytes.len() as u8);
        self.raw(bytes);
    }

    #[inline]
    pub(super) fn long(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.raw(bytes);
    }

    /// A value of a field table: its type letter, then its bytes.
    #[inline]
    pub(super) fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.u8(tag);
        self.raw(bytes);
    }

    #[inline]
    pub(super) fn tagged_long(&mut self, tag: u8, bytes: &[u8]) {
        self.u8(tag);
        self.long(bytes);
    }

    #[inline]
    pub(super) fn table(&mut self, table: Table<'_>) {
        self.long(table.raw());
    }
}

/// As much of `bytes` as a short string holds. Names from the wire always fit; a reply text may not, and is cut
/// between characters because some clients refuse text that is not UTF-8.
#[inline]
pub(super) fn short_prefix(bytes: &[u8]) -> &[u8] {
    const SHORT_BYTES_MAX: usize = u8::MAX as usize;
    let is_boundary = |&at: &usize| bytes.get(at).is_some_and(|byte| byte & 0xC0 != 0x80);
    if bytes.len() <= SHORT_BYTES_MAX {
        return bytes;
    }
    let cut = (SHORT_BYTES_MAX - 3..=SHORT_BYTES_MAX).rev().find(is_boundary);
    &bytes[..cut.unwrap_or(SHORT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_too_long_for_a_short_string_is_cut_between_characters() {
        assert_eq!(short_prefix(&[b'a'; 255]).len(), 255);
        assert_eq!(short_prefix(&[b'a'; 256]).len(), 255);
        let text = "é".repeat(200);
        let kept = short_prefix(text.as_bytes());
        assert_eq!(kept.len(), 254);
        assert!(std::str::from_utf8(kept).is_ok());
        assert_eq!(short_prefix(&[0x80; 300]).len(), 255);
    }

    #[test]
    fn bits_pack_from_the_lowest_and_read_back_in_order() {
        let mut out = Vec::new();
        Writer::new(&mut out).bits([true, false, true, true, false]);
        assert_eq!(out, [0b0_1101]);
        let mut r = Reader::new(&out);
        let bits: Vec<bool> = (0..5).map(|index| r.bit(index).unwrap()).collect();
        assert_eq!(bits, [true, false, true, true, false]);
        assert!(r.is_empty());
    }

    #[test]
    fn a_length_past_the_end_is_short() {
        assert_eq!(Reader::new(b"\x05abcd").short(), Err(WireError::Short));
        assert_eq!(Reader::new(b"\xff\xff\xff\xffabcd").long(), Err(WireError::Short));
        assert_eq!(Reader::new(b"\0\0\0").u32(), Err(WireError::Short));
        assert_eq!(Reader::new(b"").bit(0), Err(WireError::Short));
    }
}
