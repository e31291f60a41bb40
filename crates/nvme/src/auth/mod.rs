//! In-band authentication with DH-HMAC-CHAP (Base 2.0, section 8.13): both sides of it, free of I/O.
//!
//! Messages come as bytes and leave as bytes; randomness and the time are handed in. What takes long, a power modulo a prime
//! of up to 8192 bits, is handed out as an [`Exponentiation`]: whoever drives a side carries it out in short steps between
//! other work, and brings the result back.
//!
//! * [`Secret`]: the key of a host or a controller, in the form that administrators pass around.
//! * [`ControllerSide`]: the side that asks, for one queue of a target.
//! * [`HostSide`]: the side that is asked.
//! * [`message`]: the bytes.
//!
//! What is not here: when a queue has to authenticate, and what becomes of it if it does not (`target`, `tcp_target`);
//! secure channel concatenation (TLS keys made from the session key), which is refused with its own reason.

mod controller_side;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod group;
mod hash;
mod host_side;
pub mod message;
mod primes;
mod response;
mod secret;
#[cfg(test)]
mod tests;

pub use controller_side::{ControllerSide, Given, KeyPair, Outcome, Policy, Taken};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzz::fuzz_authentication;
pub use group::{DhGroup, Exponentiation};
pub use hash::{Digest, Hash};
pub use host_side::{HostKeys, HostSide, HostStep, Refused};
pub use message::Failure;
pub use response::Names;
pub use secret::{Secret, SecretError};

/// Fills a slice with randomness fit for keys.
pub type Random<'a> = &'a mut dyn FnMut(&mut [u8]);
