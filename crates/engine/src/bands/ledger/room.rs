//! How much there is of what.

use super::{Ledger, State};
use crate::bands::RESERVE_BANDS;

/// How much there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// Bands in all.
    pub(crate) bands: u32,
    /// Blocks of each, headers included.
    pub(crate) band_blocks: u32,
    /// Bands that may be opened; user streams leave [`RESERVE_BANDS`] of them.
    pub(crate) free: u32,
    /// Bands being written.
    pub(crate) open: u32,
    /// Bands that are read only, those among them that have refused a write included.
    pub(crate) closed: u32,
    /// Bands that are free when the next checkpoint is durable.
    pub(crate) pending: u32,
    /// Bands that are free when they have been unmapped.
    pub(crate) unmapping: u32,
    /// Bands that are out of use.
    pub(crate) retired: u32,
    /// Bands in which nobody finds all blocks that maps lead to, since headers are damaged.
    pub(crate) stuck: u32,
    /// Bands that user streams leave to those that make room.
    pub(crate) reserve: u32,
    /// Blocks that maps lead to.
    pub(crate) valid_blocks: u64,
    /// Blocks that are being read, or that are written and that no map leads to yet.
    pub(crate) held_blocks: u64,
    /// Data blocks that the bands in use and the free ones hold at most.
    pub(crate) total_blocks: u64,
    /// Whether the counts of valid blocks are exact, not hints.
    pub(crate) is_exact: bool,
}

impl Ledger {
    pub(in crate::bands) fn room(&self) -> Room {
        let mut room = Room {
            bands: self.geometry.bands,
            band_blocks: self.geometry.band_blocks,
            reserve: RESERVE_BANDS,
            valid_blocks: self.valid_blocks,
            is_exact: self.is_exact,
            ..Room::default()
        };
        for band in &self.bands {
            room.stuck += band.stuck as u32;
            room.held_blocks += band.held as u64;
            *match band.state {
                State::Free => &mut room.free,
                State::Open => &mut room.open,
                State::Closed => &mut room.closed,
                State::Pending(_) => &mut room.pending,
                State::Unmapping => &mut room.unmapping,
                State::Retired => &mut room.retired,
            } += 1;
        }
        room.total_blocks = (room.bands - room.retired) as u64 * self.geometry.band_data_blocks() as u64;
        room
    }
}
