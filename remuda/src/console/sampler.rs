//! Samples for whoever watches: one look at the node serves all, and nobody watching means no looks.
//!
//! A watcher asks for the sample after the one that it has, and waits for it. Somebody waiting is what makes the sampler
//! look: a second after it last did, or later when looking takes long, so that it takes no more than a fiftieth of the
//! control thread's time. It is never put off so long that a page takes the node for gone.

use super::sample::{Before, Point, Sample};
use crate::log::Recent;
use crate::node::look::Look;
use axum::body::Bytes;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};

/// Watchers waiting at most.
pub const WATCHERS_MAX: usize = 16;
/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Looking may take this part of the time.
const SHARE: u32 = 50;
/// Time between two looks at most, however long they take: a page waits 30 s for an answer.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// From a first look, which nothing can be compared with, to the next.
const FIRST: Duration = Duration::from_millis(250);
/// A look older than this is compared with no more, and a sample is no more handed out.
const STALE: Duration = Duration::from_secs(3);
/// Points kept for charts of watchers that come later: a quarter of an hour.
const POINTS_MAX: usize = 900;

/// Asks the node for a look.
pub type Looks = mpsc::Sender<oneshot::Sender<Look>>;

/// Why there is no sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSample {
    /// There are as many watchers as there may be.
    Crowded,
    /// The node is stopping.
    Stopping,
}

/// The samples, as HTTP handlers see them.
#[derive(Clone)]
pub struct Samples {
    latest: watch::Receiver<Latest>,
    wanted: Arc<Notify>,
    places: Arc<Semaphore>,
    points: Arc<Mutex<VecDeque<Point>>>,
}

#[derive(Clone)]
enum Latest {
    None,
    Sample { seq: u64, made: Instant, json: Bytes },
    Stopping,
}

impl Latest {
    /// Whether there is nothing to wait for: a sample after number `after`, or the end. A watcher that gets its turn late
    /// still takes the sample that was made for it, for no other would come unless asked for.
    fn ends_wait(&self, after: u64) -> bool {
        match self {
            Latest::None => false,
            Latest::Sample { seq, .. } => *seq > after,
            Latest::Stopping => true,
        }
    }
}

/// Time from a look to the next when sampling took `took`.
fn pause(took: Duration) -> Duration {
    took.saturating_mul(SHARE).clamp(EVERY, PAUSE_MAX)
}

/// Makes the samples; runs for as long as the node.
pub struct Sampler {
    looks: Looks,
    log: Recent,
    sender: watch::Sender<Latest>,
    wanted: Arc<Notify>,
    points: Arc<Mutex<VecDeque<Point>>>,
}

/// Samples made from `looks`, with the lines of `log`, and their maker.
pub fn new(looks: Looks, log: Recent) -> (Samples, Sampler) {
    let (sender, latest) = watch::channel(Latest::None);
    let (wanted, points) = (Arc::<Notify>::default(), Arc::<Mutex<VecDeque<Point>>>::default());
    let places = Arc::new(Semaphore::new(WATCHERS_MAX));
    let samples = Samples { latest, wanted: wanted.clone(), places, points: points.clone() };
    (samples, Sampler { looks, log, sender, wanted, points })
}

impl Samples {
    /// The next sample after number `after`, as JSON. A number from before the node was started is none.
    pub async fn next(&self, after: u64) -> Result<Bytes, NoSample> {
        let _place = self.places.try_acquire().map_err(|_| NoSample::Crowded)?;
        let mut latest = self.latest.clone();
        let after = match &*latest.borrow() {
            Latest::Sample { seq, made, .. } if made.elapsed() >= STALE => *seq,
            Latest::Sample { seq, .. } if after <= *seq => after,
            _ => 0,
        };
        if !latest.borrow().ends_wait(after) {
            self.wanted.notify_one();
        }
        match latest.wait_for(|latest| latest.ends_wait(after)).await.as_deref() {
            Ok(Latest::Sample { json, .. }) => Ok(json.clone()),
            _ => Err(NoSample::Stopping),
        }
    }

    /// The points of the last samples, as JSON.
    pub fn history(&self) -> Vec<u8> {
        let points = self.points.lock().expect("nothing panics while holding it");
        serde_json::to_vec(&*points).expect("numbers serialise")
    }
}

impl Sampler {
    /// Looks whenever somebody waits, until the node stops.
    pub async fn run(self) {
        let (mut before, mut looked, mut took, mut seq) = (Before::default(), None::<Instant>, Duration::ZERO, 0);
        loop {
            self.wanted.notified().await;
            match looked.filter(|at| at.elapsed() < STALE + pause(took)) {
                Some(at) => tokio::time::sleep_until((at + pause(took)).into()).await,
                None => {
                    let Some(look) = self.look().await else { break };
                    looked = Some(look.at);
                    before = Sample::of(look, &Before::default(), FIRST, (0, 0), Vec::new()).1;
                    tokio::time::sleep(FIRST).await;
                }
            }
            let Some(look) = self.look().await else { break };
            let (began, looking) = (Instant::now(), look.took);
            seq += 1;
            let elapsed = looked.map_or(FIRST, |then| look.at - then);
            looked = Some(look.at);
            let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
            let (sample, next) = Sample::of(look, &before, elapsed, (seq, at_ms), self.log.lines());
            before = next;
            self.remember(sample.point());
            let json = serde_json::to_vec(&sample).expect("names and numbers serialise").into();
            took = looking + began.elapsed();
            self.sender.send_replace(Latest::Sample { seq, made: Instant::now(), json });
        }
        self.sender.send_replace(Latest::Stopping);
    }

    /// `None` once the node answers no more.
    async fn look(&self) -> Option<Look> {
        let (reply, look) = oneshot::channel();
        self.looks.send(reply).await.ok()?;
        look.await.ok()
    }

    fn remember(&self, point: Point) {
        let mut points = self.points.lock().expect("nothing panics while holding it");
        if points.len() == POINTS_MAX {
            points.pop_front();
        }
        points.push_back(point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::view::StatusView;

    fn look() -> Look {
        let status = serde_json::json!({
            "version": "0", "pid": 1, "node_id": uuid::Uuid::nil(), "uptime_ns": 1, "state_dir": "", "config": "",
            "nvmf_listen": [], "metrics": null, "connections": 0, "hosts": [], "devices": 0, "pools": 0, "volumes": 0,
            "subsystems": 0, "reactors": [], "warnings": ["<script>alert(1)</script>"],
        });
        let status: StatusView = serde_json::from_value(status).expect("all fields are there");
        Look {
            at: Instant::now(),
            took: Duration::ZERO,
            status,
            devices: Vec::new(),
            pools: Vec::new(),
            volumes: Vec::new(),
            subsystems: Vec::new(),
            counted: Vec::new(),
        }
    }

    /// Samples of a node that counts how often it was looked at, and ends after `looks_max` looks.
    fn node(looks_max: usize) -> (Samples, tokio::task::JoinHandle<usize>) {
        let (looks, mut asked) = mpsc::channel::<oneshot::Sender<Look>>(1);
        let (samples, sampler) = new(looks, Recent::default());
        tokio::spawn(sampler.run());
        let counting = tokio::spawn(async move {
            let mut count = 0;
            while count < looks_max {
                let Some(reply) = asked.recv().await else { break };
                count += 1;
                let _ = reply.send(look());
            }
            count
        });
        (samples, counting)
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(test);
    }

    fn seq(json: &Bytes) -> u64 {
        let sample: serde_json::Value = serde_json::from_slice(json).expect("JSON");
        sample["seq"].as_u64().expect("a number")
    }

    #[test]
    fn all_watchers_share_one_sampling_and_without_watchers_there_is_none() {
        run(async {
            let (samples, counting) = node(2);
            tokio::task::yield_now().await;
            assert!(!counting.is_finished(), "nobody has asked yet");
            let (one, other, third) = tokio::join!(samples.next(0), samples.next(0), samples.next(7));
            let (one, other, third) = (one.expect("a sample"), other.expect("a sample"), third.expect("a sample"));
            assert_eq!((seq(&one), &one, &one), (1, &other, &third), "a number that was never given counts as none");
            assert_eq!(counting.await.expect("it ends"), 2, "a first look and the one that is compared with it");
            let history: serde_json::Value = serde_json::from_slice(&samples.history()).expect("JSON");
            assert_eq!(history.as_array().map(Vec::len), Some(1));
            assert_eq!(samples.next(1).await, Err(NoSample::Stopping), "the node is gone");
        });
    }

    #[test]
    fn watchers_beyond_the_limit_are_turned_away_and_leaving_makes_room() {
        run(async {
            let (looks, _unanswered) = mpsc::channel(1);
            let (samples, sampler) = new(looks, Recent::default());
            tokio::spawn(sampler.run());
            let wait = || {
                let samples = samples.clone();
                tokio::spawn(async move { samples.next(0).await })
            };
            let waiting: Vec<_> = (0..WATCHERS_MAX).map(|_| wait()).collect();
            tokio::task::yield_now().await;
            assert_eq!(samples.next(0).await, Err(NoSample::Crowded));
            waiting[0].abort();
            tokio::task::yield_now().await;
            let last = wait();
            tokio::task::yield_now().await;
            assert!(!last.is_finished(), "it has the place of the one that left");
        });
    }

    #[test]
    fn looking_has_a_fiftieth_of_the_time_but_is_never_put_off_for_long() {
        let pauses = [0, 10, 30, 20_000].map(|ms| pause(Duration::from_millis(ms)).as_millis());
        assert_eq!(pauses, [1_000, 1_000, 1_500, 10_000]);
        assert_eq!(pause(Duration::MAX), PAUSE_MAX);
    }

    #[test]
    fn a_watcher_takes_the_sample_it_asked_for_however_late_and_one_that_comes_later_asks_for_another() {
        run(async {
            let (looks, _unanswered) = mpsc::channel(1);
            let (samples, sampler) = new(looks, Recent::default());
            let watch = |after| {
                let samples = samples.clone();
                tokio::spawn(async move { samples.next(after).await })
            };
            let waiting = watch(0);
            tokio::task::yield_now().await;
            sampler.wanted.notified().await;
            let made = Instant::now().checked_sub(STALE * 2).expect("the machine is up for longer");
            let json = Bytes::from_static(b"late");
            sampler.sender.send_replace(Latest::Sample { seq: 1, made, json: json.clone() });
            assert_eq!(waiting.await.expect("it ends"), Ok(json));
            let later = watch(0);
            sampler.wanted.notified().await;
            assert!(!later.is_finished(), "what is old is handed to nobody else");
            sampler.sender.send_replace(Latest::Stopping);
            assert_eq!(later.await.expect("it ends"), Err(NoSample::Stopping));
        });
    }
}
