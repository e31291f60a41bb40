//! What the node remembers of remote namespaces, so that it can start while their targets are down.

use bdev::{DeviceInfo, Op, OpSet, ZonedInfo};
use nvme::initiator::{Known, NamespaceIds};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A remote namespace as it was when it was last seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteRecord {
    /// Its subsystem.
    pub nqn: String,
    /// Its number there.
    pub nsid: u32,
    /// Bytes per block.
    pub block_size: u32,
    /// Blocks.
    pub blocks: u64,
    /// Operations, by name.
    pub ops: Vec<String>,
    /// Best I/O size and alignment, in blocks.
    pub optimal_io_blocks: u32,
    /// Largest single operation, in blocks.
    pub max_io_blocks: u32,
    /// Blocks written all or nothing.
    pub atomic_write_blocks: u32,
    /// Where atomicity ends, in blocks; 0 is nowhere.
    pub atomic_boundary_blocks: u32,
    /// Largest compare-and-write, in blocks.
    pub compare_and_write_blocks: u32,
    /// Writes may be lost until a flush.
    pub volatile_cache: bool,
    /// Unmapped blocks read as zeroes.
    pub unmap_reads_zero: bool,
    /// Its zones, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<ZonesRecord>,
    /// UUID.
    pub uuid: Option<Uuid>,
    /// NGUID.
    pub nguid: Option<Uuid>,
    /// EUI-64.
    pub eui64: Option<[u8; 8]>,
}

/// Its zones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ZonesRecord {
    /// Blocks from one zone to the next.
    pub zone_blocks: u64,
    /// Blocks that can be written of each.
    pub zone_capacity_blocks: u64,
    /// Most zones open at once; 0 is no limit.
    pub open_zones_max: u32,
    /// Most zones open or closed at once; 0 is no limit.
    pub active_zones_max: u32,
}

impl ZonesRecord {
    fn new(zoned: &ZonedInfo) -> ZonesRecord {
        let ZonedInfo { zone_blocks, zone_capacity_blocks, open_zones_max, active_zones_max, .. } = *zoned;
        ZonesRecord { zone_blocks, zone_capacity_blocks, open_zones_max, active_zones_max }
    }

    fn info(&self) -> ZonedInfo {
        let ZonesRecord { zone_blocks, zone_capacity_blocks, open_zones_max, active_zones_max } = *self;
        ZonedInfo { zone_blocks, zone_capacity_blocks, open_zones_max, active_zones_max, extension_bytes: 0 }
    }

    fn makes_sense(&self, blocks: u64) -> bool {
        self.zone_blocks > 0
            && blocks.is_multiple_of(self.zone_blocks)
            && (1..=self.zone_blocks).contains(&self.zone_capacity_blocks)
    }
}

impl RemoteRecord {
    /// What is known of namespace `nsid` of subsystem `nqn`.
    pub fn new(nqn: &str, nsid: u32, known: &Known) -> RemoteRecord {
        let Known { info, ids } = known;
        RemoteRecord {
            nqn: nqn.to_string(),
            nsid,
            block_size: info.block_size,
            blocks: info.blocks,
            ops: Op::ALL.iter().filter(|op| info.ops.contains(**op)).map(|op| op.name().to_string()).collect(),
            optimal_io_blocks: info.optimal_io_blocks,
            max_io_blocks: info.max_io_blocks,
            atomic_write_blocks: info.atomic_write_blocks,
            atomic_boundary_blocks: info.atomic_boundary_blocks,
            compare_and_write_blocks: info.compare_and_write_blocks,
            volatile_cache: info.volatile_cache,
            unmap_reads_zero: info.unmap_reads_zero,
            zones: info.zoned.as_ref().map(ZonesRecord::new),
            uuid: ids.uuid.map(Uuid::from_bytes),
            nguid: ids.nguid.map(Uuid::from_bytes),
            eui64: ids.eui64,
        }
    }

    /// What is known, if it is about this namespace and makes sense.
    pub fn known(&self, nqn: &str, nsid: u32) -> Option<Known> {
        let makes_sense = self.block_size.is_power_of_two()
            && (512..=65_536).contains(&self.block_size)
            && self.blocks > 0
            && self.blocks.checked_mul(u64::from(self.block_size)).is_some()
            && self.max_io_blocks > 0
            && self.zones.is_none_or(|zones| zones.makes_sense(self.blocks));
        if (self.nqn.as_str(), self.nsid) != (nqn, nsid) || !makes_sense {
            return None;
        }
        let named = Op::ALL.iter().filter(|op| self.ops.iter().any(|name| name == op.name()));
        Some(Known {
            info: DeviceInfo {
                ops: named.fold(OpSet::default(), |ops, op| ops.union(OpSet::of(&[*op]))),
                optimal_io_blocks: self.optimal_io_blocks.max(1),
                max_io_blocks: self.max_io_blocks,
                atomic_write_blocks: self.atomic_write_blocks.max(1),
                atomic_boundary_blocks: self.atomic_boundary_blocks,
                compare_and_write_blocks: self.compare_and_write_blocks.max(1),
                volatile_cache: self.volatile_cache,
                unmap_reads_zero: self.unmap_reads_zero,
                zoned: self.zones.map(|zones| zones.info()),
                ..DeviceInfo::basic(self.block_size, self.blocks)
            },
            ids: NamespaceIds {
                uuid: self.uuid.map(Uuid::into_bytes),
                nguid: self.nguid.map(Uuid::into_bytes),
                eui64: self.eui64,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let info = DeviceInfo {
            ops: OpSet::of(&[Op::Read, Op::Write, Op::Flush, Op::Unmap]),
            volatile_cache: true,
            ..DeviceInfo::basic(4096, 1000)
        };
        Known { info, ids: NamespaceIds { uuid: Some([7; 16]), nguid: None, eui64: Some([1; 8]) } }
    }

    #[test]
    fn what_is_remembered_comes_back_for_the_same_namespace_only() {
        let record = RemoteRecord::new("nqn.a", 3, &known());
        let text = serde_json::to_string(&record).expect("serialises");
        let record: RemoteRecord = serde_json::from_str(&text).expect("parses");
        assert_eq!(record.known("nqn.a", 3), Some(known()));
        assert_eq!(record.known("nqn.a", 4), None);
        assert_eq!(record.known("nqn.b", 3), None);
    }

    #[test]
    fn zones_are_remembered_and_records_of_before_have_none() {
        let zoned = ZonedInfo {
            zone_blocks: 100,
            zone_capacity_blocks: 77,
            open_zones_max: 4,
            active_zones_max: 6,
            extension_bytes: 0,
        };
        let known = Known { info: DeviceInfo { zoned: Some(zoned), ..known().info }, ids: known().ids };
        let record = RemoteRecord::new("nqn.a", 3, &known);
        let text = serde_json::to_string(&record).expect("serialises");
        let record: RemoteRecord = serde_json::from_str(&text).expect("parses");
        assert_eq!(record.known("nqn.a", 3), Some(known));
        let zones = record.zones.map(|zones| ZonesRecord { zone_blocks: 300, ..zones });
        assert_eq!(RemoteRecord { zones, ..record }.known("nqn.a", 3), None, "1,000 blocks are no multiple");
    }

    #[test]
    fn a_record_that_makes_no_sense_is_no_knowledge() {
        let record = RemoteRecord::new("nqn.a", 3, &known());
        for odd in [
            RemoteRecord { block_size: 0, ..record.clone() },
            RemoteRecord { block_size: 1000, ..record.clone() },
            RemoteRecord { blocks: 0, ..record.clone() },
            RemoteRecord { blocks: u64::MAX, ..record.clone() },
            RemoteRecord { max_io_blocks: 0, ..record },
        ] {
            assert_eq!(odd.known("nqn.a", 3), None, "{odd:?}");
        }
    }
}
