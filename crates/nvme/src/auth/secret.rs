//! Secrets in the form that administrators pass around: `DHHC-1:NN:` and the key with its checksum in base64, and a colon
//! (Base 2.0, section 8.13.5.8; the same that `nvme gen-dhchap-key` writes).
//!
//! `NN` names the hash with which the key is tied to the name of whom it belongs to before it is used; with `00` the key is
//! used as it is.

use base64ct::{Base64, Encoding};
use core::fmt;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::Random;
use super::hash::Hash;
use crate::spec::Nqn;

const PREFIX: &str = "DHHC-1:";
/// Bytes that keys may have.
const KEY_LENS: [usize; 3] = [32, 48, 64];
/// Bytes of the CRC-32 behind the key, little-endian.
const CRC_LEN: usize = 4;
/// What is hashed with the name when a key is transformed.
const TRANSFORM_LABEL: &[u8] = b"NVMe-over-Fabrics";

/// The key of a host or of a controller.
#[derive(Clone)]
pub struct Secret {
    key: Zeroizing<Vec<u8>>,
    transform: Option<Hash>,
}

/// Why a text is no secret. Says nothing of the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Another form altogether.
    #[error("a DH-HMAC-CHAP key looks like DHHC-1:00:<base64>: with 00, 01, 02 or 03 in the middle")]
    Form,
    /// The middle is no known hash.
    #[error("a DH-HMAC-CHAP key names its hash with 00 (none), 01, 02 or 03")]
    Hash,
    /// Not base64.
    #[error("the key's base64 is damaged")]
    Base64,
    /// Another length.
    #[error("a DH-HMAC-CHAP key has 32, 48 or 64 bytes")]
    Length,
    /// The checksum is wrong.
    #[error("the key's checksum is wrong: it was cut short or mistyped")]
    Checksum,
}

impl Secret {
    /// Reads the textual form; white space around it is ignored.
    pub fn parse(text: &str) -> Result<Secret, SecretError> {
        let rest = text.trim().strip_prefix(PREFIX).ok_or(SecretError::Form)?;
        let (hash, rest) = rest.split_once(':').ok_or(SecretError::Form)?;
        let base64 = rest.strip_suffix(':').ok_or(SecretError::Form)?;
        let transform = match hash {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(SecretError::Hash),
        };
        let mut key = Zeroizing::new(Base64::decode_vec(base64).map_err(|_| SecretError::Base64)?);
        let len = key.len().checked_sub(CRC_LEN).filter(|len| KEY_LENS.contains(len)).ok_or(SecretError::Length)?;
        let (bytes, checksum) = key.split_at(len);
        if base::crc::crc32(bytes).to_le_bytes() != checksum {
            return Err(SecretError::Checksum);
        }
        key.truncate(len);
        Ok(Secret { key, transform })
    }

    /// A new secret: as long as the digests of the hash that it is tied to its owner with.
    pub fn generate(transform: Option<Hash>, random: Random<'_>) -> Secret {
        let mut key = Zeroizing::new(vec![0; transform.map_or(32, Hash::digest_len)]);
        random(&mut key);
        Secret { key, transform }
    }

    /// The textual form.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(self.key.len() + CRC_LEN));
        bytes.extend_from_slice(&self.key);
        bytes.extend_from_slice(&base::crc::crc32(&self.key).to_le_bytes());
        let base64 = Zeroizing::new(Base64::encode_string(&bytes));
        let hash = self.transform.map_or(0, |hash| hash as u8);
        Zeroizing::new(format!("{PREFIX}{hash:02}:{}:", base64.as_str()))
    }

    /// The key as its owner, who has this name, uses it.
    pub(super) fn transformed(&self, owner: &Nqn) -> Zeroizing<Vec<u8>> {
        match self.transform {
            None => self.key.clone(),
            Some(hash) => {
                let tied = hash.hmac(&self.key, &[owner.as_str().as_bytes(), TRANSFORM_LABEL]);
                Zeroizing::new(tied.as_slice().to_vec())
            }
        }
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.transform == other.transform && bool::from(self.key.ct_eq(&other.key))
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
