//! The header of an encrypted device: the volume's key, wrapped by the user's. See `docs/formats/encrypt.md`.

use super::xts::KEY_BYTES;
use aes_kw::KekAes256;
use base::crc32c;
use hkdf::Hkdf;
use sha2::Sha256;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};
use zeroize::Zeroizing;

pub(crate) const MAGIC: [u8; 8] = *b"RMDCRYP\x01";
const VERSION: u32 = 1;
const CIPHER_AES_256_XTS: u32 = 1;
const CIPHER_ERASED: u32 = 0;
/// AES key wrap adds one half block, which is also the check that the wrapping key was right.
const WRAPPED_BYTES: usize = KEY_BYTES + 8;
/// Copies of the header, one unit each.
pub(super) const COPIES: u64 = 2;
/// Bytes of a copy; the rest of its blocks is zero.
pub(super) const UNIT_BYTES: usize = 4096;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    version: U32,
    /// CRC32C of these 192 bytes with this field zero.
    crc: U32,
    volume_id: [u8; 16],
    block_size: U32,
    cipher: U32,
    data_start: U64,
    data_blocks: U64,
    salt: [u8; 32],
    wrapped_key: [u8; WRAPPED_BYTES],
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<RawHeader>() == 192 && std::mem::offset_of!(RawHeader, salt) == 56);

/// Identity, geometry and the wrapped key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) volume_id: [u8; 16],
    pub(super) block_size: u32,
    pub(super) data_start: u64,
    pub(super) data_blocks: u64,
    /// `None` once the volume was erased.
    pub(super) key: Option<WrappedKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WrappedKey {
    salt: [u8; 32],
    wrapped: [u8; WRAPPED_BYTES],
}

impl WrappedKey {
    fn kek(user_key: &[u8], salt: &[u8; 32], volume_id: &[u8; 16]) -> KekAes256 {
        let mut kek = Zeroizing::new([0; 32]);
        let info = [b"remuda volume key 1".as_slice(), volume_id].concat();
        Hkdf::<Sha256>::new(Some(salt), user_key).expand(&info, &mut *kek).expect("32 bytes are a possible length");
        KekAes256::from(*kek)
    }

    pub(super) fn wrap(
        user_key: &[u8],
        volume_key: &[u8; KEY_BYTES],
        salt: [u8; 32],
        volume_id: &[u8; 16],
    ) -> WrappedKey {
        let mut wrapped = [0; WRAPPED_BYTES];
        Self::kek(user_key, &salt, volume_id).wrap(volume_key, &mut wrapped).expect("the lengths are those of a wrap");
        WrappedKey { salt, wrapped }
    }

    /// The volume's key; `None` when `user_key` is not the one that wrapped it.
    pub(super) fn unwrap(&self, user_key: &[u8], volume_id: &[u8; 16]) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        Self::kek(user_key, &self.salt, volume_id).unwrap(&self.wrapped, &mut *key).ok()?;
        Some(key)
    }
}

impl Header {
    pub(super) fn encode(&self) -> [u8; UNIT_BYTES] {
        let (salt, wrapped_key) =
            self.key.as_ref().map_or(([0; 32], [0; WRAPPED_BYTES]), |key| (key.salt, key.wrapped));
        let cipher = if self.key.is_some() { CIPHER_AES_256_XTS } else { CIPHER_ERASED };
        let mut raw = RawHeader {
            magic: MAGIC,
            version: VERSION.into(),
            crc: U32::ZERO,
            volume_id: self.volume_id,
            block_size: self.block_size.into(),
            cipher: cipher.into(),
            data_start: self.data_start.into(),
            data_blocks: self.data_blocks.into(),
            salt,
            wrapped_key,
            reserved: [0; 32],
        };
        raw.crc = crc32c(raw.as_bytes()).into();
        let mut bytes = [0; UNIT_BYTES];
        bytes[..size_of::<RawHeader>()].copy_from_slice(raw.as_bytes());
        bytes
    }

    /// `None` when these bytes are no header, or a damaged one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Header> {
        let mut raw = RawHeader::read_from_prefix(bytes).ok()?.0;
        let crc = std::mem::replace(&mut raw.crc, U32::ZERO);
        if raw.magic != MAGIC || raw.version != VERSION || crc32c(raw.as_bytes()) != crc.get() {
            return None;
        }
        let key = match raw.cipher.get() {
            CIPHER_AES_256_XTS => Some(WrappedKey { salt: raw.salt, wrapped: raw.wrapped_key }),
            CIPHER_ERASED => None,
            _ => return None,
        };
        let end = raw.data_start.get().checked_add(raw.data_blocks.get())?;
        let (block_size, data_blocks) = (raw.block_size.get(), raw.data_blocks.get());
        let (volume_id, data_start) = (raw.volume_id, raw.data_start.get());
        let sane = block_size.is_power_of_two()
            && (512..=65_536).contains(&block_size)
            && data_start >= COPIES * (UNIT_BYTES as u64).div_ceil(block_size as u64)
            && end > data_start;
        sane.then_some(Header { volume_id, block_size, data_start, data_blocks, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Header {
        let key = WrappedKey::wrap(&[1; 32], &[2; KEY_BYTES], [3; 32], &[4; 16]);
        Header { volume_id: [4; 16], block_size: 4096, data_start: 2, data_blocks: 100, key: Some(key) }
    }

    #[test]
    fn only_the_right_key_opens_the_volume() {
        let key = example().key.unwrap();
        assert_eq!(*key.unwrap(&[1; 32], &[4; 16]).unwrap(), [2; KEY_BYTES]);
        assert!(key.unwrap(&[9; 32], &[4; 16]).is_none());
        assert!(key.unwrap(&[1; 32], &[5; 16]).is_none());
    }

    #[test]
    fn a_header_survives_the_round_trip_and_no_flipped_bit_does() {
        let bytes = example().encode();
        assert_eq!(Header::decode(&bytes), Some(example()));
        for bit in 0..size_of::<RawHeader>() * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(Header::decode(&bytes[..100]), None);
        let erased = Header { key: None, ..example() };
        assert_eq!(Header::decode(&erased.encode()), Some(erased));
        assert_eq!(Header::decode(&Header { data_start: 1, ..example() }.encode()), None, "data over a header");
    }
}
