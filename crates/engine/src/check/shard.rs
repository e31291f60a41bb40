//! A shard: its root, table pages, map pages and journal, and whether what they say can be true.

use super::bands::BandUse;
use super::lost::LostByVolume;
use super::report::{Finding, Severity};
use super::tables::{DamagedTable, cause_of};
use super::{Checker, RESTORE};
use crate::format::catalog::VolumeState;
use crate::format::dirty::DirtySlice;
use crate::format::root::Root;
use crate::format::superblock::{Region, Superblock, TABLE_DESCRIPTORS, map_page_blocks};
use crate::format::table::{BLOCKS_LOST, Descriptor, MAP_PAGE, MAP_SLOT_1, UNUSABLE, decode_table};
use crate::log::Known;
use crate::meta::{self, Meta, Object, log_known, read_root};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS, LogTail, SLICE_EXTENTS};
use base::crc32c;
use bdev::Status;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Map pages that are read at once, both slots of each.
const MAP_BATCH: u32 = 32;

/// What a shard's log must fit.
pub(super) struct ShardState {
    pub(super) number: u16,
    pub(super) log: Known,
    /// Per extent; `None`: its table page is damaged.
    pub(super) extents: Vec<Option<Descriptor>>,
    /// `None`: no copy of the journal is valid.
    pub(super) dirty: Option<BTreeSet<DirtySlice>>,
    /// Slices that the log has records of.
    pub(super) in_log: BTreeSet<DirtySlice>,
    /// Root and table pages are as they should be.
    pub(super) is_whole: bool,
    /// Table pages that neither of their places has.
    pub(super) damaged: Vec<DamagedTable>,
    /// One of them has been tried for long: what fails beside it is damage, too.
    is_patient: bool,
    /// Extents of volumes of which the checkpoint, or the log, says where they are.
    pub(super) named: BTreeSet<(u32, u32)>,
}

impl Checker {
    pub(super) async fn shard(&mut self, superblock: &Superblock, number: u16) {
        let (dirty, no_journal) = match self.journal(superblock, number).await {
            Ok(dirty) => (Some(dirty), None),
            Err(causes) => (None, Some(causes)),
        };
        let Some((root, stale)) = self.root(superblock, number).await else { return };
        let (log, none) = (log_known(&root, superblock.epoch), superblock.shard_extents(number) as usize);
        let mut state = ShardState {
            number,
            log,
            extents: vec![None; none],
            dirty,
            in_log: BTreeSet::new(),
            is_whole: true,
            damaged: Vec::new(),
            is_patient: false,
            named: BTreeSet::new(),
        };
        let (mut first_table, mut sound) = (0, true);
        for region in superblock.shard_regions(number) {
            sound &= self.tables(&mut state, &root, region, first_table).await;
            first_table += region.table_pages();
        }
        state.is_whole = sound;
        self.stale_roots(superblock, number, &root, stale, sound).await;
        let mut bands = BandUse::new(superblock, &root);
        let mut lost = LostByVolume::default();
        state.extents.iter().flatten().for_each(|descriptor| lost.note(descriptor, None));
        for region in superblock.shard_regions(number) {
            self.map_pages(&state, region, bands.as_mut(), &mut lost).await;
        }
        let owned = state.extents.iter().flatten().filter(|descriptor| !descriptor.is_free());
        state.named = owned.map(|descriptor| (descriptor.volume, descriptor.vextent)).collect();
        let touched = self.shard_log(superblock, &mut state).await;
        self.give_up_tables(superblock, &state, touched.as_ref()).await;
        let strays = self.owners(&state);
        let follows = touched.is_some();
        match touched {
            // What the log speaks of is left to it.
            Some(touched) if state.is_whole => self.drop_strays(superblock, &state, strays, &touched).await,
            _ => strays.into_iter().for_each(|(_, finding)| self.report.add(finding)),
        }
        match no_journal {
            Some(causes) => state.dirty = self.lost_journal(superblock, &state, &causes, follows).await,
            None => self.uncovered(superblock, &state).await,
        }
        self.shadow(superblock, &state).await;
        if self.options.data {
            if let Some(bands) = &bands {
                self.stripes(superblock, number, &root, bands).await;
            }
            self.data(superblock, &state).await;
        } else {
            self.lost(&state, &lost);
        }
    }

    // --- root -------------------------------------------------------------------------------------------------------

    /// The root that holds, and copies that are not the same: their number, and what is wrong with them.
    async fn root(&mut self, superblock: &Superblock, shard: u16) -> Option<(Root, Vec<(u8, Finding)>)> {
        let mut copies = Vec::new();
        for copy in 0..2 {
            copies.push((copy, read_root(&self.index, superblock, shard, copy).await));
        }
        let valid = copies.iter().filter_map(|(_, root)| root.as_ref().ok());
        let best = valid.max_by_key(|root| root.generation).cloned();
        self.report.counts.roots += copies.iter().filter(|(_, root)| root.is_ok()).count() as u64;
        let object = Object::Root { shard };
        let Some(best) = best else {
            for (_, root) in copies {
                let cause = root.err().map(|error| cause_of(&error)).unwrap_or_default();
                self.report.error(object, "both copies", format!("{cause}; the shard does not open"), RESTORE);
            }
            return None;
        };
        let mut stale = Vec::new();
        for (copy, root) in copies {
            let (severity, meaning) = match root {
                Ok(root) if root.generation == best.generation => continue,
                Ok(_) => (Severity::Note, "it is older than the other copy, as a crash leaves it".to_string()),
                Err(error) => (Severity::Warning, format!("{}; the other copy is valid", cause_of(&error))),
            };
            let place = format!("block {}", superblock.root_copy(shard, copy));
            stale.push((copy, Finding::new(severity, object, place, meaning, "repair it, or open the pool")));
        }
        Some((best, stale))
    }

    /// Writes the root that holds over copies that do not; only when everything that it leads to is there.
    async fn stale_roots(
        &mut self,
        superblock: &Superblock,
        shard: u16,
        root: &Root,
        stale: Vec<(u8, Finding)>,
        sound: bool,
    ) {
        for (copy, mut finding) in stale {
            if sound {
                let (media, bytes) = (self.index.clone(), root.encode(superblock.pool, superblock.bands.bands));
                let (this, other) = (superblock.root_copy(shard, copy), superblock.root_copy(shard, 1 - copy));
                let repair = async move {
                    media.write_durably(other, &bytes).await?;
                    media.write_durably(this, &bytes).await
                };
                finding = self.repaired(finding, repair).await;
            }
            self.report.add(finding);
        }
    }

    // --- table pages ------------------------------------------------------------------------------------------------

    async fn tables(&mut self, state: &mut ShardState, root: &Root, region: &Region, first_table: u32) -> bool {
        let mut sound = true;
        for index in 0..region.table_pages() {
            let table = first_table + index;
            let first = region.first_extent + index * TABLE_DESCRIPTORS;
            let end = (first + TABLE_DESCRIPTORS).min(region.first_extent + region.extents);
            let Some(Some(wanted)) = root.tables.get(table as usize) else {
                state.extents[first as usize..end as usize].fill(Some(Descriptor::default()));
                continue;
            };
            let object = Object::TablePage { shard: state.number, index: table };
            let block = region.table_slot(index, wanted.slot);
            let (found, may_pass) = self.read_table(&mut state.is_patient, object, region, index, *wanted).await;
            let decoded = match found {
                Ok(found) => {
                    if found.slot != wanted.slot {
                        let meaning = "it is damaged; its other copy is valid".to_string();
                        let advice = "repair it, or open the pool";
                        let finding =
                            Finding::new(Severity::Warning, object, format!("block {block}"), meaning, advice);
                        let finding = self.repaired(finding, self.index.write_durably(block, &found.bytes)).await;
                        self.report.add(finding);
                    }
                    let descriptors =
                        decode_table(&found.bytes, state.number, table).map_err(|error| error.to_string());
                    descriptors.and_then(|all| all.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string()))
                }
                Err(error) => Err(cause_of(&error)),
            };
            match decoded {
                Ok(descriptors) => {
                    self.report.counts.table_pages += 1;
                    let extents = state.extents[first as usize..end as usize].iter_mut();
                    extents.zip(descriptors).for_each(|(extent, descriptor)| *extent = Some(descriptor));
                }
                Err(cause) => {
                    sound = false;
                    state.damaged.push(DamagedTable { table, extents: first..end, block, cause, may_pass });
                }
            }
        }
        sound
    }

    // --- map pages --------------------------------------------------------------------------------------------------

    async fn map_pages(
        &mut self,
        state: &ShardState,
        region: &Region,
        mut bands: Option<&mut BandUse>,
        lost: &mut LostByVolume,
    ) {
        let page_blocks = map_page_blocks(region.shape) as usize;
        let page_bytes = page_blocks * BLOCK_BYTES;
        for first in (0..region.extents).step_by(MAP_BATCH as usize) {
            let count = MAP_BATCH.min(region.extents - first);
            let mapped = |index: u32| {
                let extent = region.first_extent + index;
                let descriptor =
                    state.extents[extent as usize].filter(|descriptor| descriptor.flags & MAP_PAGE != 0)?;
                Some((extent, descriptor))
            };
            if (first..first + count).all(|index| mapped(index).is_none()) {
                continue;
            }
            let blocks = count as usize * 2 * page_blocks;
            let together = self.index.read_bytes(region.map_slot(first, 0), blocks).await.ok();
            for index in first..first + count {
                let Some((extent, descriptor)) = mapped(index) else { continue };
                let slot = (descriptor.flags & MAP_SLOT_1 != 0) as u8;
                let block = region.map_slot(index, slot);
                let at = ((index - first) as usize * 2 + slot as usize) * page_bytes;
                let page = match &together {
                    Some(bytes) => Ok(bytes[at..at + page_bytes].to_vec()),
                    None => self.index.read_bytes(block, page_blocks).await,
                };
                if let Ok(page) = &page
                    && crc32c(page) == descriptor.map_crc
                    && !descriptor.is_free()
                {
                    lost.note(&descriptor, Some(page));
                    if let Some(bands) = bands.as_deref_mut() {
                        self.places(bands, state.number, extent, page);
                    }
                }
                self.map_page(state.number, extent, descriptor, block, page, bands.is_some());
            }
        }
    }

    fn map_page(
        &mut self,
        shard: u16,
        extent: u32,
        descriptor: Descriptor,
        block: u64,
        page: Result<Vec<u8>, Status>,
        is_shaped: bool,
    ) {
        let object = format!("map page of extent {extent} of shard {shard}");
        let place = format!("block {block}");
        let cause = match page {
            Err(status) => Some(format!("it cannot be read: {status}")),
            Ok(bytes) if crc32c(&bytes) != descriptor.map_crc => Some("its checksum is wrong".to_string()),
            Ok(bytes) => {
                self.report.counts.map_pages += 1;
                let inherits = bytes[..BLOCK_BYTES].chunks_exact(4).any(|entry| entry == meta::INHERIT.to_le_bytes());
                (inherits && !self.layered).then(|| {
                    "a block shows what lies below its volume, and in this pool nothing lies below any".to_string()
                })
            }
        };
        if let Some(cause) = cause {
            let blocks = blocks_named(&descriptor);
            let meaning = format!("{cause}; {blocks} cannot be read, except what is in the log");
            let advice = match is_shaped {
                // Its index is on the log device; what the capacity device has speaks for itself.
                true => {
                    "before anything is written there, give the pool another log: that builds the index anew, and finds what was at rest \
                     ('remuda docs pools', 'A damaged index'); restore the rest from a backup"
                }
                false => "restore these blocks from a backup: writing them again makes them readable",
            };
            self.report.error(object, place, meaning, advice);
        }
    }

    // --- owners -----------------------------------------------------------------------------------------------------

    /// Judges whose extents are, as the log has left them. Returns extents that belong to no volume, which may be freed.
    fn owners(&mut self, state: &ShardState) -> Vec<(u32, Finding)> {
        let mut owned: Vec<(u32, u32, u32)> = Vec::new();
        let mut strays = Vec::new();
        for (extent, descriptor) in (0u32..).zip(&state.extents) {
            let Some(descriptor) = descriptor else { continue };
            let place = format!("shard {}", state.number);
            let object = format!("extent {extent}");
            if descriptor.is_free() {
                if descriptor.flags & (MAP_PAGE | BLOCKS_LOST) != 0 {
                    let meaning = "it is free and has a map page, or lost blocks".to_string();
                    self.report.warning(object, place, meaning, "nothing: it is ignored");
                }
                continue;
            }
            self.report.counts.extents += 1;
            owned.push((descriptor.volume, descriptor.vextent, extent));
            if descriptor.flags & UNUSABLE != 0 {
                let meaning = format!("it is called unusable and holds {}", blocks_named(descriptor));
                self.report.error(&object, &place, meaning, "copy the volume");
            }
            let Some(volumes) = &self.volumes else { continue };
            let (volume, vextent) = (descriptor.volume, descriptor.vextent);
            let meaning = match volumes.get(&volume) {
                None => format!("it belongs to volume {volume}, which is not in the catalog; its space is wasted"),
                Some(entry) if entry.state == VolumeState::Deleting => continue,
                Some(entry) if vextent as u64 >= entry.blocks.div_ceil(EXTENT_BLOCKS as u64) => {
                    let meaning = format!("it is extent {vextent} of volume {volume}, past its end");
                    self.report.add(Finding::new(Severity::Note, object, place, meaning, "opening the pool frees it"));
                    continue;
                }
                Some(entry)
                    if entry.origin.wrapping_add(vextent / SLICE_EXTENTS) % self.shards != state.number as u32 =>
                {
                    let meaning = format!("it holds {}, which are another shard's", blocks_named(descriptor));
                    self.report.error(object, place, meaning, RESTORE);
                    continue;
                }
                Some(_) => continue,
            };
            strays.push((extent, Finding::new(Severity::Warning, object, place, meaning, "repair it")));
        }
        owned.sort_unstable();
        for pair in owned.windows(2) {
            if (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1) {
                let (volume, vextent, one) = pair[0];
                let meaning = format!("both are extent {vextent} of volume {volume}; which one is right is unknown");
                let object = format!("extents {one} and {}", pair[1].2);
                self.report.error(object, format!("shard {}", state.number), meaning, RESTORE);
            }
        }
        strays
    }

    /// Frees extents of volumes that there are not, except those that the log speaks of.
    async fn drop_strays(
        &mut self,
        superblock: &Superblock,
        state: &ShardState,
        strays: Vec<(u32, Finding)>,
        touched: &BTreeSet<u32>,
    ) {
        let (mut left, mut dropped) = (Vec::new(), Vec::new());
        for (extent, finding) in strays {
            if touched.contains(&extent) { left.push(finding) } else { dropped.push((extent, finding)) }
        }
        left.into_iter().for_each(|finding| self.report.add(finding));
        let extents: Vec<u32> = dropped.iter().map(|(extent, _)| *extent).collect();
        let ended = match self.options.repair && !extents.is_empty() {
            true => Some(self.free(superblock, state, &extents).await),
            false => None,
        };
        for (_, finding) in dropped {
            self.report.add(match ended {
                Some(ended) => finding.after(ended),
                None => finding,
            });
        }
    }

    async fn free(&self, superblock: &Superblock, state: &ShardState, extents: &[u32]) -> Result<(), Status> {
        let (meta, tail) = self.open_meta(superblock, state.number, &[]).await?;
        extents.iter().for_each(|extent| meta.set_descriptor(*extent, Descriptor::default()));
        meta.checkpoint(tail).await
    }

    /// A shard's metadata, to be repaired. Nothing is known of the extents of the table pages `given_up`.
    pub(super) async fn open_meta(
        &self,
        superblock: &Superblock,
        shard: u16,
        given_up: &[u32],
    ) -> Result<(Rc<Meta>, LogTail), Status> {
        let channel = self.capacity.open_channel(&self.reactor).map_err(|_| Status::Gone)?;
        let on_log = self.log.as_ref().map(|(_, log)| (log.channel.clone(), log.info));
        let (index, bands) = superblock.shape.index_and_bands(on_log, Some((channel, self.capacity.info())));
        let ((index, on_index), bands) = (index.ok_or(Status::Gone)?, bands.flatten());
        let opened = Meta::open_over(&self.reactor, index, on_index, superblock, shard, 0, given_up, bands).await;
        opened.map_err(|error| Status::from(&error))
    }
}

/// The blocks of a volume that an extent holds, in words.
pub(super) fn blocks_named(descriptor: &Descriptor) -> String {
    let first = descriptor.vextent as u64 * EXTENT_BLOCKS as u64;
    format!("blocks {first} to {} of volume {} (of 4 KiB)", first + EXTENT_BLOCKS as u64 - 1, descriptor.volume)
}
