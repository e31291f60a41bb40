//! A split virtqueue as the device sees it (Virtual I/O Device 1.2, section 2.7): what is available, what was used, and
//! when the other side must be told.
//!
//! ```text
//! guest:  write descriptors; avail.idx += n; fence; device wants to know? -> kick
//! device: read avail.idx .. work .. write used entries; used.idx += n; fence; guest wants to know? -> call
//! before a sleep: say that kicks are wanted; fence; look at avail.idx again
//! ```
//! The rings lie in memory that the guest may write at any time. Indices are taken as given, differences are checked.

use crate::memory::{Memory, Outside};
use std::num::Wrapping;
use std::sync::atomic::{Ordering, fence};
use thiserror::Error;

/// Most entries of a queue.
pub const ENTRIES_MAX: u16 = 1024;

const AVAIL_HEADER_BYTES: u64 = 4;
const USED_HEADER_BYTES: u64 = 4;
const USED_ENTRY_BYTES: u64 = 8;
/// In the flags of the available ring: the guest wants no calls.
const NO_INTERRUPT: u16 = 1;
/// In the flags of the used ring: the device wants no kicks.
const NO_NOTIFY: u16 = 1;

/// Where a queue lies, in guest addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Entries; a power of two.
    pub entries: u16,
    /// Descriptor table.
    pub table: u64,
    /// Available ring.
    pub available: u64,
    /// Used ring.
    pub used: u64,
}

/// Why a queue is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// The size is no power of two up to [`ENTRIES_MAX`].
    #[error("{0} is no size of a queue: a power of two up to {ENTRIES_MAX} is")]
    Size(u16),
    /// The rings are not aligned.
    #[error("its {0} is not aligned")]
    Unaligned(&'static str),
    /// The rings are not in the shared memory.
    #[error("its rings: {:#x}+{} is outside the shared memory", .0.address, .0.bytes)]
    Outside(Outside),
    /// More entries are available than there are.
    #[error("its available index {index} is {ahead} entries ahead of {entries}")]
    Index {
        /// The index found.
        index: u16,
        /// How far it is ahead.
        ahead: u16,
        /// Entries of the queue.
        entries: u16,
    },
    /// A chain makes no sense.
    #[error("the chain at descriptor {head}: {error}")]
    Chain {
        /// Its first descriptor.
        head: u16,
        /// What is wrong.
        error: crate::chain::ChainError,
    },
    /// The chain has no header or no place for a status.
    #[error("the chain at descriptor {head} is no request: it has {readable} readable and {writable} writable bytes")]
    NoRequest {
        /// Its first descriptor.
        head: u16,
        /// Bytes to read.
        readable: u64,
        /// Bytes to write.
        writable: u64,
    },
    /// A chain is made available again before it was used.
    #[error("the chain at descriptor {0} is made available twice")]
    Twice(u16),
    /// Its kicks cannot be watched any more.
    #[error("its kick descriptor tells of no more kicks: {0}")]
    Kick(base::Errno),
}

impl From<Outside> for RingError {
    fn from(outside: Outside) -> Self {
        RingError::Outside(outside)
    }
}

/// Bytes of a descriptor table.
pub fn table_bytes(entries: u16) -> u64 {
    u64::from(entries) * crate::chain::DESCRIPTOR_BYTES
}

/// Bytes of an available ring, `used_event` included.
pub fn available_bytes(entries: u16) -> u64 {
    AVAIL_HEADER_BYTES + u64::from(entries) * 2 + 2
}

/// Bytes of a used ring, `avail_event` included.
pub fn used_bytes(entries: u16) -> u64 {
    USED_HEADER_BYTES + u64::from(entries) * USED_ENTRY_BYTES + 2
}

/// See the module.
#[derive(Debug)]
pub struct SplitRing {
    layout: Layout,
    event_idx: bool,
    next_available: Wrapping<u16>,
    next_used: Wrapping<u16>,
    /// Used entries that the guest can see.
    published: Wrapping<u16>,
}

impl Layout {
    /// Whether all of it lies in `memory`, aligned as it must be.
    pub fn check(&self, memory: &Memory) -> Result<(), RingError> {
        let Layout { entries, table, available, used } = *self;
        if !entries.is_power_of_two() || entries > ENTRIES_MAX {
            return Err(RingError::Size(entries));
        }
        for (name, address, align) in
            [("descriptor table", table, 16), ("available ring", available, 2), ("used ring", used, 4)]
        {
            if !address.is_multiple_of(align) {
                return Err(RingError::Unaligned(name));
            }
        }
        memory.check(table, table_bytes(entries))?;
        memory.check(available, available_bytes(entries))?;
        memory.check(used, used_bytes(entries))?;
        Ok(())
    }
}

impl SplitRing {
    /// The queue at `layout`, going on at available entry `next_available`.
    pub fn new(memory: &Memory, layout: Layout, event_idx: bool, next_available: u16) -> Result<SplitRing, RingError> {
        layout.check(memory)?;
        let used = Wrapping(memory.load_u16(layout.used + 2)?);
        let next_available = Wrapping(next_available);
        Ok(SplitRing { layout, event_idx, next_available, next_used: used, published: used })
    }

    /// The same queue in newly shared memory.
    pub fn moved(&mut self, memory: &Memory, layout: Layout) -> Result<(), RingError> {
        layout.check(memory)?;
        self.layout = layout;
        Ok(())
    }

    /// Where it lies.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The number of the next available entry.
    pub fn next_available(&self) -> u16 {
        self.next_available.0
    }

    /// The number of the next used entry.
    pub fn next_used(&self) -> u16 {
        self.next_used.0
    }

    /// Goes on at another available entry.
    pub fn set_next_available(&mut self, next: u16) {
        self.next_available = Wrapping(next);
    }

    /// How many chains wait.
    #[inline]
    pub fn waiting(&self, memory: &Memory) -> Result<u16, RingError> {
        let index = memory.load_u16(self.layout.available + 2)?;
        let ahead = (Wrapping(index) - self.next_available).0;
        if ahead > self.layout.entries {
            return Err(RingError::Index { index, ahead, entries: self.layout.entries });
        }
        Ok(ahead)
    }

    /// Takes the first descriptor of the next chain; there is one, as [`waiting`](Self::waiting) has said.
    #[inline]
    pub fn take(&mut self, memory: &Memory) -> Result<u16, RingError> {
        let slot = u64::from(self.next_available.0 & (self.layout.entries - 1));
        let head = memory.load_u16(self.layout.available + AVAIL_HEADER_BYTES + slot * 2)?;
        if head >= self.layout.entries {
            let error = crate::chain::ChainError::NoSuchDescriptor { index: head, entries: self.layout.entries };
            return Err(RingError::Chain { head, error });
        }
        self.next_available += 1;
        Ok(head)
    }

    /// Writes a used entry; the guest does not see it yet.
    #[inline]
    pub fn put(&mut self, memory: &Memory, head: u16, written: u32) -> Result<(), RingError> {
        let slot = u64::from(self.next_used.0 & (self.layout.entries - 1));
        let entry = (u64::from(written) << 32 | u64::from(head)).to_le_bytes();
        memory.write(self.layout.used + USED_HEADER_BYTES + slot * USED_ENTRY_BYTES, &entry)?;
        self.next_used += 1;
        Ok(())
    }

    /// Shows the guest all entries written. True when it must be called.
    #[inline]
    pub fn publish(&mut self, memory: &Memory) -> Result<bool, RingError> {
        memory.store_u16(self.layout.used + 2, self.next_used.0)?;
        let before = std::mem::replace(&mut self.published, self.next_used);
        fence(Ordering::SeqCst);
        if self.event_idx {
            let at = self.layout.available + AVAIL_HEADER_BYTES + u64::from(self.layout.entries) * 2;
            let event = Wrapping(memory.load_u16(at)?);
            return Ok((self.next_used - event - Wrapping(1)) < (self.next_used - before));
        }
        Ok(memory.load_u16(self.layout.available)? & NO_INTERRUPT == 0)
    }

    /// Asks for a kick with the next chain; true when chains wait already.
    pub fn arm(&mut self, memory: &Memory) -> Result<bool, RingError> {
        if self.event_idx {
            memory.store_u16(self.avail_event(), self.next_available.0)?;
        } else {
            memory.store_u16(self.layout.used, 0)?;
        }
        fence(Ordering::SeqCst);
        Ok(self.waiting(memory)? > 0)
    }

    /// Asks for no kicks, since the queue is looked at anyway.
    pub fn disarm(&mut self, memory: &Memory) -> Result<(), RingError> {
        if self.event_idx {
            // The index just passed: it comes round when the queue has gone through 65,536 entries.
            memory.store_u16(self.avail_event(), (self.next_available - Wrapping(1)).0)?;
        } else {
            memory.store_u16(self.layout.used, NO_NOTIFY)?;
        }
        Ok(())
    }

    fn avail_event(&self) -> u64 {
        self.layout.used + USED_HEADER_BYTES + u64::from(self.layout.entries) * USED_ENTRY_BYTES
    }
}
