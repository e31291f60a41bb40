//! The blocks of volumes, read and verified as a host would get them.

use super::Checker;
use super::report::{Finding, Severity};
use super::shard::ShardState;
use crate::format::superblock::Superblock;
use crate::meta::catalog::layers;
use crate::shard::{BadBlock, Shard, ShardParts, ShardTuning};
use crate::units::EXTENT_BLOCKS;

/// Runs of bad blocks that are listed of one extent; further ones are summed up.
const RUNS_MAX: usize = 8;

impl Checker {
    pub(super) async fn data(&mut self, superblock: &Superblock, state: &ShardState) {
        let object = format!("data of shard {}", state.number);
        let Some((device, _)) = self.log.as_ref().filter(|_| self.log_is_ours) else {
            let meaning = "the blocks are not read: without the log, which bytes are the newest is unknown".to_string();
            return self.report.warning(object, "all extents", meaning, "check again with the log device");
        };
        let Some(epoch) = superblock.epoch.checked_add(1) else { return };
        let capacity = match self.capacity.open_channel(&self.reactor) {
            Ok(channel) => channel,
            Err(error) => return self.report.error(object, "all extents", error.to_string(), "check the device"),
        };
        let log = match device.open(&self.reactor, &superblock.name) {
            Ok(log) => log,
            Err(error) => return self.report.error(object, "all extents", error.to_string(), "check the log device"),
        };
        let parts = ShardParts {
            reactor: self.reactor.clone(),
            number: state.number,
            pool_name: superblock.name.as_str().into(),
            superblock: Superblock { epoch, ..superblock.clone() },
            log,
            first_log_block: superblock.segment_start(state.number, 0),
            capacity,
            capacity_info: self.capacity.info(),
            capacity_device: self.capacity.clone(),
            names: Default::default(),
            log_name: device.name().into(),
            disks: None,
            for_shadow: None,
            tuning: ShardTuning::default(),
            layers: self.volumes.as_ref().map(layers).unwrap_or_default(),
        };
        let shard = match Shard::inspect(parts).await {
            Ok(shard) => shard,
            Err(error) => {
                let meaning = format!("the blocks cannot be read, since the shard does not open: {error}");
                return self.report.error(
                    object,
                    "all extents",
                    meaning,
                    "put right what is named above, and check again",
                );
            }
        };
        for extent in 0..shard.meta().extents() {
            let owner = shard.meta().descriptor(extent);
            if owner.is_free() {
                continue;
            }
            let verified = shard.verify_extent(owner.volume, owner.vextent).await;
            self.report.counts.data_blocks += verified.good as u64;
            let first = owner.vextent as u64 * EXTENT_BLOCKS as u64;
            for (kind, runs) in [(BadBlock::Corrupt, &verified.corrupt), (BadBlock::Lost, &verified.lost)] {
                let blocks: u64 = runs.iter().map(|run| run.len() as u64).sum();
                let listed: Vec<String> = runs
                    .iter()
                    .take(RUNS_MAX)
                    .map(|run| format!("{}-{}", first + run.start as u64, first + run.end as u64 - 1))
                    .collect();
                let more = if runs.len() > RUNS_MAX { " and further ones" } else { "" };
                let meaning = match kind {
                    _ if runs.is_empty() => continue,
                    BadBlock::Corrupt => {
                        self.report.counts.corrupt_blocks += blocks;
                        "cannot be read, or do not match their checksums"
                    }
                    BadBlock::Lost => {
                        self.report.counts.lost_blocks += blocks;
                        "are lost: reading them is an error until they are written"
                    }
                };
                let meaning = format!("{blocks} blocks of 4 KiB {meaning}: {}{more}", listed.join(", "));
                let place = format!("extent {extent} of shard {}", state.number);
                let advice = "restore these blocks from a backup";
                let finding = Finding::new(Severity::Error, self.volume_named(owner.volume), place, meaning, advice);
                self.report.add(Finding { is_known_loss: kind == BadBlock::Lost, ..finding });
            }
            let rotten = shard.rotten(owner.volume, owner.vextent, 0..EXTENT_BLOCKS).await.blocks;
            let is_bad = |index: &u32| verified.corrupt.iter().any(|run| run.contains(index));
            let healable = rotten.iter().filter(|index| !is_bad(index)).count() as u64;
            if healable > 0 {
                self.report.counts.healable_blocks += healable;
                let meaning = format!(
                    "{healable} blocks of 4 KiB are damaged in one version of the device (a leg of a mirror, what parity says) and \
                     right in another: they can be read"
                );
                let place = format!("extent {extent} of shard {}", state.number);
                let advice = "open the pool and scrub it ('pool scrub'): that writes them anew";
                self.report.warning(self.volume_named(owner.volume), place, meaning, advice);
            }
        }
    }
}
