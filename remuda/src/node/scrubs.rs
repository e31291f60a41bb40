//! Scrubs over restarts of the node. How far each is, and what it has found, is noted while it runs: one that a restart, or a crash,
//! has cut off goes on by itself when its pool is open again, and what the last one has found stays known.
//!
//! ```text
//! begun -> noted every half minute, and when the pool is closed -> ended, or stopped: noted once more
//! ```
//! Extents that a scrub has passed need not be read again: what changed there since was just written. So a note that is a little old,
//! of before a crash, does no harm: some extents are read twice.

use super::Node;
use super::pools::OpenPool;
use super::reactors::on_reactor_async;
use super::scrub_view::ScrubState;
use crate::clock::seconds_now;
use engine::ScrubStatus;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// How old the note of a scrub that runs may become.
const NOTE_EVERY: Duration = Duration::from_secs(30);

/// What is known of the scrubs of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScrubRecord {
    /// The pool: another one of that name has not been scrubbed.
    pub pool: Uuid,
    /// Bytes a second of one that runs, or was cut off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// When one came to its end the last time, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_s: Option<u64>,
    /// By shard, and the number of each.
    #[serde(default)]
    pub shards: Vec<(u16, ScrubStatus)>,
}

/// How a scrub that was under way stands now.
enum Course {
    Runs,
    Ended,
    Stopped,
}

impl Course {
    fn of(shards: &[(u16, ScrubStatus)]) -> Course {
        let mut scrubs = shards.iter().map(|(_, scrub)| scrub);
        if scrubs.clone().any(|scrub| scrub.running) {
            return Course::Runs;
        }
        match scrubs.all(|scrub| scrub.extents_total > 0 && scrub.extents_done == scrub.extents_total) {
            true => Course::Ended,
            false => Course::Stopped,
        }
    }
}

impl Node {
    /// Whether a scrub is under way, or was when its pool was closed.
    pub fn is_scrubbing(&self) -> bool {
        self.state.scrubs.values().any(|record| record.bytes_per_second.is_some())
    }

    /// Notes how far scrubs are: of those that run from time to time, of those that have ended at once.
    pub async fn note_scrubs(&mut self) {
        let under_way = self.state.scrubs.iter().filter(|(_, record)| record.bytes_per_second.is_some());
        for name in under_way.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            let Some(open) = self.pools.get(&name).and_then(|slot| slot.live.clone().ok()) else { continue };
            self.note_scrub(&name, &open, None).await;
        }
    }

    /// Notes those that run, before their pools are closed.
    pub(super) async fn note_scrubs_at_end(&mut self) {
        self.scrubs_noted.clear();
        self.note_scrubs().await;
    }

    /// Notes how far the scrub of a pool is, unless it runs and that was noted just now; `begun` is the pace of one that was just begun.
    pub(super) async fn note_scrub(&mut self, name: &str, open: &OpenPool, begun: Option<u64>) {
        let notes = self.ask(open, async |pool, reactor| pool.scrub_notes(reactor).await).await;
        let Some(shards) = notes else { return };
        let course = Course::of(&shards);
        let is_fresh = self.scrubs_noted.get(name).is_some_and(|at| at.elapsed() < NOTE_EVERY);
        if matches!(course, Course::Runs) && begun.is_none() && is_fresh {
            return;
        }
        let pool = open.pool.uuid();
        let before = self.state.scrubs.get(name).filter(|record| record.pool == pool);
        let was_under_way = before.and_then(|record| record.bytes_per_second);
        let (bytes_per_second, ended_now) = match course {
            Course::Runs => (begun.or(was_under_way), false),
            Course::Ended => (None, begun.or(was_under_way).is_some()),
            Course::Stopped => (None, false),
        };
        if ended_now {
            let bad_of = |scrub: &ScrubStatus| scrub.corrupt_blocks + scrub.lost_blocks;
            let bad_blocks = shards.iter().map(|(_, scrub)| bad_of(scrub)).sum::<u64>();
            tracing::info!(pool = name, bad_blocks, "scrub ended");
        }
        let ended_s = if ended_now { Some(seconds_now()) } else { before.and_then(|record| record.ended_s) };
        let mut state = self.state.clone();
        state.scrubs.insert(name.to_string(), ScrubRecord { pool, bytes_per_second, ended_s, shards });
        self.scrubs_noted.insert(name.to_string(), Instant::now());
        // It goes on all the same; what it would cost is that it begins anew after a restart.
        if let Err(refusal) = self.remember(state) {
            tracing::warn!(pool = name, "how far the scrub is could not be noted: {refusal}");
        }
    }

    /// When a scrub of a pool came to its end the last time, in seconds since 1970: just now, where that is not noted yet.
    pub(super) fn scrub_ended_s(&self, name: &str, open: &OpenPool, state: ScrubState) -> Option<u64> {
        let record = self.state.scrubs.get(name).filter(|record| record.pool == open.pool.uuid())?;
        let has_just_ended = state == ScrubState::Done && record.bytes_per_second.is_some();
        if has_just_ended { Some(seconds_now()) } else { record.ended_s }
    }

    /// Takes up what is known of the scrubs of a pool that was just opened; one that was cut off goes on.
    pub(super) async fn go_on_scrubbing(&self, name: &str, open: &OpenPool) {
        let Some(record) = self.state.scrubs.get(name).filter(|record| record.pool == open.pool.uuid()) else { return };
        let (pool, ScrubRecord { bytes_per_second, shards, .. }) = (open.pool.clone(), record.clone());
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
    }
}
