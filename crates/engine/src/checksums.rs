//! Checksums of scattered data.

use crate::format::record::Crcs;
use crate::units::BLOCK_BYTES;
use base::crc::crc32c_slices;
use base::crc32c;
use reactor::Buf;

/// The checksum of each block of a list, whose length is a multiple of a block.
pub(crate) fn block_crcs(list: &[Buf]) -> Crcs {
    let mut crcs = Crcs::new();
    // What of the current block has been seen so far, in slices.
    let mut pieces: smallvec::SmallVec<[&[u8]; 8]> = smallvec::SmallVec::new();
    let mut missing = BLOCK_BYTES;
    for buf in list {
        let mut bytes = buf.as_slice();
        while !bytes.is_empty() {
            if missing == BLOCK_BYTES && bytes.len() >= BLOCK_BYTES {
                crcs.push(crc32c(&bytes[..BLOCK_BYTES]));
                bytes = &bytes[BLOCK_BYTES..];
                continue;
            }
            let (piece, rest) = bytes.split_at(bytes.len().min(missing));
            pieces.push(piece);
            (missing, bytes) = (missing - piece.len(), rest);
            if missing == 0 {
                crcs.push(crc32c_slices(pieces.drain(..)));
                missing = BLOCK_BYTES;
            }
        }
    }
    crcs
}

/// The checksum of a list.
pub(crate) fn list_crc(list: &[Buf]) -> u32 {
    crc32c_slices(list.iter().map(Buf::as_slice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::SgList;

    #[test]
    fn block_checksums_do_not_depend_on_where_the_list_is_cut() {
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES).map(|index| (index * 7 % 251) as u8).collect();
        let whole: Crcs = bytes.chunks(BLOCK_BYTES).map(crc32c).collect();
        for cuts in [vec![], vec![1], vec![4096], vec![4095, 4097], vec![100, 200, 8000, 8192, 12000]] {
            let (mut list, mut from) = (SgList::new(), 0);
            for cut in cuts.iter().chain([&bytes.len()]) {
                list.push(Buf::from_vec(bytes[from..*cut].to_vec()));
                from = *cut;
            }
            assert_eq!(block_crcs(&list), whole, "{cuts:?}");
        }
    }
}
