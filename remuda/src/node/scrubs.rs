//! Scrubs over restarts of the node. How far each is, and what it has found, is noted while it runs: one that a restart, or a crash,
//! has cut off goes on by itself when its pool is open again, and what the last one has found stays known.
//!
//! ```text
//! begun -> noted every half minute, and when it finds something -> ended, stopped, or its pool closed: noted once more
//! ```
//! Extents that a scrub has passed need not be read again: what changed there since was just written. That holds from one opening of
//! the pool to the next, so a note counts only where nobody else has opened it, given up its log or repaired it in between. Of a note
//! of before a crash some extents are read twice.

use super::Node;
use super::pools::OpenPool;
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::scrub_view::ScrubState;
use crate::clock::seconds_now;
use engine::{ScrubCourse, ScrubStatus};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How old the note of a scrub that runs may become.
const NOTE_EVERY: Duration = Duration::from_secs(30);
/// A scrub that was cut off, or stopped, longer ago begins anew: what it has read says little by then.
const NOTE_AGE_MAX_S: u64 = 30 * 24 * 3600;
/// Runs of bad blocks, damaged headers, and damaged metadata, of all shards that are noted.
const FINDINGS_NOTED: usize = 256;

/// What is known of the scrubs of a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubRecord {
    /// The pool: another one of that name has not been scrubbed.
    pub pool: Uuid,
    /// The pool's opening in which this was noted.
    pub epoch: u32,
    /// When that was, in seconds since 1970.
    pub noted_s: u64,
    /// Bytes a second of one that runs, or was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// When one came to its end the last time, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_s: Option<u64>,
    /// By shard, and the number of each.
    pub shards: Vec<(u16, ScrubStatus)>,
}

/// What a node has noted of scrubs, by the name of the pool. What cannot be read of that is not needed either.
pub fn read_records<'de, D: Deserializer<'de>>(text: D) -> Result<BTreeMap<String, ScrubRecord>, D::Error> {
    let found = BTreeMap::<String, serde_json::Value>::deserialize(text)?;
    let read = |(name, record)| match serde_json::from_value(record) {
        Ok(record) => Some((name, record)),
        Err(error) => {
            tracing::warn!(pool = name, "what was noted of its scrubs cannot be read: {error}");
            None
        }
    };
    Ok(found.into_iter().filter_map(read).collect())
}

/// A scrub whose course is to be noted.
#[derive(Default)]
pub(super) struct Followed {
    /// Bytes a second; `None` when it was stopped.
    bytes_per_second: Option<u64>,
    /// When it was last tried to note it, and what it had found by then.
    tried: Option<(Instant, u64)>,
    /// It has come to its end.
    ended_s: Option<u64>,
}

impl Followed {
    fn is_due(&self, found: u64) -> bool {
        self.tried.is_none_or(|(at, before)| at.elapsed() >= NOTE_EVERY || found != before)
    }
}

impl Node {
    /// Whether the course of a scrub is to be noted.
    pub fn is_scrubbing(&self) -> bool {
        !self.scrubs.is_empty()
    }

    /// Notes how far scrubs are: of those that run from time to time, of those that have ended at once.
    pub async fn note_scrubs(&mut self) {
        for name in self.scrubs.keys().cloned().collect::<Vec<_>>() {
            self.note_scrub(&name).await;
        }
    }

    /// Notes those that run, before their pools are closed.
    pub(super) async fn note_scrubs_at_end(&mut self) {
        self.scrubs.values_mut().for_each(|followed| followed.tried = None);
        self.note_scrubs().await;
    }

    /// Follows a scrub that was just begun at that pace; without one, it was stopped.
    pub(super) async fn follow_scrub(&mut self, name: &str, bytes_per_second: Option<u64>) {
        let followed = Followed { bytes_per_second, ..Followed::default() };
        self.scrubs.insert(name.to_string(), followed);
        self.note_scrub(name).await;
    }

    /// Notes how far the scrub of a pool is, if that is due.
    async fn note_scrub(&mut self, name: &str) {
        let Some(open) = self.pools.get(name).and_then(|slot| slot.live.clone().ok()) else {
            // It is taken up when the pool is open again.
            self.scrubs.remove(name);
            return;
        };
        let stand = self.ask(&open, async |pool, reactor| pool.scrub_stand(reactor).await).await;
        let Some(stand) = stand.flatten() else { return };
        if stand.course == ScrubCourse::None {
            self.scrubs.remove(name);
        }
        let Some(followed) = self.scrubs.get_mut(name) else { return };
        let (runs, has_ended) = (stand.course == ScrubCourse::Runs, stand.course == ScrubCourse::Ended);
        if has_ended && followed.bytes_per_second.is_some() && followed.ended_s.is_none() {
            (followed.ended_s, followed.tried) = (Some(seconds_now()), None);
        }
        // Nobody has stopped it but the end of its pool.
        let is_closing = stand.course == ScrubCourse::Stopped && followed.bytes_per_second.is_some();
        if is_closing || !followed.is_due(stand.found) {
            return;
        }
        followed.tried = Some((Instant::now(), stand.found));
        let (pace, ended_s) = (followed.bytes_per_second.filter(|_| runs), followed.ended_s);
        let notes = self.ask(&open, async |pool, reactor| pool.scrub_notes(reactor).await).await;
        let Some(shards) = notes.flatten() else { return };
        // It goes on all the same, and this is tried again.
        match self.remember_scrub(name, &open, pace, ended_s, shards) {
            Ok(()) if runs => {}
            Ok(()) => {
                if ended_s.is_some() {
                    tracing::info!(pool = name, findings = stand.found, "scrub ended");
                }
                self.scrubs.remove(name);
            }
            Err(refusal) => tracing::warn!(pool = name, "how far the scrub is could not be noted: {refusal}"),
        }
    }

    fn remember_scrub(
        &mut self,
        name: &str,
        open: &OpenPool,
        bytes_per_second: Option<u64>,
        ended_s: Option<u64>,
        mut shards: Vec<(u16, ScrubStatus)>,
    ) -> Result<(), Refusal> {
        let share = FINDINGS_NOTED.div_ceil(shards.len().max(1));
        for (_, scrub) in &mut shards {
            scrub.bad.truncate(share);
            scrub.bad_headers.truncate(share);
            scrub.bad_metadata.truncate(share);
        }
        let (pool, epoch) = (open.pool.uuid(), open.pool.epoch());
        let before = self.state.scrubs.get(name).filter(|record| record.pool == pool);
        let ended_s = ended_s.or(before.and_then(|record| record.ended_s));
        let record = ScrubRecord { pool, epoch, noted_s: seconds_now(), bytes_per_second, ended_s, shards };
        let mut state = self.state.clone();
        state.scrubs.insert(name.to_string(), record);
        self.remember(state)
    }

    /// When a scrub of a pool came to its end the last time, in seconds since 1970.
    pub(super) fn scrub_ended_s(&self, name: &str, open: &OpenPool, state: ScrubState) -> Option<u64> {
        match self.scrubs.get(name) {
            // Nobody has looked since.
            Some(followed) if state == ScrubState::Done => Some(followed.ended_s.unwrap_or_else(seconds_now)),
            _ => self.state.scrubs.get(name).filter(|record| record.pool == open.pool.uuid())?.ended_s,
        }
    }

    /// Takes up what is known of the scrubs of a pool that was just opened; one that was cut off goes on.
    pub(super) async fn go_on_scrubbing(&mut self, name: &str) {
        let Some(open) = self.pools.get(name).and_then(|slot| slot.live.clone().ok()) else { return };
        let Some(record) = self.state.scrubs.get(name).filter(|record| record.pool == open.pool.uuid()) else { return };
        let ScrubRecord { epoch, noted_s, bytes_per_second, shards, .. } = record.clone();
        let has_ended = shards.iter().all(|(_, scrub)| scrub.extents_done == scrub.extents_total);
        let is_old = !has_ended && seconds_now().saturating_sub(noted_s) > NOTE_AGE_MAX_S;
        if is_old || epoch.checked_add(1) != Some(open.pool.epoch()) {
            if bytes_per_second.is_some() {
                tracing::warn!(
                    pool = name,
                    "its scrub does not go on: the pool was opened, or changed, elsewhere since"
                );
            }
            // Of a copy put back the opening of this number may still come.
            self.distrust_scrub(name);
            return;
        }
        let pool = open.pool.clone();
        let taken_up = on_reactor_async(self.reactors.first(), move |reactor| async move {
            pool.adopt_scrub(&reactor, shards).await;
            if let Some(rate) = bytes_per_second {
                pool.scrub(&reactor, rate).await;
            }
        });
        match taken_up.await {
            Ok(()) if bytes_per_second.is_some() => tracing::info!(pool = name, bytes_per_second, "scrub goes on"),
            Ok(()) => {}
            Err(refusal) => tracing::error!(pool = name, "{refusal}"),
        }
        // What is known of it is of this opening from now on.
        self.follow_scrub(name, bytes_per_second).await;
    }

    /// What was read of a pool says nothing any more: something of it was given up. When a scrub has ended last stays known.
    pub(super) fn distrust_scrub(&mut self, name: &str) {
        self.scrubs.remove(name);
        let mut state = self.state.clone();
        let Some(record) = state.scrubs.get_mut(name) else { return };
        (record.bytes_per_second, record.shards) = (None, Vec::new());
        if let Err(refusal) = self.remember(state) {
            tracing::warn!(pool = name, "what its last scrub has found could not be dropped: {refusal}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct State {
        #[serde(deserialize_with = "read_records")]
        scrubs: BTreeMap<String, ScrubRecord>,
    }

    #[test]
    fn notes_of_earlier_builds_are_read_and_what_cannot_be_is_none() {
        let text = r#"{"scrubs": {
            "cold": {"pool": "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "epoch": 7, "noted_s": 5, "bytes_per_second": 9, "ended_s": 3,
                "shards": [[2, {"extents_done": 4, "extents_total": 6, "corrupt_blocks": 1,
                    "bad": [{"volume": 3, "first": 70, "blocks": 1, "of": 2}], "bad_headers": [{"band": 8, "more": 1}], "more": 0}]]},
            "worse": {"pool": "no number"}, "bare": {}}}"#;
        let State { scrubs } = serde_json::from_str(text).unwrap();
        assert_eq!(scrubs.keys().collect::<Vec<_>>(), ["bare", "cold"]);
        let record = &scrubs["cold"];
        let numbers = (record.epoch, record.noted_s, record.bytes_per_second, record.ended_s);
        assert_eq!(numbers, (7, 5, Some(9), Some(3)));
        let (number, scrub) = &record.shards[0];
        assert_eq!((*number, scrub.extents_done, scrub.extents_total, scrub.corrupt_blocks), (2, 4, 6, 1));
        assert_eq!((scrub.bad[0].volume, scrub.bad[0].first, scrub.bad[0].of), (3, 70, Some(2)));
        assert_eq!((scrub.bad_headers[0].band, scrub.good_blocks), (8, 0));
        // Of before scrubs read metadata: they are read when it goes on.
        assert!(!scrub.metadata_done && scrub.bad_metadata.is_empty());
        let again = serde_json::from_str(&serde_json::to_string(record).unwrap());
        assert_eq!(again.ok().as_ref(), Some(record));
    }
}
