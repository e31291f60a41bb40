//! Before a pool is made or opened: the other part of what a device holds, and what the configuration file says by now.

use super::Node;
use super::pools::object;
use super::refusal::Refusal;
use super::state::Origin;
use crate::config::{Config, PoolDef};
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
                    let read = engine::read_superblocks(&there, channel, open.info());
                    let found = there.timeout(LOOK_MAX.as_nanos() as u64, read).await;
                    if found.is_some_and(|found| found.is_ok_and(|found| (found.pool, found.role) == half)) {
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

    /// What the configuration file says by now of a pool of it that is not open. Devices are as the node was started with:
    /// where the file says otherwise of one that the pool stands on, the pool has to wait for a restart.
    pub(super) fn reread_pool(&self, name: &str) -> Result<Reread, Refusal> {
        let path = self.config.source.path.clone();
        let known = self.pool_slot(name)?;
        if known.origin != Origin::Config || is_gone(&path) {
            return Ok(Reread::Same);
        }
        let read = match Config::load(&path) {
            Ok(read) => read,
            Err(bad) => {
                let first = bad.problems.first().map_or(String::new(), |problem| format!(": {}", problem.message));
                let cause = format!("{path} is wrong by now{first}");
                let next = format!("remuda config check {path}");
                return Ok(Reread::Wrong(Refusal::conflict(object(name), cause, next)));
            }
        };
        let entry = read.pools.iter().find(|entry| entry.def.name == name);
        let Some(entry) = entry else { return Ok(Reread::Same) };
        let restart = |cause: String| Refusal::conflict(object(name), cause, "restart the node");
        for device in entry.def.devices() {
            if let Some(other) = first_difference(&read, &self.config, device) {
                return Err(restart(format!("its device '{other}' is another one in {path} by now")));
            }
            let itself = object(name);
            if let Some(user) = self.users_of_device(device).into_iter().find(|user| *user != itself) {
                return Err(restart(format!("{path} gives it device '{device}' by now, which {user} uses")));
            }
        }
        if entry.def == known.def {
            return Ok(Reread::Same);
        }
        tracing::info!(pool = name, "{path} defines it anew");
        Ok(Reread::Changed(entry.def.clone()))
    }
}

/// What the configuration file says of a pool by now.
pub(super) enum Reread {
    /// What the node knows, or nothing.
    Same,
    /// Another definition.
    Changed(PoolDef),
    /// Something in it, which may have to do with another object, is wrong.
    Wrong(Refusal),
}

/// A device, or one that it stands on, of which two configurations do not say the same.
fn first_difference(one: &Config, other: &Config, device: &str) -> Option<String> {
    let mut below = vec![device];
    // No device stands on itself, so that a stack is no deeper than there are devices.
    while let Some(device) = below.pop() {
        let of = |config: &'_ Config| config.devices.iter().position(|entry| entry.def.name == device);
        match (of(one), of(other)) {
            (None, None) => {}
            (Some(at), Some(there)) if one.devices[at].def == other.devices[there].def => {
                below.extend(one.devices[at].def.children().iter().map(String::as_str));
            }
            _ => return Some(device.to_string()),
        }
    }
    None
}

/// Whether a file is certainly not there; one that cannot be looked at may be.
pub(super) fn is_gone(path: &str) -> bool {
    matches!(Path::new(path).try_exists(), Ok(false))
}
