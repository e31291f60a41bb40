//! Taking a leg into a mirror that is in use: one that was absent when the mirror was opened, or that has failed since.

use super::format::{BitmapPage, LegRecord, LegState};
use super::io::Inner;
use super::regions::{DIRTY, NEEDS_SYNC};
use super::{MirrorDevice, MirrorOptions, Seen, explain, lacks_room, look, meta};
use crate::device::{BlockDevice, DeviceError, DeviceInfo};
use crate::fit::fit;
use crate::io::Status;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;

impl MirrorDevice {
    /// Takes leg `leg` in: `device` where it was absent so far, the device that it has otherwise. Writes reach it from now
    /// on; it counts when [`resync`](Self::resync) has copied what it lacks, which is to be called next.
    ///
    /// Refused, and nothing is changed, where the leg belongs elsewhere or has writes of its own that would be lost, unless
    /// `overwrite` says that all it holds may go. Waits for all writes under way, and holds up new ones meanwhile.
    pub async fn join(
        &self,
        reactor: &Rc<Reactor>,
        leg: usize,
        device: Option<Arc<dyn BlockDevice>>,
        overwrite: bool,
    ) -> Result<LegState, DeviceError> {
        let shared = &self.shared;
        let refused = |reason: String| DeviceError::Config { device: shared.name.clone(), reason };
        let failed = |status| DeviceError::Io { device: shared.name.clone(), action: "take in a leg", status };
        let _join = shared.join_turn.lock(0, 1, true).await;
        if leg >= shared.legs.len() {
            return Err(refused(format!("there is no leg {leg}, the last one is leg {}", shared.legs.len() - 1)));
        }
        if shared.leg_state(leg) != LegState::Failed {
            return Err(refused(format!("{} is in use already", shared.leg_name(leg))));
        }
        let device = match (shared.legs[leg].device.get(), device) {
            (Some(device), _) => device.clone(),
            (None, Some(device)) => self.fitted(device).map_err(refused)?,
            (None, None) => return Err(refused(format!("{} is absent", shared.leg_name(leg)))),
        };
        let mut legs: Vec<_> = shared.legs.iter().map(|leg| leg.device.get().cloned()).collect();
        legs[leg] = Some(device.clone());
        // Before anything is held up: a leg that does not answer must not stop the others.
        let channel = device.open_channel(reactor)?;
        let options = MirrorOptions { create: overwrite, force: overwrite, ..MirrorOptions::default() };
        let seen = look(reactor, &shared.name, &*channel, &device, &options).await?;
        if let Some(unfit) = &seen.unfit {
            let way = if unfit.lacks_room { "" } else { "; rejoin it with --overwrite to give up what it holds" };
            return Err(refused(format!("{}{way}", unfit.why)));
        }
        let inner = self.inner(reactor)?;
        // With the whole device held no write and no copy is under way. So every region that the leg lacks is marked dirty,
        // and no copy that began without it can take a mark away.
        let _alone = shared.ranges.lock(0, shared.blocks(), true).await;
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        let state = {
            let meta = shared.meta.lock().expect("nothing panics while holding the metadata");
            meta::arriving(&meta.superblock, seen.superblock.as_ref(), seen.blank, leg, overwrite)
                .map_err(|why| refused(explain(&shared.name, &why, &legs, &shared.leg_names, true)))?
        };
        // Only the first device of a leg stays; it is the same one otherwise.
        let _ = shared.legs[leg].device.set(device);
        inner.take_in(leg, state, &seen).await.map_err(failed)?;
        match shared.leg_state(leg) {
            LegState::Failed => Err(failed(Status::WriteError)),
            state => Ok(state),
        }
    }

    /// A device for a leg that the mirror was opened without, so that it keeps what the mirror promises.
    fn fitted(&self, device: Arc<dyn BlockDevice>) -> Result<Arc<dyn BlockDevice>, String> {
        let (promised, info) = (&self.shared.info(), device.info());
        let needed = self.shared.data_start + promised.blocks;
        if let Some(why) = lacks_room(&*device, promised.block_size, needed) {
            return Err(why);
        }
        let name = device.name();
        if info.zoned.is_some() {
            return Err(format!("leg '{name}' is zoned"));
        }
        let same_boundary = |info: &DeviceInfo| {
            info.atomic_boundary_blocks == 0 || info.atomic_boundary_blocks == promised.atomic_boundary_blocks
        };
        let atomic = promised.atomic_write_blocks;
        if info.atomic_write_blocks < atomic || (atomic > 1 && !same_boundary(&info)) {
            let less = info.atomic_write_blocks;
            return Err(format!(
                "leg '{name}' writes {less} blocks at once, and the mirror was opened with a promise of {atomic}; open it again"
            ));
        }
        Ok(fit(device, promised))
    }
}

impl Inner {
    /// Makes a leg one that is being caught up, durably. The caller holds all blocks and the turn.
    async fn take_in(&self, leg: usize, state: LegState, seen: &Seen) -> Result<(), Status> {
        let shared = &self.shared;
        self.record_with_turn().await?;
        let full = state == LegState::RecoveringFull;
        let pages = {
            let mut meta = shared.meta.lock().expect("nothing panics while holding the metadata");
            // What the leg held before must not look newer than what is written now.
            let found = seen.superblock.as_ref().map_or(0, |found| found.generation);
            meta.superblock.generation = meta.superblock.generation.max(found);
            if full {
                meta.superblock.legs[leg].id = LegRecord::new_id(meta.superblock.generation, leg);
                meta.pages.iter_mut().for_each(|page| *page = BitmapPage::filled(true));
            }
            meta.pages.len()
        };
        shared.legs[leg].slot_first.store(seen.slot_first, Release);
        shared.legs[leg].generation.store(seen.generation(), Release);
        for word in shared.regions.iter() {
            if full {
                word.fetch_or(DIRTY | NEEDS_SYNC, AcqRel);
            } else if word.load(Acquire) & DIRTY != 0 {
                word.fetch_or(NEEDS_SYNC, AcqRel);
            }
        }
        shared.legs[leg].is_unflushed.store(false, Release);
        shared.legs[leg].joins.fetch_add(1, AcqRel);
        self.set_state(leg, state);
        for page in 0..pages {
            self.write_page(page).await?;
        }
        self.write_superblocks().await
    }
}
