//! Layouts and values of the NVMe specifications, little-endian, exactly as they travel.
//!
//! Figures are cited from NVMe Base 2.0, NVM Command Set 1.0 and TCP Transport 1.0. Nothing here decides anything: types
//! decode, encode and name; the rules are in [`crate::tcp`], [`crate::target`] and [`crate::host`].
#![forbid(unsafe_code)]

pub mod ana;
pub mod copy;
pub mod cqe;
pub mod discovery;
pub mod erase;
pub mod event;
pub mod fabrics;
pub mod feature;
pub mod identify;
pub mod log;
pub mod nqn;
pub mod opcode;
pub mod property;
pub mod reservation;
pub mod sgl;
pub mod sqe;
pub mod status;
pub mod zns;

pub use cqe::Cqe;
pub use nqn::Nqn;
pub use sqe::Sqe;
pub use status::Status;

/// Namespace ID that means "all namespaces" where a command allows it (Base 2.0, section 3.2.1).
pub const NSID_ALL: u32 = 0xffff_ffff;

/// Bytes of every Identify data structure and of the Connect record's upper bound on a page.
pub const IDENTIFY_LEN: usize = 4096;
