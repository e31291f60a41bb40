//! Large tables in memory of their own.

use crate::arena::{HUGE_PAGE_BYTES, Mapping, Piece};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use zerocopy::FromZeros;

/// The least for which a mapping is worth while.
const MAPPED_BYTES_MIN: usize = 256 << 10;

/// A slice that begins as zeroes and, unless it is small, takes no memory where it has never been touched. It lies on huge pages, where
/// the system offers them, which several of less than 2 MiB share: filling it faults once for each of them, and lookups at random find
/// what translates their addresses.
pub struct Table<T> {
    start: NonNull<T>,
    len: usize,
    memory: Memory,
    _owns: PhantomData<T>,
}

enum Memory {
    Allocated,
    Shared(#[expect(dead_code, reason = "given back on drop")] Piece),
    Mapped(#[expect(dead_code, reason = "given back on drop")] Mapping),
}

impl<T: FromZeros> Table<T> {
    /// So many elements. Panics when there is no memory for them.
    pub fn zeroed(len: usize) -> Table<T> {
        const { assert!(align_of::<T>() <= 4096) };
        let bytes = len.checked_mul(size_of::<T>()).expect("the size of a table is a number");
        // What would nearly fill the last huge page has all of it.
        let whole = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let bytes = if whole - bytes <= HUGE_PAGE_BYTES / 4 { whole } else { bytes };
        let (start, memory) = if bytes < MAPPED_BYTES_MIN {
            let small: *mut [T] = Box::into_raw(<[T]>::new_box_zeroed_with_elems(len).expect("memory for a table"));
            (NonNull::new(small.cast()).expect("memory is somewhere"), Memory::Allocated)
        } else if bytes < HUGE_PAGE_BYTES {
            let piece = Piece::zeroed(bytes).expect("memory for a table");
            (piece.start().cast(), Memory::Shared(piece))
        } else {
            let mapping = Mapping::anonymous(bytes).expect("memory for a table");
            (mapping.start().cast(), Memory::Mapped(mapping))
        };
        Table { start, len, memory, _owns: PhantomData }
    }

    /// With as many more zeroes behind it as make so many elements, which are not fewer than now.
    pub fn extended(mut self, len: usize) -> Table<T> {
        let mut larger = Table::zeroed(len);
        larger[..self.len].swap_with_slice(&mut self);
        larger
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements from `start` on are ours, aligned (the allocator's, or to a page), and were made of zeroes.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Table<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        let all: *mut [T] = &raw mut **self;
        if matches!(self.memory, Memory::Allocated) {
            // SAFETY: it came out of such a box.
            drop(unsafe { Box::from_raw(all) });
        } else if std::mem::needs_drop::<T>() {
            // SAFETY: they are not used any more; their memory goes with the piece or the mapping.
            unsafe { std::ptr::drop_in_place(all) };
        }
    }
}

// SAFETY: it owns its elements, as a box does.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Table<T> {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    struct Counted(#[expect(dead_code)] Rc<()>);

    #[derive(FromZeros)]
    struct Cell {
        number: u64,
        shared: Option<Box<Counted>>,
    }

    #[test]
    fn small_and_large_tables_begin_as_zeroes_keep_what_they_have_when_extended_and_drop_it() {
        let shared = Rc::new(());
        for len in
            [0, 1, 100, 40_000, HUGE_PAGE_BYTES / size_of::<Cell>() - 5, 3 * HUGE_PAGE_BYTES / size_of::<Cell>() + 7]
        {
            let mut table = Table::<Cell>::zeroed(len);
            assert!(table.len() == len && table.iter().all(|cell| cell.number == 0 && cell.shared.is_none()));
            for (cell, number) in table.iter_mut().zip(1..) {
                *cell = Cell { number, shared: (number % 1000 == 1).then(|| Box::new(Counted(shared.clone()))) };
            }
            let table = table.extended(len + HUGE_PAGE_BYTES / 16);
            let (before, behind) = table.split_at(len);
            assert!(before.iter().zip(1..).all(|(cell, number)| cell.number == number));
            assert!(behind.iter().all(|cell| cell.number == 0));
            assert_eq!(Rc::strong_count(&shared), 1 + len.div_ceil(1000));
            drop(table);
            assert_eq!(Rc::strong_count(&shared), 1);
        }
    }
}
