//! Keys in the form that administrators pass around: `NVMeTLSkey-1:NN:` and the key with its checksum in base64, and a colon
//! (TCP Transport 1.1, section 3.6.1.5; the same that `nvme gen-tls-key` writes).
//!
//! `NN` names the hash with which the key is tied to the name of the host before it is used; with `00` it is used as it is.
//! How long a key is decides on the cipher suite: 32 bytes are TLS_AES_128_GCM_SHA256, 48 bytes TLS_AES_256_GCM_SHA384.

use base64ct::{Base64, Encoding};
use core::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::derive::Form;
use crate::auth::{Hash, Random};
use crate::spec::Nqn;

const PREFIX: &str = "NVMeTLSkey-1:";
/// Bytes of the CRC-32 behind the key, little-endian.
const CRC_LEN: usize = 4;

/// The configured key of a host, from which those of its connections are derived.
#[derive(Clone)]
pub struct Psk {
    key: Zeroizing<Vec<u8>>,
    /// Of the cipher suite; its digests are as long as the key.
    hash: Hash,
    /// The key is used as it is.
    is_retained: bool,
}

/// Why a text is no key. Says nothing of the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PskError {
    /// Another form altogether.
    #[error("a TLS key looks like NVMeTLSkey-1:01:<base64>: with 00, 01 or 02 in the middle")]
    Form,
    /// A key for DH-HMAC-CHAP.
    #[error("it is a key for DH-HMAC-CHAP, not one for TLS")]
    OtherKind,
    /// The middle is no known hash.
    #[error("a TLS key names its hash with 00 (none), 01 (SHA-256) or 02 (SHA-384)")]
    Hash,
    /// Not base64.
    #[error("the key's base64 is damaged")]
    Base64,
    /// Another length.
    #[error("a TLS key has 32 bytes with 01, 48 bytes with 02, and either with 00")]
    Length,
    /// The checksum is wrong.
    #[error("the key's checksum is wrong: it was cut short or mistyped")]
    Checksum,
}

impl Psk {
    /// Reads the textual form; white space around it is ignored.
    pub fn parse(text: &str) -> Result<Psk, PskError> {
        let text = text.trim();
        if text.starts_with("DHHC-1:") {
            return Err(PskError::OtherKind);
        }
        let rest = text.strip_prefix(PREFIX).ok_or(PskError::Form)?;
        let (hash, rest) = rest.split_once(':').ok_or(PskError::Form)?;
        let base64 = rest.strip_suffix(':').ok_or(PskError::Form)?;
        let named = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            _ => return Err(PskError::Hash),
        };
        let mut key = Zeroizing::new(Base64::decode_vec(base64).map_err(|_| PskError::Base64)?);
        let len = key.len().checked_sub(CRC_LEN).ok_or(PskError::Length)?;
        let hash = suite_of(len).filter(|suite| named.is_none_or(|named| named == *suite)).ok_or(PskError::Length)?;
        let (bytes, checksum) = key.split_at(len);
        if base::crc::crc32(bytes).to_le_bytes() != checksum {
            return Err(PskError::Checksum);
        }
        key.truncate(len);
        Ok(Psk { key, hash, is_retained: named.is_none() })
    }

    /// A new key for this hash, which is SHA-256 or SHA-384; tied to the host's name before it is used.
    pub fn generate(hash: Hash, random: Random<'_>) -> Psk {
        assert!(suite_of(hash.digest_len()) == Some(hash), "there is a cipher suite for the hash");
        let mut key = Zeroizing::new(vec![0; hash.digest_len()]);
        random(&mut key);
        Psk { key, hash, is_retained: false }
    }

    /// The textual form.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.key.len() + CRC_LEN));
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&base::crc::crc32(&self.key).to_le_bytes());
        let base64 = Zeroizing::new(Base64::encode_string(&bytes));
        let hash = if self.is_retained { 0 } else { self.hash as u8 };
        Zeroizing::new(format!("{PREFIX}{hash:02}:{}:", base64.as_str()))
    }

    /// The hash of the cipher suite with which the key is used.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// The retained key of a host: what digests and keys of connections are made from.
    pub(super) fn retained(&self, form: Form, host: &Nqn) -> Zeroizing<Vec<u8>> {
        match self.is_retained {
            true => self.key.clone(),
            false => form.derive(self.hash, &self.key, "HostNQN", host.as_str()).expect("a name is short enough"),
        }
    }
}

/// The bytes of a key, for tests that compare with other implementations.
#[cfg(test)]
pub(super) fn tests_key(psk: &Psk) -> &[u8] {
    &psk.key
}

/// The hash of the cipher suite for keys of this length.
fn suite_of(len: usize) -> Option<Hash> {
    [Hash::Sha256, Hash::Sha384].into_iter().find(|hash| hash.digest_len() == len)
}

impl PartialEq for Psk {
    fn eq(&self, other: &Psk) -> bool {
        self.is_retained == other.is_retained && bool::from(self.key.ct_eq(&other.key))
    }
}

impl Eq for Psk {}

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(..)")
    }
}
