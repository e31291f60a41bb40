//! What a device holds of a pool when its superblocks are gone: known by what follows them.

use crate::format::catalog::catalog_bytes_used;
use crate::format::segment::Segment;
use crate::format::superblock::{LOG_RESERVED_BLOCKS, Role, SUPERBLOCK_COPIES};
use crate::units::BLOCK_BYTES;

/// Which of a pool's devices this was, going by its first bytes, if neither of its superblocks is there. Whose it was does not show,
/// and a log does not show before its first segment was used.
pub(crate) fn remains(start: &[u8]) -> Option<Role> {
    let block = |number: u64| start.chunks_exact(BLOCK_BYTES).nth(number as usize);
    let is_capacity = block(SUPERBLOCK_COPIES).is_some_and(|block| catalog_bytes_used(block).is_some());
    let is_log = || block(LOG_RESERVED_BLOCKS.into()).is_some_and(|block| Segment::decode(block).is_some());
    match is_capacity {
        true => Some(Role::Capacity),
        false => is_log().then_some(Role::Log),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::catalog::CatalogImage;
    use uuid::Uuid;

    #[test]
    fn a_pool_without_superblocks_is_known_by_what_follows_them() {
        let mut start = vec![0; 32 * BLOCK_BYTES];
        assert_eq!((remains(&start), remains(&start[..BLOCK_BYTES])), (None, None));
        let segment = Segment { sequence: 64, first_lsn: 900, epoch: 3, shard: 0, pool: [7; 8] }.encode();
        start[LOG_RESERVED_BLOCKS as usize * BLOCK_BYTES..][..segment.len()].copy_from_slice(&segment);
        assert_eq!(remains(&start), Some(Role::Log));
        let catalog = CatalogImage { generation: 1, next_id: 1, volumes: Vec::new() }.encode(Uuid::from_u128(7));
        start[SUPERBLOCK_COPIES as usize * BLOCK_BYTES..][..catalog.len()].copy_from_slice(&catalog);
        assert_eq!(remains(&start), Some(Role::Capacity));
        start[SUPERBLOCK_COPIES as usize * BLOCK_BYTES] ^= 1;
        assert_eq!(remains(&start), Some(Role::Log));
    }
}
