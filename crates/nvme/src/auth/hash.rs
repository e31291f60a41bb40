//! The hash functions of DH-HMAC-CHAP (Base 2.0, section 8.13.5.2, HashIDList) and their HMACs.

use hmac::{Hmac, Mac};
use sha2::{Sha256, Sha384, Sha512};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// A hash function, by its identifier on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// All of them, the strongest first: the order in which a side prefers them that was not told otherwise.
    pub const ALL: [Hash; 3] = [Hash::Sha512, Hash::Sha384, Hash::Sha256];

    /// Longest digest, in bytes.
    pub const LEN_MAX: usize = 64;

    /// The function with this identifier.
    pub fn from_u8(value: u8) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| *hash as u8 == value)
    }

    /// Bytes of a digest.
    pub const fn digest_len(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
            Hash::Sha512 => 64,
        }
    }

    /// Its name, as administrators write it.
    pub const fn name(self) -> &'static str {
        match self {
            Hash::Sha256 => "sha256",
            Hash::Sha384 => "sha384",
            Hash::Sha512 => "sha512",
        }
    }

    /// The function with this name.
    pub fn from_name(name: &str) -> Option<Hash> {
        Hash::ALL.into_iter().find(|hash| hash.name() == name)
    }

    /// The digest of some bytes.
    pub fn digest(self, bytes: &[u8]) -> Digest {
        use sha2::Digest as _;
        match self {
            Hash::Sha256 => Digest::new(&Sha256::digest(bytes)),
            Hash::Sha384 => Digest::new(&Sha384::digest(bytes)),
            Hash::Sha512 => Digest::new(&Sha512::digest(bytes)),
        }
    }

    /// The HMAC under `key` of the concatenation of `parts`.
    pub fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Digest {
        fn compute<M: Mac>(mut mac: M, parts: &[&[u8]]) -> Digest {
            parts.iter().for_each(|part| mac.update(part));
            Digest::new(&mac.finalize().into_bytes())
        }
        const ANY: &str = "an HMAC takes keys of any length";
        match self {
            Hash::Sha256 => compute(<Hmac<Sha256> as Mac>::new_from_slice(key).expect(ANY), parts),
            Hash::Sha384 => compute(<Hmac<Sha384> as Mac>::new_from_slice(key).expect(ANY), parts),
            Hash::Sha512 => compute(<Hmac<Sha512> as Mac>::new_from_slice(key).expect(ANY), parts),
        }
    }
}

/// A digest; compared in constant time, never shown, wiped when it is dropped.
#[derive(Clone)]
pub struct Digest {
    bytes: [u8; Hash::LEN_MAX],
    len: usize,
}

impl Digest {
    fn new(bytes: &[u8]) -> Digest {
        let mut digest = Digest { bytes: [0; Hash::LEN_MAX], len: bytes.len() };
        digest.bytes[..bytes.len()].copy_from_slice(bytes);
        digest
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Whether it is these bytes, in a time that does not tell where they differ.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        self.as_slice().ct_eq(bytes).into()
    }
}

impl Drop for Digest {
    fn drop(&mut self) {
        self.bytes.zeroize();
    }
}

impl core::fmt::Debug for Digest {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Digest({} bytes)", self.len)
    }
}
