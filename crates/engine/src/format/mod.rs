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

#[cfg(test)]
mod tests;
