use super::*;
use crate::bands::{RESERVE_BANDS, policy};
use crate::format::superblock::BandRun;
use base::Rng;

fn options() -> CreateOptions {
    CreateOptions { name: "tank".to_string(), ..CreateOptions::default() }
}

fn ids() -> Identities {
    Identities { pool: Uuid::from_u128(1), log: Uuid::from_u128(2), capacity: Uuid::from_u128(3) }
}

fn planned(log_blocks: u64, capacity_blocks: u64) -> Superblock {
    let (log, capacity) = plan(log_blocks, capacity_blocks, &options(), ids(), 7).unwrap();
    assert_eq!((log.device, log.other, log.role), (ids().log, ids().capacity, Role::Log));
    assert_eq!(Superblock { role: Role::Capacity, device: log.other, other: log.device, ..log }, capacity);
    capacity
}

fn encoded(superblock: &Superblock) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    superblock.encode(&mut block);
    block
}

#[test]
fn the_smallest_pool_works_and_smaller_ones_name_both_minima() {
    let smallest = planned(LOG_BLOCKS_MIN, CAPACITY_BLOCKS_MIN);
    assert_eq!((smallest.shards, smallest.segment_blocks, smallest.segments), (1, 256, 63));
    assert!(smallest.shard_extents(0) >= 62, "{} extents of 64", smallest.shard_extents(0));
    for (log, capacity) in [(LOG_BLOCKS_MIN - 1, CAPACITY_BLOCKS_MIN), (LOG_BLOCKS_MIN, CAPACITY_BLOCKS_MIN - 1)] {
        let text = plan(log, capacity, &options(), ids(), 0).unwrap_err().to_string();
        assert!(text.contains("64 MiB") && text.contains("256 MiB"), "{text}");
    }
}

#[test]
fn defaults_scale_with_the_devices() {
    let large = planned(20 * GIB_BLOCKS, 1024 * GIB_BLOCKS);
    assert_eq!((large.shards, large.segment_blocks), (8, 4096));
    assert_eq!(planned(GIB_BLOCKS, 9 * GIB_BLOCKS).shards, 2);
    assert_eq!(planned(LOG_BLOCKS_MIN * 3, 1024 * GIB_BLOCKS).shards, 3);
    // 1 PiB is more than eight shards address.
    assert_eq!(planned(1024 * GIB_BLOCKS, GIB_BLOCKS << 20).shards, 64);
    let one_gib = planned(GIB_BLOCKS, GIB_BLOCKS);
    assert!(crate::format::catalog::catalog_entries_max(one_gib.catalog_blocks as u64 * 4096) >= 4096);
}

#[test]
fn every_plan_is_sane_wastes_little_and_reads_back() {
    let mut rng = Rng::new(1);
    for _ in 0..2_000 {
        let log = LOG_BLOCKS_MIN << rng.below(8) | rng.below(LOG_BLOCKS_MIN);
        let capacity = CAPACITY_BLOCKS_MIN << rng.below(16) | rng.below(CAPACITY_BLOCKS_MIN);
        let superblock = planned(log, capacity);
        assert_eq!(Superblock::decode(&encoded(&superblock)), Ok(superblock.clone()));
        assert!(superblock.segments >= SEGMENTS_MIN);
        assert!(superblock.segment_blocks as u64 * superblock.segments as u64 >= (LOG_BLOCKS_MIN - 16) * 63 / 64);
        let used: u64 = superblock.regions.iter().map(|region| region.extents as u64 * EXTENT_BLOCKS as u64).sum();
        let lost = capacity - used;
        assert!(lost < capacity / 100 + 3_000 + superblock.shards as u64 * 1_300, "{lost} of {capacity} are unused");
        for region in &superblock.regions {
            assert_eq!(region.data_start() % 256, 0);
            assert!(region.map_slot(region.extents - 1, 1) < region.data_start());
            assert!(region.table_slot(region.table_pages() - 1, 1) < region.map_slot(0, 0));
        }
    }
}

#[test]
fn growth_moves_nothing_and_works_up_to_sixteen_times() {
    let mut rng = Rng::new(2);
    for _ in 0..300 {
        let capacity = CAPACITY_BLOCKS_MIN << rng.below(12) | rng.below(CAPACITY_BLOCKS_MIN);
        let first = planned(LOG_BLOCKS_MIN << rng.below(6), capacity);
        let mut superblock = first.clone();
        let mut size = capacity;
        let steps = (REGIONS_MAX / first.shards as usize - 1).min(8) as u64;
        for step in 1..=steps {
            size = if step == steps { capacity * 16 } else { size + (capacity * 16 - size) / (steps - step + 1) };
            let grown = plan_grow(&superblock, superblock.log_blocks, size)
                .unwrap_or_else(|error| panic!("{capacity} to {size}: {error}"));
            assert_eq!(grown.regions[..superblock.regions.len()], superblock.regions[..]);
            assert_eq!(grown.regions.len(), superblock.regions.len() + first.shards as usize);
            assert_eq!(Superblock::decode(&encoded(&grown)), Ok(grown.clone()));
            superblock = grown;
        }
        let regions = std::mem::take(&mut superblock.regions);
        assert_eq!(
            Superblock { regions: first.regions.clone(), capacity_blocks: capacity, ..superblock },
            first,
            "only regions are added"
        );
        assert!(regions.last().unwrap().end() > capacity * 16 - capacity / 8 - 4_096 * first.shards as u64);
    }
}

#[test]
fn growing_by_too_little_or_too_often_says_what_would_do() {
    let superblock = planned(LOG_BLOCKS_MIN, CAPACITY_BLOCKS_MIN);
    let Err(PlanError::GrowTooSmall { least, .. }) =
        plan_grow(&superblock, superblock.log_blocks, superblock.capacity_blocks)
    else {
        panic!("the same size adds nothing");
    };
    plan_grow(&superblock, superblock.log_blocks, least).unwrap();
    assert!(plan_grow(&superblock, superblock.log_blocks, least - 1).is_err());
    assert!(plan_grow(&superblock, superblock.log_blocks, 0).is_err());
    let mut superblock =
        plan(LOG_BLOCKS_MIN * 64, GIB_BLOCKS * 64, &CreateOptions { shards: Some(64), ..options() }, ids(), 0)
            .unwrap()
            .1;
    superblock = plan_grow(&superblock, superblock.log_blocks, GIB_BLOCKS * 128).unwrap();
    assert!(matches!(plan_grow(&superblock, superblock.log_blocks, GIB_BLOCKS * 256), Err(PlanError::GrownUp(_))));
}

#[test]
fn a_device_that_is_larger_than_the_roots_have_room_for_is_used_in_part() {
    let superblock = planned(LOG_BLOCKS_MIN, CAPACITY_BLOCKS_MIN);
    let grown = plan_grow(&superblock, superblock.log_blocks, GIB_BLOCKS * 4096).unwrap();
    assert!(grown.capacity_blocks >= CAPACITY_BLOCKS_MIN * GROWTH && grown.capacity_blocks < GIB_BLOCKS * 4096);
    let tables = (0..grown.shards).map(|shard| grown.shard_table_pages(shard)).max().unwrap();
    assert!(root_bytes(tables, 0, 0) <= grown.root_blocks as u64 * BLOCK_BYTES as u64);
    assert!(matches!(plan_grow(&grown, grown.log_blocks, GIB_BLOCKS * 4096), Err(PlanError::GrownUp(_))));
}

#[test]
fn options_out_of_range_are_refused_with_the_range() {
    let refused = |change: fn(&mut CreateOptions)| {
        let mut options = options();
        change(&mut options);
        plan(GIB_BLOCKS, GIB_BLOCKS * 4, &options, ids(), 0).unwrap_err()
    };
    assert_eq!(refused(|options| options.shards = Some(0)), PlanError::Shards { shards: 0, most: 16 });
    assert_eq!(refused(|options| options.shards = Some(17)), PlanError::Shards { shards: 17, most: 16 });
    assert!(matches!(refused(|options| options.segment_blocks = Some(300)), PlanError::Segment { blocks: 300, .. }));
    assert!(matches!(refused(|options| options.segment_blocks = Some(1 << 20)), PlanError::Segment { .. }));
    assert!(matches!(refused(|options| options.volumes_max = Some(0)), PlanError::Volumes { .. }));
    assert!(matches!(refused(|options| options.volumes_max = Some(1 << 20)), PlanError::Volumes { .. }));
    assert_eq!(refused(|options| options.name = String::new()), PlanError::Name);
    assert_eq!(refused(|options| options.name = "x".repeat(65)), PlanError::Name);
}

#[test]
fn shaped_plans_are_sane_keep_bands_back_and_say_what_is_missing() {
    let shaped = || CreateOptions { shape: Shape::Shaped, ..options() };
    let mut rng = Rng::new(2);
    for _ in 0..1_000 {
        let log = (2 * LOG_BLOCKS_MIN) << rng.below(8) | rng.below(LOG_BLOCKS_MIN);
        let capacity = CAPACITY_BLOCKS_MIN << rng.below(12) | rng.below(CAPACITY_BLOCKS_MIN);
        let unit_blocks = Some(1 << rng.below(7));
        let percent = rng.between(5, 75) as u8;
        let asked = CreateOptions { unit_blocks, overprovision: Some(percent), ..shaped() };
        match plan(log, capacity, &asked, ids(), 7) {
            Ok((_, planned)) => {
                assert_eq!(planned.check(), Ok(()));
                assert_eq!(Superblock::decode(&encoded(&planned)), Ok(planned.clone()));
                let blocks = planned.bands.bands as u64 * planned.bands.band_blocks as u64;
                let logical = planned.shard_extents(0) as u64 * EXTENT_BLOCKS as u64;
                assert!(logical * 100 <= blocks * (100 - percent as u64), "{planned:?}");
                assert!(stays_collectable(&planned), "{planned:?}");
            }
            // The index takes 0.4 % of the capacity.
            Err(PlanError::IndexTooLarge { .. }) => assert!(capacity / 256 + LOG_BLOCKS_MIN / 2 > log / 2),
            Err(error) => panic!("{log} {capacity}: {error}"),
        }
    }
    let refused = |options: CreateOptions| {
        plan(GIB_BLOCKS, 16 * GIB_BLOCKS, &options, ids(), 0).expect_err("it is refused").to_string()
    };
    assert!(refused(CreateOptions { overprovision: Some(80), ..shaped() }).contains("expected 5 to 75"));
    assert!(refused(CreateOptions { unit_blocks: Some(3), ..shaped() }).contains("power of two from 4 to 1024 KiB"));
    assert!(refused(CreateOptions { band_blocks: Some(GIB_BLOCKS as u32), ..shaped() }).contains("16 are the least"));
    assert!(refused(CreateOptions { overprovision: Some(20), ..options() }).contains("is for shaped pools"));
}

/// However what a full pool has is spread over its bands, one of them is worth draining.
fn stays_collectable(planned: &Superblock) -> bool {
    let BandLayout { bands, band_blocks, unit_blocks, .. } = planned.bands;
    let logical = planned.shard_extents(0) as u64 * EXTENT_BLOCKS as u64;
    logical <= policy::collectable_blocks(bands as u64, band_blocks, unit_blocks)
}

#[test]
fn bands_of_few_units_hold_less_and_are_larger_where_nobody_says_otherwise() {
    let of = |band_blocks: Option<u32>, unit_blocks: Option<u32>, capacity: u64| {
        let shaped = CreateOptions { shape: Shape::Shaped, band_blocks, unit_blocks, ..options() };
        let (_, planned) = plan(4 * LOG_BLOCKS_MIN, capacity, &shaped, ids(), 7).unwrap();
        assert!(stays_collectable(&planned), "{planned:?}");
        (planned.bands.band_blocks, planned.shard_extents(0))
    };
    let size = GIB_BLOCKS;
    let (of_four, of_eight) = (of(Some(1024), Some(256), size), of(Some(2048), Some(256), size));
    assert!(of_four.1 < of_eight.1, "{of_four:?} {of_eight:?}");
    assert_eq!(of(None, Some(256), size), of_eight);
    assert_eq!(of(None, None, size), of(Some(1024), Some(16), size), "with enough units, nothing changes");
}

#[test]
fn a_shaped_pool_grows_by_bands_in_proportion_as_far_as_there_is_room_for_its_index() {
    let mut rng = Rng::new(4);
    for round in 0..1_000 {
        let log = (4 * LOG_BLOCKS_MIN) << rng.below(7) | rng.below(LOG_BLOCKS_MIN);
        let capacity = (CAPACITY_BLOCKS_MIN << rng.below(10) | rng.below(CAPACITY_BLOCKS_MIN)).min(log * 16);
        let grow_to_blocks = rng.one_in(2).then(|| capacity * rng.between(2, 4));
        let asked = CreateOptions { shape: Shape::Shaped, grow_to_blocks, ..options() };
        let first = match plan(log, capacity, &asked, ids(), 7) {
            Ok((_, first)) => first,
            Err(PlanError::IndexTooLarge { .. }) if grow_to_blocks.is_some() => continue,
            Err(error) => panic!("{log} {capacity}: {error}"),
        };
        let mut size = capacity;
        let mut superblock = first.clone();
        for _ in 0..3 {
            size += capacity / 4 + rng.below(capacity);
            // Room on the log device that came since.
            let new_log = superblock.log_blocks + if rng.one_in(3) { size / 128 } else { 0 };
            let grown = match plan_grow(&superblock, new_log, size) {
                Ok(grown) => grown,
                Err(PlanError::IndexFull { needed, .. }) => {
                    assert!(needed > new_log && grow_to_blocks.is_none_or(|promised| size > promised), "{round}");
                    let enough = plan_grow(&superblock, needed, size).expect("as the error says");
                    assert_eq!(enough.capacity_blocks, size, "nothing is left over");
                    enough
                }
                Err(error) => panic!("{capacity} to {size}: {error}"),
            };
            assert_eq!(Superblock::decode(&encoded(&grown)), Ok(grown.clone()));
            assert_eq!(grown.regions[..superblock.regions.len()], superblock.regions[..]);
            let is_whole = grown.capacity_blocks == size;
            assert!(is_whole || grow_to_blocks.is_none_or(|promised| size > promised), "{round}: what was asked for");
            assert!(grown.bands_end() <= grown.capacity_blocks && grown.log_blocks <= new_log.max(grown.log_blocks));
            let left = size - grown.bands_end();
            assert!(!is_whole || left < grown.shards as u64 * grown.bands.band_blocks as u64, "{round}: {left}");
            let share = |of: &Superblock| of.shard_extents(0) as f64 / (of.shard_bands() - RESERVE_BANDS) as f64;
            assert!(share(&grown) <= share(&first) * 1.0001, "{round}: over-provisioning gets no less");
            superblock = grown;
        }
    }
    let asked = CreateOptions { shape: Shape::Shaped, ..options() };
    let (_, superblock) = plan(4 * LOG_BLOCKS_MIN, 16 * GIB_BLOCKS, &asked, ids(), 0).unwrap();
    let less = CreateOptions { grow_to_blocks: Some(GIB_BLOCKS), ..asked.clone() };
    let error = plan(4 * LOG_BLOCKS_MIN, 16 * GIB_BLOCKS, &less, ids(), 0).expect_err("it has more").to_string();
    assert!(error.contains("has 16384 already"), "{error}");
    let refused = |of: &Superblock, size| plan_grow(of, 0, size).expect_err("it is refused").to_string();
    assert!(refused(&superblock, 16 * GIB_BLOCKS).contains("growing this pool takes at least"));
    let in_part = plan_grow(&superblock, 0, 32 * GIB_BLOCKS).expect("there is a little room behind the segments");
    assert!(in_part.capacity_blocks < 17 * GIB_BLOCKS && in_part.bands_end() == in_part.capacity_blocks);
    let mut full = in_part;
    while let Ok(grown) = plan_grow(&full, 0, 32 * GIB_BLOCKS) {
        full = grown;
    }
    assert!(full.capacity_blocks < 17 * GIB_BLOCKS);
    assert!(refused(&full, 32 * GIB_BLOCKS).contains("--grow-to"), "{}", refused(&full, 32 * GIB_BLOCKS));
}

#[test]
fn bands_over_rows_are_made_of_them_and_everything_else_is_in_front() {
    let over = |start: u64, blocks: u32| CreateOptions {
        shape: Shape::Shaped,
        rows: Some(RowLayout { start, blocks, zones: None }),
        ..options()
    };
    let mut rng = Rng::new(3);
    for _ in 0..1_000 {
        let chunk = 1 << rng.below(5);
        let row = rng.between(2, 15) as u32 * chunk;
        let start = rng.between(3_000, 40_000);
        let capacity = CAPACITY_BLOCKS_MIN << rng.below(10) | rng.below(CAPACITY_BLOCKS_MIN);
        let log = (4 * LOG_BLOCKS_MIN).max(capacity / 8);
        match plan(log, capacity, &over(start, row), ids(), 7) {
            Ok((_, planned)) => {
                assert_eq!(Superblock::decode(&encoded(&planned)), Ok(planned.clone()));
                let BandLayout { unit_blocks, band_blocks, .. } = planned.bands;
                assert!(planned.bands.start == start && planned.shards_end() <= start);
                assert!(unit_blocks.is_multiple_of(row) && band_blocks.is_multiple_of(unit_blocks));
                assert!(unit_blocks >= 16 || unit_blocks == row);
                for shard in 0..planned.shards {
                    let is_row = |run: BandRun| (run.start - start).is_multiple_of(row as u64);
                    assert!(planned.band_runs(shard).all(is_row));
                }
            }
            Err(PlanError::HeadTooSmall { blocks, needed }) => assert!(blocks == start && needed > start),
            Err(error) => panic!("{capacity}, rows of {row}: {error}"),
        }
    }
    let refused = |options: CreateOptions| {
        plan(GIB_BLOCKS, 16 * GIB_BLOCKS, &options, ids(), 0).expect_err("it is refused").to_string()
    };
    assert!(refused(over(100, 48)).contains("400 KiB in front of its rows"));
    assert!(refused(CreateOptions { shape: Shape::Hot, ..over(20_000, 48) }).contains("--shape shaped"));
    assert!(
        refused(CreateOptions { unit_blocks: Some(16), ..over(20_000, 48) })
            .contains("a multiple of 192 KiB, from 192 to 1024 KiB")
    );
    assert!(refused(CreateOptions { band_blocks: Some(1024), ..over(20_000, 48) }).contains("a multiple of 192 KiB"));
    let two = CreateOptions { unit_blocks: Some(96), band_blocks: Some(9600), ..over(20_000, 48) };
    let (_, planned) = plan(GIB_BLOCKS, 16 * GIB_BLOCKS, &two, ids(), 0).unwrap();
    assert_eq!((planned.bands.unit_blocks, planned.bands.band_blocks), (96, 9600));
}
