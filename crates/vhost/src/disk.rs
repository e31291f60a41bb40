//! A device as a guest sees it: features, configuration space, and what its requests are worth in blocks.

use crate::spec::{Config, SECTOR_BYTES, feature};
use bdev::{BlockDevice, Flags, Op};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Most queues of a disk.
pub const QUEUES_MAX: u16 = 256;
/// Largest segment of a request, bytes.
const SEGMENT_BYTES_MAX: u32 = 1 << 20;
/// Most data segments of a request: a queue of 128 entries holds one with its header and its status.
pub const SEGMENTS_MAX: u32 = 126;
/// Most bytes of data of a request: what the two above come to.
pub const REQUEST_BYTES_MAX: u64 = SEGMENT_BYTES_MAX as u64 * SEGMENTS_MAX as u64;
/// Ranges of one discard or write-zeroes request.
pub const RANGES_MAX: usize = 16;
/// Bytes of one such range: none keeps the device for long.
pub const RANGE_BYTES_MAX: u64 = 1 << 30;

/// A device and how it is shown.
pub struct Disk {
    device: Arc<dyn BlockDevice>,
    read_only: bool,
    queues: u16,
    serial: String,
}

impl Disk {
    /// Shows `device` with up to `queues` queues under a serial number.
    pub fn new(device: Arc<dyn BlockDevice>, queues: u16, read_only: bool, serial: String) -> Disk {
        Disk { device, read_only, queues, serial }
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Whether writes are refused.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Most queues.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// What Get ID answers.
    pub fn serial(&self) -> &str {
        &self.serial
    }

    /// Virtio features on offer. Not among them is that the guest chooses the cache: no front end tells a daemon that it
    /// meets again what was chosen, so that a guest that had given up its flushes would lose what it thinks durable.
    pub fn features(&self) -> u64 {
        let ops = self.device.info().ops;
        let mut bits = feature::VERSION_1
            | feature::EVENT_IDX
            | feature::INDIRECT
            | feature::PROTOCOL_FEATURES
            | feature::SIZE_MAX
            | feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::TOPOLOGY
            | feature::FLUSH
            | feature::MQ;
        if self.read_only {
            return bits | feature::RO;
        }
        if ops.contains(Op::Unmap) {
            bits |= feature::DISCARD;
        }
        if ops.contains(Op::WriteZeroes) {
            bits |= feature::WRITE_ZEROES;
        }
        bits
    }

    /// The configuration space now.
    pub fn config(&self) -> Config {
        let info = self.device.info();
        let ops = info.ops;
        let sectors_per_block = u64::from(info.block_size) / SECTOR_BYTES;
        let range_sectors = (RANGE_BYTES_MAX / SECTOR_BYTES) as u32;
        let physical = (u64::from(info.optimal_io_blocks) * u64::from(info.block_size)).min(4096);
        let physical = physical.max(u64::from(info.block_size)).next_power_of_two();
        let mut config = Config {
            capacity: info.blocks.saturating_mul(sectors_per_block),
            size_max: SEGMENT_BYTES_MAX,
            seg_max: SEGMENTS_MAX,
            blk_size: info.block_size,
            physical_block_exp: (physical / u64::from(info.block_size)).trailing_zeros() as u8,
            min_io_size: 1,
            opt_io_size: info.optimal_io_blocks,
            writeback: 1,
            num_queues: self.queues,
            ..Config::default()
        };
        if ops.contains(Op::Unmap) {
            config.max_discard_sectors = range_sectors;
            config.max_discard_seg = RANGES_MAX as u32;
            config.discard_sector_alignment = sectors_per_block as u32;
        }
        if ops.contains(Op::WriteZeroes) {
            config.max_write_zeroes_sectors = range_sectors;
            config.max_write_zeroes_seg = RANGES_MAX as u32;
            config.write_zeroes_may_unmap = (ops.contains(Op::Unmap) && info.unmap_reads_zero) as u8;
        }
        config
    }

    /// `len` bytes of the configuration space from `offset` on; zeroes past its end.
    pub fn config_bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let config = self.config();
        let all = config.as_bytes();
        (offset..offset + len).map(|at| all.get(at).copied().unwrap_or(0)).collect()
    }

    /// Whether the configuration space has these bytes from `offset` on.
    pub fn config_is(&self, offset: usize, bytes: &[u8]) -> bool {
        self.config_bytes(offset, bytes.len()) == bytes
    }

    /// Flags of writes: durable at once for guests that know no flush.
    #[inline]
    pub fn write_flags(&self, features: u64) -> Flags {
        if features & feature::FLUSH != 0 { Flags::NONE } else { Flags::FUA }
    }

    /// Blocks of a range of bytes; `None` when it begins or ends inside a block or goes past the end.
    #[inline]
    pub fn blocks(&self, sector: u64, bytes: u64) -> Option<(u64, u64)> {
        let info = self.device.info();
        let size = u64::from(info.block_size);
        let start = sector.checked_mul(SECTOR_BYTES)?;
        if !start.is_multiple_of(size) || !bytes.is_multiple_of(size) {
            return None;
        }
        let (lba, count) = (start / size, bytes / size);
        (lba <= info.blocks && count <= info.blocks - lba).then_some((lba, count))
    }
}
