//! CRC32C (Castagnoli), the checksum of NVMe/TCP digests and of every Remuda format.

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions that not every processor has")]
pub mod fold;

/// CRC32C of `bytes` (iSCSI polynomial, reflected, initial and final value all ones).
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    match fold_some(u32::MAX, bytes) {
        (state, []) => !state,
        (u32::MAX, rest) if rest.len() == bytes.len() => crc_fast::crc32_iscsi(bytes),
        (state, rest) => !library_update(state, rest),
    }
}

/// The state of the checksum after as many of the bytes as are folded here and not by the library, and the others.
#[inline]
fn fold_some(state: u32, bytes: &[u8]) -> (u32, &[u8]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(folded) = fold::fold_some(state, bytes) {
        return folded;
    }
    (state, bytes)
}

fn library_update(state: u32, bytes: &[u8]) -> u32 {
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    let mut digest = crc_fast::Digest::new_with_init_state(algorithm, u64::from(state));
    digest.update(bytes);
    digest.get_state() as u32
}

/// CRC-32 (ISO-HDLC, as in zip and Ethernet): the checksum of NVMe secrets.
pub fn crc32(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iso_hdlc(bytes)
}

/// CRC32C over several slices in turn, for scattered payloads.
pub fn crc32c_slices<'a>(slices: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut crc = Crc32c::new();
    slices.into_iter().for_each(|slice| crc.update(slice));
    crc.value()
}

/// The CRC32C of two runs of bytes together, from those of each and the length of the second one.
pub fn crc32c_combined(first: u32, second: u32, second_bytes: u64) -> u32 {
    let algorithm = crc_fast::CrcAlgorithm::Crc32Iscsi;
    crc_fast::checksum_combine(algorithm, u64::from(first), u64::from(second), second_bytes) as u32
}

/// The CRC32C of bytes that arrive in pieces.
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
        let (state, rest) = fold_some(self.0, bytes);
        self.0 = if rest.is_empty() { state } else { library_update(state, rest) };
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

    #[test]
    fn checksums_of_parts_are_combined() {
        let bytes: Vec<u8> = (0..5000u32).map(|at| (at * 7 % 251) as u8).collect();
        for cut in [0, 1, 64, 320, 4999, 5000] {
            let (first, second) = bytes.split_at(cut);
            let combined = crc32c_combined(crc32c(first), crc32c(second), second.len() as u64);
            assert_eq!(combined, crc32c(&bytes), "cut at {cut}");
            // And a part that is replaced changes the whole by what follows from the difference alone.
            let other: Vec<u8> = first.iter().map(|byte| byte ^ 0x5a).collect();
            let changed = crc32c(&bytes) ^ crc32c_combined(crc32c(first) ^ crc32c(&other), 0, second.len() as u64);
            assert_eq!(changed, crc32c(&[&other, second].concat()), "cut at {cut}");
        }
    }

    /// Test vectors of RFC 3720, appendix B.4, and the usual check value.
    #[test]
    fn agrees_with_the_published_vectors() {
        assert_eq!(crc32c(&[0u8; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xffu8; 32]), 0x62a8_ab43);
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&ascending), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn pieces_give_the_same_value_as_the_whole() {
        let bytes: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        for cut in [0, 1, 63, 64, 500, 999, 1000] {
            let mut crc = Crc32c::new();
            crc.update(&bytes[..cut]);
            crc.update(&bytes[cut..]);
            assert_eq!(crc.value(), crc32c(&bytes), "cut at {cut}");
        }
    }

    #[test]
    fn every_length_is_what_the_library_says() {
        let bytes: Vec<u8> = (0..5000u32).map(|i| ((i * i) >> 3) as u8).collect();
        for len in (0..1100).chain([2048, 4095, 4096, 4097, 5000]) {
            for from in [0, 1, 8].into_iter().filter(|from| *from <= len) {
                let (first, last) = (&bytes[..from], &bytes[from..len]);
                assert_eq!(crc32c(last), crc_fast::crc32_iscsi(last), "{from}..{len}");
                assert_eq!(crc32c_slices([first, last]), crc_fast::crc32_iscsi(&bytes[..len]), "{from}, {len}");
            }
        }
    }

    #[test]
    fn slices_equal_the_whole() {
        assert_eq!(crc32c_slices([&b"1234"[..], &b"56789"[..]]), crc32c(b"123456789"));
    }
}
