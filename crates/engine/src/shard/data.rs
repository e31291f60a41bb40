//! Bytes of scattered data.

use reactor::{Buf, SgList};

/// Blocks that are asked for ahead where they are copied from memory: they lie anywhere in it, and to copy one waits for its lines.
pub(crate) const COPIES_AHEAD: usize = 2;

/// Copies `source` over the bytes from `at` of a list.
pub(crate) fn copy_into(list: &mut [Buf], mut at: usize, mut source: &[u8]) {
    for buf in list {
        if source.is_empty() {
            return;
        }
        if at >= buf.len() {
            at -= buf.len();
            continue;
        }
        let count = (buf.len() - at).min(source.len());
        buf.as_mut_slice()[at..at + count].copy_from_slice(&source[..count]);
        (source, at) = (&source[count..], 0);
    }
    assert!(source.is_empty(), "bytes past the end of a buffer list");
}

/// Copies the bytes from `at` of a list to `target`.
pub(crate) fn copy_out(list: &[Buf], mut at: usize, target: &mut [u8]) {
    let mut filled = 0;
    for buf in list {
        if filled == target.len() {
            return;
        }
        if at >= buf.len() {
            at -= buf.len();
            continue;
        }
        let count = (buf.len() - at).min(target.len() - filled);
        target[filled..filled + count].copy_from_slice(&buf.as_slice()[at..at + count]);
        (filled, at) = (filled + count, 0);
    }
    assert_eq!(filled, target.len(), "bytes past the end of a buffer list");
}

/// The bytes from `at` of a list are copied soon, as far as they are in one buffer with the first of them.
pub(crate) fn expect(list: &[Buf], mut at: usize, bytes: usize) {
    for buf in list {
        match buf.as_slice().get(at..) {
            Some(rest) if !rest.is_empty() => return reactor::prefetch_bytes(&rest[..bytes.min(rest.len())]),
            _ => at -= buf.len(),
        }
    }
}

/// Whether two lists of the same length hold the same bytes.
pub(crate) fn equal(one: &[Buf], other: &[Buf]) -> bool {
    let bytes = |list: &[Buf]| -> Vec<u8> {
        let mut whole = vec![0; reactor::buf::sg_len(list)];
        copy_out(list, 0, &mut whole);
        whole
    };
    match (one, other) {
        ([one], [other]) => one.as_slice() == other.as_slice(),
        _ => bytes(one) == bytes(other),
    }
}

/// A list of one buffer.
pub(crate) fn one(buf: Buf) -> SgList {
    let mut list = SgList::new();
    list.push(buf);
    list
}
