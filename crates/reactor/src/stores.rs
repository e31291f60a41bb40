//! Stores that are meant for a medium behind the memory bus: past the caches where the processor can, written back
//! otherwise. They are complete after [`store_fence`].

#[cfg(target_arch = "x86_64")]
use std::arch::{asm, x86_64 as x86};

#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// How this processor stores past its caches, and writes lines back.
#[derive(Clone, Copy)]
pub(crate) struct Stores {
    #[cfg(target_arch = "x86_64")]
    wide: bool,
    #[cfg(target_arch = "x86_64")]
    flush: Flush,
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
enum Flush {
    /// CLWB: the line may stay in the cache.
    WriteBack,
    /// CLFLUSHOPT: the line is dropped.
    Optimised,
    /// CLFLUSH: as above, one after the other.
    Plain,
}

#[cfg(target_arch = "x86_64")]
impl Default for Stores {
    fn default() -> Stores {
        // Leaf 7 is there on every processor that has either instruction; others answer with zeroes.
        let bits = if x86::__cpuid(0).eax >= 7 { x86::__cpuid_count(7, 0).ebx } else { 0 };
        let flush = match bits {
            bits if bits & 1 << 24 != 0 => Flush::WriteBack,
            bits if bits & 1 << 23 != 0 => Flush::Optimised,
            _ => Flush::Plain,
        };
        Stores { wide: std::is_x86_feature_detected!("avx512f"), flush }
    }
}

#[cfg(target_arch = "x86_64")]
impl Stores {
    /// Copies past the caches: whole lines as such, what is left at both ends by ordinary stores (and, when `durable`, a
    /// write back).
    ///
    /// # Safety
    /// `source.len()` bytes from `target` on may be written, and do not overlap `source`.
    #[inline]
    pub(crate) unsafe fn copy(self, source: &[u8], target: *mut u8, durable: bool) {
        let head = target.align_offset(LINE).min(source.len());
        let lines = (source.len() - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: all three parts are inside the range that the caller vouches for; the middle one starts at a line.
        unsafe {
            self.copy_part(&source[..head], target, durable);
            if self.wide {
                stream_512(source[head..].as_ptr(), target.add(head), lines);
            } else {
                stream_128(source[head..].as_ptr(), target.add(head), lines);
            }
            self.copy_part(&source[tail..], target.add(tail), durable);
        }
    }

    /// # Safety
    /// As [`copy`](Self::copy).
    #[inline]
    unsafe fn copy_part(self, source: &[u8], target: *mut u8, durable: bool) {
        if source.is_empty() {
            return;
        }
        // SAFETY: by the caller.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
        if durable {
            let first = target as usize & !(LINE - 1);
            for line in (first..target as usize + source.len()).step_by(LINE) {
                // SAFETY: lines of memory that has just been written.
                unsafe { self.write_back(line as *const u8) };
            }
        }
    }

    /// # Safety
    /// `line` is in mapped memory.
    unsafe fn write_back(self, line: *const u8) {
        // SAFETY: the processor was found to have the instruction (CLFLUSH is part of the x86-64 baseline).
        unsafe {
            match self.flush {
                Flush::WriteBack => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
                Flush::Optimised => asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)),
                Flush::Plain => x86::_mm_clflush(line),
            }
        }
    }
}

/// # Safety
/// AVX-512 is there, both ranges hold so many lines and do not overlap, and `target` is aligned to a line.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn stream_512(source: *const u8, target: *mut u8, lines: usize) {
    for line in 0..lines {
        // SAFETY: by the caller.
        unsafe {
            let bytes = x86::_mm512_loadu_si512(source.add(line * LINE).cast());
            x86::_mm512_stream_si512(target.add(line * LINE).cast(), bytes);
        }
    }
}

/// # Safety
/// As [`stream_512`], without AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn stream_128(source: *const u8, target: *mut u8, lines: usize) {
    for part in 0..lines * (LINE / 16) {
        // SAFETY: by the caller; SSE2 is part of the x86-64 baseline.
        unsafe {
            let bytes = x86::_mm_loadu_si128(source.add(part * 16).cast());
            x86::_mm_stream_si128(target.add(part * 16).cast(), bytes);
        }
    }
}

/// Waits until what was stored before is on its way to the medium.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn store_fence() {
    // SAFETY: SFENCE is part of the x86-64 baseline.
    unsafe { x86::_mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
impl Default for Stores {
    fn default() -> Stores {
        Stores {}
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl Stores {
    /// An ordinary copy: mappings elsewhere are never labelled durable by the kernels we know.
    ///
    /// # Safety
    /// `source.len()` bytes from `target` on may be written, and do not overlap `source`.
    pub(crate) unsafe fn copy(self, source: &[u8], target: *mut u8, _durable: bool) {
        // SAFETY: by the caller.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn store_fence() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_and_length_is_copied_and_nothing_beside_it() {
        let source: Vec<u8> = (0..512).map(|index| (index * 7 % 251) as u8 + 1).collect();
        let stores = Stores::default();
        for start in [0, 1, 63, 64, 65] {
            for len in [0, 1, 15, 63, 64, 65, 127, 128, 200, 256] {
                for durable in [false, true] {
                    let mut target = [0u8; 512];
                    // SAFETY: `start + len` is inside the array.
                    unsafe { stores.copy(&source[3..3 + len], target.as_mut_ptr().add(start), durable) };
                    store_fence();
                    assert_eq!(target[start..start + len], source[3..3 + len], "{start} {len}");
                    assert!(target[..start].iter().chain(&target[start + len..]).all(|byte| *byte == 0));
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_narrow_way_and_every_flush_copy_the_same() {
        let source: Vec<u8> = (0..300).map(|index| index as u8).collect();
        for flush in [Flush::Plain, Stores::default().flush] {
            let mut target = [0u8; 300];
            // SAFETY: the array is as long as the source.
            unsafe { Stores { wide: false, flush }.copy(&source, target.as_mut_ptr(), true) };
            store_fence();
            assert_eq!(target[..], source[..]);
        }
    }
}
