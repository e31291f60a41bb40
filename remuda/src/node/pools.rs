//! Hot pools: opened after the devices they stand on, made and destroyed at run time.
//!
//! A pool that does not open stops nobody: it is shown with its reason, its volumes answer "not ready" to hosts, and
//! `pool open` tries again. Which volumes there are is known to the pool's own catalog alone.

use super::build::{flash_cache_view, refused};
use super::destroying::Destroying;
use super::making::Making;
use super::pool_advice::Reread;
use super::pool_check::CheckRun;
use super::pool_log::ForgetRun;
use super::pool_view::PoolView;
use super::pool_written::{self, Before};
use super::reactors::on_reactor_async;
use super::refusal::{Refusal, RefusalKind};
use super::state::Origin;
use super::told::told;
use super::{Node, OBJECTS_MAX};
use crate::clock::seconds_now;
use crate::config::forgetful::{KEEPS_NOTHING, forgotten, is_null, keeps_nothing};
use crate::config::{DeviceDef, LogDef, PoolDef, VOLATILE_LOG};
use crate::sys;
use base::ByteSize;
use bdev::BlockDevice;
use engine::{
    Grounds, Holds, LogDevice, MetaError, OpenOptions, Pool, PoolDevices, PoolError, PoolStatus, Shape, SuperblockError,
};
use reactor::Reactor;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(super) struct PoolSlot {
    pub(super) def: PoolDef,
    pub(super) origin: Origin,
    /// The pool, or why it could not be opened.
    pub(super) live: Result<OpenPool, Refusal>,
    /// The check that is under way, or was the last one.
    pub(super) check: Arc<Mutex<CheckRun>>,
    /// Giving up its log: what is under way, or was done last.
    pub(super) forget: ForgetRun,
}

impl PoolSlot {
    fn new(def: PoolDef, origin: Origin, live: Result<OpenPool, Refusal>) -> PoolSlot {
        PoolSlot { def, origin, live, check: Arc::default(), forget: ForgetRun::default() }
    }

    /// A check has the devices of a closed pool for itself, and so has who gives up its log.
    pub(super) fn check_free(&self) -> Result<(), Refusal> {
        let name = &self.def.name;
        if self.check.lock().expect(UNPOISONED).running {
            return Err(Refusal::conflict(object(name), "it is being checked", "wait until that has ended"));
        }
        if let Some(under_way) = &self.forget.under_way {
            let cause = format!("its log is being given up ({})", under_way.steps().words());
            let next = format!("wait until that has ended: remuda pool forget-log {name} --status");
            return Err(Refusal::conflict(object(name), cause, next));
        }
        Ok(())
    }

    /// Whether it places blocks where they belong, as it was made; as it is defined, where that is not known.
    pub(super) fn is_hot(&self) -> bool {
        let shape = self.live.as_ref().map_or(self.def.placement.shape(), |open| open.pool.layout().shape);
        shape == Shape::Hot
    }

    /// Whether it stands on a device, or will when its log has been given up.
    fn is_on(&self, device: &str) -> bool {
        let to_be = self.forget.under_way.as_ref().map(|under_way| &under_way.def);
        [Some(&self.def), to_be].into_iter().flatten().any(|def| def.devices().contains(&device))
    }
}

#[derive(Clone)]
pub(super) struct OpenPool {
    pub(super) pool: Arc<Pool>,
    pub(super) settling: Arc<Mutex<Settling>>,
    /// It has been asked something, and has not answered yet.
    asked: Arc<AtomicBool>,
    /// What the devices below it had counted when it was opened.
    before: Arc<Before>,
    /// Keeps other nodes from mapping the same log.
    _lock: Option<Arc<File>>,
}

/// A pool that has not told its status for so long has a reactor that stands still.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// The last `pool settle`: written by its task on the reactor, read by the node.
#[derive(Default)]
pub(super) struct Settling {
    pub(super) running: bool,
    pub(super) error: Option<String>,
}

pub(super) const UNPOISONED: &str = "nothing panics while holding it";

impl OpenPool {
    /// Whether everything is being destaged, and how the last time ended badly.
    pub(super) fn settling(&self) -> (bool, Option<String>) {
        let settling = self.settling.lock().expect(UNPOISONED);
        (settling.running, settling.error.clone())
    }
}

pub(super) fn object(name: &str) -> String {
    format!("pool '{name}'")
}

/// What sort of refusal it is on these grounds.
fn kind_of(grounds: Grounds) -> RefusalKind {
    match grounds {
        Grounds::Value => RefusalKind::Invalid,
        Grounds::Missing => RefusalKind::NotFound,
        Grounds::State => RefusalKind::Conflict,
        Grounds::Room => RefusalKind::NoSpace,
        Grounds::Devices => RefusalKind::Failed,
    }
}

/// A pool's error as a refusal.
pub fn pool_refused(name: &str, error: PoolError, next: &str) -> Refusal {
    let object = object(name);
    match error {
        PoolError::Plan { error, .. } => Refusal::new(kind_of(error.grounds()), object, error.to_string(), next),
        PoolError::Refused { grounds, reason, .. } => Refusal::new(kind_of(grounds), object, reason, next),
        PoolError::InUse { device, holds, .. } => Refusal::conflict(object, holds.in_use(&device, name), next),
        PoolError::VolatileLog { log, .. } => {
            let then = if next.is_empty() { String::new() } else { format!("; {next}") };
            Refusal::conflict(object, engine::volatile_log(&log), format!("{VOLATILE_LOG}{then}"))
        }
        PoolError::Stopped { .. } => Refusal::new(RefusalKind::Stopping, object, "it was stopped before its end", next),
        PoolError::Io { action, status, .. } => {
            Refusal::new(RefusalKind::of(status), object, format!("cannot {action}: {status}"), next)
        }
        PoolError::NoRoom { volume, needed_bytes, free_bytes, .. } => {
            let (needed, free) = (ByteSize(needed_bytes), ByteSize(free_bytes));
            let cause =
                format!("what volume '{volume}' shows of others takes up to {needed} more, and {free} are free");
            let next = format!(
                "delete or trim volumes, delete snapshots, or let the capacity device grow and call 'remuda pool grow {name}'"
            );
            Refusal::new(RefusalKind::NoSpace, object, cause, next)
        }
        PoolError::Device(error) => Refusal { object, ..refused(String::new(), error) },
        error => Refusal::failed(object, error, next),
    }
}

/// Of a pool that is destroyed.
fn not_wiped(refusal: Refusal) -> Refusal {
    Refusal {
        cause: format!("it is forgotten, but its devices could not all be wiped: {}", refusal.cause),
        next: "create the next pool on them with --force".to_string(),
        ..refusal
    }
}

/// What to do about a pool that is not open.
pub(super) fn try_again(name: &str) -> String {
    format!("put that right, then: remuda pool open {name} ('remuda docs pools' has the cases)")
}

/// Why a pool is not open whose capacity device holds none; one that is `made` is made where there is nothing.
fn no_pool(name: &str, device: &str, holds: Option<Holds>, made: bool) -> Refusal {
    let (cause, mend) = match holds {
        Some(Holds::Nothing) | None => (format!("device '{device}' is blank: it holds no pool"), String::new()),
        Some(holds) => {
            let mend =
                format!("if it is this one and its start was written over, 'remuda pool check {name} --repair'; ");
            (format!("device '{device}' holds no pool, but {holds}"), mend)
        }
    };
    let next = match made {
        true => "name the device that has the pool; or, if nothing on this one is needed, wipe it".to_string(),
        false => {
            format!("put the drive that has the pool in its place; or: remuda pool destroy {name}, and create it anew")
        }
    };
    Refusal::failed(object(name), cause, format!("{mend}{next}; then: remuda pool open {name}"))
}

impl Node {
    /// Opens the pools of configuration and state; those that fail are kept with their reason.
    pub(super) async fn open_pools(&mut self) {
        let configured = self.config.pools.iter().map(|entry| (entry.def.clone(), Origin::Config));
        let mut wanted: Vec<(PoolDef, Origin)> = configured.collect();
        for def in self.state.pools.clone() {
            if wanted.iter().any(|(other, _)| other.name == def.name) {
                let name = &def.name;
                let path = self.config.source.path.clone();
                self.warn(format!(
                    "pool '{name}' is defined in {path} and was also created at run time: the file wins"
                ));
                continue;
            }
            wanted.push((def, Origin::Runtime));
        }
        self.state.scrubs.retain(|name, _| wanted.iter().any(|(def, _)| def.name == *name));
        for (def, origin) in wanted {
            let opening = self.open_pool(&def, origin == Origin::Config);
            let live = told(format!("opening pool '{}'", def.name), opening).await;
            if let Err(refusal) = &live {
                tracing::error!("{refusal}");
            }
            self.pools.insert(def.name.clone(), PoolSlot::new(def.clone(), origin, live));
            self.adopt_volumes(&def.name).await;
            self.go_on_scrubbing(&def.name).await;
        }
    }

    /// Opens a pool on its devices, which must be open; with `make`, blank devices become a new one first.
    async fn open_pool(&self, def: &PoolDef, make: bool) -> Result<OpenPool, Refusal> {
        let name = def.name.clone();
        let next = try_again(&name);
        let mut made = MadeFile::for_log(&def.log);
        let (devices, lock) = self.pool_devices(def, make)?;
        let options = OpenOptions {
            reactors: (0..self.reactors.handles().len()).collect(),
            map_cache_bytes: def.map_cache.map(|bytes| bytes as usize),
            reinsertion_percent: def.reinsertion.map(u32::from),
            tuning: None,
        };
        let create = def.create_options(None);
        let counting = self.counting_below(&def.devices());
        let opened = on_reactor_async(self.reactors.first(), move |reactor| async move {
            let refuse = |error| pool_refused(&create.name, error, &next);
            let capacity = &devices.capacity;
            let channel = capacity.open_channel(&reactor).map_err(|error| refuse(error.into()))?;
            match engine::read_superblocks(&reactor, channel.clone(), capacity.info()).await {
                Ok(found) if found.name != create.name => {
                    let cause = format!("device '{}' belongs to pool '{}'", capacity.name(), found.name);
                    let next = format!("name the right device, or the pool '{}'", found.name);
                    return Err(Refusal::conflict(object(&create.name), cause, next));
                }
                Ok(_) => {}
                Err(MetaError::Superblock(SuperblockError::NotAPool { blank: true })) if make => {
                    Pool::create(&reactor, &devices, &create, seconds_now(), false).await.map_err(refuse)?;
                    made.keep();
                    tracing::info!(pool = %create.name, "pool made on blank devices");
                }
                Err(MetaError::Superblock(SuperblockError::NotAPool { .. })) => {
                    let holds = Holds::look(&reactor, &channel, capacity.info()).await;
                    return Err(no_pool(&create.name, capacity.name(), holds.ok(), make));
                }
                Err(error) => {
                    let cause = format!("device '{}': {error}", capacity.name());
                    return Err(Refusal::failed(object(&create.name), cause, next));
                }
            }
            let before = pool_written::read_all(&counting);
            let pool = Pool::open(&reactor, &devices, &options).await.map_err(refuse)?;
            made.keep();
            Ok((pool, before))
        });
        let (pool, before) = opened.await??;
        let recovery = pool.recovery();
        let volumes = pool.volumes().iter().filter(|volume| !volume.identity().is_snapshot).count();
        tracing::info!(pool = %name, volumes, records = recovery.records,
            milliseconds = recovery.elapsed_ns / 1_000_000, "pool open");
        let before = Arc::new(before);
        Ok(OpenPool { pool, settling: Arc::default(), asked: Arc::default(), before, _lock: lock.map(Arc::new) })
    }

    /// The devices of a pool as the engine wants them. With `make`, a log in a file that is missing is made.
    pub(super) fn pool_devices(&self, def: &PoolDef, make: bool) -> Result<(PoolDevices, Option<File>), Refusal> {
        let capacity = self.device_below(def, &def.capacity)?;
        let (log, lock) = self.log_device(def, make)?;
        Ok((PoolDevices { log, capacity }, lock))
    }

    /// A device that a pool stands on, open.
    pub(super) fn device_below(&self, def: &PoolDef, device: &str) -> Result<Arc<dyn BlockDevice>, Refusal> {
        let params = |name: &str| self.devices.get(name).map(|slot| &slot.def.params);
        if let Some(null) = forgotten(&params, device, is_null) {
            return Err(Refusal::invalid(object(&def.name), keeps_nothing(device, null), KEEPS_NOTHING));
        }
        let found = self.open_device(device).map_err(|refusal| Refusal {
            object: object(&def.name),
            cause: format!("{}: {}", refusal.object, refusal.cause),
            next: try_again(&def.name),
            ..refusal
        })?;
        if found.info().zoned.is_some() {
            let cause = format!("device '{device}' is zoned, and a pool writes in place");
            let next = "put a 'zone-bands' device on it, and a shaped pool on that; or name another device";
            return Err(Refusal::invalid(object(&def.name), cause, next));
        }
        Ok(found)
    }

    /// A pool's log device, and what keeps others from mapping it.
    pub(super) fn log_device(&self, def: &PoolDef, make: bool) -> Result<(LogDevice, Option<File>), Refusal> {
        match &def.log {
            LogDef::Device(device) => Ok((LogDevice::Block(self.device_below(def, device)?), None)),
            LogDef::Pmem { path, size, volatile } => {
                let file = prepare_memory(&def.name, path, *size, make)?;
                let log = LogDevice::Mapped { path: path.clone(), bytes: *size, volatile_allowed: *volatile };
                Ok((log, Some(file)))
            }
        }
    }

    pub(super) fn pool_slot(&self, name: &str) -> Result<&PoolSlot, Refusal> {
        let known = self.pools.keys().map(String::as_str);
        self.pools.get(name).ok_or_else(|| Refusal::not_found("pool", name, known))
    }

    /// An open pool.
    pub(super) fn open_pool_of(&self, name: &str) -> Result<OpenPool, Refusal> {
        let slot = self.pool_slot(name)?;
        if slot.live.is_err() {
            slot.check_free()?;
        }
        slot.live.clone().map_err(|refusal| {
            Refusal::new(RefusalKind::Failed, object(name), format!("it is not open: {}", refusal.cause), refusal.next)
        })
    }

    /// The pools that are open.
    pub(super) fn open_pool_names(&self) -> impl Iterator<Item = &str> {
        self.pools.iter().filter(|(_, slot)| slot.live.is_ok()).map(|(name, _)| name.as_str())
    }

    /// The pool that stands on a device.
    pub(super) fn pool_on(&self, device: &str) -> Option<&str> {
        let slot = self.pools.values().find(|slot| slot.is_on(device));
        slot.map(|slot| slot.def.name.as_str())
    }

    pub(super) async fn status_of(&self, open: &OpenPool) -> Option<PoolStatus> {
        self.ask(open, async |pool, reactor| pool.status(reactor).await).await
    }

    /// What a pool answers, unless its reactor stands still.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        open: &OpenPool,
        question: impl AsyncFnOnce(&Pool, &Rc<Reactor>) -> T + Send + 'static,
    ) -> Option<T> {
        if open.asked.swap(true, Relaxed) {
            // It has not answered the last time yet.
            return None;
        }
        let (pool, asked) = (open.pool.clone(), open.asked.clone());
        let answer = on_reactor_async(self.reactors.first(), move |reactor| async move {
            let answer = question(&pool, &reactor).await;
            asked.store(false, Relaxed);
            answer
        });
        tokio::time::timeout(ANSWER_MAX, answer).await.ok()?.ok()
    }

    async fn pool_view(&self, slot: &PoolSlot) -> PoolView {
        let status = match &slot.live {
            Ok(open) => self.status_of(open).await,
            Err(_) => None,
        };
        let mut view = PoolView::of(slot, status);
        for device in slot.def.devices() {
            let Some((parity, state)) =
                self.device_show(device).ok().and_then(|found| Some((found.parity?, found.state)))
            else {
                continue;
            };
            if let Some(open) = view.open.as_mut().filter(|_| *device == slot.def.capacity) {
                open.layout.parity_members = Some(parity.members.len());
            }
            if parity.degraded {
                view.problems.push(format!("device '{device}' is {state}; see 'remuda device show {device}'"));
            }
        }
        if let Ok(open) = &slot.live {
            self.tell_written(slot, &open.before, &mut view);
            if let Some(numbers) = &mut view.open {
                numbers.scrub.ended_s = self.scrub_ended_s(&slot.def.name, open, numbers.scrub.state);
            }
        }
        let Some(cached_on) = self.flash_cache_below(&slot.def.capacity) else { return view };
        view.reads_cached_on(cached_on);
        let cache = self.devices.get(cached_on).and_then(|device| device.live.as_ref().ok());
        view.flash_cache = cache.and_then(flash_cache_view);
        if let Some(cache) = view.flash_cache.as_ref().filter(|cache| !cache.is_in_order()) {
            let (device, mode) = (cached_on, &cache.mode);
            let advice = match mode.as_str() {
                "hanging" => "it is used again by itself when it answers",
                _ => "replace it, and restart the node",
            };
            view.problems.push(format!(
                "flash of cache '{device}' is {mode}: everything is read from the slow device; {advice}"
            ));
        }
        view
    }

    /// All pools.
    pub async fn pool_list(&self) -> Vec<PoolView> {
        let mut views = Vec::new();
        for slot in self.pools.values() {
            views.push(self.pool_view(slot).await);
        }
        views
    }

    /// One pool.
    pub async fn pool_show(&self, name: &str) -> Result<PoolView, Refusal> {
        Ok(self.pool_view(self.pool_slot(name)?).await)
    }

    /// Makes a pool on devices that hold nothing (or, with `force`, whatever), opens and remembers it; with `cache`, that flash
    /// cache first, and the pool on it. All of it, or nothing.
    pub async fn pool_create(
        &mut self,
        def: PoolDef,
        cache: Option<DeviceDef>,
        force: bool,
    ) -> Result<PoolView, Refusal> {
        self.check_running()?;
        let name = def.name.clone();
        if self.pools.contains_key(&name) {
            return Err(Refusal::conflict(object(&name), "it exists already", "choose another name"));
        }
        if self.pools.len() >= OBJECTS_MAX {
            let cause = format!("there are {OBJECTS_MAX} pools already");
            return Err(Refusal::conflict(object(&name), cause, "destroy some first"));
        }
        let making = Making::new(&def, cache.as_ref());
        self.unmake_on(&making).await?;
        self.go_on_destroying().await;
        match &cache {
            Some(cache) => self.check_cache_devices(&def, cache)?,
            None => self.check_pool_devices(&def)?,
        }
        self.note_making(&making, force).await?;
        let open = match self.make_pool(&making, force).await {
            Ok(open) => open,
            Err(refusal) => {
                // The error that is shown is that of the pool.
                if let Err(left) = self.unmake(&making).await {
                    tracing::warn!(
                        "pool '{name}' was not made, and what there is of it stays until the node starts: {left}"
                    );
                }
                return Err(refusal);
            }
        };
        let mut state = self.state.clone();
        state.made(&making);
        if let Some(slot) = cache.as_ref().and_then(|cache| self.devices.get(&cache.name))
            && let Ok(opened) = &slot.live
        {
            state.note_open(&slot.def, opened.device.info().bytes());
        }
        if let Err(refusal) = self.remember(state) {
            self.close_pool(&open).await;
            // It cannot be said either that it is gone; the next start sees to it.
            if let Some(cache) = &cache {
                self.devices.remove(&cache.name);
            }
            return Err(refusal);
        }
        self.pools.insert(name.clone(), PoolSlot::new(def, Origin::Runtime, Ok(open)));
        tracing::info!(pool = %name, "pool created");
        self.pool_show(&name).await
    }

    /// What was noted, and checked.
    async fn make_pool(&mut self, making: &Making, force: bool) -> Result<OpenPool, Refusal> {
        if let Some((cache, id)) = &making.cache {
            self.make_cache(cache, *id).await?;
            self.check_pool_devices(&making.pool)?;
        }
        let (def, name) = (&making.pool, making.pool.name.clone());
        let mut made = MadeFile::for_log(&def.log);
        let (devices, lock) = self.pool_devices(def, true)?;
        let options = def.create_options(Some(making.pool_id));
        let created = on_reactor_async(self.reactors.first(), move |reactor| async move {
            Pool::create(&reactor, &devices, &options, seconds_now(), force).await
        });
        if let Err(error) = created.await? {
            let other = self.other_device(&error).await;
            return Err(pool_refused(&name, error, &other));
        }
        made.keep();
        drop(lock);
        self.open_pool(def, false).await
    }

    /// The same of a cache that is to be made, and of the log before it.
    fn check_cache_devices(&self, def: &PoolDef, cache: &DeviceDef) -> Result<(), Refusal> {
        if self.devices.contains_key(&cache.name) {
            let cause = format!("device '{}', which its cache would be, exists already", cache.name);
            let next =
                format!("choose another name; or delete device '{}' first, and wipe what it stands on", cache.name);
            return Err(Refusal::conflict(object(&def.name), cause, next));
        }
        if self.devices.len() >= OBJECTS_MAX {
            let cause = format!("there are {OBJECTS_MAX} devices already");
            return Err(Refusal::conflict(object(&def.name), cause, "delete some first"));
        }
        let (children, log) = (cache.children(), def.log_device());
        for device in children.iter().map(String::as_str).chain(log) {
            self.check_free_device(def, device)?;
        }
        match children.iter().position(|child| log == Some(child)) {
            Some(place) => {
                let (what, device) = (if place == 0 { "capacity" } else { "cache" }, &children[place]);
                let cause = format!("its log and its {what} are both on device '{device}'");
                Err(Refusal::invalid(object(&def.name), cause, "name three devices"))
            }
            None => Ok(()),
        }
    }

    /// A device that is there and nobody's.
    fn check_free_device(&self, def: &PoolDef, device: &str) -> Result<(), Refusal> {
        self.open_device(device)?;
        let Some(user) = self.users_of_device(device).into_iter().next() else { return Ok(()) };
        let cause = format!("device '{device}' is already used by {user}");
        Err(Refusal::conflict(object(&def.name), cause, format!("{}, or use another", Node::without_user(&user))))
    }

    /// Devices that are there, nobody else's, and two.
    pub(super) fn check_pool_devices(&self, def: &PoolDef) -> Result<(), Refusal> {
        for device in def.devices() {
            self.check_free_device(def, device)?;
        }
        if def.log_device() == Some(&def.capacity) {
            let cause = format!("its log and its capacity are both on device '{}'", def.capacity);
            return Err(Refusal::invalid(object(&def.name), cause, "name two devices"));
        }
        let LogDef::Pmem { path, .. } = &def.log else { return Ok(()) };
        let same = |other: &&PoolSlot| matches!(&other.def.log, LogDef::Pmem { path: theirs, .. } if theirs == path);
        match self.pools.values().find(same) {
            Some(other) => {
                let cause = format!("pool '{}' has its log in {path}", other.def.name);
                Err(Refusal::conflict(object(&def.name), cause, "choose another file"))
            }
            None => Ok(()),
        }
    }

    /// Tries again to open a pool, and the devices below it, and shows its volumes to hosts again.
    pub async fn pool_open(&mut self, name: &str) -> Result<PoolView, Refusal> {
        self.check_running()?;
        let slot = self.pool_slot(name)?;
        slot.check_free()?;
        if slot.live.is_err() {
            let wrong = match self.reread_pool(name)? {
                Reread::Same => None,
                Reread::Changed(def) => {
                    self.redefine_pool(name, def)?;
                    None
                }
                Reread::Wrong(wrong) => {
                    tracing::warn!("{wrong}; it is opened as it was defined before");
                    Some(wrong)
                }
            };
            self.open_as_known(name).await.map_err(|refusal| match wrong {
                Some(wrong) => {
                    let unseen = format!("what was changed in the file is not seen: {}: {}", wrong.cause, wrong.next);
                    let next = [refusal.next, unseen].into_iter().filter(|next| !next.is_empty());
                    Refusal { next: next.collect::<Vec<_>>().join("; "), ..refusal }
                }
                None => refusal,
            })?;
        }
        self.pool_show(name).await
    }

    /// Opens a pool that is not open by the definition that the node has of it.
    pub(super) async fn open_as_known(&mut self, name: &str) -> Result<(), Refusal> {
        let slot = self.pool_slot(name)?;
        let (def, make) = (slot.def.clone(), slot.origin == Origin::Config);
        for device in def.devices() {
            self.reopen_device(device).await;
        }
        let live = self.open_pool(&def, make).await;
        let outcome = live.as_ref().map(|_| ()).map_err(Clone::clone);
        self.pools.get_mut(name).expect("it was there a moment ago").live = live;
        outcome?;
        self.adopt_volumes(name).await;
        self.go_on_scrubbing(name).await;
        self.announce_pool(name).await
    }

    /// Changes a pool while it is in use. One made at run time keeps it; a configured one starts with what the file says again.
    pub async fn pool_set(&mut self, name: &str, reinsertion: Option<u16>) -> Result<PoolView, Refusal> {
        self.check_running()?;
        let slot = self.pool_slot(name)?;
        if slot.is_hot() {
            let cause = "it has no bands to keep blocks off: only shaped pools reinsert into their log";
            return Err(Refusal::invalid(object(name), cause, "see 'remuda pool create --help' for the shapes"));
        }
        let open = slot.live.clone().ok();
        if slot.origin == Origin::Runtime {
            let mut state = self.state.clone();
            state.pools.iter_mut().filter(|def| def.name == name).for_each(|def| def.reinsertion = reinsertion);
            self.remember(state)?;
        }
        self.pools.get_mut(name).expect("it was there a moment ago").def.reinsertion = reinsertion;
        if let Some(open) = open {
            on_reactor_async(self.reactors.first(), move |reactor| async move {
                open.pool.set_reinsertion(&reactor, reinsertion.map(u32::from)).await;
            })
            .await?;
        }
        tracing::info!(pool = name, reinsertion, "pool changed");
        self.pool_show(name).await
    }

    /// Begins to move everything from the log to the capacity device; `settling` in the status says when that is over.
    pub async fn pool_settle(&mut self, name: &str) -> Result<PoolView, Refusal> {
        self.check_running()?;
        let open = self.open_pool_of(name)?;
        {
            let mut settling = open.settling.lock().expect(UNPOISONED);
            if !settling.running {
                *settling = Settling { running: true, error: None };
                let (pool, outcome) = (open.pool.clone(), open.settling.clone());
                self.reactors.first().run(move |reactor| {
                    let there = reactor.clone();
                    reactor.spawn(async move {
                        let error = pool.settle(&there).await.err().map(|error| error.to_string());
                        *outcome.lock().expect(UNPOISONED) = Settling { running: false, error };
                    });
                });
            }
        }
        self.pool_show(name).await
    }

    /// Forgets a pool and wipes its superblocks; its data is lost.
    pub async fn pool_destroy(&mut self, name: &str) -> Result<(), Refusal> {
        self.check_running()?;
        let slot = self.pool_slot(name)?;
        if slot.origin == Origin::Config {
            return Err(self.belongs_to_config(object(name)));
        }
        slot.check_free()?;
        self.check_pool_not_streamed(name)?;
        let volumes: Vec<String> = self.volumes_of_pool(name).map(str::to_string).collect();
        for volume in &volumes {
            if let Some(export) = self.exports_of(volume).first() {
                let next = Node::end_export(export);
                return Err(Refusal::conflict(object(name), format!("hosts may use its volume '{volume}'"), next));
            }
        }
        let (def, open) = (slot.def.clone(), slot.live.clone().ok());
        let pool_id = self.pool_id(&def, open.as_ref()).await;
        let destroying = pool_id.map(|pool_id| Destroying { pool: def.clone(), pool_id });
        let mut state = self.state.clone();
        state.pools.retain(|other| other.name != name);
        state.scrubs.remove(name);
        state.destroying.extend(destroying.clone());
        self.remember(state)?;
        self.drop_volumes(name);
        self.pools.remove(name);
        self.scrubs.remove(name);
        if let Some(open) = open {
            self.close_pool(&open).await;
        }
        tracing::info!(pool = name, volumes = volumes.len(), "pool forgotten");
        let Some(destroying) = destroying else { return self.wipe_pool(&def).await };
        let wiped = self.wipe_destroyed(&destroying).await.map_err(not_wiped);
        // Whoever is told that it was not wiped knows what to do.
        self.was_destroyed(destroying.pool_id)?;
        wiped
    }

    /// Takes the superblocks of a pool from those of its devices that are there and carry them.
    async fn wipe_pool(&self, def: &PoolDef) -> Result<(), Refusal> {
        let (devices, _lock) = self.pool_devices(def, false).map_err(not_wiped)?;
        let name = def.name.clone();
        let wiped = on_reactor_async(self.reactors.first(), move |reactor| async move {
            Pool::destroy(&reactor, &devices, &name).await
        });
        wiped.await?.map_err(|error| pool_refused(&def.name, error, "create the next pool on its devices with --force"))
    }

    pub(super) async fn close_pool(&self, open: &OpenPool) {
        let pool = open.pool.clone();
        let closed = on_reactor_async(self.reactors.first(), move |reactor| async move { pool.close(&reactor).await });
        if let Err(refusal) = closed.await {
            tracing::error!("{refusal}");
        }
    }

    /// Closes all pools; their devices stay open.
    pub(super) async fn close_pools(&self) {
        for slot in self.pools.values() {
            let Ok(open) = &slot.live else { continue };
            self.close_pool(open).await;
            tracing::debug!(pool = %slot.def.name, "closed");
        }
    }
}

/// Locks the file or device of a log in memory and sees that it is large enough and has all of its space: what a mapping has past
/// the end of a file, or of a hole that the file system has no room for, would fail one access after the other.
pub fn prepare_memory(pool: &str, path: &str, size: u64, make: bool) -> Result<File, Refusal> {
    let next = || try_again(pool);
    let failed = |what: &str, error: std::io::Error| {
        Refusal::failed(object(pool), format!("cannot {what} {path}: {error}"), next())
    };
    // What hosts write is nobody else's to read.
    let file = File::options().read(true).write(true).create(make).truncate(false).mode(0o600).open(path);
    let file = file.map_err(|error| failed("open", error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            return Err(Refusal::conflict(
                object(pool),
                format!("{path} is in use already, by another pool or device of this node or by another process"),
                next(),
            ));
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(failed("lock", error)),
    }
    let found = file.metadata().map_err(|error| failed("look at", error))?;
    if !found.is_file() {
        return Ok(file);
    }
    if found.len() < size {
        if !make || found.len() > 0 {
            let cause = format!("{path} has {} bytes, {size} are wanted", found.len());
            return Err(Refusal::failed(object(pool), cause, next()));
        }
        file.set_len(size).map_err(|error| failed("give a size to", error))?;
    }
    if let Err(error) = sys::reserve(&file, size) {
        // What could be had goes back; that this may fail changes nothing for the caller.
        let _ = file.set_len(found.len());
        let cause = format!("no room for {size} bytes in {path}: {error}");
        return Err(Refusal::new(RefusalKind::NoSpace, object(pool), cause, "make room, or name a smaller size"));
    }
    Ok(file)
}

/// A file that comes to be for the log of a pool, and goes again unless the pool is made.
pub(super) struct MadeFile(Option<PathBuf>);

impl MadeFile {
    pub(super) fn for_log(log: &LogDef) -> MadeFile {
        MadeFile(match log {
            LogDef::Pmem { path, .. } if !Path::new(path).exists() => Some(path.into()),
            _ => None,
        })
    }

    /// It stays.
    pub(super) fn keep(&mut self) {
        self.0 = None;
    }
}

impl Drop for MadeFile {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        if let Err(error) = std::fs::remove_file(path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "a file that was made for the log of a pool cannot be removed");
        }
    }
}
