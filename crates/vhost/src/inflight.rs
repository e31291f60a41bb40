//! Requests under way, noted in memory that the front end keeps while the daemon is away (vhost-user, "Inflight I/O
//! tracking", split queues): one that was taken and not used is found again after a crash, in the order it was taken in.
//!
//! ```text
//! taken:  counter = n++; inflight = 1
//! used:   used entries written; next = last_batch_head; last_batch_head = head; used.idx; then inflight = 0; used_idx
//! ```
//! A crash between `used.idx` and the last step is seen by `used_idx` being behind: what is on the list of the last batch
//! was used. The front end gives this memory back, so nothing in it is trusted: indices are checked.

use crate::chain::ChainError;
use crate::memory::{Memory, Outside};
use crate::split::RingError;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the layout.
const VERSION: u16 = 1;
const HEADER_BYTES: u64 = 16;
const ENTRY_BYTES: u64 = 16;
/// Alignment of each queue's part; libvhost-user's as well.
const ALIGN_BYTES: u64 = 64;

const AT_VERSION: u64 = 8;
const AT_LAST_BATCH_HEAD: u64 = 12;
const AT_USED_IDX: u64 = 14;

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    features: u64,
    version: u16,
    entries: u16,
    last_batch_head: u16,
    used_idx: u16,
}
const _: () = assert!(size_of::<Header>() as u64 == HEADER_BYTES);

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Entry {
    inflight: u8,
    padding: [u8; 5],
    next: u16,
    counter: u64,
}
const _: () = assert!(size_of::<Entry>() as u64 == ENTRY_BYTES);

/// Bytes for one queue.
pub fn queue_bytes(entries: u16) -> u64 {
    (HEADER_BYTES + u64::from(entries) * ENTRY_BYTES).next_multiple_of(ALIGN_BYTES)
}

/// The part of one queue.
pub struct Inflight {
    memory: Arc<Memory>,
    at: u64,
    entries: u16,
    counter: u64,
}

impl Inflight {
    /// The part at byte `at` of a memory that begins at guest address 0. `None` when it does not fit.
    pub fn new(memory: Arc<Memory>, at: u64, entries: u16) -> Option<Inflight> {
        memory.check(at, queue_bytes(entries)).ok()?;
        Some(Inflight { memory, at, entries, counter: 0 })
    }

    fn entry_at(&self, head: u16) -> u64 {
        self.at + HEADER_BYTES + u64::from(head) * ENTRY_BYTES
    }

    fn entry(&self, head: u16) -> Result<Entry, Outside> {
        let mut raw = [0; ENTRY_BYTES as usize];
        self.memory.read(self.entry_at(head), &mut raw)?;
        Ok(zerocopy::transmute!(raw))
    }

    fn set_flag(&self, head: u16, inflight: bool) -> Result<(), Outside> {
        self.memory.write(self.entry_at(head), &[u8::from(inflight)])
    }

    /// A chain was taken.
    pub fn taken(&mut self, head: u16) -> Result<(), Outside> {
        // (a front end may have set it to anything: it tells an order, and nothing else)
        self.counter = self.counter.wrapping_add(1);
        self.memory.write(self.entry_at(head) + 8, &self.counter.to_le_bytes())?;
        // (ordered by the two stores being in one thread; the reader comes after this process has ended)
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        self.set_flag(head, true)
    }

    /// A chain's used entry is written, and not visible yet.
    pub fn put(&mut self, head: u16) -> Result<(), Outside> {
        let last = self.memory.load_u16(self.at + AT_LAST_BATCH_HEAD)?;
        self.memory.store_u16(self.entry_at(head) + 6, last)?;
        self.memory.store_u16(self.at + AT_LAST_BATCH_HEAD, head)
    }

    /// The used entries of `heads` are visible, the used index is `used` now.
    pub fn published(&mut self, heads: impl Iterator<Item = u16>, used: u16) -> Result<(), Outside> {
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        for head in heads {
            self.set_flag(head, false)?;
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
        self.memory.store_u16(self.at + AT_USED_IDX, used)
    }

    /// Begins, or goes on after a crash: chains taken and not used, in the order they were taken in. `used` is the queue's
    /// used index, `ring` are its entries: the area may have more, but none of those can be under way.
    pub fn recover(&mut self, used: u16, ring: u16) -> Result<Vec<u16>, RingError> {
        let mut raw = [0; HEADER_BYTES as usize];
        self.memory.read(self.at, &mut raw)?;
        let header: Header = zerocopy::transmute!(raw);
        if u16::from_le(header.version) == 0 {
            let fresh = Header { version: VERSION.to_le(), entries: self.entries.to_le(), ..Header::default() };
            self.memory.write(self.at, fresh.as_bytes())?;
            self.memory.store_u16(self.at + AT_USED_IDX, used)?;
            return Ok(Vec::new());
        }
        let batch = used.wrapping_sub(u16::from_le(header.used_idx)).min(self.entries);
        let mut head = u16::from_le(header.last_batch_head);
        for _ in 0..batch {
            if head >= self.entries {
                break;
            }
            self.set_flag(head, false)?;
            head = u16::from_le(self.entry(head)?.next);
        }
        self.memory.store_u16(self.at + AT_USED_IDX, used)?;
        let mut under_way = Vec::new();
        for head in 0..self.entries {
            let entry = self.entry(head)?;
            self.counter = self.counter.max(u64::from_le(entry.counter));
            if entry.inflight != 0 {
                if head >= ring {
                    let error = ChainError::NoSuchDescriptor { index: head, entries: ring };
                    return Err(RingError::Chain { head, error });
                }
                under_way.push((u64::from_le(entry.counter), head));
            }
        }
        under_way.sort_unstable();
        Ok(under_way.into_iter().map(|(_, head)| head).collect())
    }

    /// Whether the part says that it was made by something that this can go on from: version and size.
    pub fn check(&self) -> bool {
        let mut raw = [0; HEADER_BYTES as usize];
        let Ok(()) = self.memory.read(self.at, &mut raw) else { return false };
        let header: Header = zerocopy::transmute!(raw);
        let fresh = u16::from_le(header.version) == 0;
        fresh || u16::from_le(header.version) == VERSION && u16::from_le(header.entries) == self.entries
    }
}

const _: () = assert!(std::mem::offset_of!(Header, version) as u64 == AT_VERSION);
const _: () = assert!(std::mem::offset_of!(Header, last_batch_head) as u64 == AT_LAST_BATCH_HEAD);
const _: () = assert!(std::mem::offset_of!(Header, used_idx) as u64 == AT_USED_IDX);
