//! Capacity devices that take whole rows alone behind their first blocks ([`bdev::RowInfo`]): only shaped pools can use them,
//! with what is written in place in front, and each band and each of its stripes made of rows.

use crate::format::superblock::{Shape, Superblock};
use crate::units::BLOCK_BYTES;
use bdev::DeviceInfo;

/// Where rows are, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLayout {
    /// First block of the first row.
    pub start: u64,
    /// Blocks of a row.
    pub blocks: u32,
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
        Ok(Some(RowLayout { start: start / unit, blocks: (row / unit).min(u32::MAX as u64) as u32 }))
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
    let reason = "the pool on it was made for a device with other rows";
    (!fits).then(|| format!("{reason} ({} blocks each from block {} on)", rows.blocks, rows.start))
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
        assert_eq!(with(4096, 10, 48), Ok(Some(RowLayout { start: 10, blocks: 48 })));
        assert_eq!(with(512, 80, 384), Ok(Some(RowLayout { start: 10, blocks: 48 })));
        assert!(with(512, 81, 384).is_err() && with(512, 80, 12).is_err() && with(512, 80, 0).is_err());
        assert_eq!(RowLayout::of(&DeviceInfo::basic(512, 100)), Ok(None));
    }
}
