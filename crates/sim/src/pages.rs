//! Bytes of a medium, in pages that copies share: a copy costs a list of references, and a hash the pages that changed.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

const PAGE: usize = 4096;

#[derive(Clone)]
struct Page {
    bytes: [u8; PAGE],
    /// Of the bytes; 0 while it is not known.
    hash: Cell<u64>,
}

/// Hash of a page of zeroes: it counts as never written.
const ZEROES: u64 = 2;

impl Page {
    fn hash(&self) -> u64 {
        if self.hash.get() == 0 {
            let zeroes = self.bytes.iter().all(|byte| *byte == 0);
            self.hash.set(if zeroes { ZEROES } else { hash_bytes(0, &self.bytes) | 1 });
        }
        self.hash.get()
    }
}

pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x9E37_79B1_85EB_CA87).rotate_left(31)
}

pub(crate) fn hash_bytes(hash: u64, bytes: &[u8]) -> u64 {
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, byte| word << 8 | *byte as u64);
    bytes.chunks(8).fold(hash, |hash, chunk| mix(hash, word(chunk)))
}

/// See the module. Zero where nothing was written.
#[derive(Clone)]
pub(crate) struct Pages {
    pages: Vec<Option<Rc<Page>>>,
    len: usize,
}

impl Pages {
    pub(crate) fn new(len: usize) -> Pages {
        Pages { pages: vec![None; len.div_ceil(PAGE)], len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Cut off or longer; what is gained is zero.
    pub(crate) fn resize(&mut self, len: usize) {
        if len < self.len {
            self.zero(len..self.len);
        }
        self.pages.resize(len.div_ceil(PAGE), None);
        self.len = len;
    }

    fn page_mut(&mut self, page: usize) -> &mut [u8; PAGE] {
        let empty = || Rc::new(Page { bytes: [0; PAGE], hash: Cell::new(0) });
        let page = Rc::make_mut(self.pages[page].get_or_insert_with(empty));
        page.hash.set(0);
        &mut page.bytes
    }

    /// Calls `each` with the parts of a range: page, place in the page, place in the range.
    fn parts(range: Range<usize>, mut each: impl FnMut(usize, Range<usize>, Range<usize>)) {
        let mut at = range.start;
        while at < range.end {
            let end = ((at / PAGE + 1) * PAGE).min(range.end);
            let first = at % PAGE;
            each(at / PAGE, first..first + (end - at), at - range.start..end - range.start);
            at = end;
        }
    }

    /// Panics outside of the medium.
    pub(crate) fn read(&self, at: usize, target: &mut [u8]) {
        assert!(at + target.len() <= self.len, "a read past the end of a medium");
        Self::parts(at..at + target.len(), |page, inside, here| match &self.pages[page] {
            Some(page) => target[here].copy_from_slice(&page.bytes[inside]),
            None => target[here].fill(0),
        });
    }

    /// Panics outside of the medium.
    pub(crate) fn write(&mut self, at: usize, source: &[u8]) {
        assert!(at + source.len() <= self.len, "a write past the end of a medium");
        Self::parts(at..at + source.len(), |page, inside, here| {
            self.page_mut(page)[inside].copy_from_slice(&source[here]);
        });
    }

    pub(crate) fn zero(&mut self, range: Range<usize>) {
        Self::parts(range, |page, inside, _| match inside.len() {
            PAGE => self.pages[page] = None,
            _ if self.pages[page].is_none() => {}
            _ => self.page_mut(page)[inside].fill(0),
        });
    }

    /// Takes over a range of another medium of the same length.
    pub(crate) fn copy_from(&mut self, other: &Pages, range: Range<usize>) {
        Self::parts(range, |page, inside, _| match (&other.pages[page], inside.len()) {
            (source, PAGE) => self.pages[page] = source.clone(),
            (Some(source), _) => self.page_mut(page)[inside.clone()].copy_from_slice(&source.bytes[inside]),
            (None, _) if self.pages[page].is_none() => {}
            (None, _) => self.page_mut(page)[inside].fill(0),
        });
    }

    pub(crate) fn flip(&mut self, at: usize, bits: u8) {
        self.page_mut(at / PAGE)[at % PAGE] ^= bits;
    }

    /// Equal for equal bytes.
    pub(crate) fn hash(&self) -> u64 {
        let pages =
            self.pages.iter().enumerate().filter_map(|(index, page)| Some((index as u64, page.as_ref()?.hash())));
        let written = pages.filter(|(_, hash)| *hash != ZEROES);
        written.fold(self.len as u64, |hash, (index, page)| mix(mix(hash, index), page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_share_until_they_differ_and_equal_bytes_have_equal_hashes() {
        let mut one = Pages::new(3 * PAGE + 100);
        one.write(PAGE - 10, &[7; 20]);
        let before = one.hash();
        let mut other = one.clone();
        other.write(2 * PAGE, &[1; 5]);
        assert!(one.hash() == before && other.hash() != before);
        other.zero(2 * PAGE..2 * PAGE + 5);
        assert_eq!(other.hash(), before);
        other.flip(PAGE, 1);
        assert_ne!(other.hash(), before);
        other.copy_from(&one, PAGE..PAGE + 1);
        let mut bytes = [0; 20];
        other.read(PAGE - 10, &mut bytes);
        assert_eq!((bytes, other.hash()), ([7; 20], before));
    }

    #[test]
    fn what_was_cut_off_is_zero_when_it_comes_back() {
        let mut pages = Pages::new(2 * PAGE);
        pages.write(0, &[9; 2 * PAGE]);
        pages.resize(100);
        pages.resize(2 * PAGE);
        let mut bytes = [1; 2 * PAGE];
        pages.read(0, &mut bytes);
        assert!(bytes[..100].iter().all(|byte| *byte == 9) && bytes[100..].iter().all(|byte| *byte == 0));
    }
}
