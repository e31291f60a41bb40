//! Ids, units, checksums, randomness and histograms shared by every crate. No I/O, no clock, no `unsafe` but in what
//! folds checksums.
#![deny(unsafe_code)]

pub mod crc;
pub mod errno;
pub mod histogram;
pub mod rng;
pub mod shown;
pub mod size;

pub use crc::crc32c;
pub use errno::Errno;
pub use histogram::{AtomicHistogram, Histogram};
pub use rng::Rng;
pub use shown::{is_shown, shown};
pub use size::ByteSize;
