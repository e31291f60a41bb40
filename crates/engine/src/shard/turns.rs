//! Turns of destage and the collector, each for a whole band, on a drive that does not keep write streams apart.
//!
//! ```text
//! destage: a band of what comes from the log -> (a band's worth is owed) collector: a band of what is still needed -> destage ..
//! ```
//! Such a drive puts what it is given, in the order in which it comes, into flash that it erases in large pieces. A band of destage and
//! one of the collector that are written at the same time share those pieces; when the one is unmapped, the drive has to copy what
//! it has of the other before it can erase them. What is written in turns has pieces of its own, all the more where a band is larger than
//! such a piece.
//!
//! While the collector has its turn, the log takes what users write, and credit for it [goes on](Shard::owe_for).

use super::Shard;
use crate::bands::{Bands, Stream};
use crate::units::BLOCK_BYTES;
use std::cell::Cell;

/// Whose turn it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Turn {
    /// Everybody's.
    #[default]
    Both,
    Destage,
    Collector,
}

/// See the module.
#[derive(Default)]
pub(super) struct Turns {
    turn: Cell<Turn>,
    /// Bands that the stream whose turn it is had filled before.
    filled_before: Cell<u64>,
}

/// A band of which less than one part in so many is left counts as full: what has to be read for so little would be much more.
const REST_PART: u32 = 32;

impl Turns {
    pub(super) fn turn(&self) -> Turn {
        self.turn.get()
    }

    fn begin(&self, turn: Turn, bands: &Bands) {
        let stream = if turn == Turn::Collector { Stream::Moved } else { Stream::User };
        // What is left over of a band does not make a turn.
        self.filled_before.set(Turns::filled(bands, stream));
        self.turn.set(turn);
    }

    /// Whether whose turn it is has filled a band.
    fn is_done(&self, bands: &Bands, stream: Stream) -> bool {
        Turns::filled(bands, stream) > self.filled_before.get()
    }

    /// Bands filled, or all but.
    fn filled(bands: &Bands, stream: Stream) -> u64 {
        let rest = bands.band_data_blocks() / REST_PART;
        bands.filled(stream) + (1..rest).contains(&bands.left(stream)) as u64
    }
}

impl Shard {
    /// Turns are taken where the drive mixes what it gets and the log has room for what waits in the collector's.
    pub(super) fn decide_on_turns(&self) {
        let Some(bands) = self.meta.bands() else { return };
        let slack = self.fill().bytes_total / 256 * (256 - self.pace.marks.soft);
        // For each band that is collected, users write about half of one meanwhile.
        let has_room = slack >= bands.band_blocks() as u64 / 2 * BLOCK_BYTES as u64;
        if bands.mixes_streams() && self.tuning.turns.unwrap_or(has_room) {
            self.gc.turns.begin(Turn::Destage, bands);
        }
    }

    /// Whether destage and the collector write in turns.
    pub(super) fn takes_turns(&self) -> bool {
        self.gc.turns.turn() != Turn::Both
    }

    /// Changes turns when it is time to; `owed` blocks are to be collected.
    pub(super) fn change_turns(&self, bands: &Bands, owed: i64) {
        let (turns, band) = (&self.gc.turns, bands.band_data_blocks() as i64);
        let before = turns.turn();
        match before {
            Turn::Destage if owed >= band && turns.is_done(bands, Stream::User) => turns.begin(Turn::Collector, bands),
            Turn::Collector if owed < band && turns.is_done(bands, Stream::Moved) => turns.begin(Turn::Destage, bands),
            _ => {}
        }
        if turns.turn() != before {
            self.settled.notify_all();
        }
    }

    /// The collector has nothing to do.
    pub(super) fn end_turn_of_collector(&self, bands: &Bands) {
        if self.gc.turns.turn() == Turn::Collector {
            self.gc.turns.begin(Turn::Destage, bands);
            self.settled.notify_all();
        }
    }

    /// Blocks for which whose turn it is has room in its band, of at most `most`.
    pub(super) fn most_in_turn(&self, bands: &Bands, stream: Stream, most: u64) -> u64 {
        match (self.gc.turns.turn(), bands.left(stream)) {
            (Turn::Both, _) | (_, 0) => most,
            (_, left) => most.min(left as u64),
        }
    }
}
