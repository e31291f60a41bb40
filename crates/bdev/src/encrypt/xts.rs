//! AES-256-XTS (IEEE 1619) over whole blocks. Eight cipher blocks at a time, so that AES-NI runs in parallel; the `aes`
//! crate chooses the instructions at run time.

use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit, generic_array::GenericArray};
use aes::{Aes256, Block};

const CIPHER_BYTES: usize = 16;
const LANES: usize = 8;
/// Bytes of the two keys.
pub(super) const KEY_BYTES: usize = 64;

/// The two keys of a volume, expanded. Wiped when dropped, and without `Debug`.
pub(super) struct Xts {
    data: Aes256,
    tweak: Aes256,
}

impl Xts {
    pub(super) fn new(key: &[u8; KEY_BYTES]) -> Xts {
        Xts {
            data: Aes256::new(GenericArray::from_slice(&key[..32])),
            tweak: Aes256::new(GenericArray::from_slice(&key[32..])),
        }
    }

    /// Encrypts one data unit; its length is a multiple of 16.
    pub(super) fn encrypt(&self, sector: u64, bytes: &mut [u8]) {
        self.apply(sector, bytes, |blocks| self.data.encrypt_blocks(blocks));
    }

    /// Decrypts one data unit.
    pub(super) fn decrypt(&self, sector: u64, bytes: &mut [u8]) {
        self.apply(sector, bytes, |blocks| self.data.decrypt_blocks(blocks));
    }

    #[inline]
    fn apply(&self, sector: u64, bytes: &mut [u8], cipher: impl Fn(&mut [Block])) {
        assert!(bytes.len().is_multiple_of(CIPHER_BYTES), "data units are whole cipher blocks");
        let mut tweak = Block::from((sector as u128).to_le_bytes());
        self.tweak.encrypt_block(&mut tweak);
        let mut tweak = u128::from_le_bytes(tweak.into());
        let (mut lanes, mut tweaks) = ([Block::default(); LANES], [0; LANES]);
        for group in bytes.chunks_mut(CIPHER_BYTES * LANES) {
            let count = group.len() / CIPHER_BYTES;
            for (lane, part) in group.chunks_exact(CIPHER_BYTES).enumerate() {
                lanes[lane] = masked(part, tweak);
                tweaks[lane] = tweak;
                tweak = times_alpha(tweak);
            }
            cipher(&mut lanes[..count]);
            for (lane, part) in group.chunks_exact_mut(CIPHER_BYTES).enumerate() {
                part.copy_from_slice(&masked(&lanes[lane], tweaks[lane]));
            }
        }
    }
}

#[inline]
fn masked(bytes: &[u8], tweak: u128) -> Block {
    let bytes: [u8; CIPHER_BYTES] = bytes.try_into().expect("one cipher block");
    Block::from((u128::from_le_bytes(bytes) ^ tweak).to_le_bytes())
}

/// Multiplies by the primitive element of GF(2^128).
#[inline]
fn times_alpha(tweak: u128) -> u128 {
    (tweak << 1) ^ if tweak >> 127 == 1 { 0x87 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// IEEE 1619-2007, vector 10 (XTS-AES-256, data unit 0xff); the first 32 bytes of the ciphertext.
    #[test]
    fn matches_the_standards_vector() {
        let mut key = [0; KEY_BYTES];
        let first = [0x27, 0x18, 0x28, 0x18, 0x28, 0x45, 0x90, 0x45, 0x23, 0x53, 0x60, 0x28, 0x74, 0x71, 0x35, 0x26];
        let second = [0x62, 0x49, 0x77, 0x57, 0x24, 0x70, 0x93, 0x69, 0x99, 0x59, 0x57, 0x49, 0x66, 0x96, 0x76, 0x27];
        let third = [0x31, 0x41, 0x59, 0x26, 0x53, 0x58, 0x97, 0x93, 0x23, 0x84, 0x62, 0x64, 0x33, 0x83, 0x27, 0x95];
        let fourth = [0x02, 0x88, 0x41, 0x97, 0x16, 0x93, 0x99, 0x37, 0x51, 0x05, 0x82, 0x09, 0x74, 0x94, 0x45, 0x92];
        for (slot, part) in key.chunks_exact_mut(16).zip([first, second, third, fourth]) {
            slot.copy_from_slice(&part);
        }
        let mut bytes: Vec<u8> = (0..512).map(|n| n as u8).collect();
        Xts::new(&key).encrypt(0xff, &mut bytes);
        assert_eq!(bytes[..16], 0x1c3b3a102f770386e4836c99e370cf9bu128.to_be_bytes());
        assert_eq!(bytes[16..32], 0xea00803f5e482357a4ae12d414a3e63bu128.to_be_bytes());
    }

    #[test]
    fn agrees_with_another_implementation_at_every_length() {
        let key: [u8; KEY_BYTES] = std::array::from_fn(|n| (n * 7 + 3) as u8);
        let other = xts_mode::Xts128::new(
            Aes256::new(GenericArray::from_slice(&key[..32])),
            Aes256::new(GenericArray::from_slice(&key[32..])),
        );
        for (sector, len) in [(0, 16), (1, 512), (u64::MAX, 4096), (77, 4096 + 48)] {
            let plain: Vec<u8> = (0..len).map(|n| (n % 253) as u8).collect();
            let (mut mine, mut theirs) = (plain.clone(), plain.clone());
            Xts::new(&key).encrypt(sector, &mut mine);
            other.encrypt_sector(&mut theirs, (sector as u128).to_le_bytes());
            assert_eq!(mine, theirs, "sector {sector}, {len} bytes");
            Xts::new(&key).decrypt(sector, &mut mine);
            assert_eq!(mine, plain);
        }
    }
}
