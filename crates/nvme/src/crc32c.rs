//! CRC-32C (Castagnoli), the header and data digest of NVMe/TCP (TCP Transport 1.0, section 3.3.1.1).
#![forbid(unsafe_code)]

use crc_fast::{CrcAlgorithm, Digest};

/// The digest of one contiguous piece of memory.
pub fn checksum(bytes: &[u8]) -> u32 {
    base::crc32c(bytes)
}

/// The digest of bytes that arrive in pieces.
///
/// It holds the register alone; the library's own running digest holds its tables' description too, 300 bytes that every
/// connection would keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crc32c(u32);

impl Crc32c {
    /// The digest of nothing yet.
    pub const fn new() -> Self {
        Crc32c(u32::MAX)
    }

    /// Appends `bytes` to what is digested.
    pub fn update(&mut self, bytes: &[u8]) {
        let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(self.0));
        digest.update(bytes);
        self.0 = digest.get_state() as u32;
    }

    /// The digest of everything appended so far.
    pub const fn value(self) -> u32 {
        !self.0
    }
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test vectors of RFC 3720, appendix B.4.
    #[test]
    fn agrees_with_the_published_vectors() {
        assert_eq!(checksum(&[0u8; 32]), 0x8a91_36aa);
        assert_eq!(checksum(&[0xffu8; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(checksum(&ascending), 0x46dd_794e);
        assert_eq!(checksum(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn pieces_give_the_same_value_as_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for cut in [0, 1, 63, 64, 500, 999, 1000] {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            assert_eq!(crc.value(), checksum(&bytes), "cut at {cut}");
        }
    }
}
