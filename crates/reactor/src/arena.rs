//! Page-aligned mappings: the memory under buffer pools and regions.

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
/// What a huge page has.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A mapping, unmapped on drop.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory; who may touch it is decided by its user.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` zeroed bytes. [`HUGE_PAGE_BYTES`] and more begin on such a page, and are transparently backed by them where the system offers
    /// them.
    pub(crate) fn anonymous(len: usize) -> Option<Mapping> {
        if len < HUGE_PAGE_BYTES {
            return Mapping::anywhere(len.max(1));
        }
        // Systems before Linux 6.7 put it anywhere.
        let Mapping { start, len: room } = *ManuallyDrop::new(Mapping::anywhere(len.checked_add(HUGE_PAGE_BYTES)?)?);
        let len = len.next_multiple_of(PAGE_BYTES);
        let before = start.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: both ends are inside what was mapped, at pages, and nobody uses them.
        unsafe {
            let aligned = start.add(before);
            for (at, bytes) in [(start, before), (aligned.add(len), room - before - len)] {
                if bytes > 0 {
                    libc::munmap(at.as_ptr().cast(), bytes);
                }
            }
            // A refusal is harmless.
            libc::madvise(aligned.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
            Some(Mapping { start: aligned, len })
        }
    }

    fn anywhere(len: usize) -> Option<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        Some(Mapping { start: NonNull::new(start.cast())?, len })
    }

    /// Takes over a mapping that was made elsewhere.
    ///
    /// # Safety
    /// `start..start + len` was mapped as a whole, and nobody else unmaps it.
    pub(crate) unsafe fn adopt(start: NonNull<u8>, len: usize) -> Mapping {
        Mapping { start, len }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

/// What a thread maps at once for [pieces](Piece).
const ROOM_BYTES: usize = 8 * HUGE_PAGE_BYTES;

/// A mapping of which pieces are given away, one after the other.
struct Room {
    mapping: Arc<Mapping>,
    used: usize,
}

thread_local! {
    static ROOM: RefCell<Option<Room>> = const { RefCell::new(None) };
}

/// Zeroed memory, less than a huge page, that shares huge pages with others of its thread: what is made at the same time is filled at
/// the same time. On drop the system may take it back, a huge page that others have parts of when it needs memory; its addresses go when
/// all of their mapping have been dropped.
pub(crate) struct Piece {
    mapping: Arc<Mapping>,
    first: usize,
    len: usize,
}

impl Piece {
    pub(crate) fn zeroed(len: usize) -> Option<Piece> {
        let len = len.next_multiple_of(PAGE_BYTES);
        ROOM.with_borrow_mut(|room| {
            if room.as_ref().is_none_or(|room| room.mapping.len - room.used < len) {
                *room = Some(Room { mapping: Arc::new(Mapping::anonymous(ROOM_BYTES.max(len))?), used: 0 });
            }
            let room = room.as_mut()?;
            let first = room.used;
            room.used += len;
            Some(Piece { mapping: room.mapping.clone(), first, len })
        })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: pieces lie inside of their mapping.
        unsafe { self.mapping.start.add(self.first) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: whole pages of the mapping that nobody else was given. A refusal is harmless.
        unsafe { libc::madvise(self.start().as_ptr().cast(), self.len, libc::MADV_DONTNEED) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; users of the memory hold this value alive.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_zeroes_of_their_own_whoever_goes_first() {
        let fill = |piece: &Piece, byte: u8| {
            // SAFETY: nobody else has the piece.
            unsafe { std::slice::from_raw_parts_mut(piece.start().as_ptr(), piece.len).fill(byte) };
        };
        let holds = |piece: &Piece, byte: u8| {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(piece.start().as_ptr(), piece.len) }.iter().all(|found| *found == byte)
        };
        let mut pieces: Vec<(Piece, u8)> = Vec::new();
        for number in 1..=60u8 {
            // More than one mapping has room for.
            let piece = Piece::zeroed(300_000 + number as usize * 20_000).unwrap();
            assert!(holds(&piece, 0) && piece.len.is_multiple_of(PAGE_BYTES), "{number}");
            fill(&piece, number);
            pieces.push((piece, number));
            if number % 3 == 0 {
                drop(pieces.remove(pieces.len() / 2));
            }
            assert!(pieces.iter().all(|(piece, byte)| holds(piece, *byte)), "{number}");
        }
        std::thread::spawn(move || assert!(pieces.iter().all(|(piece, byte)| holds(piece, *byte)))).join().unwrap();
    }
}
