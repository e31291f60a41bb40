//! Giving up the log of a pool that has lost it. That takes long where the index has to be built anew, so it is done in the
//! background: the node goes on with other requests, and hears of the end by [`log_given_up`](Node::log_given_up). Until then
//! the pool's devices, the new log among them, are nobody else's.

use super::Node;
use super::pool_advice::Reread;
use super::pool_view::PoolView;
use super::pools::{MadeFile, object, pool_refused, try_again};
use super::reactors::on_reactor_async;
use super::refusal::{Refusal, RefusalKind};
use super::state::Origin;
use crate::config::{LogDef, PoolDef};
use bdev::BlockDevice;
use engine::{BLOCK_BYTES, ForgetProgress, ForgetSteps, ForgottenLog, Pool, PoolDevices, UnfoundBlocks};
use reactor::Reactor;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// What a volume loses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeLoss {
    /// Its name.
    pub volume: String,
    /// Ranges that answer with an error until they are written.
    pub ranges: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Other volumes and snapshots that show some of them, the first 64: there they cannot be read either.
    #[serde(default)]
    pub shown_by: Vec<String>,
}

/// Some bytes of a volume.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ByteRange {
    /// Where they begin.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// What of a volume in a shaped pool was not in the log alone, and is not on the capacity device either.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UnfoundView {
    /// Its name.
    pub volume: String,
    /// Bytes that answer with an error until they are written.
    pub bytes: u64,
    /// Where they are: of all volumes together the first 1024 ranges.
    pub ranges: Vec<ByteRange>,
    /// Other volumes and snapshots that show some of them, the first 64: there they cannot be read either.
    #[serde(default)]
    pub shown_by: Vec<String>,
}

/// What giving up a log takes, or took.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogLoss {
    /// It has been done; otherwise this is what it would take.
    pub done: bool,
    /// Ranges of all volumes that answer with an error until they are written.
    pub ranges: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Extents that come back to the free ones.
    pub freed_extents: u64,
    /// Shards whose journal of what may be in the log alone is damaged: all that volumes have in them is lost.
    #[serde(default)]
    pub shards_without_journal: u64,
    /// Bytes of a shaped pool that were not in the log alone and cannot be found on its capacity device: they are damaged, and lost
    /// as well. `None`: only doing it tells.
    pub unfound_bytes: Option<u64>,
    /// The volumes that these are of.
    #[serde(default)]
    pub unfound: Vec<UnfoundView>,
    /// The volumes that lose something with the log.
    pub volumes: Vec<VolumeLoss>,
    /// The pool afterwards.
    pub pool: PoolView,
}

/// How far giving up a log is.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ForgetLogSteps {
    /// The part that is done, from 0 to 1.
    pub done_share: f64,
    /// Shards of the pool that are done.
    pub shards_done: u64,
    /// All of them; 0 until what is lost has been looked up.
    pub shards: u64,
    /// Bands of a shaped pool that have been read, each as often as it is.
    pub bands_read: u64,
    /// Those that are to be read; 0 in a hot pool.
    pub bands: u64,
}

/// Giving up a log by the node, in the background.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ForgetLogProgress {
    /// It is under way.
    pub running: bool,
    /// How far it is, while it is under way.
    pub steps: Option<ForgetLogSteps>,
    /// What it took, once it has ended.
    pub report: Option<LogLoss>,
}

/// Of a pool.
#[derive(Default)]
pub(super) struct ForgetRun {
    pub(super) under_way: Option<UnderWay>,
    /// How the last one ended.
    outcome: Option<Result<LogLoss, Refusal>>,
}

/// An attempt whose end the node has not heard of.
pub(super) struct UnderWay {
    /// The pool as it will be defined.
    pub(super) def: PoolDef,
    progress: Arc<ForgetProgress>,
    ended: oneshot::Receiver<Result<ForgottenLog, Refusal>>,
}

/// By which the node hears of pools whose attempts have ended.
pub(super) struct Endings {
    tell: mpsc::UnboundedSender<String>,
    told: Option<mpsc::UnboundedReceiver<String>>,
}

impl Default for Endings {
    fn default() -> Endings {
        let (tell, told) = mpsc::unbounded_channel();
        Endings { tell, told: Some(told) }
    }
}

/// What an attempt is made with.
struct Attempt {
    def: PoolDef,
    devices: PoolDevices,
    lock: Option<File>,
    made: MadeFile,
}

impl ForgetLogSteps {
    fn of(steps: ForgetSteps) -> ForgetLogSteps {
        let ForgetSteps { shards_done, shards, bands_read, bands } = steps;
        // Of a shaped pool reading takes the time.
        let (done, all) = if bands > 0 { (bands_read, bands) } else { (shards_done, shards) };
        ForgetLogSteps { done_share: done as f64 / all.max(1) as f64, shards_done, shards, bands_read, bands }
    }

    /// In a few words.
    pub fn words(&self) -> String {
        let percent = format!("{:.1} %", 100.0 * self.done_share);
        match (self.bands, self.shards) {
            (0, 0) => "it looks what is lost".to_string(),
            (0, shards) => format!("{percent}, {} of {shards} shards done", self.shards_done),
            (bands, _) => format!("{percent}, {} of {bands} bands read", self.bands_read),
        }
    }
}

impl UnderWay {
    /// How far it is.
    pub(super) fn steps(&self) -> ForgetLogSteps {
        ForgetLogSteps::of(self.progress.steps())
    }
}

fn unfound_view(unfound: &UnfoundBlocks) -> UnfoundView {
    let bytes = |blocks: u64| blocks * BLOCK_BYTES as u64;
    let range = |range: &engine::BlockRange| ByteRange { offset: bytes(range.first), bytes: bytes(range.blocks) };
    UnfoundView {
        volume: unfound.volume.clone(),
        bytes: bytes(unfound.blocks),
        ranges: unfound.ranges.iter().map(range).collect(),
        shown_by: unfound.shown_by.clone(),
    }
}

impl LogLoss {
    fn of(done: bool, forgotten: &ForgottenLog, pool: PoolView) -> LogLoss {
        let volumes: Vec<VolumeLoss> = forgotten
            .volumes
            .iter()
            .map(|lost| VolumeLoss {
                volume: lost.volume.clone(),
                ranges: lost.ranges,
                bytes: lost.blocks * BLOCK_BYTES as u64,
                shown_by: lost.shown_by.clone(),
            })
            .collect();
        let unfound: Option<Vec<UnfoundView>> =
            forgotten.unfound.as_ref().map(|all| all.iter().map(unfound_view).collect());
        LogLoss {
            done,
            ranges: volumes.iter().map(|lost| lost.ranges).sum(),
            bytes: volumes.iter().map(|lost| lost.bytes).sum(),
            freed_extents: forgotten.freed_extents,
            shards_without_journal: forgotten.shards_without_journal,
            unfound_bytes: unfound.as_ref().map(|all| all.iter().map(|of_volume| of_volume.bytes).sum()),
            unfound: unfound.unwrap_or_default(),
            volumes,
            pool,
        }
    }
}

/// The capacity device is that of the pool.
async fn check_name(reactor: &Rc<Reactor>, name: &str, capacity: &Arc<dyn BlockDevice>) -> Result<(), Refusal> {
    let refuse = |error| pool_refused(name, error, "");
    let channel = capacity.open_channel(reactor).map_err(|error| refuse(error.into()))?;
    let found = engine::read_superblocks(reactor, channel, capacity.info()).await;
    let found = found.map_err(|error| refuse(error.into()))?;
    if found.name != name {
        let cause = format!("device '{}' belongs to pool '{}'", capacity.name(), found.name);
        return Err(Refusal::conflict(object(name), cause, "name the right device"));
    }
    Ok(())
}

impl Node {
    /// What giving up the log of a pool that is not open, as [`pool_forget_log`](Self::pool_forget_log) does it, would take; nothing
    /// is changed.
    pub async fn pool_foresee_forget_log(
        &mut self,
        name: &str,
        log: Option<LogDef>,
        force: bool,
    ) -> Result<LogLoss, Refusal> {
        let Attempt { devices, lock, .. } = self.log_attempt(name, log, false).await?;
        let expected = name.to_string();
        let foreseen = on_reactor_async(self.reactors.first(), move |reactor| async move {
            check_name(&reactor, &expected, &devices.capacity).await?;
            let foreseen = Pool::foresee_forget_log(&reactor, &devices, force).await;
            foreseen.map_err(|error| pool_refused(&expected, error, ""))
        });
        let foreseen = foreseen.await??;
        drop(lock);
        Ok(LogLoss::of(false, &foreseen, self.pool_show(name).await?))
    }

    /// Begins to give up the log of a pool that is not open, for the (new) device that its definition names or for `log`. When that
    /// is done the pool is opened.
    pub async fn pool_forget_log(
        &mut self,
        name: &str,
        log: Option<LogDef>,
        force: bool,
    ) -> Result<ForgetLogProgress, Refusal> {
        let Attempt { def, devices, lock, mut made } = self.log_attempt(name, log, true).await?;
        let (progress, (end, ended)) = (Arc::new(ForgetProgress::default()), oneshot::channel());
        let (watched, tell, expected) = (progress.clone(), self.endings.tell.clone(), name.to_string());
        let slot = self.pools.get_mut(name).expect("it was there a moment ago");
        slot.forget = ForgetRun { under_way: Some(UnderWay { def, progress, ended }), outcome: None };
        self.reactors.first().run(move |reactor| {
            let there = reactor.clone();
            reactor.spawn(async move {
                let forgotten = match check_name(&there, &expected, &devices.capacity).await {
                    Ok(()) => {
                        let forgotten = Pool::forget_log(&there, &devices, force, &watched).await;
                        forgotten.map_err(|error| pool_refused(&expected, error, ""))
                    }
                    Err(refusal) => Err(refusal),
                };
                if forgotten.is_ok() {
                    made.keep();
                }
                drop((devices, lock, made));
                // A node that has gone needs to know nothing.
                let _ = end.send(forgotten);
                let _ = tell.send(expected);
            });
        });
        tracing::info!(pool = name, "giving up its log has begun");
        self.pool_forget_log_report(name)
    }

    /// How far giving up the log of a pool is, and what it took.
    pub fn pool_forget_log_report(&self, name: &str) -> Result<ForgetLogProgress, Refusal> {
        let run = &self.pool_slot(name)?.forget;
        match (&run.under_way, &run.outcome) {
            (Some(under_way), _) => {
                Ok(ForgetLogProgress { running: true, steps: Some(under_way.steps()), report: None })
            }
            (None, Some(outcome)) => {
                Ok(ForgetLogProgress { running: false, steps: None, report: Some(outcome.clone()?) })
            }
            (None, None) => {
                let cause = "no log of it was given up since the node was started";
                let next = format!("remuda pool forget-log {name}");
                Err(Refusal::new(RefusalKind::NotFound, object(name), cause, next))
            }
        }
    }

    /// Checks what can be checked first, and opens what it takes; with `make`, a log in a file that is missing is made.
    async fn log_attempt(&mut self, name: &str, log: Option<LogDef>, make: bool) -> Result<Attempt, Refusal> {
        self.check_running()?;
        let slot = self.pool_slot(name)?;
        slot.check_free()?;
        if slot.live.is_ok() {
            let cause = "it is open: its log is there, and nothing is lost";
            return Err(Refusal::conflict(object(name), cause, ""));
        }
        // Of the log that the pool opens with afterwards: what is given up does not come back.
        let reread = self.reread_pool(name)?;
        let slot = self.pool_slot(name)?;
        let mut def = match reread {
            Reread::Same => slot.def.clone(),
            Reread::Changed(def) => def,
            Reread::Wrong(wrong) => return Err(wrong),
        };
        if let Some(log) = log.filter(|log| *log != def.log) {
            if slot.origin == Origin::Config {
                let path = &self.config.source.path;
                let next = "name the new log there and try again without naming it";
                return Err(Refusal::conflict(object(name), format!("its log is named in {path}"), next));
            }
            if let LogDef::Device(device) = &log {
                self.open_device(device)?;
                if let Some(user) = self.users_of_device(device).first() {
                    let cause = format!("device '{device}' is already used by {user}");
                    return Err(Refusal::conflict(
                        object(name),
                        cause,
                        format!("{}, or use another", Node::without_user(user)),
                    ));
                }
            }
            def.log = log;
        }
        for device in def.devices() {
            self.reopen_device(device).await;
        }
        let made = MadeFile::for_log(&def.log);
        let (devices, lock) = self.pool_devices(&def, make)?;
        Ok(Attempt { def, devices, lock, made })
    }

    /// What [`log_given_up`](Self::log_given_up) is to be told; taken once.
    pub fn logs_given_up(&mut self) -> Option<mpsc::UnboundedReceiver<String>> {
        self.endings.told.take()
    }

    /// An attempt to give up a pool's log has ended: the pool is opened with the new one.
    pub async fn log_given_up(&mut self, name: &str) {
        let Some(under_way) = self.pools.get_mut(name).and_then(|slot| slot.forget.under_way.take()) else { return };
        let outcome = self.open_with_new_log(name, under_way).await;
        if let Err(refusal) = &outcome {
            tracing::error!("{refusal}");
        }
        self.pools.get_mut(name).expect("it was there a moment ago").forget.outcome = Some(outcome);
    }

    async fn open_with_new_log(&mut self, name: &str, under_way: UnderWay) -> Result<LogLoss, Refusal> {
        let forgotten = self.take_new_log(name, under_way).await?;
        self.open_as_known(name).await.map_err(|refusal| Refusal {
            cause: format!("its log was given up, but it does not open: {}", refusal.cause),
            next: try_again(name),
            ..refusal
        })?;
        Ok(LogLoss::of(true, &forgotten, self.pool_show(name).await?))
    }

    /// Waits for the end of an attempt; from here on the new log is in the pool's definition.
    async fn take_new_log(&mut self, name: &str, under_way: UnderWay) -> Result<ForgottenLog, Refusal> {
        let gone = |_| Refusal::failed(object(name), "its reactor has ended", "restart the node and look at its log");
        let forgotten = under_way.ended.await.map_err(gone)??;
        tracing::warn!(pool = name, slices = forgotten.slices, "log given up: what was newest in it is lost");
        for unfound in forgotten.unfound.iter().flatten() {
            let UnfoundBlocks { volume, blocks, .. } = unfound;
            tracing::warn!(pool = name, volume, blocks, "blocks are not on the capacity device, and lost as well");
        }
        self.distrust_scrub(name);
        self.redefine_pool(name, under_way.def)?;
        Ok(forgotten)
    }

    /// Ends what is under way; what had been done by then counts. The pools are not opened any more.
    pub(super) async fn stop_forgetting(&mut self) {
        let slots = self.pools.iter_mut();
        let all: Vec<_> =
            slots.filter_map(|(name, slot)| Some((name.clone(), slot.forget.under_way.take()?))).collect();
        all.iter().for_each(|(_, under_way)| under_way.progress.stop());
        for (name, under_way) in all {
            match self.take_new_log(&name, under_way).await {
                Err(refusal) if refusal.kind == RefusalKind::Stopping => tracing::info!("{refusal}"),
                Err(refusal) => tracing::error!("{refusal}"),
                Ok(_) => {}
            }
        }
    }

    /// Remembers what a pool is made of now.
    pub(super) fn redefine_pool(&mut self, name: &str, def: PoolDef) -> Result<(), Refusal> {
        if self.pool_slot(name)?.def == def {
            return Ok(());
        }
        let mut state = self.state.clone();
        state.pools.iter_mut().filter(|old| old.name == name).for_each(|old| *old = def.clone());
        self.remember(state)?;
        self.config.pools.iter_mut().filter(|old| old.def.name == name).for_each(|old| old.def = def.clone());
        self.pools.get_mut(name).expect("it was there a moment ago").def = def;
        Ok(())
    }
}
