//! CRC32C (Castagnoli), the checksum of NVMe/TCP digests and of every Remuda format.

/// CRC32C of `bytes` (iSCSI polynomial, reflected, initial and final value all ones).
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// CRC32C over several slices in turn, for scattered payloads.
pub fn crc32c_slices<'a>(slices: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    for slice in slices {
        digest.update(slice);
    }
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_check_value() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn slices_equal_the_whole() {
        assert_eq!(crc32c_slices([&b"1234"[..], &b"56789"[..]]), crc32c(b"123456789"));
    }
}
