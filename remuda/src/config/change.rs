//! Changes of a device while it is in use: which keys can be changed, and how they are read.

use super::device::{BANDWIDTH_MIN, DeviceDef, DeviceParams, KINDS, TOO_NARROW, keys_of, read_paths};
use super::diagnostic::Problems;
use super::section::{Form, Key, Section};
use super::value::{Data, Table};

/// The word that switches a key off, as leaving it out of the configuration would.
const OFF: &str = "off";

/// Keys of `kind` that can be changed while a device is in use; none of most kinds.
pub fn changeable(kind: &str) -> Vec<Key> {
    let fixed: &[&str] = match kind {
        "delay" | "rate-limit" => &["device"],
        "error" => &["device", "seed"],
        "flash-cache" => &["device", "flash"],
        // A path can come and go; everything else is agreed on when they are connected.
        "nvmf" => return named(kind, "paths"),
        "mirror" => return named(kind, "resync_rate"),
        "parity" => return named(kind, "rebuild_rate"),
        _ => return Vec::new(),
    };
    keys_of(kind).unwrap_or_default().iter().filter(|key| !fixed.contains(&key.name)).copied().collect()
}

/// The one key of a kind that is called so.
fn named(kind: &str, name: &str) -> Vec<Key> {
    keys_of(kind).unwrap_or_default().iter().filter(|key| key.name == name).copied().collect()
}

/// The definition with the changes in `table`; `None` when something is wrong, all of which has been noted.
pub fn read_changes(def: &DeviceDef, table: &Table, problems: &mut Problems) -> Option<DeviceDef> {
    let (kind, before) = (def.kind(), problems.list.len());
    let keys = changeable(kind);
    if keys.is_empty() {
        let able: Vec<_> = KINDS.iter().map(|(kind, _, _)| *kind).filter(|kind| !changeable(kind).is_empty()).collect();
        let message = format!("nothing of a '{kind}' device can be changed while it is in use");
        problems.add(None, "", message, Some(format!("kinds that can be changed: {}", able.join(", "))));
        return None;
    }
    if table.is_empty() {
        let names: Vec<_> = keys.iter().map(|key| key.name).collect();
        problems.add(None, "", "no change is given", Some(format!("it takes: {}", names.join(", "))));
        return None;
    }
    let (off, given): (Table, Table) = table.iter().cloned().partition(|(_, value)| match &value.data {
        Data::Text(text) => text == OFF,
        data => matches!(data, Data::Other("null")),
    });
    let mut section = Section::new("", None, table, &[&keys], true, problems);
    section.check_unknown(|unknown| fixed_key(unknown, kind, &keys));
    for (key, _) in &off {
        let choice = keys.iter().find(|known| known.name == key.value && matches!(known.form, Form::Choice(_)));
        if let Some(choice) = choice {
            section.wrong(None, choice.name, "it cannot be switched off", Some(choice.form.describe()));
        }
    }
    let off: Vec<&str> = off.iter().map(|(key, _)| key.value.as_str()).collect();
    let mut changes = Changes { section: Section::new("", None, &given, &[&keys], true, problems), off };
    let mut changed = def.clone();
    changes.apply(&mut changed.params);
    if problems.list.len() > before { None } else { Some(changed) }
}

/// A key that the kind has and that is fixed.
fn fixed_key(unknown: &str, kind: &str, keys: &[Key]) -> Option<String> {
    let is_fixed = keys_of(kind).unwrap_or_default().iter().any(|key| key.name == unknown);
    let names = keys.iter().map(|key| key.name);
    is_fixed.then(|| {
        format!("it is fixed when the device is opened; what can be changed: {}", names.collect::<Vec<_>>().join(", "))
    })
}

struct Changes<'a> {
    /// What was given, less what is switched off.
    section: Section<'a>,
    off: Vec<&'a str>,
}

impl Changes<'_> {
    fn apply(&mut self, params: &mut DeviceParams) {
        match params {
            DeviceParams::Delay { read_ns, write_ns, flush_ns, jitter_ns, .. } => {
                for (key, place) in [("read", read_ns), ("write", write_ns), ("flush", flush_ns), ("jitter", jitter_ns)]
                {
                    let value = self.section.duration_ns(key).map(|duration| duration.value);
                    self.put(key, value, 0, place);
                }
            }
            DeviceParams::RateLimit { iops, bandwidth, .. } => {
                let value = self.section.count("iops").map(|iops| Some(iops.value));
                self.put("iops", value, None, iops);
                let value = self.section.size("bandwidth").map(|bandwidth| Some(bandwidth.value));
                self.put("bandwidth", value, None, bandwidth);
                if bandwidth.is_some_and(|bandwidth| bandwidth < BANDWIDTH_MIN) {
                    self.section.wrong(None, "bandwidth", TOO_NARROW, Some("for no limit: 'off'".to_string()));
                }
            }
            DeviceParams::Mirror { resync_rate, .. } => {
                let value = self.section.size("resync_rate").map(|rate| Some(rate.value));
                self.put("resync_rate", value, None, resync_rate);
            }
            DeviceParams::Parity { rebuild_rate, .. } => {
                let value = self.section.size("rebuild_rate").map(|rate| Some(rate.value));
                self.put("rebuild_rate", value, None, rebuild_rate);
            }
            DeviceParams::Nvmf { address, paths, .. } => {
                let value = self.section.texts("paths");
                let value = value.map(|given| read_paths(&mut self.section, address, given));
                self.put("paths", value, Vec::new(), paths);
            }
            DeviceParams::FlashCache { write_budget, endurance, pass_through, .. } => {
                if self.off.contains(&"write_budget") {
                    let next = Some("delete the cache to be without one".to_string());
                    self.section.wrong(None, "write_budget", "it cannot be switched off", next);
                }
                if let Some(value) = self.section.size("write_budget") {
                    *write_budget = value.value;
                }
                let value = self.section.size("endurance").map(|endurance| Some(endurance.value));
                self.put("endurance", value, None, endurance);
                if let Some(choice) = self.section.choice("cache_missing") {
                    *pass_through = choice.value == "pass-through";
                }
            }
            DeviceParams::Error { op, rate, fault, nth, first_block, blocks, .. } => {
                let value = self.section.choice("op").map(|op| op.value.to_string());
                self.put("op", value, String::new(), op);
                let value = self.section.choice("fault").map(|fault| fault.value.to_string());
                self.put("fault", value, String::new(), fault);
                // Either is a way to say which of the operations fail: the one that is given replaces the other.
                let (new_rate, new_nth) = (self.section.fraction("rate"), self.section.count("nth"));
                if new_rate.as_ref().is_some_and(|rate| rate.value > 0.0) && new_nth.is_some() {
                    self.section.wrong(None, "nth", "either a rate or one operation fails", Some("give one".into()));
                }
                if new_rate.is_some() {
                    *nth = None;
                }
                if new_nth.is_some() {
                    *rate = 0.0;
                }
                self.put("rate", new_rate.map(|rate| rate.value), 0.0, rate);
                self.put("nth", new_nth.map(|nth| Some(nth.value)), None, nth);
                let value = self.section.count("first_block").map(|block| block.value);
                self.put("first_block", value, 0, first_block);
                let value = self.section.count("blocks").map(|blocks| Some(blocks.value));
                self.put("blocks", value, None, blocks);
            }
            _ => {}
        }
    }

    fn put<T>(&self, key: &str, given: Option<T>, absent: T, place: &mut T) {
        if let Some(value) = given {
            *place = value;
        } else if self.off.contains(&key) {
            *place = absent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::value::from_json;
    use super::*;
    use serde_json::{Value, json};

    fn error() -> DeviceDef {
        let params = DeviceParams::Error {
            device: "m".into(),
            op: "write".into(),
            rate: 0.5,
            fault: "fail".into(),
            nth: None,
            first_block: 7,
            blocks: Some(9),
            seed: 1,
        };
        DeviceDef { name: "e".into(), params }
    }

    fn change(def: &DeviceDef, changes: Value) -> Result<DeviceDef, String> {
        let mut problems = Problems::default();
        let table = from_json(changes.as_object().unwrap());
        read_changes(def, &table, &mut problems).ok_or_else(|| problems.one_line())
    }

    #[test]
    fn what_is_given_changes_and_the_rest_stays() {
        let changed = change(&error(), json!({ "nth": "3", "op": "read", "blocks": "off" })).unwrap();
        let DeviceParams::Error { op, rate, nth, first_block, blocks, .. } = &changed.params else { panic!() };
        assert_eq!((op.as_str(), *rate, *nth, *first_block, *blocks), ("read", 0.0, Some(3), 7, None));
        let off = change(&changed, json!({ "nth": null })).unwrap();
        assert!(matches!(off.params, DeviceParams::Error { nth: None, rate: 0.0, .. }));
    }

    #[test]
    fn both_limits_of_a_rate_limit_can_be_switched_off() {
        let params = DeviceParams::RateLimit { device: "m".into(), iops: Some(5), bandwidth: Some(7) };
        let def = DeviceDef { name: "l".into(), params };
        let changed = change(&def, json!({ "iops": "off", "bandwidth": "off" })).unwrap();
        assert!(matches!(changed.params, DeviceParams::RateLimit { iops: None, bandwidth: None, .. }));
        let changed = change(&def, json!({ "bandwidth": "1MiB" })).unwrap();
        assert!(matches!(changed.params, DeviceParams::RateLimit { iops: Some(5), bandwidth: Some(1_048_576), .. }));
    }

    #[test]
    fn of_mirrors_and_parity_devices_the_rate_of_copying_can_be_changed_and_nothing_else() {
        let devices = || vec!["a".to_string(), "b".to_string(), "c".to_string()];
        let mirror = DeviceParams::Mirror { devices: devices(), start_degraded: false, resync_rate: Some(5) };
        let parity = DeviceParams::Parity { devices: devices(), chunk: None, head: None, rebuild_rate: None };
        let mirror = DeviceDef { name: "m".into(), params: mirror };
        let changed = change(&mirror, json!({ "resync_rate": "off" })).unwrap();
        assert!(matches!(changed.params, DeviceParams::Mirror { resync_rate: None, .. }));
        let parity = DeviceDef { name: "p".into(), params: parity };
        let changed = change(&parity, json!({ "rebuild_rate": "1MiB" })).unwrap();
        assert!(matches!(changed.params, DeviceParams::Parity { rebuild_rate: Some(1_048_576), .. }));
        for (def, key, rate) in [(&mirror, "start_degraded", "resync_rate"), (&parity, "chunk", "rebuild_rate")] {
            let error = change(def, json!({ key: "1" })).unwrap_err();
            assert!(error.contains("it is fixed") && error.contains(rate), "{error}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_the_nearest_right_thing() {
        let mem = DeviceDef { name: "m".into(), params: DeviceParams::Null { size: 1, block_size: 512 } };
        for (def, changes, said) in [
            (error(), json!({ "rat": "0.1" }), vec!["unknown key 'rat'; did you mean 'rate'?"]),
            (error(), json!({ "rate": "2" }), vec!["rate: ", "within 0 and 1"]),
            (error(), json!({ "fault": "flipbit" }), vec!["'flipbit'", "did you mean 'flip-bit'?"]),
            (error(), json!({ "op": "off" }), vec!["op: it", "cannot be switched off"]),
            (error(), json!({ "seed": "4" }), vec!["'seed'", "fixed", "first_block"]),
            (error(), json!({ "rate": "0.1", "nth": "1" }), vec!["nth: ", "give one"]),
            (error(), json!({}), vec!["no change"]),
            (mem, json!({ "size": "4" }), vec!["'null'", "mirror, parity, delay, error, rate-limit"]),
        ] {
            let error = change(&def, changes).unwrap_err();
            said.iter().for_each(|said| assert!(error.contains(said), "{said}: {error}"));
        }
    }
}
