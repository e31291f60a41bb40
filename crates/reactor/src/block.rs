//! Size-class blocks for futures and tasks: the reason that steady-state I/O does not allocate.
//!
//! Blocks come from the global allocator and return to a free list of whichever thread frees them, so a block may be
//! freed on another thread than the one that took it. Each list holds at most [`KEEP_MAX`] blocks.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::UnsafeCell;
use std::ptr::NonNull;

/// Alignment of every block.
const ALIGN: usize = 64;
/// Smallest class, in bytes; each further class is twice the last.
const CLASS_MIN: usize = 128;
const CLASSES: usize = 7;
/// Blocks kept per class and thread.
const KEEP_MAX: usize = 4096;

struct FreeLists([UnsafeCell<Vec<NonNull<u8>>>; CLASSES]);

impl Drop for FreeLists {
    fn drop(&mut self) {
        for (class, list) in self.0.iter_mut().enumerate() {
            for block in list.get_mut().drain(..) {
                // SAFETY: every block in list `class` was allocated with this class's layout and is on no other list.
                unsafe { dealloc(block.as_ptr(), class_layout(class)) };
            }
        }
    }
}

thread_local! {
    static FREE: FreeLists = const { FreeLists([const { UnsafeCell::new(Vec::new()) }; CLASSES]) };
}

fn class_of(layout: Layout) -> Option<usize> {
    if layout.align() > ALIGN {
        return None;
    }
    let size = layout.size().max(CLASS_MIN).next_power_of_two();
    let class = (size / CLASS_MIN).trailing_zeros() as usize;
    (class < CLASSES).then_some(class)
}

fn class_layout(class: usize) -> Layout {
    Layout::from_size_align(CLASS_MIN << class, ALIGN).expect("class sizes and alignment are powers of two")
}

/// Memory for one value of `layout`, uninitialised.
#[inline]
pub(crate) fn take(layout: Layout) -> NonNull<u8> {
    let Some(class) = class_of(layout) else { return take_global(layout) };
    let recycled = FREE.try_with(|free| {
        // SAFETY: the list is only touched through this thread-local, and never across a call that could re-enter.
        unsafe { (*free.0[class].get()).pop() }
    });
    match recycled {
        Ok(Some(block)) => block,
        _ => take_global(class_layout(class)),
    }
}

fn take_global(layout: Layout) -> NonNull<u8> {
    // SAFETY: `layout` has a non-zero size: classes start at CLASS_MIN, and larger layouts are larger still.
    let block = unsafe { alloc(layout) };
    NonNull::new(block).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Gives back a block.
///
/// # Safety
/// `block` came from [`take`] with the same `layout`, its value was dropped, and nothing refers to it any more.
#[inline]
pub(crate) unsafe fn give(block: NonNull<u8>, layout: Layout) {
    let Some(class) = class_of(layout) else {
        // SAFETY: blocks of no class come from the global allocator with this very layout.
        return unsafe { dealloc(block.as_ptr(), layout) };
    };
    let kept = FREE.try_with(|free| {
        // SAFETY: as in `take`.
        let list = unsafe { &mut *free.0[class].get() };
        if list.len() < KEEP_MAX {
            list.push(block);
            true
        } else {
            false
        }
    });
    if !kept.unwrap_or(false) {
        // SAFETY: `block` was allocated with its class's layout.
        unsafe { dealloc(block.as_ptr(), class_layout(class)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_block_is_used_again() {
        let layout = Layout::new::<[u64; 20]>();
        let first = take(layout);
        // SAFETY: just taken with this layout, holds nothing.
        unsafe { give(first, layout) };
        let second = take(layout);
        assert_eq!(first, second);
        // SAFETY: as above.
        unsafe { give(second, layout) };
    }

    #[test]
    fn large_and_over_aligned_values_work_too() {
        for layout in [Layout::from_size_align(1 << 20, 64).unwrap(), Layout::from_size_align(64, 4096).unwrap()] {
            let block = take(layout);
            assert_eq!(block.as_ptr() as usize % layout.align(), 0);
            // SAFETY: just taken with this layout.
            unsafe { give(block, layout) };
        }
    }
}
