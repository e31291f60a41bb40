//! Blocks that map pages and descriptors call lost: known without reading any data, and without the log.

use super::Checker;
use super::report::{Finding, Severity};
use super::shard::ShardState;
use crate::format::catalog::VolumeState;
use crate::format::table::{BLOCKS_LOST, Descriptor, MAP_PAGE};
use crate::meta::lost_entries;
use crate::units::EXTENT_BLOCKS;
use std::collections::BTreeMap;

/// What of each volume is lost.
#[derive(Default)]
pub(super) struct LostByVolume(BTreeMap<u32, Lost>);

#[derive(Default)]
struct Lost {
    extents: u64,
    blocks: u64,
}

impl LostByVolume {
    /// An extent, and its map page if it has one; the page is as its descriptor says.
    pub(super) fn note(&mut self, descriptor: &Descriptor, page: Option<&[u8]>) {
        let blocks = match page {
            _ if descriptor.is_free() => 0,
            Some(page) => u64::from(lost_entries(page)),
            None if descriptor.flags & (BLOCKS_LOST | MAP_PAGE) == BLOCKS_LOST => u64::from(EXTENT_BLOCKS),
            None => 0,
        };
        if blocks > 0 {
            let lost = self.0.entry(descriptor.volume).or_default();
            lost.extents += 1;
            lost.blocks += blocks;
        }
    }
}

impl Checker {
    /// Reports them. Reading the data tells more exactly, so it is for checks that do not.
    pub(super) fn lost(&mut self, state: &ShardState, lost: &LostByVolume) {
        for (volume, Lost { extents, blocks }) in &lost.0 {
            let entry = self.volumes.as_ref().and_then(|volumes| volumes.get(volume));
            if entry.is_some_and(|entry| entry.state == VolumeState::Deleting) {
                continue;
            }
            let meaning = format!(
                "{blocks} blocks of 4 KiB in {extents} extents have been lost before, with a log that was given up or on places \
                 that could not be read: reading one is an error until it is written. Those that were written since and are \
                 still in the log are among them"
            );
            let place = format!("shard {}", state.number);
            let advice = "restore them from a backup; 'pool check --data' and 'pool scrub' list them";
            let finding = Finding::new(Severity::Error, self.volume_named(*volume), place, meaning, advice);
            self.report.add(Finding { is_known_loss: true, ..finding });
        }
    }
}
