//! Answers to challenges (Base 2.0, sections 8.13.5.4 and 8.13.5.5).
//!
//! ```text
//! host:        R1 = HMAC(Kh', Ca1 || S1 || T_ID || SC_C || "HostHost"   || NQNh || 00h || NQNc)
//! controller:  R2 = HMAC(Kc', Ca2 || S2 || T_ID || SC_C || "Controller" || NQNc || 00h || NQNh)
//! Ca = C without Diffie-Hellman exchange, else HMAC(H(g^xy mod p), C)
//! ```
//! `Kh'` is the host's key tied to the host's name, `Kc'` the controller's tied to the subsystem's.

use super::hash::{Digest, Hash};
use super::secret::Secret;
use crate::spec::Nqn;

/// Between whom a queue is.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// The host.
    pub host: &'a Nqn,
    /// The subsystem, by which the controller goes.
    pub subsystem: &'a Nqn,
}

/// A challenge and what it belongs to.
#[derive(Clone, Copy)]
pub(super) struct Challenge<'a> {
    pub(super) hash: Hash,
    pub(super) value: &'a [u8],
    pub(super) sequence: u32,
    pub(super) transaction: u16,
    /// The result of the Diffie-Hellman exchange, if there was one.
    pub(super) shared: Option<&'a [u8]>,
}

impl Challenge<'_> {
    fn augmented(&self) -> Vec<u8> {
        match self.shared {
            None => self.value.to_vec(),
            Some(shared) => {
                let session = self.hash.digest(shared);
                self.hash.hmac(session.as_slice(), &[self.value]).as_slice().to_vec()
            }
        }
    }

    fn answer(&self, key: &[u8], label: &[u8], first: &Nqn, second: &Nqn) -> Digest {
        // SC_C is zero: there is no secure channel concatenation here.
        self.hash.hmac(
            key,
            &[
                &self.augmented(),
                &self.sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[0],
                label,
                first.as_str().as_bytes(),
                &[0],
                second.as_str().as_bytes(),
            ],
        )
    }

    /// What a host answers that has this key.
    pub(super) fn host_answer(&self, key: &Secret, names: &Names<'_>) -> Digest {
        self.answer(&key.transformed(names.host), b"HostHost", names.host, names.subsystem)
    }

    /// What a controller answers that has this key.
    pub(super) fn controller_answer(&self, key: &Secret, names: &Names<'_>) -> Digest {
        self.answer(&key.transformed(names.subsystem), b"Controller", names.subsystem, names.host)
    }
}
