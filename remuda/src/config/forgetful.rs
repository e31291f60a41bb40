//! Pools on devices that forget: memory, which is empty after a restart, and 'null', which keeps nothing at all.

use super::diagnostic::Problems;
use super::{Config, DeviceParams, PoolEntry};
use std::collections::BTreeMap;

/// What to do about a pool on a device that keeps nothing.
pub const KEEPS_NOTHING: &str =
    "name a device that keeps what is written to it; 'null' devices are for measuring alone";

/// Which devices forget.
pub type Forgets = fn(&DeviceParams) -> bool;

/// The parameters of a device by name.
pub type Lookup<'l, 'a> = &'l dyn Fn(&str) -> Option<&'a DeviceParams>;

/// The device at, or below, device `name` that forgets what nothing else has; of several the first one.
pub fn forgotten<'a>(params: Lookup<'_, 'a>, name: &'a str, forgets: Forgets) -> Option<&'a str> {
    Search { params, forgets, spares: true, found: BTreeMap::new() }.below(name)
}

/// The first device at or below a device that forgets, whatever others have.
fn any_forgetful<'a>(params: Lookup<'_, 'a>, name: &'a str, forgets: Forgets) -> Option<&'a str> {
    Search { params, forgets, spares: false, found: BTreeMap::new() }.below(name)
}

/// Each device is looked at once, however many stand on it.
struct Search<'l, 'a> {
    params: Lookup<'l, 'a>,
    forgets: Forgets,
    /// What others have as well is not forgotten.
    spares: bool,
    found: BTreeMap<&'a str, Option<&'a str>>,
}

impl<'a> Search<'_, 'a> {
    fn below(&mut self, name: &'a str) -> Option<&'a str> {
        if let Some(found) = self.found.get(name) {
            return *found;
        }
        // Around a cycle there is no end.
        self.found.insert(name, None);
        let found = self.look(name);
        self.found.insert(name, found);
        found
    }

    fn look(&mut self, name: &'a str) -> Option<&'a str> {
        let params = (self.params)(name)?;
        if (self.forgets)(params) {
            return Some(name);
        }
        let children = params.children();
        let (needed, spared) = match params {
            DeviceParams::Mirror { .. } if self.spares => (children.len(), children.len().saturating_sub(1)),
            DeviceParams::Parity { .. } if self.spares => (children.len(), 1),
            // Without its flash it has everything.
            DeviceParams::FlashCache { .. } if self.spares => (1, 0),
            _ => (children.len(), 0),
        };
        let lost: Vec<&str> = children.iter().take(needed).filter_map(|child| self.below(child)).collect();
        lost.first().copied().filter(|_| lost.len() > spared)
    }
}

/// Whether nothing that is written is kept.
pub fn is_null(params: &DeviceParams) -> bool {
    matches!(params, DeviceParams::Null { .. })
}

fn is_memory(params: &DeviceParams) -> bool {
    matches!(params, DeviceParams::Mem { .. })
}

/// That a pool's device keeps nothing.
pub fn keeps_nothing(device: &str, null: &str) -> String {
    match device == null {
        true => format!("device '{device}' keeps nothing of what is written to it"),
        false => format!("device '{device}' stands on '{null}', which keeps nothing of what is written to it"),
    }
}

/// Notes pools whose devices keep nothing.
pub(super) fn check(config: &Config, problems: &mut Problems) {
    for pool in &config.pools {
        for (key, device, span) in pool.placed_devices() {
            if let Some(null) = forgotten(&|name| config.params(name), device, is_null) {
                let message = format!("pool '{}' cannot stand on it: {}", pool.def.name, keeps_nothing(device, null));
                problems.add(span.clone(), key, message, Some(KEEPS_NOTHING.to_string()));
            }
        }
    }
}

impl Config {
    fn params(&self, name: &str) -> Option<&DeviceParams> {
        self.devices.iter().find(|entry| entry.def.name == name).map(|entry| &entry.def.params)
    }

    /// Pools on what forgets.
    pub(super) fn warnings_of_pools(&self) -> impl Iterator<Item = String> {
        self.pools.iter().flat_map(|pool| self.warnings_of_pool(pool))
    }

    fn warnings_of_pool(&self, pool: &PoolEntry) -> Vec<String> {
        let params = |name: &str| self.params(name);
        let mut warnings = Vec::new();
        for (key, device, span) in pool.placed_devices() {
            let line = span.as_ref().map_or(0, |span| self.source.position(span.start).0);
            let about = format!("{}:{line}: pool '{}'", self.source.path, pool.def.name);
            if let Some(memory) = forgotten(&params, device, is_memory) {
                let lost = match key {
                    "log" => {
                        "acknowledged writes that are not destaged yet are lost then, and the pool stays closed until they are given up"
                    }
                    _ => "everything in the pool is lost then",
                };
                warnings.push(format!(
                    "{about}: its {key} is in memory (device '{memory}'), which is empty after a restart: {lost}; for anything \
                     but tests, name a 'file' device"
                ));
            }
            let is_kept = forgotten(&params, device, is_null).is_none();
            if let Some(null) = any_forgetful(&params, device, is_null).filter(|_| is_kept) {
                warnings.push(format!(
                    "{about}: its {key} stands on device '{null}' too, which keeps nothing of what is written to it, so the others \
                     there have to do without it; {KEEPS_NOTHING}"
                ));
            }
        }
        warnings
    }
}
