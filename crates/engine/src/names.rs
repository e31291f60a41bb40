//! What the layers of a pool are called, for what its shards have to say of them: a number tells an operator nothing.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// See the module.
#[derive(Default)]
pub(crate) struct Names(Mutex<BTreeMap<u32, String>>);

impl Names {
    /// The layer is the uppermost one of this volume, or snapshot.
    pub(crate) fn give(&self, layer: u32, name: &str, is_snapshot: bool) {
        let kind = if is_snapshot { "snapshot" } else { "volume" };
        self.known().insert(layer, format!("{kind} '{name}'"));
    }

    pub(crate) fn forget(&self, layer: u32) {
        self.known().remove(&layer);
    }

    /// As messages call it. A layer without a name is one of something that goes, or that is not open yet.
    pub(crate) fn of(&self, layer: u32) -> String {
        self.known().get(&layer).cloned().unwrap_or_else(|| format!("layer {layer}, which no volume or snapshot names"))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u32, String>> {
        self.0.lock().unwrap_or_else(|broken| broken.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_called_by_what_shows_it() {
        let names = Names::default();
        names.give(3, "db", false);
        names.give(4, "db@monday", true);
        assert_eq!((names.of(3), names.of(4)), ("volume 'db'".to_string(), "snapshot 'db@monday'".to_string()));
        names.forget(4);
        assert_eq!(names.of(4), "layer 4, which no volume or snapshot names");
    }
}
