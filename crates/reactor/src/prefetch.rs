//! Asking for memory before it is needed, so that several misses take the time of one.

/// Bytes of a line of the caches.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Bytes that are wanted somewhat later: into the second cache, since blocks of them would take the place of what is in use in the
/// first.
#[inline]
pub fn prefetch_bytes(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(LINE_BYTES) {
        // SAFETY: a hint, which never faults; SSE is part of the x86-64 baseline.
        unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(line.as_ptr().cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// The line that `item` begins in is wanted soon.
#[inline(always)]
pub fn prefetch<T>(item: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which never faults; SSE is part of the x86-64 baseline.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(item).cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = item;
}

/// Lines of the caches that another core has written last, to be read and written here.
#[derive(Clone, Copy)]
pub(crate) struct Lines(usize);

impl Lines {
    /// None.
    pub(crate) const NONE: Lines = Lines(0);
    const MOST: usize = 8;

    /// Those of the first bytes behind `start`, which begins a line.
    pub(crate) fn of(start: *const u8, bytes: usize) -> Lines {
        debug_assert!((start as usize).is_multiple_of(64));
        Lines(start as usize | bytes.div_ceil(64).min(Lines::MOST))
    }

    /// Asks for them.
    #[inline]
    pub(crate) fn prefetch(self) {
        let (start, lines) = (self.0 & !63, self.0 & 63);
        #[cfg(target_arch = "x86_64")]
        for line in 0..lines {
            // SAFETY: a hint, which never faults, whatever is there by now; processors without it do nothing.
            unsafe {
                std::arch::asm!("prefetchw [{}]", in(reg) start + 64 * line, options(nostack, preserves_flags, readonly))
            };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, lines);
    }
}
