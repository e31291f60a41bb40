//! The buffer pool of one reactor: size classes of page-aligned memory under one byte limit.
//!
//! Arenas are mapped when first needed and stay, because drivers register their memory. An arena consists of parts; a part, or
//! several that follow one another for the largest class, is cut into slots of one class when that has none free. So a pool of
//! which little is wanted has one arena for all sizes. At the limit a part whose slots are all free is cut anew for another class.
//!
//! A buffer may be freed on any thread; frees on foreign threads come home through a queue. When the limit is reached
//! `try_alloc` says no and the caller waits or pushes back; the pool never grows past its limit.

use crate::arena::Mapping;
use crate::buf::{Buf, Owner};
use crate::exec::{ExecShared, thread_token};
use crossbeam_queue::SegQueue;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::task::Waker;

/// Sizes of the classes, in bytes.
pub const CLASS_BYTES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// The largest single buffer.
pub const BUF_BYTES_MAX: usize = CLASS_BYTES[CLASS_BYTES.len() - 1];
/// Memory mapped at a time: whole groups.
const ARENA_BYTES: usize = 2 << 20;
/// What is cut into slots of one class at a time, but for the largest, which takes a group.
const PART_BYTES: usize = 256 << 10;
/// Parts that follow one another and have room for the largest buffer.
const GROUP_PARTS: usize = BUF_BYTES_MAX / PART_BYTES;

/// Limits of a pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// Most bytes of buffers that may exist at once.
    pub bytes_max: usize,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig { bytes_max: 64 << 20 }
    }
}

#[repr(C)]
struct Slot {
    owner: Owner,
    class: u8,
    /// Its index in [`PoolShared::parts`]; the first one for the largest class.
    part: u32,
    start: NonNull<u8>,
    /// Counted once by every buffer that is out, so that the pool outlives them.
    pool: *const PoolShared,
}

/// A part of an arena.
struct Part {
    start: NonNull<u8>,
    /// None while it is cut for no class; the first of a group has the slot of the largest class, the others none.
    slots: Box<[Slot]>,
    /// It is of a group that is one buffer.
    in_group: bool,
}

impl Part {
    fn is_spare(&self) -> bool {
        self.slots.is_empty() && !self.in_group
    }
}

struct PoolShared {
    thread: u64,
    /// Owner thread only.
    free: UnsafeCell<[Vec<NonNull<Slot>>; CLASS_BYTES.len()]>,
    freed_elsewhere: SegQueue<SlotPtr>,
    waiters: UnsafeCell<Vec<Waker>>,
    arenas: UnsafeCell<Vec<Mapping>>,
    /// Those of all arenas, in order.
    parts: UnsafeCell<Vec<Part>>,
    /// Whom to wake when a buffer is freed on another thread.
    exec: OnceLock<Arc<ExecShared>>,
}

struct SlotPtr(NonNull<Slot>);
// SAFETY: a free slot is just an address on its way home.
unsafe impl Send for SlotPtr {}

// SAFETY: the cells are reached by the owner thread only (checked by token); the queue is thread-safe.
unsafe impl Send for PoolShared {}
// SAFETY: as above.
unsafe impl Sync for PoolShared {}

unsafe fn release_slot(owner: NonNull<Owner>) {
    let slot = owner.cast::<Slot>();
    // SAFETY: the slot lives as long as its pool, of which this buffer holds a count.
    let pool = unsafe { Arc::from_raw(slot.as_ref().pool) };
    if pool.thread == thread_token() {
        // SAFETY: owner thread; borrows end at the semicolons.
        unsafe {
            (&mut (*pool.free.get()))[slot.as_ref().class as usize].push(slot);
            // All of them: which one this memory can serve depends on their sizes, and a wake-up spent on a waiter that
            // has gone away would otherwise be lost. Waiters exist only when memory is exhausted.
            (*pool.waiters.get()).drain(..).for_each(Waker::wake);
        }
    } else {
        pool.freed_elsewhere.push(SlotPtr(slot));
        if let Some(exec) = pool.exec.get() {
            exec.wake_if_asleep();
        }
    }
}

type ArenaHook = Box<dyn Fn(NonNull<u8>, usize)>;

/// The pool; lives on its reactor's thread.
pub struct BufPool {
    shared: Arc<PoolShared>,
    bytes_max: usize,
    bytes_carved: Cell<usize>,
    on_new_arena: RefCell<Option<ArenaHook>>,
}

impl BufPool {
    /// An empty pool on the calling thread.
    pub fn new(config: PoolConfig) -> Self {
        let shared = PoolShared {
            thread: thread_token(),
            free: UnsafeCell::new(Default::default()),
            freed_elsewhere: SegQueue::new(),
            waiters: UnsafeCell::new(Vec::new()),
            arenas: UnsafeCell::default(),
            parts: UnsafeCell::default(),
            exec: OnceLock::new(),
        };
        BufPool {
            shared: Arc::new(shared),
            bytes_max: config.bytes_max,
            bytes_carved: Cell::new(0),
            on_new_arena: RefCell::new(None),
        }
    }

    pub(crate) fn attach(&self, exec: Arc<ExecShared>) {
        assert!(self.shared.exec.set(exec).is_ok(), "a pool belongs to one reactor");
    }

    /// Calls `hook` for each mapped arena, so that a driver can register its memory.
    pub fn set_arena_hook(&self, hook: impl Fn(NonNull<u8>, usize) + 'static) {
        *self.on_new_arena.borrow_mut() = Some(Box::new(hook));
    }

    /// A buffer of exactly `len` bytes (its memory rounded up to a class), contents unspecified. `None` when the pool is at its
    /// limit. Panics when `len` is over [`BUF_BYTES_MAX`]: callers split larger requests.
    pub fn try_alloc(&self, len: usize) -> Option<Buf> {
        let class = CLASS_BYTES.iter().position(|bytes| len <= *bytes);
        let class = class.unwrap_or_else(|| panic!("a buffer of {len} bytes is larger than the largest class"));
        // SAFETY: the pool is not Sync, so this is the owner thread; the borrow ends here.
        let mut slot = unsafe { (&mut (*self.shared.free.get()))[class].pop() };
        if slot.is_none() {
            self.collect_foreign();
            // SAFETY: as above.
            slot = unsafe { (&mut (*self.shared.free.get()))[class].pop() };
        }
        if slot.is_none() && self.carve(class) {
            // SAFETY: as above.
            slot = unsafe { (&mut (*self.shared.free.get()))[class].pop() };
        }
        let slot = slot?;
        // SAFETY: free slots are referred to by the free list alone, which has just given this one up.
        unsafe {
            slot.as_ref().owner.revive();
            Arc::increment_strong_count(slot.as_ref().pool);
            Some(Buf::from_raw(slot.as_ref().start, len as u32, false, slot.cast()))
        }
    }

    /// As [`try_alloc`](Self::try_alloc), waiting for other buffers to come back when the pool is at its limit.
    pub async fn alloc(&self, len: usize) -> Buf {
        std::future::poll_fn(|cx| match self.try_alloc(len) {
            Some(buf) => std::task::Poll::Ready(buf),
            None => {
                // SAFETY: owner thread; the borrow ends here.
                unsafe { (*self.shared.waiters.get()).push(cx.waker().clone()) };
                std::task::Poll::Pending
            }
        })
        .await
    }

    /// Brings home the buffers that other threads freed, and wakes as many waiters.
    pub fn collect_foreign(&self) {
        while let Some(SlotPtr(slot)) = self.shared.freed_elsewhere.pop() {
            // SAFETY: owner thread; the slot is free.
            unsafe {
                (&mut (*self.shared.free.get()))[slot.as_ref().class as usize].push(slot);
                (*self.shared.waiters.get()).drain(..).for_each(Waker::wake);
            }
        }
    }

    /// Most bytes of buffers that may exist at once.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes mapped so far.
    pub fn bytes_mapped(&self) -> usize {
        self.bytes_carved.get()
    }

    /// Cuts memory that is spare into slots of `class`, or that of one more arena; false when there is none.
    fn carve(&self, class: usize) -> bool {
        // SAFETY: owner thread; nothing else borrows these cells during this call.
        let (free, parts) = unsafe { (&mut *self.shared.free.get(), &mut *self.shared.parts.get()) };
        let whole = CLASS_BYTES[class] > PART_BYTES;
        let Some(first) = spare(parts, whole).or_else(|| self.map_arena(parts)).or_else(|| recycle(free, parts, class))
        else {
            return false;
        };
        let (start, bytes) = (parts[first].start, if whole { BUF_BYTES_MAX } else { PART_BYTES });
        let step = CLASS_BYTES[class];
        let slots = (0..bytes / step).map(|i| Slot {
            owner: Owner::new(release_slot),
            class: class as u8,
            part: first as u32,
            // SAFETY: i * step is inside the part, or its group.
            start: unsafe { start.add(i * step) },
            pool: Arc::as_ptr(&self.shared),
        });
        parts[first].slots = slots.collect();
        if whole {
            parts[first..first + GROUP_PARTS].iter_mut().for_each(|part| part.in_group = true);
        }
        free[class].extend(parts[first].slots.iter().rev().map(NonNull::from));
        true
    }

    /// Maps one more arena, whose parts are spare; the first of them. `None` at the limit.
    fn map_arena(&self, parts: &mut Vec<Part>) -> Option<usize> {
        if self.bytes_carved.get() + ARENA_BYTES > self.bytes_max {
            return None;
        }
        let mapping = Mapping::anonymous(ARENA_BYTES)?;
        if let Some(hook) = &*self.on_new_arena.borrow() {
            hook(mapping.start(), ARENA_BYTES);
        }
        let first = parts.len();
        // SAFETY: every part is inside the arena.
        let start = |index: usize| unsafe { mapping.start().add(index * PART_BYTES) };
        let part = |index: usize| Part { start: start(index), slots: Box::default(), in_group: false };
        parts.extend((0..ARENA_BYTES / PART_BYTES).map(part));
        // SAFETY: owner thread; nothing else borrows this cell during this call.
        unsafe { (*self.shared.arenas.get()).push(mapping) };
        self.bytes_carved.set(self.bytes_carved.get() + ARENA_BYTES);
        Some(first)
    }
}

/// The first part of a spare group, or a spare part: of a group that is in use already, if there is one.
fn spare(parts: &[Part], whole: bool) -> Option<usize> {
    let of_group = |(group, parts): (usize, &[Part])| {
        let spare = parts.iter().position(Part::is_spare)?;
        let all = parts.iter().all(Part::is_spare);
        (all || !whole).then_some((all, group * GROUP_PARTS + spare))
    };
    // Groups in use come first.
    parts.chunks(GROUP_PARTS).enumerate().filter_map(of_group).min().map(|(_, first)| first)
}

/// At the limit: makes a part, or a group, spare whose slots are all free, so that a burst of one size cannot starve another; its
/// first part.
fn recycle(free: &mut [Vec<NonNull<Slot>>], parts: &mut [Part], class: usize) -> Option<usize> {
    let mut held: Vec<usize> = parts.iter().map(|part| part.slots.len()).collect();
    // SAFETY: free slots are alive, and referred to by the free lists alone.
    free.iter().flatten().for_each(|slot| held[unsafe { slot.as_ref() }.part as usize] -= 1);
    let is_whole = |class: usize| CLASS_BYTES[class] > PART_BYTES;
    let of_other = |part: &Part| part.slots.first().is_some_and(|slot| slot.class as usize != class);
    let group_of = |part: usize| part - part % GROUP_PARTS..part - part % GROUP_PARTS + GROUP_PARTS;
    let given: Vec<usize> = if is_whole(class) {
        let is_at_rest = |group: &usize| group_of(*group).all(|part| held[part] == 0 && !parts[part].in_group);
        group_of((0..parts.len()).step_by(GROUP_PARTS).find(is_at_rest)?).collect()
    } else {
        let part = (0..parts.len()).find(|part| held[*part] == 0 && of_other(&parts[*part]))?;
        if parts[part].in_group { group_of(part).collect() } else { vec![part] }
    };
    for list in free {
        // SAFETY: as above.
        list.retain(|slot| !given.contains(&(unsafe { slot.as_ref() }.part as usize)));
    }
    for part in &given {
        (parts[*part].slots, parts[*part].in_group) = (Box::default(), false);
    }
    given.first().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_past_the_limit_and_recovers_when_buffers_return() {
        let pool = BufPool::new(PoolConfig { bytes_max: ARENA_BYTES });
        let held: Vec<Buf> = std::iter::from_fn(|| pool.try_alloc(4096)).collect();
        assert_eq!(held.len(), ARENA_BYTES / 4096);
        assert!(pool.try_alloc(1).is_none());
        drop(held);
        assert!(pool.try_alloc(1).is_some());
    }

    #[test]
    fn a_burst_of_one_size_does_not_starve_another() {
        let pool = BufPool::new(PoolConfig { bytes_max: ARENA_BYTES });
        drop(std::iter::from_fn(|| pool.try_alloc(4096)).collect::<Vec<_>>());
        assert_eq!(pool.try_alloc(1 << 20).map(|b| b.len()), Some(1 << 20));
    }

    #[test]
    fn a_little_of_every_size_takes_one_arena() {
        let pool = BufPool::new(PoolConfig::default());
        let held: Vec<Buf> = CLASS_BYTES.iter().filter_map(|bytes| pool.try_alloc(*bytes)).collect();
        assert_eq!((held.len(), pool.bytes_mapped()), (CLASS_BYTES.len(), ARENA_BYTES));
    }

    #[test]
    fn no_two_buffers_overlap_and_all_memory_serves_every_size() {
        let pool = BufPool::new(PoolConfig { bytes_max: 2 * ARENA_BYTES });
        let (mut held, mut rng) = (Vec::<(Buf, u64)>::new(), base::Rng::new(1));
        let mut below = |limit: usize| rng.below(limit as u64) as usize;
        let right = |(buf, tag): &(Buf, u64)| {
            let words = buf.as_slice().chunks_exact(8).step_by(512);
            words.map(|word| u64::from_le_bytes(word.try_into().unwrap())).all(|word| word == *tag)
        };
        for tag in 0..20_000u64 {
            match pool.try_alloc(CLASS_BYTES[below(CLASS_BYTES.len())]) {
                Some(mut buf) => {
                    buf.as_mut_slice().chunks_exact_mut(8).step_by(512).for_each(|word| {
                        word.copy_from_slice(&tag.to_le_bytes());
                    });
                    held.push((buf, tag));
                }
                None => (0..=below(held.len())).for_each(|_| {
                    let one = held.swap_remove(below(held.len()));
                    assert!(right(&one), "{} bytes", one.0.len());
                }),
            }
            if tag % 1_000 == 0 {
                held.clear();
                for bytes in CLASS_BYTES {
                    let all: Vec<Buf> = std::iter::from_fn(|| pool.try_alloc(bytes)).collect();
                    assert_eq!(all.len(), 2 * ARENA_BYTES / bytes);
                }
            }
        }
    }

    #[test]
    fn buffers_freed_on_another_thread_come_home() {
        let pool = BufPool::new(PoolConfig { bytes_max: ARENA_BYTES });
        let held: Vec<Buf> = std::iter::from_fn(|| pool.try_alloc(1 << 20)).collect();
        assert_eq!(held.len(), 2);
        std::thread::spawn(move || drop(held)).join().unwrap();
        assert!(pool.try_alloc(1 << 20).is_some());
    }

    #[test]
    fn buffers_may_outlive_their_pool() {
        let pool = BufPool::new(PoolConfig::default());
        let mut buf = pool.try_alloc(4096).unwrap();
        drop(pool);
        buf.as_mut_slice().fill(9);
        std::thread::spawn(move || assert_eq!(buf.as_slice()[4095], 9)).join().unwrap();
    }
}
