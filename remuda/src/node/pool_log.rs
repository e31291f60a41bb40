//! Giving up the log of a pool that has lost it.

use super::Node;
use super::pool_advice::Reread;
use super::pool_view::PoolView;
use super::pools::{MadeFile, object, pool_refused, try_again};
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use super::state::Origin;
use crate::config::LogDef;
use engine::{ForgottenLog, Pool};
use serde::{Deserialize, Serialize};

/// What a volume loses.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeLoss {
    /// Its name.
    pub volume: String,
    /// Ranges that answer with an error until they are written.
    pub ranges: u64,
    /// Bytes in them.
    pub bytes: u64,
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
    /// Bytes of a shaped pool that were not in the log alone and cannot be found on its capacity device: they are damaged, and lost.
    pub unfound_bytes: u64,
    /// The volumes that lose something.
    pub volumes: Vec<VolumeLoss>,
    /// The pool afterwards.
    pub pool: PoolView,
}

impl LogLoss {
    fn of(done: bool, forgotten: &ForgottenLog, pool: PoolView) -> LogLoss {
        let volumes: Vec<VolumeLoss> = forgotten
            .volumes
            .iter()
            .map(|lost| VolumeLoss {
                volume: lost.volume.clone(),
                ranges: lost.ranges,
                bytes: lost.blocks * engine::BLOCK_BYTES as u64,
            })
            .collect();
        LogLoss {
            done,
            ranges: volumes.iter().map(|lost| lost.ranges).sum(),
            bytes: volumes.iter().map(|lost| lost.bytes).sum(),
            freed_extents: forgotten.freed_extents,
            unfound_bytes: forgotten.unfound_blocks * engine::BLOCK_BYTES as u64,
            volumes,
            pool,
        }
    }
}

impl Node {
    /// Gives up the log of a pool that is not open, for the (new) device that its definition names or for `log`, and opens
    /// the pool. Without `lose_data` nothing is changed, and the answer is what would be lost.
    pub async fn pool_forget_log(
        &mut self,
        name: &str,
        log: Option<LogDef>,
        force: bool,
        lose_data: bool,
    ) -> Result<LogLoss, Refusal> {
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
                    return Err(Refusal::conflict(object(name), cause, format!("delete {user} first, or use another")));
                }
            }
            def.log = log;
        }
        for device in def.devices() {
            self.reopen_device(device).await;
        }
        let mut made = MadeFile::for_log(&def.log);
        let (devices, lock) = self.pool_devices(&def, lose_data)?;
        let expected = name.to_string();
        let forgotten = on_reactor_async(self.reactors.first(), move |reactor| async move {
            let refuse = |error| pool_refused(&expected, error, "");
            let capacity = &devices.capacity;
            let channel = capacity.open_channel(&reactor).map_err(|error| refuse(error.into()))?;
            let found = engine::read_superblocks(&reactor, channel, capacity.info()).await;
            let found = found.map_err(|error| refuse(error.into()))?;
            if found.name != expected {
                let cause = format!("device '{}' belongs to pool '{}'", capacity.name(), found.name);
                return Err(Refusal::conflict(object(&expected), cause, "name the right device"));
            }
            let forgotten = match lose_data {
                true => Pool::forget_log(&reactor, &devices, force).await,
                false => Pool::foresee_forget_log(&reactor, &devices, force).await,
            };
            forgotten.map_err(refuse)
        });
        let forgotten = forgotten.await??;
        drop(lock);
        if !lose_data {
            return Ok(LogLoss::of(false, &forgotten, self.pool_show(name).await?));
        }
        made.keep();
        tracing::warn!(pool = name, slices = forgotten.slices, "log given up: what was newest in it is lost");
        self.redefine_pool(name, def)?;
        self.open_as_known(name).await.map_err(|refusal| Refusal {
            cause: format!("its log was given up, but it does not open: {}", refusal.cause),
            next: try_again(name),
            ..refusal
        })?;
        Ok(LogLoss::of(true, &forgotten, self.pool_show(name).await?))
    }

    /// Remembers what a pool is made of now.
    pub(super) fn redefine_pool(&mut self, name: &str, def: crate::config::PoolDef) -> Result<(), Refusal> {
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
