//! Buffers that I/O owns. A [`Buf`] is a range of aligned memory that travels with an operation and comes back with its
//! completion; nothing borrows a caller's slice across a submit.
//!
//! Invariants: an *exclusive* buf is the only view of its bytes and may be written; a *shared* one is read-only and may be
//! duplicated. Splitting an exclusive buf gives exclusive halves. A buf may be dropped on any thread; its memory returns
//! to the pool (or region) that it came from.

use crate::stores::{Stores, store_fence};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Buffers of one operation, in order.
pub type SgList = smallvec::SmallVec<[Buf; 2]>;

/// What keeps the memory of a [`Buf`] alive. Embedded as the first field of pool slots and shared regions.
#[repr(C)]
pub(crate) struct Owner {
    refs: AtomicU32,
    release: unsafe fn(NonNull<Owner>),
}

impl Owner {
    pub(crate) const fn new(release: unsafe fn(NonNull<Owner>)) -> Self {
        Owner { refs: AtomicU32::new(0), release }
    }

    /// Sets the count of a slot that nobody refers to.
    pub(crate) fn revive(&self) {
        debug_assert_eq!(self.refs.load(Ordering::Relaxed), 0);
        self.refs.store(1, Ordering::Relaxed);
    }
}

/// A range of bytes taking part in I/O.
pub struct Buf {
    start: NonNull<u8>,
    len: u32,
    shared: bool,
    owner: NonNull<Owner>,
}

// SAFETY: exclusive bufs own their bytes, shared ones only read them, and the owner's count is atomic; `release`
// functions accept any thread.
unsafe impl Send for Buf {}
// SAFETY: `&Buf` gives only reads, and no writer exists while it is borrowed.
unsafe impl Sync for Buf {}

impl Buf {
    /// # Safety
    /// `start..start + len` stays valid until `owner`'s count falls to zero, the caller hands over one count, and unless
    /// `shared` nothing else views those bytes.
    pub(crate) unsafe fn from_raw(start: NonNull<u8>, len: u32, shared: bool, owner: NonNull<Owner>) -> Buf {
        Buf { start, len, shared, owner }
    }

    fn owner(&self) -> &Owner {
        // SAFETY: the count that this buf holds keeps the owner alive.
        unsafe { self.owner.as_ref() }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the buf holds no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first byte's address, for the driver's system calls.
    #[inline]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: valid while the count is held; a writer would need this buf exclusively.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len()) }
    }

    /// The bytes of an exclusive buf. Panics on a shared one: writing into data that others read is a bug.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(!self.shared, "a shared buffer must not be written");
        // SAFETY: exclusive, and `&mut self` excludes other borrows of this view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len()) }
    }

    /// Whether the buf is read-only because others may view the same bytes.
    pub fn is_shared(&self) -> bool {
        self.shared
    }

    /// A second, read-only view of the same bytes; this one becomes read-only too.
    pub fn duplicate(&mut self) -> Buf {
        self.shared = true;
        self.owner().refs.fetch_add(1, Ordering::Relaxed);
        Buf { start: self.start, len: self.len, shared: true, owner: self.owner }
    }

    /// A read-only view of `range` of the same bytes; this buf becomes read-only too. Panics outside the buf.
    pub fn slice(&mut self, range: std::ops::Range<usize>) -> Buf {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of a buffer of {} bytes", self.len);
        let mut view = self.duplicate();
        // SAFETY: inside the range by the assertion.
        view.start = unsafe { view.start.add(range.start) };
        view.len = (range.end - range.start) as u32;
        view
    }

    /// A buf over ordinary heap memory, for control data; not aligned for direct I/O.
    pub fn from_vec(bytes: Vec<u8>) -> Buf {
        let mut boxed = Box::new(HeapBuf { owner: Owner::new(release_heap), bytes: bytes.into_boxed_slice() });
        boxed.owner.revive();
        let len = u32::try_from(boxed.bytes.len()).expect("control data is small");
        let start = NonNull::from(&mut *boxed.bytes).cast::<u8>();
        let owner = NonNull::from(Box::leak(boxed)).cast::<Owner>();
        // SAFETY: the box keeps the bytes until `release_heap`; this is their only view.
        unsafe { Buf::from_raw(start, len, false, owner) }
    }

    /// Makes a shared buf writable again when no other view is left; true when it is exclusive now. Bufs of a shared
    /// region (loans) always stay shared, since the region itself holds a count.
    pub fn try_unshare(&mut self) -> bool {
        if self.shared && self.owner().refs.load(Ordering::Acquire) == 1 {
            self.shared = false;
        }
        !self.shared
    }

    /// Splits off the bytes from `at` on; both parts keep their exclusivity. Panics when `at` is past the end.
    pub fn split_off(&mut self, at: usize) -> Buf {
        assert!(at <= self.len(), "split at {at} of a buffer of {} bytes", self.len);
        self.owner().refs.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `at` is inside or one past the end of the range.
        let start = unsafe { self.start.add(at) };
        let tail = Buf { start, len: self.len - at as u32, shared: self.shared, owner: self.owner };
        self.len = at as u32;
        tail
    }

    /// Joins `tail` back when it follows this buf directly in the same memory. The whole is shared when either part was.
    pub fn try_join(&mut self, tail: Buf) -> Result<(), Buf> {
        let adjacent = self.start.as_ptr().wrapping_add(self.len()) == tail.start.as_ptr();
        if adjacent && self.owner == tail.owner {
            self.len += tail.len;
            self.shared |= tail.shared;
            Ok(())
        } else {
            Err(tail)
        }
    }

    /// Shortens the buf to `len` bytes; the rest stays allocated with it.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u32);
    }
}

impl Drop for Buf {
    #[inline]
    fn drop(&mut self) {
        if self.owner().refs.fetch_sub(1, Ordering::Release) == 1 {
            std::sync::atomic::fence(Ordering::Acquire);
            // SAFETY: the last count is gone, so the owner's release function may take the memory back.
            unsafe { (self.owner().release)(self.owner) };
        }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buf({} bytes{})", self.len, if self.shared { ", shared" } else { "" })
    }
}

#[repr(C)]
struct HeapBuf {
    owner: Owner,
    bytes: Box<[u8]>,
}

unsafe fn release_heap(owner: NonNull<Owner>) {
    // SAFETY: called once, by the last count; the owner is the first field of a boxed HeapBuf.
    drop(unsafe { Box::from_raw(owner.cast::<HeapBuf>().as_ptr()) });
}

/// Total bytes of a list.
pub fn sg_len(list: &[Buf]) -> usize {
    list.iter().map(Buf::len).sum()
}

/// Splits the bytes from `at` on off a list. Panics when `at` is past the end.
pub fn sg_split_off(list: &mut SgList, mut at: usize) -> SgList {
    for index in 0..list.len() {
        let len = list[index].len();
        if at < len {
            let mut tail = SgList::new();
            if at > 0 {
                tail.push(list[index].split_off(at));
                tail.extend(list.drain(index + 1..));
            } else {
                tail.extend(list.drain(index..));
            }
            return tail;
        }
        at -= len;
    }
    assert_eq!(at, 0, "split past the end of a buffer list");
    SgList::new()
}

/// Appends `tail` to `list`, merging a buf that was split at the seam.
pub fn sg_append(list: &mut SgList, tail: SgList) {
    for buf in tail {
        match list.last_mut() {
            Some(last) => {
                if let Err(buf) = last.try_join(buf) {
                    list.push(buf);
                }
            }
            None => list.push(buf),
        }
    }
}

/// Copies the list's bytes into `target`, which must be as long.
pub fn sg_copy_to(list: &[Buf], target: &mut [u8]) {
    assert_eq!(sg_len(list), target.len());
    let mut at = 0;
    for buf in list {
        target[at..at + buf.len()].copy_from_slice(buf.as_slice());
        at += buf.len();
    }
}

/// Copies `source`, which must be as long, over the list's bytes.
pub fn sg_copy_from(list: &mut [Buf], source: &[u8]) {
    assert_eq!(sg_len(list), source.len());
    let mut at = 0;
    for buf in list {
        let len = buf.len();
        buf.as_mut_slice().copy_from_slice(&source[at..at + len]);
        at += len;
    }
}

/// Sets every byte of the list to zero.
pub fn sg_zero(list: &mut [Buf]) {
    list.iter_mut().for_each(|buf| buf.as_mut_slice().fill(0));
}

/// Long-lived memory that devices serve from (a memory device, a cache): page-aligned, zeroed, shared by all reactors.
///
/// Its bytes are read and written through raw copies, never through long-lived references: two commands that overlap
/// in time may see each other's bytes mixed, exactly as the NVMe specification allows, and nothing else may happen.
pub struct Region(NonNull<RegionInner>);

/// Writes to a region that go past the caches.
const STREAMED_BYTES_MIN: usize = 2048;

#[repr(C)]
struct RegionInner {
    owner: Owner,
    start: NonNull<u8>,
    len: usize,
    stores: Stores,
    map: Arc<dyn Send + Sync>,
}

// SAFETY: all access is by raw copies inside the range; the count is atomic.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

unsafe fn release_region(owner: NonNull<Owner>) {
    // SAFETY: called once, by the last count; the owner is the first field of a boxed RegionInner.
    drop(unsafe { Box::from_raw(owner.cast::<RegionInner>().as_ptr()) });
}

impl Region {
    /// Wraps memory that `map` keeps mapped.
    ///
    /// # Safety
    /// `start..start + len` is readable and writable until `map` is dropped, and used by raw copies only but for loans.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize, map: Arc<dyn Send + Sync>) -> Region {
        let inner =
            Box::new(RegionInner { owner: Owner::new(release_region), start, len, stores: Stores::default(), map });
        inner.owner.revive();
        Region(NonNull::from(Box::leak(inner)))
    }

    /// Zeroed anonymous memory, taken lazily from the system. `None` when the address space has no room.
    pub fn anonymous(len: usize) -> Option<Region> {
        let map = crate::arena::Mapping::anonymous(len)?;
        let start = map.start();
        // SAFETY: the mapping is ours alone and lives in the Arc.
        Some(unsafe { Region::from_raw(start, len, Arc::new(map)) })
    }

    fn inner(&self) -> &RegionInner {
        // SAFETY: this handle holds a count.
        unsafe { self.0.as_ref() }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.inner().len
    }

    /// Whether the region is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let inner = self.inner();
        assert!(
            offset <= inner.len && len <= inner.len - offset,
            "{offset}+{len} is outside a region of {}",
            inner.len
        );
        // SAFETY: in bounds by the assertion.
        unsafe { inner.start.as_ptr().add(offset) }
    }

    /// Copies bytes out. Panics outside the region.
    #[inline]
    pub fn read(&self, offset: usize, target: &mut [u8]) {
        let source = self.at(offset, target.len());
        // SAFETY: in bounds; `target` is exclusive memory outside the region.
        unsafe { std::ptr::copy_nonoverlapping(source, target.as_mut_ptr(), target.len()) }
    }

    /// Copies bytes in, past the caches where there are many: a region is large, and what is written would first have to
    /// be fetched. Panics outside the region.
    #[inline]
    pub fn write(&self, offset: usize, source: &[u8]) {
        let target = self.at(offset, source.len());
        // A loan of this very region may overlap the target.
        let apart = (source.as_ptr() as usize).abs_diff(target as usize) >= source.len();
        if source.len() >= STREAMED_BYTES_MIN && apart {
            // SAFETY: in bounds, and no overlap.
            unsafe { self.inner().stores.copy(source, target, false) };
            // Such stores are in no order with what releases a lock.
            return store_fence();
        }
        // SAFETY: in bounds.
        unsafe { std::ptr::copy(source.as_ptr(), target, source.len()) }
    }

    /// Zeroes a range. Panics outside the region.
    pub fn zero(&self, offset: usize, len: usize) {
        let target = self.at(offset, len);
        // SAFETY: in bounds.
        unsafe { std::ptr::write_bytes(target, 0, len) }
    }

    /// A read-only view of a range, without a copy: its bytes change when the region is written meanwhile.
    #[inline]
    pub fn loan(&self, offset: usize, len: usize) -> Buf {
        let start = self.at(offset, len);
        self.inner().owner.refs.fetch_add(1, Ordering::Relaxed);
        // SAFETY: in bounds, so not null; the count was taken above; loans are shared.
        unsafe { Buf::from_raw(NonNull::new_unchecked(start), len as u32, true, self.0.cast()) }
    }
}

impl Clone for Region {
    fn clone(&self) -> Self {
        self.inner().owner.refs.fetch_add(1, Ordering::Relaxed);
        Region(self.0)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let owner: NonNull<Owner> = self.0.cast();
        // SAFETY: this handle's count is turned into a buf, whose drop gives it up.
        drop(unsafe { Buf::from_raw(self.inner().start, 0, true, owner) });
    }
}

impl RegionInner {
    #[allow(dead_code, reason = "the mapping is held for its Drop")]
    fn map(&self) -> &Arc<dyn Send + Sync> {
        &self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{BufPool, PoolConfig};

    #[test]
    fn split_halves_are_exclusive_and_join_again() {
        let pool = BufPool::new(PoolConfig::default());
        let mut buf = pool.try_alloc(8192).unwrap();
        let mut tail = buf.split_off(4096);
        buf.as_mut_slice().fill(1);
        tail.as_mut_slice().fill(2);
        buf.try_join(tail).unwrap();
        assert_eq!((buf.len(), buf.as_slice()[0], buf.as_slice()[8191]), (8192, 1, 2));
    }

    #[test]
    fn a_half_that_was_shared_joins_the_other_and_the_whole_is_exclusive_when_it_is_alone() {
        let pool = BufPool::new(PoolConfig::default());
        for which in [0, 1] {
            let mut buf = pool.try_alloc(8192).unwrap();
            let mut tail = buf.split_off(4096);
            let copy = if which == 0 { buf.duplicate() } else { tail.duplicate() };
            buf.try_join(tail).unwrap();
            assert!(buf.len() == 8192 && buf.is_shared() && !buf.try_unshare());
            drop(copy);
            assert!(buf.try_unshare());
        }
    }

    #[test]
    fn a_duplicated_buffer_is_read_only_until_it_is_alone() {
        let pool = BufPool::new(PoolConfig::default());
        let mut buf = pool.try_alloc(4096).unwrap();
        let copy = buf.duplicate();
        assert!(!buf.try_unshare());
        drop(copy);
        assert!(buf.try_unshare());
        buf.as_mut_slice()[0] = 1;
    }

    #[test]
    #[should_panic(expected = "shared buffer")]
    fn writing_a_shared_buffer_is_refused() {
        let region = Region::anonymous(4096).unwrap();
        region.loan(0, 4096).as_mut_slice()[0] = 1;
    }

    #[test]
    fn slices_view_and_heap_bytes_are_freed_once() {
        let mut buf = Buf::from_vec((0..100).collect());
        buf.as_mut_slice()[10] = 7;
        let view = buf.slice(10..20);
        drop(buf);
        assert_eq!((view.len(), view.as_slice()[0], view.as_slice()[9]), (10, 7, 19));
    }

    #[test]
    fn a_loan_outlives_the_region_handle() {
        let region = Region::anonymous(1 << 20).unwrap();
        region.write(4096, &[7; 4096]);
        let loan = region.loan(4096, 4096);
        drop(region);
        assert_eq!(loan.as_slice(), [7; 4096]);
    }

    #[test]
    fn lists_split_and_append_at_any_byte() {
        let pool = BufPool::new(PoolConfig::default());
        for at in [0, 1, 4095, 4096, 5000, 8192] {
            let mut list: SgList = [pool.try_alloc(4096).unwrap(), pool.try_alloc(4096).unwrap()].into_iter().collect();
            let pattern: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
            sg_copy_from(&mut list, &pattern);
            let tail = sg_split_off(&mut list, at);
            assert_eq!((sg_len(&list), sg_len(&tail)), (at, 8192 - at));
            sg_append(&mut list, tail);
            let mut back = vec![0; 8192];
            sg_copy_to(&list, &mut back);
            assert_eq!(back, pattern);
        }
    }
}
