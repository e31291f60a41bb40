//! TLS 1.3 with pre-shared keys below NVMe/TCP (TCP Transport 1.1, section 3.6).
//!
//! * [`Psk`]: the configured key of a host, in the form that administrators pass around.
//! * [`Identity`], [`TlsKey`]: what a handshake calls a key, and the key that it uses.
//! * [`Keyring`]: the keys that a target has.
//! * `Stream`: a TCP connection with or without TLS. What runs over it does not know which.
//!
//! Keys are always here; the handshakes and records need OpenSSL and the feature `tls`. What is not here: which listeners
//! want TLS, and which hosts (`target`, `tcp_target`); keys made from an authentication (secure channel concatenation).

mod derive;
#[cfg(feature = "tls")]
mod encrypted;
mod failure;
mod identity;
mod keyring;
#[cfg(feature = "tls")]
mod offer;
#[cfg(feature = "tls")]
mod openssl;
mod psk;
#[cfg(feature = "tls")]
mod session;
pub(crate) mod stream;
#[cfg(test)]
mod tests;

pub use derive::Form;
pub use failure::{Shown, TlsFailure};
pub use identity::{IDENTITY_LEN_MAX, Identity, TlsKey};
pub use keyring::{HostPsks, Keyring, NoKey};
pub use psk::{Psk, PskError};

/// Whether this build can do TLS.
pub const IS_BUILT: bool = cfg!(feature = "tls");
