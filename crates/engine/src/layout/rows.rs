//! Capacity devices that take whole rows alone behind their first blocks ([`bdev::RowInfo`]): only shaped pools can use them,
//! with what is written in place in front, and each band and each of its stripes made of rows.

use crate::bands::STREAMS;
use crate::format::superblock::{Shape, Superblock};
use crate::units::BLOCK_BYTES;
use bdev::DeviceInfo;

/// Largest zone that is taken as a band: 64 GiB.
const BAND_ZONE_BLOCKS_MAX: u64 = 1 << 24;

/// Where rows are, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// First block of the first row.
    pub start: u64,
    /// Blocks of a row.
    pub blocks: u32,
    /// Where rows come in zones: a band is one of them.
    pub zones: Option<ZoneLayout>,
}

/// Zones of rows ([`bdev::RowZones`]), in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneLayout {
    /// Blocks of a zone.
    pub blocks: u32,
    /// Most zones that may be open; 0 is no limit.
    pub open_max: u32,
}

/// Zones that must be allowed to be open beside one for each stream of each shard: while one that is given up is finished,
/// the next one is begun.
const SPARE_ZONES: u32 = 1;

impl ZoneLayout {
    /// Most shards that the limit of open zones allows.
    pub(super) fn shards_max(&self) -> u32 {
        match self.open_max {
            0 => u32::MAX,
            open_max => open_max.saturating_sub(SPARE_ZONES) / STREAMS as u32,
        }
    }

    /// Zones that so many shards need to be allowed to be open.
    pub(super) fn open_needed(shards: u16) -> u32 {
        shards as u32 * STREAMS as u32 + SPARE_ZONES
    }
}

impl RowLayout {
    /// The rows of a device; `None` where any blocks can be written. `Err` where rows are not made of blocks of 4 KiB.
    pub fn of(info: &DeviceInfo) -> Result<Option<RowLayout>, &'static str> {
        let Some(rows) = info.rows else { return Ok(None) };
        let (start, row) = (rows.start * info.block_size as u64, rows.blocks as u64 * info.block_size as u64);
        let unit = BLOCK_BYTES as u64;
        if row == 0 || !start.is_multiple_of(unit) || !row.is_multiple_of(unit) {
            return Err("its rows are not made of blocks of 4 KiB");
        }
        let zones = match rows.zones {
            None => None,
            Some(zones) => {
                let bytes = zones.blocks * info.block_size as u64;
                if !bytes.is_multiple_of(row) || bytes / unit > BAND_ZONE_BLOCKS_MAX {
                    return Err("its zones are not made of rows, or larger than 64 GiB");
                }
                Some(ZoneLayout { blocks: (bytes / unit) as u32, open_max: zones.open_max })
            }
        };
        Ok(Some(RowLayout { start: start / unit, blocks: (row / unit).min(u32::MAX as u64) as u32, zones }))
    }
}

/// Why a pool cannot be used on a capacity device with these rows.
pub(crate) fn fault(superblock: &Superblock, info: &DeviceInfo) -> Option<String> {
    let rows = match RowLayout::of(info) {
        Ok(rows) => rows?,
        Err(reason) => return Some(reason.to_string()),
    };
    if superblock.shape != Shape::Shaped {
        return Some("it is written in whole rows alone, and the pool on it is not shaped".to_string());
    }
    let bands = &superblock.bands;
    let is_row = |blocks: u64| blocks.is_multiple_of(rows.blocks as u64);
    let begins = bands.start.checked_sub(rows.start).is_some_and(is_row);
    let fits = begins && is_row(bands.unit_blocks as u64) && is_row(bands.band_blocks as u64);
    if let Some(zones) = rows.zones {
        return zone_fault(superblock, &rows, &zones);
    }
    let reason = "the pool on it was made for a device with other rows";
    (!fits).then(|| format!("{reason} ({} blocks each from block {} on)", rows.blocks, rows.start))
}

fn zone_fault(superblock: &Superblock, rows: &RowLayout, zones: &ZoneLayout) -> Option<String> {
    let bands = &superblock.bands;
    if bands.start != rows.start || bands.band_blocks != zones.blocks || !bands.unit_blocks.is_multiple_of(rows.blocks)
    {
        let (start, blocks) = (rows.start, zones.blocks);
        return Some(format!(
            "the pool on it was made for other zones (here {blocks} blocks of 4 KiB each from block {start} on)"
        ));
    }
    let (shards, needed) = (superblock.shards, ZoneLayout::open_needed(superblock.shards));
    (zones.open_max > 0 && zones.open_max < needed)
        .then(|| format!("{} zones may be open at once, and the pool's {shards} shards need {needed}", zones.open_max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bdev::RowInfo;

    #[test]
    fn rows_are_counted_in_blocks_of_4_kib_or_cannot_be_used() {
        let with = |block_size, start, blocks| {
            let rows = Some(RowInfo { start, blocks, zones: None });
            RowLayout::of(&DeviceInfo { rows, ..DeviceInfo::basic(block_size, 1 << 20) })
        };
        assert_eq!(with(4096, 10, 48), Ok(Some(RowLayout { start: 10, blocks: 48, zones: None })));
        assert_eq!(with(512, 80, 384), Ok(Some(RowLayout { start: 10, blocks: 48, zones: None })));
        assert!(with(512, 81, 384).is_err() && with(512, 80, 12).is_err() && with(512, 80, 0).is_err());
        assert_eq!(RowLayout::of(&DeviceInfo::basic(512, 100)), Ok(None));
    }

    #[test]
    fn a_zone_is_made_of_rows_and_its_limit_bounds_the_shards() {
        let with = |blocks, open_max| {
            let rows = RowInfo { start: 80, blocks: 16, zones: Some(bdev::RowZones { blocks, open_max }) };
            RowLayout::of(&DeviceInfo { rows: Some(rows), ..DeviceInfo::basic(512, 1 << 20) })
        };
        let zones = |found: Result<Option<RowLayout>, _>| found.unwrap().unwrap().zones.unwrap();
        assert_eq!(zones(with(160, 7)), ZoneLayout { blocks: 20, open_max: 7 });
        assert!(with(168, 7).is_err() && with(1 << 40, 7).is_err());
        for (open_max, shards) in [(0, u32::MAX), (1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (14, 6)] {
            assert_eq!(zones(with(160, open_max)).shards_max(), shards, "{open_max}");
        }
        assert_eq!(ZoneLayout::open_needed(4), 9);
    }
}
