//! Bytes on media, each structure declared once; see `docs/formats/pool.md` and `bands.md`. Nothing here does I/O, and no bytes panic.

#[allow(dead_code, reason = "placement in bands is being built on it")]
pub(crate) mod band;
pub(crate) mod catalog;
pub(crate) mod dirty;
pub(crate) mod record;
pub(crate) mod root;
pub(crate) mod segment;
pub(crate) mod stripe;
pub(crate) mod summary_page;
pub(crate) mod superblock;
pub(crate) mod table;

use thiserror::Error;

/// Why bytes are not the structure that they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Malformed(pub &'static str);

/// Openings of a pool, of which generations are multiples of 2^32: more, and it is to be copied.
pub(crate) const EPOCH_MAX: u32 = 1 << 31;

/// A generation that was read from media: as many can follow.
pub(crate) fn generation(read: u64) -> Result<u64, Malformed> {
    match read < (EPOCH_MAX as u64) << 32 {
        true => Ok(read),
        false => Err(Malformed("its generation is out of range")),
    }
}

#[cfg(test)]
mod tests;
