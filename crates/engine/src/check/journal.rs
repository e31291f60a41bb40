//! A shard's dirty journal: what it names, and how it is made anew from what the log and the index say.

use super::report::{Finding, Severity};
use super::shard::ShardState;
use super::tables::cause_of;
use super::{Checker, RESTORE};
use crate::format::dirty::DirtySlice;
use crate::format::superblock::Superblock;
use crate::meta::journal::read_newer;
use crate::meta::{DirtyJournal, MetaError, Object};
use bdev::Status;
use std::collections::BTreeSet;

/// Slices that a finding names.
const SLICES_NAMED: usize = 8;

impl Checker {
    /// What the journal names; else why no copy is valid.
    pub(super) async fn journal(
        &mut self,
        superblock: &Superblock,
        shard: u16,
    ) -> Result<BTreeSet<DirtySlice>, String> {
        let causes = |errors: [MetaError; 2]| {
            let named = errors.iter().zip(0..).map(|(error, copy)| format!("copy {copy}: {}", cause_of(error)));
            named.collect::<Vec<_>>().join("; ")
        };
        let newer = read_newer(&self.media, superblock, shard).await.map_err(causes)?;
        let slices: BTreeSet<DirtySlice> = newer.slices.into_iter().collect();
        self.report.counts.dirty_slices += slices.len() as u64;
        Ok(slices)
    }

    /// No copy of the journal is valid. What it has to name are the slices with records in the log, and in a shaped pool those that
    /// the shadow has not as the index has them: as long as both devices are there, that can be found again. What it names when it has
    /// been repaired.
    pub(super) async fn lost_journal(
        &mut self,
        superblock: &Superblock,
        state: &ShardState,
        causes: &str,
        follows: bool,
    ) -> Option<BTreeSet<DirtySlice>> {
        let meaning = format!("no copy is valid, so the shard does not open: {causes}");
        let object = Object::Journal { shard: state.number };
        let mut finding = Finding::new(Severity::Error, object, "both copies", meaning, RESTORE);
        let mut slices = None;
        if !follows {
            finding.advice = "see what is said of the log: with all of it this can be repaired, and nothing is lost; if that cannot be \
                              had, 'pool forget-log' gives up the log, and all that volumes have in this shard: nothing tells \
                              what was newer there"
                .into();
        } else if !state.is_whole {
            finding.advice = "see to the table pages first, and check again: then this can be repaired".into();
        } else {
            let found = self.unsettled(superblock, state).await;
            finding.advice = format!("repair it: {} slices are found again, and nothing is lost", found.len());
            finding = self.repaired(finding, DirtyJournal::renew(&self.media, superblock, state.number, &found)).await;
            slices = finding.repaired.then_some(found);
        }
        self.report.add(finding);
        slices
    }

    /// Slices of which the log, or the index without the shadow, knows something alone.
    async fn unsettled(&self, superblock: &Superblock, state: &ShardState) -> BTreeSet<DirtySlice> {
        let mut slices = state.in_log.clone();
        slices.extend(self.beside_shadow(superblock, state, &slices).await);
        slices
    }

    /// Slices with records in the log that the journal does not name: a block of it has rotted at its end, for instance.
    pub(super) async fn uncovered(&mut self, superblock: &Superblock, state: &ShardState) {
        let Some(dirty) = &state.dirty else { return };
        let missing: BTreeSet<DirtySlice> = state.in_log.difference(dirty).copied().collect();
        if missing.is_empty() {
            return;
        }
        let meaning = format!(
            "the log has blocks of slices that it does not name ({}): with the log device they would not be called lost, but be as \
             they were once",
            self.slices_named(&missing)
        );
        let object = Object::Journal { shard: state.number };
        let finding = Finding::new(Severity::Warning, object, "the copy in use", meaning, "repair it");
        self.report_unnamed(superblock, state.number, finding, missing).await;
    }

    /// Reports slices that a journal should name; repaired, it does.
    pub(super) async fn report_unnamed(
        &mut self,
        superblock: &Superblock,
        shard: u16,
        finding: Finding,
        slices: BTreeSet<DirtySlice>,
    ) {
        let repair = self.put_in_journal(superblock, shard, slices);
        let finding = self.repaired(finding, repair).await;
        self.report.add(finding);
    }

    /// Adds slices to a journal that can be read.
    pub(super) async fn put_in_journal(
        &self,
        superblock: &Superblock,
        shard: u16,
        slices: BTreeSet<DirtySlice>,
    ) -> Result<(), Status> {
        let channel = self.capacity.open_channel(&self.reactor).map_err(|_| Status::Gone)?;
        let opened = DirtyJournal::open(&self.reactor, channel, self.capacity.info(), superblock, shard).await;
        let journal = opened.map_err(|error| Status::from(&error))?;
        for (volume, slice) in slices {
            journal.add(volume, slice).await?;
        }
        Ok(())
    }

    /// Slices, in words.
    pub(super) fn slices_named(&self, slices: &BTreeSet<DirtySlice>) -> String {
        let one = |(volume, slice): &DirtySlice| format!("slice {slice} of {}", self.volume_named(*volume));
        let listed: Vec<String> = slices.iter().take(SLICES_NAMED).map(one).collect();
        let more = if slices.len() > listed.len() { " and further ones" } else { "" };
        format!("{}{more}", listed.join(", "))
    }
}
