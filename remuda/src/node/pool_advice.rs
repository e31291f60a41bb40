//! Before a pool is made or opened: the other part of what a device holds, and what the configuration file says by now.

use super::Node;
use super::pools::object;
use super::refusal::Refusal;
use super::state::Origin;
use crate::config::Config;
use engine::{Holds, PoolError, Role};
use std::path::Path;
use std::time::Duration;

/// Nothing else is served while devices are looked at, of which one that is not connected takes its time.
const LOOK_MAX: Duration = Duration::from_secs(1);

impl Node {
    /// Of a device that is refused since it is half of a pool: where the other half is, if this node has it open.
    pub(super) async fn other_device(&self, error: &PoolError) -> String {
        let PoolError::InUse { holds, .. } = error else { return String::new() };
        let Holds::Pool { name, role, pool, .. } = &**holds else { return String::new() };
        let wanted = match role {
            Role::Log => Role::Capacity,
            Role::Capacity => Role::Log,
        };
        let (half, pool) = ((*pool, wanted), name);
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        for device in self.devices.keys() {
            let (Ok(view), Ok(open)) = (self.device_show(device), self.open_device(device)) else { continue };
            if !view.open || !view.used_by.is_empty() {
                continue;
            }
            let (tell, device) = (tell.clone(), device.clone());
            self.reactors.first().run(move |reactor| {
                let there = reactor.clone();
                reactor.spawn(async move {
                    let Ok(channel) = open.open_channel(&there) else { return };
                    let found = engine::read_superblocks(&there, channel, open.info()).await;
                    if found.is_ok_and(|found| (found.pool, found.role) == half) {
                        // Nobody listens any more once one has been found.
                        let _ = tell.send(device);
                    }
                });
            });
        }
        drop(tell);
        match tokio::time::timeout(LOOK_MAX, told.recv()).await {
            Ok(Some(device)) => format!("the {} of pool '{pool}' is device '{device}'", wanted.name()),
            Ok(None) | Err(_) => String::new(),
        }
    }

    /// Takes over what the configuration file says by now of a pool of it that is not open. Devices are as the node was
    /// started with. What is returned is why the file says nothing by now: something in it, which may have to do with
    /// another object, is wrong.
    pub(super) fn reread_pool(&mut self, name: &str) -> Result<Option<Refusal>, Refusal> {
        let path = self.config.source.path.clone();
        let known = self.pool_slot(name)?;
        if known.origin != Origin::Config || is_gone(&path) {
            return Ok(None);
        }
        let read = match Config::load(&path) {
            Ok(read) => read,
            Err(bad) => {
                let first = bad.problems.first().map_or(String::new(), |problem| format!(": {}", problem.message));
                let cause = format!("{path} is wrong by now{first}");
                return Ok(Some(Refusal::conflict(object(name), cause, format!("remuda config check {path}"))));
            }
        };
        let entry = read.pools.iter().find(|entry| entry.def.name == name);
        let Some(entry) = entry.filter(|entry| entry.def != known.def) else { return Ok(None) };
        let restart = |cause: String| Refusal::conflict(object(name), cause, "restart the node");
        for device in entry.def.devices() {
            let of = |config: &Config| {
                config.devices.iter().find(|entry| entry.def.name == device).map(|entry| entry.def.clone())
            };
            if of(&read) != of(&self.config) {
                return Err(restart(format!("its device '{device}' is another one in {path} by now")));
            }
            let itself = object(name);
            if let Some(user) = self.users_of_device(device).into_iter().find(|user| *user != itself) {
                return Err(restart(format!("{path} gives it device '{device}' by now, which {user} uses")));
            }
        }
        let def = entry.def.clone();
        tracing::info!(pool = name, "defined as {path} says by now");
        self.config.pools.iter_mut().filter(|old| old.def.name == name).for_each(|old| old.def = def.clone());
        self.pools.get_mut(name).expect("it was there a moment ago").def = def;
        Ok(None)
    }
}

/// Whether a file is certainly not there; one that cannot be looked at may be.
pub(super) fn is_gone(path: &str) -> bool {
    matches!(Path::new(path).try_exists(), Ok(false))
}
