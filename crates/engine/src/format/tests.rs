use super::band::{BandEntry, BandState};
use super::catalog::{CatalogImage, VolumeEntry, VolumeState};
use super::dirty::{
    DIRTY_ENTRIES, DirtyHeader, DirtyOwner, IndexNote, decode_dirty, encode_dirty, index_noted, opening_shown,
};
use super::root::{LogNote, Root, RootBands, TableRef, root_bytes};
use super::superblock::{BandLayout, LogKind, Opening, Region, Role, Shape, Superblock, SuperblockError};
use super::table::{BLOCKS_LOST, Descriptor, MAP_PAGE, UNUSABLE, decode_table, encode_table};
use crate::format::Malformed;
use crate::units::{BLOCK_BYTES, LogTail};
use base::{Rng, crc32c};
use uuid::Uuid;

const POOL: Uuid = Uuid::from_u128(0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10);

fn superblock() -> Superblock {
    Superblock {
        read_only_features: 0,
        compatible_features: 4,
        pool: POOL,
        device: Uuid::from_u128(2),
        other: Uuid::from_u128(3),
        generation: 5,
        epoch: 6,
        opening: Opening { id: 0x0123_4567_89ab_cdef, before: 7 },
        role: Role::Capacity,
        shape: Shape::Hot,
        shards: 2,
        log_blocks: 40_000,
        capacity_blocks: 300_000,
        segment_blocks: 256,
        segments: 70,
        segments_start: 16,
        log_kind: LogKind::Mapped,
        catalog_start: 2,
        catalog_blocks: 10,
        shards_start: 30,
        root_blocks: 1,
        journal_blocks: 20,
        layered: false,
        shadowed: false,
        created_s: 1_700_000_000,
        name: "tank".to_string(),
        bands: BandLayout::default(),
        regions: vec![
            Region { shape: Shape::Hot, start: 200, first_extent: 0, extents: 100, shard: 1, bands: 0 },
            Region { shape: Shape::Hot, start: 104_000, first_extent: 0, extents: 50, shard: 0, bands: 0 },
            Region { shape: Shape::Hot, start: 160_000, first_extent: 50, extents: 130, shard: 0, bands: 0 },
        ],
    }
}

fn encoded(superblock: &Superblock) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    superblock.encode(&mut block);
    block
}

/// Sets bytes and makes the checksum right again, as only a program could.
fn forged(mut block: [u8; BLOCK_BYTES], at: usize, bytes: &[u8]) -> [u8; BLOCK_BYTES] {
    block[at..at + bytes.len()].copy_from_slice(bytes);
    block[8..12].fill(0);
    let crc = crc32c(&block);
    block[8..12].copy_from_slice(&crc.to_le_bytes());
    block
}

fn volumes() -> Vec<VolumeEntry> {
    let volume = |id| VolumeEntry {
        id,
        state: if id % 2 == 0 { VolumeState::Live } else { VolumeState::Deleting },
        block_shift: 9,
        blocks: 1 << 30,
        uuid: Uuid::from_u128(id as u128),
        content: Uuid::from_u128(id as u128),
        created_s: 1_700_000_001,
        name: format!("volume-{id}"),
        parent: 0,
        overlap: 0,
        origin: id,
    };
    (1..20).map(volume).collect()
}

fn root() -> Root {
    Root {
        shard: 3,
        generation: 9,
        epoch: 2,
        tail: LogTail { segment: 12, lsn: 3456 },
        log: LogNote::default(),
        tables: vec![Some(TableRef { crc: 77, slot: 1 }), None, Some(TableRef { crc: 78, slot: 0 })],
        bands: Vec::new(),
    }
}

/// The same with a shaped pool: bands behind the catalog and the journals, the index behind the segments.
fn shaped_superblock() -> Superblock {
    let region = |start, shard| Region { shape: Shape::Shaped, start, first_extent: 0, extents: 60, shard, bands: 0 };
    Superblock {
        shape: Shape::Shaped,
        bands: BandLayout { start: 256, bands: 40, band_blocks: 1024, unit_blocks: 16, index_start: 35_860 },
        regions: vec![region(35_864, 0), region(36_200, 1)],
        ..superblock()
    }
}

/// As created: the pool has not grown.
fn bands_of(bands: u32) -> RootBands {
    RootBands { created: bands, all: bands, band_blocks: 64 }
}

fn decode_root(bytes: &[u8], shard: u16) -> Result<Root, Malformed> {
    Root::decode(bytes, POOL, shard, RootBands::default())
}

/// Each bit of `bytes`, flipped, must make `decodes` say no.
fn no_flipped_bit_passes(bytes: &[u8], decodes: impl Fn(&[u8]) -> bool) {
    assert!(decodes(bytes));
    let mut damaged = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(!decodes(&damaged), "bit {bit}");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

/// No part of `bytes` from their start, followed by nothing or by zeroes, makes `decodes` say yes.
fn no_cut_passes(bytes: &[u8], decodes: impl Fn(&[u8]) -> bool) {
    let used = bytes.iter().rposition(|byte| *byte != 0).expect("there is something") + 1;
    let mut zeroed = bytes.to_vec();
    for len in (0..used).rev() {
        assert!(!decodes(&bytes[..len]), "cut to {len}");
        zeroed[len] = 0;
        assert!(!decodes(&zeroed), "zeroed from {len}");
    }
}

#[test]
fn a_superblock_survives_the_round_trip_and_no_flipped_bit_does() {
    assert_eq!(Superblock::decode(&encoded(&superblock())), Ok(superblock()));
    let decodes = |bytes: &[u8]| bytes.try_into().is_ok_and(|block| Superblock::decode(block).is_ok());
    no_flipped_bit_passes(&encoded(&superblock()), decodes);
    no_cut_passes(&encoded(&superblock()), decodes);
}

#[test]
fn a_superblock_says_what_is_wrong_with_it() {
    let block = encoded(&superblock());
    let decode = |block: [u8; BLOCK_BYTES]| Superblock::decode(&block);
    assert_eq!(decode([0; BLOCK_BYTES]), Err(SuperblockError::NotAPool { blank: true }));
    assert_eq!(decode([1; BLOCK_BYTES]), Err(SuperblockError::NotAPool { blank: false }));
    assert_eq!(decode(forged(block, 12, &[2, 0])), Err(SuperblockError::NewerVersion(2)));
    assert_eq!(decode(forged(block, 14, &[9, 0])), Ok(superblock()), "minor versions are compatible");
    assert_eq!(decode(forged(block, 16, &[32])), Err(SuperblockError::UnknownFeature(32)));
    let read_only = decode(forged(block, 24, &[1])).unwrap();
    assert!(!read_only.is_writable() && superblock().is_writable());
    let damaged = |at, bytes: &[u8]| {
        let result = decode(forged(block, at, bytes));
        assert!(matches!(result, Err(SuperblockError::Damaged(_))), "{at}: {result:?}");
    };
    for at in [100, 101, 102, 103, 116] {
        damaged(at, &[200]);
    }
    for at in [104, 108, 112, 128, 132, 136, 140, 144, 148] {
        damaged(at, &u32::MAX.to_le_bytes());
        damaged(at, &0u32.to_le_bytes());
    }
    damaged(120, &35_000u64.to_le_bytes()[..3]);
    damaged(160, &[0xFF]);
    damaged(224, &290_000u64.to_le_bytes()[..3]);
    // Regions: start, first extent, extents, shard of the first one.
    damaged(256, &u64::MAX.to_le_bytes());
    damaged(256, &100u64.to_le_bytes());
    damaged(256, &104_001u64.to_le_bytes());
    damaged(264, &1u32.to_le_bytes());
    damaged(268, &0u32.to_le_bytes());
    damaged(268, &u32::MAX.to_le_bytes());
    damaged(272, &2u16.to_le_bytes());
    damaged(272, &0u16.to_le_bytes());
}

#[test]
fn hostile_bytes_with_right_checksums_never_panic() {
    let mut rng = Rng::new(5);
    let block = encoded(&superblock());
    for _ in 0..20_000 {
        let mut hostile = block;
        for _ in 0..rng.between(1, 6) {
            let last = if rng.one_in(2) { 4095 } else { 340 };
            let at = rng.between(12, last) as usize;
            hostile[at] = rng.next_u64() as u8;
        }
        let _ = Superblock::decode(&forged(hostile, 12, &[1, 0]));
    }
    let mut random = vec![0; 3 * BLOCK_BYTES];
    for round in 0..3_000u64 {
        rng.fill(&mut random);
        let magic = [b"RMDAROOT", b"RMDACAT1", b"RMDADIRT", b"RMDATABL", b"RMDAPOOL"][round as usize % 5];
        random[..8].copy_from_slice(magic);
        if rng.one_in(2) {
            random[16..64].fill(rng.next_u64() as u8 & 3);
        }
        let len = rng.below(random.len() as u64) as usize;
        let _ = Root::decode(&random[..len], POOL, 0, bands_of(round as u32 % 3));
        let _ = CatalogImage::decode(&random[..len], POOL);
        let _ = decode_dirty(&random[..len.min(BLOCK_BYTES)], POOL, 0).map(|(_, entries)| entries.count());
        let _ = decode_table(&random[..len.min(BLOCK_BYTES)], 0, 0).map(|descriptors| descriptors.count());
        let _ = Superblock::decode(random[..BLOCK_BYTES].try_into().unwrap());
    }
}

#[test]
fn a_root_survives_the_round_trip_and_no_flipped_bit_or_wrong_owner_does() {
    let bytes = root().encode(POOL, 0);
    assert_eq!(bytes.len() as u64, root_bytes(3, 0, 0));
    let mut padded = bytes.clone();
    padded.resize(BLOCK_BYTES, 0);
    assert_eq!(decode_root(&padded, 3), Ok(root()));
    for is_closed in [false, true] {
        let noted = Root { log: LogNote { durable_lsn: 1 << 40, is_closed }, ..root() };
        assert_eq!(decode_root(&noted.encode(POOL, 0), 3), Ok(noted));
    }
    assert!(decode_root(&padded, 2).is_err());
    assert!(Root::decode(&padded, Uuid::from_u128(1 << 100), 3, RootBands::default()).is_err());
    no_flipped_bit_passes(&bytes, |bytes| decode_root(bytes, 3).is_ok());
    no_cut_passes(&bytes, |bytes| decode_root(bytes, 3).is_ok());
}

#[test]
fn a_root_with_bands_survives_the_round_trip_and_no_flipped_bit_or_lost_band_does() {
    let band = BandEntry { state: BandState::Open, stream: 1, written: 48, valid: 7, generation: 1 << 33, stamp: 99 };
    let shaped = Root { bands: vec![BandEntry::default(), band], ..root() };
    let bytes = shaped.encode(POOL, 2);
    assert_eq!(bytes.len() as u64, root_bytes(3, 2, 2));
    assert_eq!(Root::decode(&bytes, POOL, 3, bands_of(2)), Ok(shaped));
    assert!(Root::decode(&bytes, POOL, 3, bands_of(1)).is_err() && Root::decode(&bytes, POOL, 3, bands_of(3)).is_err());
    assert!(
        Root::decode(&bytes, POOL, 3, RootBands { band_blocks: 32, ..bands_of(2) }).is_err(),
        "more is written than a band has"
    );
    no_flipped_bit_passes(&bytes, |bytes| Root::decode(bytes, POOL, 3, bands_of(2)).is_ok());
    no_cut_passes(&bytes, |bytes| Root::decode(bytes, POOL, 3, bands_of(2)).is_ok());
}

#[test]
fn a_root_of_a_grown_pool_counts_its_bands_and_one_from_before_has_those_of_the_beginning() {
    let band = BandEntry { state: BandState::Open, stream: 1, written: 48, valid: 7, generation: 1 << 33, stamp: 99 };
    let grown = RootBands { all: 5, ..bands_of(2) };
    let before = Root { bands: vec![band; 2], ..root() };
    assert_eq!(Root::decode(&before.encode(POOL, 2), POOL, 3, grown), Ok(before));
    for bands in [3, 5] {
        let since = Root { bands: vec![band; bands], ..root() };
        let bytes = since.encode(POOL, 2);
        assert_eq!(bytes.len() as u64, root_bytes(3, bands as u32, 2));
        assert_eq!(Root::decode(&bytes, POOL, 3, grown), Ok(since));
        assert!(Root::decode(&bytes, POOL, 3, bands_of(2)).is_err(), "the superblock knows of two alone");
        no_flipped_bit_passes(&bytes, |bytes| Root::decode(bytes, POOL, 3, grown).is_ok());
        no_cut_passes(&bytes, |bytes| Root::decode(bytes, POOL, 3, grown).is_ok());
    }
}

#[test]
fn a_superblock_of_a_grown_shaped_pool_says_where_the_bands_are_and_is_refused_when_shards_differ() {
    let mut good = shaped_superblock();
    let region =
        |start, shard, bands| Region { shape: Shape::Shaped, start, first_extent: 60, extents: 9, shard, bands };
    good.regions.extend([region(37_000, 0, 7), region(37_100, 1, 7)]);
    assert_eq!(Superblock::decode(&encoded(&good)), Ok(good.clone()));
    assert_eq!(encoded(&good)[16], 1 | 8, "older programs must not open it");
    let end = 256 + 80 * 1024;
    assert_eq!(good.band_runs(0).map(|run| (run.start, run.bands)).collect::<Vec<_>>(), [(256, 40), (end, 7)]);
    let of_1 = good.band_runs(1).map(|run| run.start).collect::<Vec<_>>();
    assert_eq!((of_1, good.shard_bands()), (vec![256 + 40 * 1024, end + 7 * 1024], 47));
    assert_eq!(good.bands_end(), 256 + 94 * 1024);
    let refused = |change: &dyn Fn(&mut Superblock)| {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(bad.check().is_err(), "{bad:?}");
    };
    refused(&|bad| bad.regions[3].bands = 6);
    refused(&|bad| bad.regions[2].bands = 0);
    refused(&|bad| bad.regions[0].bands = 1);
    refused(&|bad| bad.regions.truncate(3));
    refused(&|bad| bad.capacity_blocks = bad.bands_end() - 1);
    refused(&|bad| (2..4).for_each(|region| bad.regions[region].bands = u32::MAX));
    let decodes = |bytes: &[u8]| bytes.try_into().is_ok_and(|block| Superblock::decode(block).is_ok());
    no_flipped_bit_passes(&encoded(&good), decodes);
    let hot = Superblock { regions: vec![Region { bands: 1, ..superblock().regions[0] }], ..superblock() };
    assert!(hot.check().is_err());
}

#[test]
fn a_shaped_superblock_survives_the_round_trip_and_is_refused_where_areas_overlap() {
    let good = shaped_superblock();
    assert_eq!(Superblock::decode(&encoded(&good)), Ok(good.clone()));
    let decodes = |bytes: &[u8]| bytes.try_into().is_ok_and(|block| Superblock::decode(block).is_ok());
    no_flipped_bit_passes(&encoded(&good), decodes);
    let with = |bands: BandLayout| Superblock { bands, ..shaped_superblock() }.check();
    let bands = good.bands;
    assert_eq!(with(bands), Ok(()));
    assert!(with(BandLayout { start: 100, ..bands }).is_err(), "over the journals");
    assert!(with(BandLayout { bands: 15, ..bands }).is_err(), "too few");
    assert!(with(BandLayout { bands: 1000, ..bands }).is_err(), "past the end");
    assert!(with(BandLayout { bands: u32::MAX, band_blocks: 1 << 31, ..bands }).is_err(), "more than can be named");
    assert!(with(BandLayout { unit_blocks: 0, ..bands }).is_err());
    assert!(with(BandLayout { unit_blocks: 2048, ..bands }).is_err());
    assert!(with(BandLayout { index_start: 20_000, ..bands }).is_err(), "over the segments");
    // Rows of three chunks need a reader that knows of them, and bands that are made of them.
    let rows = BandLayout { band_blocks: 960, unit_blocks: 48, ..bands };
    let odd = Superblock { bands: rows, ..shaped_superblock() };
    assert_eq!(Superblock::decode(&encoded(&odd)), Ok(odd.clone()));
    assert_eq!((encoded(&good)[16], encoded(&odd)[16]), (1, 5));
    assert!(with(BandLayout { unit_blocks: 48, ..bands }).is_err());
    let hot = Superblock { bands, ..superblock() };
    assert!(hot.check().is_err(), "a hot pool has no bands");
}

#[test]
fn a_snapshot_that_is_a_copy_keeps_the_name_of_what_it_holds() {
    let pool = Uuid::from_u128(7);
    let mut volumes = volumes();
    volumes[3].content = Uuid::from_u128(99);
    let image = CatalogImage { generation: 1, next_id: 20, volumes };
    assert_eq!(CatalogImage::decode(&image.encode(pool), pool), Ok(image));
}

#[test]
fn a_catalog_survives_the_round_trip_and_no_flipped_bit_or_double_id_does() {
    let catalog = CatalogImage { generation: 8, next_id: 20, volumes: volumes() };
    let bytes = catalog.encode(POOL);
    assert_eq!(CatalogImage::decode(&bytes, POOL), Ok(catalog.clone()));
    assert!(CatalogImage::decode(&bytes, Uuid::nil()).is_err());
    no_flipped_bit_passes(&bytes, |bytes| CatalogImage::decode(bytes, POOL).is_ok());
    no_cut_passes(&bytes, |bytes| CatalogImage::decode(bytes, POOL).is_ok());
    let refused = |catalog: CatalogImage| assert!(CatalogImage::decode(&catalog.encode(POOL), POOL).is_err());
    refused(CatalogImage { next_id: 19, ..catalog.clone() });
    refused(CatalogImage { volumes: volumes().into_iter().rev().collect(), ..catalog.clone() });
    refused(CatalogImage { volumes: vec![volumes().remove(0); 2], ..catalog });
}

#[test]
fn a_table_page_survives_the_round_trip_and_knows_its_place() {
    let descriptor = |n: u32| Descriptor {
        volume: n,
        vextent: n * 2,
        map_crc: n * 3,
        flags: [0, MAP_PAGE, BLOCKS_LOST, UNUSABLE][n as usize % 4],
    };
    let mut block = [7; BLOCK_BYTES];
    encode_table(1, 5, 9, (0..100).map(descriptor), &mut block);
    let decoded: Vec<_> = decode_table(&block, 1, 5).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(decoded.len(), 126);
    assert!((0..100).map(descriptor).eq(decoded[..100].iter().copied()));
    assert!(decoded[100..].iter().all(|descriptor| *descriptor == Descriptor::default()));
    assert!(decode_table(&block, 1, 4).is_err() && decode_table(&block, 0, 5).is_err());
    // Its checksum, and that of a map page, is in its parent.
    let crc = crc32c(&block);
    no_flipped_bit_passes(&block, |bytes| crc32c(bytes) == crc);
    no_cut_passes(&block, |bytes| crc32c(bytes) == crc);
    // Whatever its bytes are, they decode or they do not.
    for bit in 0..BLOCK_BYTES * 8 {
        block[bit / 8] ^= 1 << (bit % 8);
        let _ = decode_table(&block, 1, 5).map(|found| found.count());
        block[bit / 8] ^= 1 << (bit % 8);
    }
    (0..BLOCK_BYTES).for_each(|len| assert!(decode_table(&block[..len], 1, 5).map_or(0, |found| found.count()) < 126));
    block[64 + 12] = 0x20;
    assert!(decode_table(&block, 1, 5).unwrap().next().unwrap().is_err());
}

#[test]
fn layers_survive_the_round_trip_and_lie_over_what_can_be_below() {
    let entry =
        |id, parent, state| VolumeEntry { parent, overlap: 7, origin: 3, state, ..volumes()[id as usize - 1].clone() };
    let image = |below: VolumeState, parent| CatalogImage {
        generation: 8,
        next_id: 20,
        volumes: vec![entry(3, 0, below), entry(5, parent, VolumeState::Live)],
    };
    let good = image(VolumeState::Snapshot, 3);
    assert_eq!(CatalogImage::decode(&good.encode(POOL), POOL).unwrap(), good);
    let bytes = good.encode(POOL);
    assert_eq!(hex(&bytes[64 + 168..64 + 184]), "07000000000000000000000000000000", "3 is its own origin");
    assert_eq!(hex(&bytes[320 + 168..320 + 184]), "07000000000000000300000003000000");
    for (below, parent) in [(VolumeState::Live, 3), (VolumeState::Snapshot, 4), (VolumeState::Snapshot, 5)] {
        assert!(CatalogImage::decode(&image(below, parent).encode(POOL), POOL).is_err(), "{below:?} {parent}");
    }
    // What was flattened has no parent, and the shards of its family; also when the first of that is gone.
    let mut flat = image(VolumeState::Snapshot, 0);
    flat.volumes[1].overlap = 0;
    assert_eq!(CatalogImage::decode(&flat.encode(POOL), POOL).unwrap(), flat);
    flat.volumes.remove(0);
    assert_eq!(CatalogImage::decode(&flat.encode(POOL), POOL).unwrap().volumes[0].origin, 3);
    let mut other_family = good;
    other_family.volumes[1].origin = 5;
    assert!(CatalogImage::decode(&other_family.encode(POOL), POOL).is_err());
    let layered = Superblock { layered: true, ..superblock() };
    assert_eq!(Superblock::decode(&encoded(&layered)).unwrap(), layered);
}

#[test]
fn a_journal_block_survives_the_round_trip_and_no_flipped_bit_or_wrong_owner_does() {
    let entries: Vec<_> = (0..DIRTY_ENTRIES as u32).map(|n| (n + 1, n * 7)).collect();
    let header = DirtyHeader { generation: 1 << 33, sequence: 4, base: 2 };
    let mut block = [9; BLOCK_BYTES];
    let owner = DirtyOwner { pool: POOL, shard: 2, epoch: 3, index: IndexNote::of(POOL, 0x0102_0304) };
    encode_dirty(owner, header, &entries, &mut block);
    let (found, slices) = decode_dirty(&block, POOL, 2).unwrap();
    assert_eq!((found, slices.collect::<Vec<_>>()), (header, entries));
    assert!(decode_dirty(&block, POOL, 1).is_err() && decode_dirty(&block, Uuid::nil(), 2).is_err());
    no_flipped_bit_passes(&block, |bytes| decode_dirty(bytes, POOL, 2).is_ok());
    no_cut_passes(&block, |bytes| decode_dirty(bytes, POOL, 2).is_ok());
    assert_eq!((opening_shown(&block, POOL, 2), opening_shown(&block, POOL, 1)), (Some(3), None));
    assert_eq!((index_noted(&block), index_noted(&[0; BLOCK_BYTES])), (owner.index, IndexNote::default()));
    // By a program that did not note it: the generation is that of the opening that began the copy.
    encode_dirty(DirtyOwner { epoch: 0, ..owner }, header, &[], &mut block);
    assert_eq!(opening_shown(&block, POOL, 2), Some(2));
}

/// The bytes of version 1.0. A change here is a change of the format: it needs a version or a feature.
#[test]
fn the_bytes_are_those_of_the_format() {
    let mut table = [0; BLOCK_BYTES];
    let descriptor = Descriptor { volume: 1, vextent: 2, map_crc: 3, flags: 2 };
    encode_table(1, 2, 3, [descriptor].into_iter(), &mut table);
    let mut dirty = [0; BLOCK_BYTES];
    let owner = DirtyOwner { pool: POOL, shard: 2, epoch: 0, index: IndexNote::default() };
    encode_dirty(owner, DirtyHeader { generation: 3, sequence: 4, base: 5 }, &[(6, 7)], &mut dirty);
    let catalog = CatalogImage { generation: 8, next_id: 20, volumes: volumes() };
    let sums = [
        crc32c(&encoded(&Superblock { opening: Opening::default(), ..superblock() })),
        crc32c(&root().encode(POOL, 0)),
        crc32c(&catalog.encode(POOL)),
        crc32c(&table),
        crc32c(&dirty),
    ];
    assert_eq!(sums.map(|sum| format!("{sum:08x}")), GOLDEN);
    let spare: Vec<u8> = encoded(&superblock())[256..].chunks(24).flat_map(|region| region[22..].to_vec()).collect();
    assert_eq!(hex(&spare[..20]), "efcdab89674523010700000000000000".to_string() + "00000000");
    let table_start = "524d444154 41424c 0100 0000 02000000 0300000000000000".replace(' ', "");
    assert_eq!(hex(&table[..24]), table_start);
    assert_eq!(hex(&table[64..96]), "0100000002000000030000000200000000000000000000000000000000000000");
    assert_eq!(
        hex(&dirty[12..48]),
        "02000000030000000000000004000000010000000500000000000000".to_string() + "0102030405060708"
    );
    assert_eq!(hex(&dirty[64..72]), "0600000007000000");
    let noted = Root { log: LogNote { durable_lsn: 0x0102, is_closed: true }, ..root() }.encode(POOL, 0);
    assert_eq!((hex(&noted[14..16]), hex(&noted[56..64])), ("0100".to_string(), "0201000000000000".to_string()));
    let root = root().encode(POOL, 0);
    assert_eq!(hex(&root[12..32]), "03000000010203040506070809000000".to_string() + "00000000");
    assert_eq!(hex(&root[64..]), "4d00000001000000".to_string() + "00000000ff000000" + "4e00000000000000");
}

const GOLDEN: [&str; 5] = ["091dc1c1", "db6f161a", "e9f9f576", "f1175046", "d726cf07"];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
