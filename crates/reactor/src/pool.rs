//! The buffer pool of one reactor: size classes of page-aligned memory under one byte limit.
//!
//! Arenas are mapped when first needed and kept. A buffer may be freed on any thread; frees on foreign threads come home
//! through a queue. When the limit is reached `try_alloc` says no and the caller waits or pushes back; the pool never
//! grows past its limit.

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
/// Memory mapped at a time (a whole number of every class).
const ARENA_BYTES: usize = 2 << 20;

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
    start: NonNull<u8>,
    /// Counted once by every buffer that is out, so that the pool outlives them.
    pool: *const PoolShared,
}

struct PoolShared {
    thread: u64,
    /// Owner thread only.
    free: UnsafeCell<[Vec<NonNull<Slot>>; CLASS_BYTES.len()]>,
    freed_elsewhere: SegQueue<SlotPtr>,
    waiters: UnsafeCell<Vec<Waker>>,
    arenas: UnsafeCell<Vec<Mapping>>,
    slots: UnsafeCell<Vec<Box<[Slot]>>>,
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
            slots: UnsafeCell::default(),
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

    /// Maps one more arena and cuts it into slots of `class`; false at the limit.
    fn carve(&self, class: usize) -> bool {
        if self.bytes_carved.get() + ARENA_BYTES > self.bytes_max {
            return self.recycle_arena_of_other_class(class);
        }
        let Some(mapping) = Mapping::anonymous(ARENA_BYTES) else { return false };
        if let Some(hook) = &*self.on_new_arena.borrow() {
            hook(mapping.start(), ARENA_BYTES);
        }
        let step = CLASS_BYTES[class];
        let slots: Box<[Slot]> = (0..ARENA_BYTES / step)
            .map(|i| Slot {
                owner: Owner::new(release_slot),
                class: class as u8,
                // SAFETY: i * step is inside the arena.
                start: unsafe { mapping.start().add(i * step) },
                pool: Arc::as_ptr(&self.shared),
            })
            .collect();
        // SAFETY: owner thread; nothing else borrows these cells during this call.
        unsafe {
            let free = &mut (&mut (*self.shared.free.get()))[class];
            (*self.shared.slots.get()).push(slots);
            let slots = (&(*self.shared.slots.get())).last().expect("just pushed");
            free.extend(slots.iter().rev().map(NonNull::from));
            (*self.shared.arenas.get()).push(mapping);
        }
        self.bytes_carved.set(self.bytes_carved.get() + ARENA_BYTES);
        true
    }

    /// At the limit: gives an arena whose slots are all free to `class`, so that a burst of one size cannot starve another.
    fn recycle_arena_of_other_class(&self, class: usize) -> bool {
        // SAFETY: owner thread; nothing else borrows these cells during this call.
        let (free, slots, arenas) =
            unsafe { (&mut *self.shared.free.get(), &mut *self.shared.slots.get(), &mut *self.shared.arenas.get()) };
        for index in 0..slots.len() {
            let old = slots[index][0].class as usize;
            let range = slots[index].as_ptr_range();
            let inside = |slot: &NonNull<Slot>| range.contains(&(slot.as_ptr() as *const Slot));
            if old == class || free[old].iter().filter(|slot| inside(slot)).count() != slots[index].len() {
                continue;
            }
            free[old].retain(|slot| !inside(slot));
            drop(slots.swap_remove(index));
            drop(arenas.swap_remove(index));
            self.bytes_carved.set(self.bytes_carved.get() - ARENA_BYTES);
            return self.carve(class);
        }
        false
    }
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
