//! HKDF-Expand-Label as keys for TLS are derived with it (RFC 8446, section 7.1; TCP Transport 1.1, section 3.6.1.3).

use zeroize::Zeroizing;

use crate::auth::{Digest, Hash};

/// Longest label and longest context of the derivation, in bytes: each has one byte for its length.
const FIELD_LEN_MAX: usize = 255;

/// How the information of HKDF-Expand is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As RFC 8446 says: lengths big-endian and in front of label and context.
    Standard,
    /// As nvme-cli did up to libnvme 1.14: the length little-endian, label and context without theirs.
    Early,
}

impl Form {
    /// Both, the right one first.
    pub const ALL: [Form; 2] = [Form::Standard, Form::Early];

    /// HKDF-Expand-Label(HKDF-Extract(0, `key`), `label`, `context`, as long as the key, which is as long as a digest).
    /// `None` when the context is too long for the standard form.
    pub(super) fn derive(self, hash: Hash, key: &[u8], label: &str, context: &str) -> Option<Zeroizing<Vec<u8>>> {
        assert_eq!(key.len(), hash.digest_len(), "keys are as long as the digests of their hash");
        let extracted = hash.hmac(&[], &[key]);
        let block = match self {
            Form::Standard if context.len() > FIELD_LEN_MAX => return None,
            Form::Standard => expand_label(hash, extracted.as_slice(), label, context.as_bytes()),
            Form::Early => {
                let len = (key.len() as u16).to_le_bytes();
                let info: [&[u8]; 5] = [&len, b"tls13 ", label.as_bytes(), context.as_bytes(), &[1]];
                hash.hmac(extracted.as_slice(), &info)
            }
        };
        Some(Zeroizing::new(block.as_slice().to_vec()))
    }
}

/// HKDF-Expand-Label(`secret`, `label`, `context`, as long as a digest), which is one block of HKDF-Expand.
pub(super) fn expand_label(hash: Hash, secret: &[u8], label: &str, context: &[u8]) -> Digest {
    const PREFIX: &[u8] = b"tls13 ";
    let label_len = PREFIX.len() + label.len();
    assert!(label_len <= FIELD_LEN_MAX && context.len() <= FIELD_LEN_MAX, "fields have a byte for their length");
    let len = (hash.digest_len() as u16).to_be_bytes();
    let context_len = [context.len() as u8];
    hash.hmac(secret, &[&len, &[label_len as u8], PREFIX, label.as_bytes(), &context_len, context, &[1]])
}
