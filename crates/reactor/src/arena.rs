//! Page-aligned mappings: the memory under buffer pools and regions.

use std::ptr::NonNull;

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
    /// `len` zeroed bytes, transparently backed by huge pages where the system offers them.
    pub(crate) fn anonymous(len: usize) -> Option<Mapping> {
        let len = len.max(1);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the kernel's choice disturbs nothing.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        if len >= 2 << 20 {
            // SAFETY: advice on our own mapping; a refusal is harmless.
            unsafe { libc::madvise(start, len, libc::MADV_HUGEPAGE) };
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

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length; users of the memory hold this value alive.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
