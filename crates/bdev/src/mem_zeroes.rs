//! Pages of a memory device that read as zeroes whatever their bytes are: to zero what is to be written again soon would be
//! half of the work of writing it, and who unmaps much at once would wait for all of it.
//!
//! All that changes pages or marks is done under the stripe locks of the pages. A reader that looks while that goes on is
//! told by the stripe's version, and looks again.

use crate::mem_marks::Marks;
use reactor::Region;
use std::ops::Range;

const PAGE_BYTES: usize = 4096;

/// See the module.
pub(crate) struct Zeroes(Marks);

impl Zeroes {
    /// For a region of so many bytes.
    pub(crate) fn new(bytes: usize) -> Zeroes {
        Zeroes(Marks::new(bytes.div_ceil(PAGE_BYTES) as u64))
    }

    /// Makes a range read as zeroes.
    pub(crate) fn zero(&self, region: &Region, at: usize, bytes: usize) {
        let end = at + bytes;
        let whole = at.next_multiple_of(PAGE_BYTES)..end / PAGE_BYTES * PAGE_BYTES;
        if whole.start >= whole.end {
            self.settle(region, at, bytes);
            return region.zero(at, bytes);
        }
        for ragged in [at..whole.start, whole.end..end].into_iter().filter(|part| !part.is_empty()) {
            self.settle(region, ragged.start, ragged.len());
            region.zero(ragged.start, ragged.len());
        }
        self.0.set((whole.start / PAGE_BYTES) as u64..(whole.end / PAGE_BYTES) as u64);
    }

    /// Gives a range that is wholly written next to its bytes: what else its pages have is zeroed.
    #[inline]
    pub(crate) fn before_write(&self, region: &Region, at: usize, bytes: usize) {
        let touched = pages(at, bytes);
        if !self.0.any(touched.clone()) {
            return;
        }
        // What is between the first page and the last is written.
        for page in [touched.start, touched.end - 1] {
            let start = page as usize * PAGE_BYTES;
            let is_whole = at <= start && start + PAGE_BYTES <= at + bytes;
            if !is_whole && self.0.any(page..page + 1) {
                zero_page(region, page);
            }
        }
        self.0.clear(touched);
    }

    /// Makes the bytes of a range what they read as.
    pub(crate) fn settle(&self, region: &Region, at: usize, bytes: usize) {
        let touched = pages(at, bytes);
        if self.0.any(touched.clone()) {
            touched.clone().filter(|page| self.0.any(*page..page + 1)).for_each(|page| zero_page(region, page));
            self.0.clear(touched);
        }
    }

    /// Whether any byte of a range reads as zero without being that.
    #[inline]
    pub(crate) fn any(&self, at: usize, bytes: usize) -> bool {
        self.0.any(pages(at, bytes))
    }

    /// Copies out what a range reads as.
    #[inline]
    pub(crate) fn read(&self, region: &Region, at: usize, target: &mut [u8]) {
        if !self.any(at, target.len()) {
            return region.read(at, target);
        }
        let mut done = 0;
        while done < target.len() {
            let place = at + done;
            let len = (PAGE_BYTES - place % PAGE_BYTES).min(target.len() - done);
            let part = &mut target[done..done + len];
            if self.any(place, len) {
                part.fill(0)
            } else {
                region.read(place, part)
            }
            done += len;
        }
    }
}

fn pages(at: usize, bytes: usize) -> Range<u64> {
    (at / PAGE_BYTES) as u64..(at + bytes).div_ceil(PAGE_BYTES) as u64
}

fn zero_page(region: &Region, page: u64) {
    let start = page as usize * PAGE_BYTES;
    region.zero(start, PAGE_BYTES.min(region.len() - start));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_plain_memory_would_have() {
        // The last page is a part of one.
        let bytes = 10 * PAGE_BYTES + 512;
        let region = Region::anonymous(bytes).expect("a little memory");
        let (zeroes, mut model, mut rng) = (Zeroes::new(bytes), vec![0u8; bytes], base::Rng::new(3));
        for step in 0..5000u32 {
            let at = rng.below(bytes as u64 / 512) as usize * 512;
            let len = rng.between(1, 40.min(((bytes - at) / 512) as u64)) as usize * 512;
            match rng.below(5) {
                0 => {
                    zeroes.zero(&region, at, len);
                    model[at..at + len].fill(0);
                }
                1 => {
                    let data = vec![step as u8 | 1; len];
                    zeroes.before_write(&region, at, len);
                    region.write(at, &data);
                    model[at..at + len].copy_from_slice(&data);
                }
                2 => {
                    zeroes.settle(&region, at, len);
                    assert!(!zeroes.any(at, len));
                    assert_eq!(region.loan(at, len).as_slice(), &model[at..at + len]);
                }
                _ => {
                    let mut found = vec![9; len];
                    zeroes.read(&region, at, &mut found);
                    assert_eq!(found, model[at..at + len]);
                }
            }
        }
    }
}
