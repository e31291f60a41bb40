//! Where blocks are, for the policy model of write shaping: one map of blocks to places in a log and in bands, and who owns what.
//!
//! A place is a number: below `band_places` in a band, from there on in the log. A place has an owner while that block's
//! newest version is there.

use std::collections::VecDeque;

pub const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BandState {
    Free,
    Open,
    Full,
    Victim,
}

pub struct Band {
    pub state: BandState,
    pub valid: u32,
    /// Of its writes, those that have not ended.
    pub pending: u32,
    /// When it became full, in blocks written to bands so far.
    pub filled_at: u64,
}

/// A run of places of one band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub first: u32,
    pub count: u32,
}

pub struct Places {
    /// Place of each block.
    map: Vec<u32>,
    /// Block in each place.
    owner: Vec<u32>,
    pub bands: Vec<Band>,
    pub band_blocks: u32,
    pub chunk_blocks: u32,
    free_bands: VecDeque<u32>,
    /// Of compaction and of collection: band, next place in it.
    open: [Option<(u32, u32)>; 2],
    /// Blocks of each chunk that have not been moved away.
    free_chunks: VecDeque<u32>,
    /// Full chunks, the oldest first.
    pub full_chunks: VecDeque<u32>,
    pub chunks: u32,
    open_chunk: Option<(u32, u32)>,
    written_blocks: u64,
}

impl Places {
    pub fn new(blocks: u32, bands: u32, band_blocks: u32, chunks: u32, chunk_blocks: u32) -> Places {
        let band = |_| Band { state: BandState::Free, valid: 0, pending: 0, filled_at: 0 };
        Places {
            map: vec![NONE; blocks as usize],
            owner: vec![NONE; (bands * band_blocks + chunks * chunk_blocks) as usize],
            bands: (0..bands).map(band).collect(),
            band_blocks,
            chunk_blocks,
            free_bands: (0..bands).collect(),
            open: [None; 2],
            free_chunks: (0..chunks).collect(),
            full_chunks: VecDeque::new(),
            chunks,
            open_chunk: None,
            written_blocks: 0,
        }
    }

    pub fn band_places(&self) -> u32 {
        self.bands.len() as u32 * self.band_blocks
    }

    pub fn is_log(&self, place: u32) -> bool {
        place >= self.band_places()
    }

    pub fn place(&self, block: u32) -> u32 {
        self.map[block as usize]
    }

    pub fn owner(&self, place: u32) -> u32 {
        self.owner[place as usize]
    }

    pub fn free_band_count(&self) -> usize {
        self.free_bands.len()
    }

    /// A block's newest version is at `place` now.
    pub fn enter(&mut self, block: u32, place: u32) {
        let old = std::mem::replace(&mut self.map[block as usize], place);
        if old != NONE {
            self.owner[old as usize] = NONE;
            if !self.is_log(old) {
                self.bands[(old / self.band_blocks) as usize].valid -= 1;
            }
        }
        self.owner[place as usize] = block;
        if !self.is_log(place) {
            self.bands[(place / self.band_blocks) as usize].valid += 1;
        }
    }

    /// The next place in the log; none when every chunk is full.
    pub fn take_log(&mut self) -> Option<u32> {
        let (chunk, next) = match self.open_chunk {
            Some(open) => open,
            None => (self.free_chunks.pop_front()?, 0),
        };
        self.open_chunk = Some((chunk, next + 1)).filter(|_| next + 1 < self.chunk_blocks);
        if self.open_chunk.is_none() {
            self.full_chunks.push_back(chunk);
        }
        Some(self.chunk_first(chunk) + next)
    }

    /// The first place of a chunk.
    pub fn chunk_first(&self, chunk: u32) -> u32 {
        self.band_places() + chunk * self.chunk_blocks
    }

    /// A chunk from which everything was moved.
    pub fn free_chunk(&mut self, chunk: u32) {
        self.free_chunks.push_back(chunk);
    }

    /// Room for `count` blocks in the open band of a stream, and the band that this fills up, if any. None without a free band.
    pub fn take_band(&mut self, stream: usize, count: u32) -> Option<Extent> {
        let (band, next) = match self.open[stream] {
            Some(open) => open,
            None => {
                let band = self.free_bands.pop_front()?;
                self.bands[band as usize].state = BandState::Open;
                (band, 0)
            }
        };
        let taken = count.min(self.band_blocks - next);
        let info = &mut self.bands[band as usize];
        info.pending += 1;
        self.written_blocks += u64::from(taken);
        self.open[stream] = Some((band, next + taken)).filter(|_| next + taken < self.band_blocks);
        if self.open[stream].is_none() {
            info.state = BandState::Full;
            info.filled_at = self.written_blocks;
        }
        Some(Extent { first: band * self.band_blocks + next, count: taken })
    }

    /// The write of an extent has ended.
    pub fn written(&mut self, extent: Extent) {
        self.bands[(extent.first / self.band_blocks) as usize].pending -= 1;
    }

    /// The full band with the most to gain: cost-benefit, `(1 - u) * age / (1 + u)`, or the least valid one.
    pub fn choose_victim(&mut self, cost_benefit: bool) -> Option<u32> {
        let size = f64::from(self.band_blocks);
        let now = self.written_blocks;
        let score = |band: &Band| {
            let valid = f64::from(band.valid) / size;
            let age = if cost_benefit { (now - band.filled_at + 1) as f64 } else { 1.0 };
            (1.0 - valid) * age / (1.0 + valid)
        };
        let candidates = self.bands.iter().enumerate();
        let candidates = candidates
            .filter(|(_, band)| band.state == BandState::Full && band.pending == 0 && band.valid < self.band_blocks);
        let best = candidates.max_by(|a, b| score(a.1).total_cmp(&score(b.1)).then(b.0.cmp(&a.0)))?.0 as u32;
        self.bands[best as usize].state = BandState::Victim;
        Some(best)
    }

    /// An empty band can be written again.
    pub fn free_band(&mut self, band: u32) {
        let info = &mut self.bands[band as usize];
        assert_eq!(info.valid, 0, "only empty bands are free");
        info.state = BandState::Free;
        self.free_bands.push_back(band);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_in_one_place_and_bands_count_theirs() {
        let mut places = Places::new(10, 2, 4, 2, 2);
        let extent = places.take_band(0, 3).unwrap();
        assert_eq!(extent, Extent { first: 0, count: 3 });
        (0..3).for_each(|block| places.enter(block, extent.first + block));
        assert_eq!(places.bands[0].valid, 3);
        let log = places.take_log().unwrap();
        assert!(places.is_log(log) && log == 8);
        places.enter(1, log);
        assert_eq!((places.bands[0].valid, places.owner(1), places.place(1)), (2, NONE, 8));
        assert_eq!(places.take_band(0, 3).unwrap(), Extent { first: 3, count: 1 }, "to the end of the band");
        assert_eq!(places.bands[0].state, BandState::Full);
        assert_eq!(places.choose_victim(true), None, "its writes have not ended");
        places.written(extent);
        places.written(Extent { first: 3, count: 1 });
        assert_eq!(places.choose_victim(true), Some(0));
    }

    #[test]
    fn the_log_is_full_until_a_chunk_is_free_again() {
        let mut places = Places::new(10, 2, 4, 2, 2);
        let taken: Vec<_> = (0..5).map(|_| places.take_log()).collect();
        assert_eq!(taken, [Some(8), Some(9), Some(10), Some(11), None]);
        let chunk = places.full_chunks.pop_front().unwrap();
        places.free_chunk(chunk);
        assert_eq!(places.take_log(), Some(8));
    }

    #[test]
    fn cost_benefit_prefers_the_older_of_two_and_greedy_the_emptier_one() {
        for (cost_benefit, victim) in [(true, 0), (false, 1)] {
            let mut places = Places::new(40, 4, 4, 1, 4);
            for round in 0..3 {
                let extent = places.take_band(0, 4).unwrap();
                (0..4).for_each(|at| places.enter(round * 4 + at, extent.first + at));
                places.written(extent);
            }
            let log: Vec<u32> = (0..3).map(|_| places.take_log().unwrap()).collect();
            places.enter(0, log[0]);
            places.enter(4, log[1]);
            if !cost_benefit {
                places.enter(5, log[2]);
            }
            assert_eq!(places.choose_victim(cost_benefit), Some(victim));
        }
    }
}
