//! Identities: the names under which the two sides of a TLS handshake know a key (TCP Transport 1.1, section 3.6.1.3).
//!
//! `NVMe<version>R<hash> <host NQN> <subsystem NQN>`, and in version 1 a space and a digest of the key, in base64.

use base64ct::{Base64, Encoding};
use core::fmt;
use zeroize::Zeroizing;

use super::Psk;
use super::derive::Form;
use crate::auth::Hash;
use crate::spec::Nqn;

/// Longest identity that is looked at, in bytes: two names, a digest of 48 bytes and what is between them fit.
pub const IDENTITY_LEN_MAX: usize = 600;
/// What is hashed with the names in the digest of an identity.
const DIGEST_LABEL: &[u8] = b"NVMe-over-Fabrics";

/// The identity of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The hash of the cipher suite.
    pub hash: Hash,
    /// Who connects.
    pub host: Nqn,
    /// To what.
    pub subsystem: Nqn,
    /// The digest of the key, in base64; version 0 has none.
    pub digest: Option<String>,
}

/// A key as the handshake of TLS uses it.
#[derive(Clone)]
pub struct TlsKey {
    /// What the other side is told.
    pub identity: Identity,
    /// As long as the digests of the identity's hash.
    pub(super) secret: Zeroizing<Vec<u8>>,
}

impl Identity {
    /// Reads what a host offers; `None` when it is no identity of this transport.
    pub fn parse(bytes: &[u8]) -> Option<Identity> {
        if bytes.len() > IDENTITY_LEN_MAX {
            return None;
        }
        let text = core::str::from_utf8(bytes).ok()?;
        let mut words = text.split(' ');
        let (has_digest, hash) = match words.next()? {
            "NVMe0R01" => (false, Hash::Sha256),
            "NVMe0R02" => (false, Hash::Sha384),
            "NVMe1R01" => (true, Hash::Sha256),
            "NVMe1R02" => (true, Hash::Sha384),
            _ => return None,
        };
        let (host, subsystem) = (Nqn::new(words.next()?).ok()?, Nqn::new(words.next()?).ok()?);
        let digest = if has_digest { Some(words.next()?.to_owned()) } else { None };
        words.next().is_none().then_some(Identity { hash, host, subsystem, digest })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hash, host, subsystem) = (self.hash as u8, &self.host, &self.subsystem);
        match &self.digest {
            None => write!(f, "NVMe0R{hash:02} {host} {subsystem}"),
            Some(digest) => write!(f, "NVMe1R{hash:02} {host} {subsystem} {digest}"),
        }
    }
}

impl TlsKey {
    /// The key of version 1 with which `host` connects to `subsystem`.
    pub fn new(psk: &Psk, form: Form, host: &Nqn, subsystem: &Nqn) -> TlsKey {
        let hash = psk.hash();
        let retained = psk.retained(form, host);
        let parts = [host.as_str().as_bytes(), b" ", subsystem.as_str().as_bytes(), b" ", DIGEST_LABEL];
        let digest = Base64::encode_string(hash.hmac(&retained, &parts).as_slice());
        let context = format!("{:02} {digest}", hash as u8);
        let secret = form.derive(hash, &retained, "nvme-tls-psk", &context).expect("a digest is short enough");
        let identity = Identity { hash, host: host.clone(), subsystem: subsystem.clone(), digest: Some(digest) };
        TlsKey { identity, secret }
    }

    /// The same of version 0, whose identity says nothing about the key; `None` when the names are too long for
    /// the form.
    pub fn version_0(psk: &Psk, form: Form, host: &Nqn, subsystem: &Nqn) -> Option<TlsKey> {
        let hash = psk.hash();
        let identity = Identity { hash, host: host.clone(), subsystem: subsystem.clone(), digest: None };
        let retained = psk.retained(form, host);
        let secret = form.derive(hash, &retained, "nvme-tls-psk", &identity.to_string())?;
        Some(TlsKey { identity, secret })
    }

    /// The bytes of the key: for the handshake, and for what is to do it elsewhere.
    pub fn secret(&self) -> &[u8] {
        &self.secret
    }
}

impl fmt::Debug for TlsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TlsKey({})", self.identity)
    }
}
