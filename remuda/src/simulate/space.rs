//! Which part of a trace is simulated, and what its addresses are called.
//!
//! A pool of any size has to fit into little memory, so of every `2^shift` groups of 64 KiB one is simulated, chosen by a hash of
//! its address, in a pool that is smaller by the same factor. What a log absorbs and what a collector moves depend on shares, not
//! on sizes, and stay the same.

use super::trace::Access;
use crate::bench::pattern::scatter;
use std::collections::HashMap;

pub const BLOCK: u64 = 4096;
/// Blocks of a group: the largest indirection unit of drives.
pub const GROUP_BLOCKS: u32 = 16;
const GROUP: u64 = BLOCK * GROUP_BLOCKS as u64;
/// An extent of the engine: what is destaged together.
const EXTENT: u64 = engine::EXTENT_BLOCKS as u64 * BLOCK;
/// Most blocks that are simulated.
pub const BLOCKS_MAX: u64 = 1 << 22;

/// Numbers for addresses, in the order in which they are met.
pub struct Space {
    shift: u32,
    groups: u32,
    numbers: HashMap<(u16, u64), u32>,
    extents: HashMap<(u16, u64), u32>,
    extent_of: Vec<u32>,
}

/// What an access touches of one block that is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    pub block: u32,
    pub extent: u32,
    /// Bytes of the access in it.
    pub bytes: u32,
}

/// The trace touches more than there is.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Whether an extent is one of those that stand for all: as many of them as of blocks.
pub fn is_sampled(extent: u32, shift: u32) -> bool {
    mix(u64::from(extent) + 1).trailing_zeros() >= shift
}

impl Space {
    /// A space of `blocks`, of which one in `2^shift` is simulated.
    pub fn new(blocks: u64, shift: u32) -> Space {
        let groups = ((blocks >> shift) / u64::from(GROUP_BLOCKS)) as u32;
        Space { shift, groups, numbers: HashMap::new(), extents: HashMap::new(), extent_of: vec![0; groups as usize] }
    }

    /// Blocks that there are numbers for.
    pub fn blocks(&self) -> u32 {
        self.groups * GROUP_BLOCKS
    }

    /// Bytes that the trace has touched so far, about.
    pub fn touched_bytes(&self) -> u64 {
        (self.numbers.len() as u64 * GROUP) << self.shift
    }

    /// Calls `each` for what is simulated of an access.
    pub fn touches(&mut self, access: &Access, mut each: impl FnMut(Touch)) -> Result<(), Full> {
        let (mut at, end) = (access.offset, access.offset + access.bytes);
        while at < end {
            let group = at / GROUP;
            let group_end = (group + 1).saturating_mul(GROUP).min(end);
            let hash = mix(group ^ u64::from(access.space) << 48);
            if hash.trailing_zeros() >= self.shift {
                let number = self.number(access.space, group)?;
                let extent = self.extent_of[number as usize];
                while at < group_end {
                    let block = (at % GROUP / BLOCK) as u32;
                    let next = (at / BLOCK + 1) * BLOCK;
                    let bytes = (next.min(group_end) - at) as u32;
                    each(Touch { block: number * GROUP_BLOCKS + block, extent, bytes });
                    at = next;
                }
            }
            at = group_end;
        }
        Ok(())
    }

    /// Scattered, since what was there before the trace has nothing to do with the order in which it is met.
    fn number(&mut self, space: u16, group: u64) -> Result<u32, Full> {
        if let Some(number) = self.numbers.get(&(space, group)) {
            return Ok(*number);
        }
        let met = self.numbers.len() as u64;
        if met >= u64::from(self.groups) {
            return Err(Full);
        }
        let number = scatter(met, u64::from(self.groups)) as u32;
        self.numbers.insert((space, group), number);
        let known = self.extents.len() as u32;
        let extent = *self.extents.entry((space, group * GROUP / EXTENT)).or_insert(known);
        self.extent_of[number as usize] = extent;
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use super::super::trace::Kind;
    use super::*;

    fn touched(space: &mut Space, offset: u64, bytes: u64) -> Vec<Touch> {
        let mut found = Vec::new();
        let access = Access { kind: Kind::Write, space: 0, offset, bytes };
        space.touches(&access, |touch| found.push(touch)).unwrap();
        found
    }

    #[test]
    fn an_access_is_cut_at_blocks() {
        let mut space = Space::new(1 << 16, 0);
        let bytes: Vec<u32> = touched(&mut space, 65_000, 5_000).iter().map(|touch| touch.bytes).collect();
        assert_eq!(bytes, [536, 4096, 368]);
        let (first, again) = (touched(&mut space, 0, 512)[0], touched(&mut space, 100, 512)[0]);
        assert_eq!(first, again);
    }

    #[test]
    fn a_sample_has_about_its_share() {
        let mut space = Space::new(1 << 20, 4);
        let found = touched(&mut space, 0, 1 << 30).len() as f64;
        let expected = f64::from(1 << 18) / 16.0;
        assert!((found / expected - 1.0).abs() < 0.1, "{found} of {expected}");
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let mut space = Space::new(64, 0);
        let access = |offset| Access { kind: Kind::Write, space: 0, offset, bytes: 4096 };
        (0..4).for_each(|group| space.touches(&access(group * GROUP), |_| {}).unwrap());
        assert_eq!(space.touches(&access(4 * GROUP), |_| {}), Err(Full));
    }
}
