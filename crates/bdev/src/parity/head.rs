//! Which parts of the head may not be the same on all members in use, and making them so: before anything of a part is read or
//! written, and in the background.
//!
//! After a crash that is all of it, whatever its size, since nothing says where writes were under way. Nobody waits for all of it.

use super::links::Inner;
use super::{COPY_BYTES, ParityDevice};
use crate::io::Status;
use reactor::Reactor;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Parts that are compared in one go in the background; reads and writes of them wait for that.
const SWEEP_PARTS: u64 = 16;
/// A device that is closed compares so many parts before, and leaves more to its next opening.
const CLOSE_PARTS_MAX: u64 = 256;
/// Between two steps in the background: leaves most of the members to their users.
const PAUSE_NS: u64 = 1_000_000;
/// Between two attempts after a failure.
const RETRY_NS: u64 = 1_000_000_000;

/// Parts of the head that may differ, a bit each.
pub(super) struct Unequal {
    bits: Box<[AtomicU64]>,
    left: AtomicU64,
    part_blocks: u64,
    head: u64,
}

impl Unequal {
    /// None, of a head of so many blocks.
    pub(super) fn none(head: u64, block_size: u64) -> Unequal {
        let part_blocks = (COPY_BYTES as u64 / block_size).max(1);
        let words = head.div_ceil(part_blocks).div_ceil(64);
        Unequal { bits: (0..words).map(|_| AtomicU64::new(0)).collect(), left: AtomicU64::new(0), part_blocks, head }
    }

    fn parts(&self) -> u64 {
        self.head.div_ceil(self.part_blocks)
    }

    /// The parts that these blocks are in, as far as they are of the head.
    fn touched(&self, lba: u64, nblocks: u64) -> Range<u64> {
        let end = (lba + nblocks).min(self.head);
        if lba < end { lba / self.part_blocks..end.div_ceil(self.part_blocks) } else { 0..0 }
    }

    fn blocks_of(&self, parts: Range<u64>) -> Range<u64> {
        parts.start * self.part_blocks..(parts.end * self.part_blocks).min(self.head)
    }

    fn has(&self, part: u64) -> bool {
        self.bits[part as usize / 64].load(Acquire) & 1 << (part % 64) != 0
    }

    fn set(&self, part: u64, differs: bool) {
        let (word, bit) = (&self.bits[part as usize / 64], 1 << (part % 64));
        let before = if differs { word.fetch_or(bit, AcqRel) } else { word.fetch_and(!bit, AcqRel) };
        match (before & bit != 0, differs) {
            (false, true) => drop(self.left.fetch_add(1, AcqRel)),
            (true, false) => drop(self.left.fetch_sub(1, AcqRel)),
            _ => {}
        }
    }

    /// Whether any of these blocks may differ.
    #[inline]
    pub(super) fn is_in(&self, lba: u64, nblocks: u64) -> bool {
        self.left.load(Acquire) > 0 && self.touched(lba, nblocks).any(|part| self.has(part))
    }

    /// All that these blocks are in may differ.
    pub(super) fn mark(&self, lba: u64, nblocks: u64) {
        self.touched(lba, nblocks).for_each(|part| self.set(part, true));
    }

    /// Blocks in parts that may differ.
    pub(super) fn blocks(&self) -> u64 {
        (self.left.load(Acquire) * self.part_blocks).min(self.head)
    }
}

impl ParityDevice {
    /// Compares what is left of the head, as a task of this reactor that ends with the device: after a crash nothing else would
    /// compare what nobody uses.
    pub fn compare_in_background(&self, reactor: &Rc<Reactor>) {
        if self.shared.unequal.blocks() == 0 {
            return;
        }
        tracing::info!(
            parity = self.shared.name,
            blocks = self.shared.unequal.blocks(),
            "comparing the heads of the members"
        );
        let inner = self.inner(reactor);
        reactor.spawn(async move { inner.compare_until_done().await });
    }
}

impl Inner {
    /// Makes the parts of the head that these blocks are in equal on all members in use, durably, where they may differ.
    pub(super) async fn agree(self: &Rc<Self>, lba: u64, nblocks: u64) -> Result<(), Status> {
        let unequal = &self.shared.unequal;
        if !unequal.is_in(lba, nblocks) {
            return Ok(());
        }
        let parts = unequal.touched(lba, nblocks);
        let blocks = unequal.blocks_of(parts.clone());
        let _alone = self.shared.ranges.lock(blocks.start, blocks.end - blocks.start, true).await;
        // Boxed, like every rare path.
        Box::pin(self.agree_held(parts)).await
    }

    /// The same for who holds the parts.
    async fn agree_held(self: &Rc<Self>, parts: Range<u64>) -> Result<(), Status> {
        let unequal = &self.shared.unequal;
        let differing: Vec<u64> = parts.filter(|part| unequal.has(*part)).collect();
        for part in &differing {
            let blocks = unequal.blocks_of(*part..part + 1);
            self.equalise(blocks.start, blocks.end - blocks.start).await?;
        }
        if !differing.is_empty() {
            self.flush().await?;
        }
        differing.into_iter().for_each(|part| unequal.set(part, false));
        Ok(())
    }

    /// Before the device is closed, by who holds the head: whether all of it is equal now. Much that is left is not waited for.
    pub(super) async fn agree_at_close(self: &Rc<Self>) -> Result<bool, Status> {
        let unequal = &self.shared.unequal;
        if unequal.left.load(Acquire) > CLOSE_PARTS_MAX {
            return Ok(false);
        }
        Box::pin(self.agree_held(0..unequal.parts())).await?;
        Ok(true)
    }

    async fn compare(self: &Rc<Self>, parts: Range<u64>) -> Result<(), Status> {
        let blocks = self.shared.unequal.blocks_of(parts.clone());
        let _alone = self.shared.ranges.lock(blocks.start, blocks.end - blocks.start, true).await;
        // With the range held: the members may belong to others once the device is closed.
        if self.is_ending() { Ok(()) } else { self.agree_held(parts).await }
    }

    async fn compare_until_done(self: &Rc<Self>) {
        let unequal = &self.shared.unequal;
        let mut next = 0;
        while unequal.blocks() > 0 {
            if self.is_ending() {
                return;
            }
            let Some(first) = (next..unequal.parts()).find(|part| unequal.has(*part)) else {
                next = 0;
                continue;
            };
            let parts = first..(first + SWEEP_PARTS).min(unequal.parts());
            next = parts.end;
            // Whoever reads there hears of a failure; by itself it is tried again.
            let outcome = self.compare(parts).await;
            self.rest(if outcome.is_ok() { PAUSE_NS } else { RETRY_NS }).await;
        }
        tracing::info!(parity = self.shared.name, "the heads of the members are equal");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_marked_and_cleared_once_each() {
        let part = (COPY_BYTES / 4096) as u64;
        let unequal = Unequal::none(100 * part + 3, 4096);
        assert!(!unequal.is_in(0, u64::MAX / 2) && unequal.blocks() == 0);
        unequal.mark(part - 1, 2);
        unequal.mark(part, 1);
        assert_eq!(unequal.blocks(), 2 * part);
        assert!(unequal.is_in(0, 1) && unequal.is_in(2 * part - 1, 9) && !unequal.is_in(2 * part, 90 * part));
        unequal.set(0, false);
        unequal.set(0, false);
        assert_eq!((unequal.blocks(), unequal.is_in(0, part)), (part, false));
        // The last part is a short one, and what lies behind the head is never in one.
        unequal.mark(0, u64::MAX / 2);
        assert_eq!((unequal.blocks(), unequal.blocks_of(100..101)), (100 * part + 3, 100 * part..100 * part + 3));
        assert!(unequal.is_in(100 * part + 2, 1) && !unequal.is_in(100 * part + 3, 1));
    }
}
