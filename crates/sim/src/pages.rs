//! Bytes of a medium, in pages that copies share, in chunks that they share too: a copy costs a reference for each MiB, and a hash what
//! has changed.

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

/// Pages of a chunk: what is copied of a large medium when a copy of it changes.
const CHUNK: usize = 256;

/// So many pages in a row, of which copies share what is the same.
#[derive(Clone)]
struct Chunk {
    pages: Vec<Option<Rc<Page>>>,
    /// Of the pages; `None` while it is not known.
    hash: Cell<Option<u64>>,
}

impl Chunk {
    fn new() -> Chunk {
        Chunk { pages: vec![None; CHUNK], hash: Cell::new(None) }
    }

    /// Equal for equal bytes; 0 for zeroes.
    fn hash(&self) -> u64 {
        if let Some(hash) = self.hash.get() {
            return hash;
        }
        let mut hash = 0;
        for (index, page) in self.pages.iter().enumerate() {
            if let Some(page) = page
                && page.hash() != ZEROES
            {
                hash = mix(mix(hash, index as u64), page.hash()) | 1;
            }
        }
        self.hash.set(Some(hash));
        hash
    }
}

/// See the module. Zero where nothing was written.
#[derive(Clone)]
pub(crate) struct Pages {
    chunks: Vec<Option<Rc<Chunk>>>,
    len: usize,
}

impl Pages {
    pub(crate) fn new(len: usize) -> Pages {
        Pages { chunks: vec![None; len.div_ceil(PAGE * CHUNK)], len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Cut off or longer; what is gained is zero.
    pub(crate) fn resize(&mut self, len: usize) {
        if len < self.len {
            self.zero(len..self.len);
        }
        self.chunks.resize(len.div_ceil(PAGE * CHUNK), None);
        self.len = len;
    }

    fn page(&self, page: usize) -> Option<&Rc<Page>> {
        self.chunks[page / CHUNK].as_ref()?.pages[page % CHUNK].as_ref()
    }

    /// The place of a page, which changes.
    fn slot(&mut self, page: usize) -> &mut Option<Rc<Page>> {
        let chunk = Rc::make_mut(self.chunks[page / CHUNK].get_or_insert_with(|| Rc::new(Chunk::new())));
        chunk.hash.set(None);
        &mut chunk.pages[page % CHUNK]
    }

    fn page_mut(&mut self, page: usize) -> &mut [u8; PAGE] {
        let empty = || Rc::new(Page { bytes: [0; PAGE], hash: Cell::new(0) });
        let page = Rc::make_mut(self.slot(page).get_or_insert_with(empty));
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
        Self::parts(at..at + target.len(), |page, inside, here| match self.page(page) {
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
            _ if self.page(page).is_none() => {}
            PAGE => *self.slot(page) = None,
            _ => self.page_mut(page)[inside].fill(0),
        });
    }

    /// Takes over a range of another medium of the same length.
    pub(crate) fn copy_from(&mut self, other: &Pages, range: Range<usize>) {
        Self::parts(range, |page, inside, _| match (other.page(page), inside.len()) {
            (None, _) if self.page(page).is_none() => {}
            (source, PAGE) => *self.slot(page) = source.cloned(),
            (Some(source), _) => self.page_mut(page)[inside.clone()].copy_from_slice(&source.bytes[inside]),
            (None, _) => self.page_mut(page)[inside].fill(0),
        });
    }

    pub(crate) fn flip(&mut self, at: usize, bits: u8) {
        self.page_mut(at / PAGE)[at % PAGE] ^= bits;
    }

    /// Equal for equal bytes.
    pub(crate) fn hash(&self) -> u64 {
        let hashes = self.chunks.iter().map(|chunk| chunk.as_ref().map_or(0, |chunk| chunk.hash()));
        let written = hashes.enumerate().filter(|(_, hash)| *hash != 0);
        written.fold(self.len as u64, |hash, (index, chunk)| mix(mix(hash, index as u64), chunk))
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
    fn chunks_are_shared_and_where_bytes_lie_counts() {
        let mut one = Pages::new(3 * PAGE * CHUNK);
        let at = |chunk: usize| chunk * PAGE * CHUNK + 5 * PAGE;
        one.write(at(0), &[7]);
        let mut other = Pages::new(3 * PAGE * CHUNK);
        other.write(at(1), &[7]);
        assert_ne!(one.hash(), other.hash());
        other.copy_from(&one, 0..3 * PAGE * CHUNK);
        assert_eq!(one.hash(), other.hash());
        let copy = one.clone();
        one.write(at(2), &[1]);
        assert!(copy.hash() == other.hash() && one.hash() != other.hash());
        one.zero(at(2)..at(2) + PAGE);
        assert_eq!(one.hash(), other.hash());
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
