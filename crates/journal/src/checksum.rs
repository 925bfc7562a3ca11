//! Checksums: CRC-32C of bytes, from the start or from a value.
//!
//! Owns the choice of who computes them: every record is summed when it is written and again when it is read, so this
//! is a good part of the journal's time. It must never give another sum than CRC-32C, which is in the files. Rule:
//! docs/internals/segment.md, "Numbers".

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// CRC-32C of some bytes.
#[inline]
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    crc32_iscsi(bytes)
}

/// The same, as if bytes with the sum `seed` stood before.
#[inline]
pub(crate) fn crc32c_append(seed: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!seed));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_standard_and_can_be_continued() {
        // RFC 3720, appendix B.4.
        let rising: Vec<u8> = (0..32).collect();
        for (bytes, sum) in [(&[0; 32][..], 0x8A91_36AA), (&[0xFF; 32][..], 0x62A8_AB43), (&rising[..], 0x46DD_794E)] {
            assert_eq!(crc32c(bytes), sum);
        }
        let long: Vec<u8> = (0..5_000_u32).map(|number| (number * 7 % 251) as u8).collect();
        for at in [0, 1, 12, 1_200, 4_999, 5_000] {
            let (front, back) = long.split_at(at);
            assert_eq!(crc32c_append(crc32c(front), back), crc32c(&long), "{at}");
        }
    }
}
