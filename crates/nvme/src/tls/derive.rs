//! HKDF-Expand-Label as keys for TLS are derived with it (RFC 8446, section 7.1; TCP Transport 1.1, section 3.6.1.3).

use zeroize::Zeroizing;

use crate::auth::Hash;

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
        let (label, context) = (format!("tls13 {label}"), context.as_bytes());
        if self == Form::Standard && context.len() > FIELD_LEN_MAX {
            return None;
        }
        let len = key.len() as u16;
        let mut info = Vec::with_capacity(2 * FIELD_LEN_MAX + 4);
        match self {
            Form::Standard => {
                info.extend_from_slice(&len.to_be_bytes());
                info.push(label.len() as u8);
                info.extend_from_slice(label.as_bytes());
                info.push(context.len() as u8);
            }
            Form::Early => {
                info.extend_from_slice(&len.to_le_bytes());
                info.extend_from_slice(label.as_bytes());
            }
        }
        info.extend_from_slice(context);
        let extracted = hash.hmac(&[], &[key]);
        // One block of HKDF-Expand is a digest, which is all that is wanted.
        let block = hash.hmac(extracted.as_slice(), &[&info, &[1]]);
        Some(Zeroizing::new(block.as_slice().to_vec()))
    }
}
