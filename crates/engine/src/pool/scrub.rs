//! Scrubbing a pool: all of its shards at once, and as one over what they tell. What they have in common is the first one's part.

use super::Pool;
use crate::shard::{ScrubCourse, ScrubStand, ScrubStatus, Shard};
use reactor::Reactor;
use std::rc::Rc;

impl Pool {
    /// Begins, or goes on, to read the metadata and every block of every volume in the background, at most so many bytes a second in all.
    /// How far it is and what it has found is in the status of the shards.
    pub async fn scrub(&self, reactor: &Rc<Reactor>, bytes_per_second: u64) {
        let rate = (bytes_per_second / self.shared.homes.len() as u64).max(1);
        let stand = self.scrub_stand(reactor).await;
        let goes_on = stand.is_some_and(|stand| matches!(stand.course, ScrubCourse::Stopped | ScrubCourse::Runs));
        for number in 0..self.shared.homes.len() as u16 {
            let common = (number == 0).then(|| self.shared.clone());
            let begin = move |shard: Rc<Shard>| async move { shard.begin_scrub(rate, goes_on, common) };
            self.shared.on_shard(reactor, number, begin).await;
        }
    }

    /// Where a scrub stands; `None` of a pool that is closed.
    pub async fn scrub_stand(&self, reactor: &Rc<Reactor>) -> Option<ScrubStand> {
        let stands = self.shared.on_shards(reactor, |shard| async move { shard.scrub_stand() }).await;
        let stands = stands.into_iter().collect::<Option<Vec<ScrubStand>>>()?;
        let course = stands.iter().map(|stand| stand.course).max()?;
        Some(ScrubStand { course, found: stands.iter().map(|stand| stand.found).sum() })
    }

    /// How far scrubs of shards are, by their numbers, for [`adopt_scrub`](Self::adopt_scrub); `None` of a pool that is closed.
    pub async fn scrub_notes(&self, reactor: &Rc<Reactor>) -> Option<Vec<(u16, ScrubStatus)>> {
        let notes = self.shared.on_shards(reactor, |shard| async move { (shard.number(), shard.scrub_note()) });
        notes.await.into_iter().collect()
    }

    /// Takes up how far scrubs of shards, by their numbers, were when the pool was in use last; what they had found counts as found.
    pub async fn adopt_scrub(&self, reactor: &Rc<Reactor>, noted: Vec<(u16, ScrubStatus)>) {
        for (number, status) in noted.into_iter().filter(|(number, _)| (*number as usize) < self.shared.homes.len()) {
            let adopt = move |shard: Rc<Shard>| async move { shard.adopt_scrub(status) };
            self.shared.on_shard(reactor, number, adopt).await;
        }
    }

    /// Stops it; the next one goes on from there.
    pub async fn cancel_scrub(&self, reactor: &Rc<Reactor>) {
        self.shared.on_shards(reactor, move |shard| async move { shard.cancel_scrub().await }).await;
    }
}
