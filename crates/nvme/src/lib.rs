//! NVMe and NVMe over Fabrics: the bytes, the rules and the two state machines, target and host.
//!
//! Everything but [`tcp_target`] and [`initiator`] does no I/O: no sockets, no executor, no clock. Bytes, time and
//! namespaces are handed in; bytes, completions and events are handed out. That is why the same code runs under the
//! real network, in the simulator and in a fuzzer.
//!
//! * [`spec`]: layouts and values of the specifications (NVMe Base 2.0, NVM Command Set 1.0, TCP Transport 1.0).
//! * [`tcp`]: PDUs of the TCP transport: encoding, incremental decoding, and the rules whose breach ends a connection.
//! * [`target`]: subsystems, controllers and queues as a host sees them.
//! * [`tcp_target`]: the target on reactors and sockets.
//! * [`auth`]: in-band authentication, both sides.
//! * [`tls`]: keys for encrypted connections, and streams that are encrypted with them.
//! * [`host`]: what an initiator needs to build commands and to understand the answers.
//! * [`initiator`]: the host on reactors and sockets, as a library and as a block device.

// One file has a reason to be an exception, and only with TLS: `tls/openssl.rs`.
#![cfg_attr(not(feature = "tls"), forbid(unsafe_code))]
#![deny(unsafe_code)]

pub mod auth;
pub mod host;
pub mod initiator;
mod power;
pub mod spec;
pub mod target;
pub mod tcp;
pub mod tcp_target;
pub mod tls;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
