//! Before a pool is made or opened: the other part of what a device holds, and what the configuration file says by now.

use super::Node;
use super::pools::object;
use super::reactors::on_reactor_async;
use super::refusal::Refusal;
use crate::config::Config;
use engine::{Holds, PoolError, Role};
use std::path::Path;

impl Node {
    /// Of a device that is refused since it is half of a pool: where the other half is, if this node has it open.
    pub(super) async fn other_device(&self, error: &PoolError) -> String {
        let PoolError::InUse { holds, .. } = error else { return String::new() };
        let Holds::Pool { name, role, pool, .. } = &**holds else { return String::new() };
        let wanted = match role {
            Role::Log => Role::Capacity,
            Role::Capacity => Role::Log,
        };
        for device in self.devices.keys() {
            // One that is not connected answers after its time.
            let (Ok(view), Ok(found)) = (self.device_show(device), self.open_device(device)) else { continue };
            if !view.open || !view.used_by.is_empty() {
                continue;
            }
            let look = on_reactor_async(self.reactors.first(), move |reactor| async move {
                let channel = found.open_channel(&reactor).ok()?;
                engine::read_superblocks(&reactor, channel, found.info()).await.ok()
            });
            if let Ok(Some(found)) = look.await
                && (found.pool, found.role) == (*pool, wanted)
            {
                return format!("the {} of pool '{name}' is device '{device}'", wanted.name());
            }
        }
        String::new()
    }

    /// Takes over what the configuration file says by now of a pool that is not open. Devices are as the node was started
    /// with.
    pub(super) fn reread_pool(&mut self, name: &str) -> Result<(), Refusal> {
        let path = self.config.source.path.clone();
        if !Path::new(&path).exists() {
            return Ok(());
        }
        let read = Config::load(&path).map_err(|bad| {
            let first = bad.problems.first().map_or(String::new(), |problem| format!(": {}", problem.message));
            let cause = format!("{path} is wrong by now{first}");
            Refusal::conflict(object(name), cause, format!("remuda config check {path}"))
        })?;
        let Some(entry) = read.pools.iter().find(|entry| entry.def.name == name) else { return Ok(()) };
        if entry.def == self.pool_slot(name)?.def {
            return Ok(());
        }
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
        Ok(())
    }
}
