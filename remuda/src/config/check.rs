//! What one section alone cannot tell: names used twice, references to nothing, cycles, devices with two masters, and
//! what the machine itself would refuse (missing files, unreadable keys).

use super::device::{DeviceEntry, DeviceParams};
use super::diagnostic::{Problems, nearest};
use super::host_key::{read_dhchap_key, read_tls_key};
use super::limit::Limited;
use super::value::{Located, Span};
use super::{Config, LogDef, PlacementDef, PoolDef, PoolEntry, VhostEntry, VolumeEntry};
use base::ByteSize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Notes every problem of `config` as a whole.
pub fn check(config: &Config, problems: &mut Problems) {
    let mut check = Check { config, problems };
    check.duplicates();
    check.device_references();
    check.cycles();
    check.pools();
    check.rows();
    check.volumes();
    check.pool_volumes();
    check.namespaces();
    check.ports();
    super::listeners::check(config, check.problems);
    check.limits();
    check.vhosts();
    check.resources();
}

struct Check<'a, 'p> {
    config: &'a Config,
    problems: &'p mut Problems,
}

impl<'a> Check<'a, '_> {
    fn add(&mut self, span: &Option<Span>, key: &str, message: String, help: Option<String>) {
        self.problems.add(span.clone(), key, message, help);
    }

    fn line_of(&self, span: &Option<Span>) -> String {
        span.as_ref().map_or("elsewhere".into(), |span| format!("line {}", self.config.source.position(span.start).0))
    }

    fn device(&self, name: &str) -> Option<&'a DeviceEntry> {
        self.config.devices.iter().find(|device| device.def.name == name)
    }

    fn duplicates(&mut self) {
        let config = self.config;
        let devices = config.devices.iter().map(|device| (&device.def.name, &device.name_span));
        self.duplicates_among("device", "name", devices);
        let volumes = config.volumes.iter().map(|volume| &volume.name);
        let volumes = volumes.chain(config.pool_volumes.iter().map(|volume| &volume.name));
        let volumes = volumes.map(|name| (&name.value, &name.span));
        self.duplicates_among("volume", "name", volumes);
        let subsystems = config.subsystems.iter().map(|subsystem| (&subsystem.nqn.value, &subsystem.nqn.span));
        self.duplicates_among("subsystem", "nqn", subsystems);
    }

    fn duplicates_among(&mut self, what: &str, key: &str, names: impl Iterator<Item = (&'a String, &'a Option<Span>)>) {
        let mut first: BTreeMap<&String, &Option<Span>> = BTreeMap::new();
        for (name, span) in names {
            if let Some(earlier) = first.get(name) {
                let help = format!("the first one is at {}", self.line_of(earlier));
                self.add(span, key, format!("{what} '{name}' is defined twice"), Some(help));
            } else {
                first.insert(name, span);
            }
        }
    }

    fn unknown(&mut self, what: &str, key: &str, name: &Located<String>, known: impl Iterator<Item = &'a str> + Clone) {
        let config = self.config;
        if config.broken.contains(&name.value) {
            return;
        }
        let broken = config.broken.iter().map(String::as_str);
        let help = match nearest(&name.value, known.clone().chain(broken)) {
            Some(near) => format!("did you mean '{near}'?"),
            None if known.clone().next().is_none() => {
                let heading = if what == "pool" { "[pool.NAME]".to_string() } else { format!("[[{what}]]") };
                format!("there is no {what} in this file; add a {heading}")
            }
            None => format!("known: {}", known.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")),
        };
        self.add(&name.span, key, format!("there is no {what} '{}'", name.value), Some(help));
    }

    fn device_references(&mut self) {
        let config = self.config;
        let mut masters: BTreeMap<&str, &str> = BTreeMap::new();
        for device in &config.devices {
            for child in &device.children {
                let key = child_key(device);
                if self.device(&child.value).is_none() {
                    self.unknown("device", key, child, config.devices.iter().map(|device| device.def.name.as_str()));
                } else if let Some(master) = masters.insert(&child.value, &device.def.name)
                    && master != device.def.name
                {
                    let message = format!("device '{}' is already used by device '{master}'", child.value);
                    self.add(&child.span, key, message, Some("a device can stand below one other only".to_string()));
                }
            }
        }
    }

    /// Devices that stand, through others, on themselves.
    fn cycles(&mut self) {
        let mut done = Vec::new();
        for device in &self.config.devices {
            self.walk(device, &mut Vec::new(), &mut done);
        }
    }

    /// Depth first; the depth is bounded because `path` holds no name twice.
    fn walk(&mut self, device: &'a DeviceEntry, path: &mut Vec<&'a str>, done: &mut Vec<&'a str>) {
        if done.contains(&device.def.name.as_str()) {
            return;
        }
        path.push(&device.def.name);
        for child in &device.children {
            if let Some(at) = path.iter().position(|ancestor| *ancestor == child.value) {
                let ring = [&path[at..], &[path[at]]].concat().join(" -> ");
                let message = format!("device '{}' stands on itself: {ring}", child.value);
                self.add(&child.span, child_key(device), message, Some("remove one of these references".to_string()));
            } else if let Some(below) = self.device(&child.value) {
                self.walk(below, path, done);
            }
        }
        path.pop();
        done.push(&device.def.name);
    }

    fn pools(&mut self) {
        let config = self.config;
        for (index, pool) in config.pools.iter().enumerate() {
            let PoolDef { name, log, capacity, .. } = &pool.def;
            let log_device = match log {
                LogDef::Device(device) => Some(("log", device, &pool.log_span)),
                LogDef::Pmem { .. } => None,
            };
            for (key, device, span) in log_device.into_iter().chain([("capacity", capacity, &pool.capacity_span)]) {
                if self.device(device).is_none() {
                    let device = Located { value: device.clone(), span: span.clone() };
                    self.unknown("device", key, &device, config.devices.iter().map(|one| one.def.name.as_str()));
                    continue;
                }
                let above = config.devices.iter().find(|one| one.def.children().contains(device));
                let above = above.map(|above| format!("device '{}'", above.def.name));
                let other = config.pools[..index].iter().find(|other| other.def.devices().contains(&device.as_str()));
                let master = above.or_else(|| other.map(|other| format!("pool '{}'", other.def.name)));
                if let Some(master) = master {
                    let message = format!("device '{device}' is already used by {master}");
                    self.add(span, key, message, Some("a device has one user only".to_string()));
                }
            }
            if log_device.is_some_and(|(_, device, _)| device == capacity) {
                let message = format!("pool '{name}' has its log and its capacity on one device");
                let help = "a log pays only on another, faster device: name two";
                self.add(&pool.capacity_span, "capacity", message, Some(help.to_string()));
            }
            self.log_memory(pool, &config.pools[..index]);
        }
    }

    /// What stands on a device that is written in whole rows: a shaped pool, or what passes its operations on.
    fn rows(&mut self) {
        let config = self.config;
        let only = |name: &str| format!("device '{name}' is written in whole rows alone");
        let help = |name: &str| {
            Some(format!("put a shaped pool on it: [pool.NAME] shape = \"shaped\", capacity = \"{name}\""))
        };
        for device in &config.devices {
            let passes_on = matches!(
                device.def.params,
                DeviceParams::Delay { .. } | DeviceParams::Error { .. } | DeviceParams::RateLimit { .. }
            );
            for child in device.children.iter().filter(|child| !passes_on && has_rows(config, &child.value)) {
                self.add(&child.span, child_key(device), only(&child.value), help(&child.value));
            }
        }
        for volume in config.volumes.iter().filter(|volume| has_rows(config, &volume.device.value)) {
            let name = &volume.device.value;
            self.add(&volume.device.span, "device", only(name), help(name));
        }
        for pool in &config.pools {
            if let LogDef::Device(log) = &pool.def.log
                && has_rows(config, log)
            {
                let help = "name another device for the log, such as a mirror".to_string();
                self.add(&pool.log_span, "log", only(log), Some(help));
            }
            if matches!(pool.def.placement, PlacementDef::Hot) && has_rows(config, &pool.def.capacity) {
                let help = "add shape = \"shaped\"".to_string();
                self.add(&pool.capacity_span, "capacity", only(&pool.def.capacity), Some(help));
            }
        }
    }

    /// One file is one log.
    fn log_memory(&mut self, pool: &'a PoolEntry, others: &'a [PoolEntry]) {
        let LogDef::Pmem { path, .. } = &pool.def.log else { return };
        let same = |other: &&PoolEntry| matches!(&other.def.log, LogDef::Pmem { path: theirs, .. } if theirs == path);
        if let Some(other) = others.iter().find(same) {
            self.add(&pool.log_span, "pmem", format!("pool '{}' uses {path} too", other.def.name), None);
        }
    }

    fn pool_volumes(&mut self) {
        let config = self.config;
        for volume in &config.pool_volumes {
            if !config.pools.iter().any(|pool| pool.def.name == volume.pool.value) {
                self.unknown("pool", "pool", &volume.pool, config.pools.iter().map(|pool| pool.def.name.as_str()));
            }
        }
    }

    fn volumes(&mut self) {
        let config = self.config;
        for (index, volume) in config.volumes.iter().enumerate() {
            let Some(device) = self.device(&volume.device.value) else {
                let names = config.devices.iter().map(|device| device.def.name.as_str());
                self.unknown("device", "device", &volume.device, names);
                continue;
            };
            let master = config.devices.iter().find(|one| one.def.children().contains(&volume.device.value));
            if let Some(master) = master {
                let message =
                    format!("device '{}' is already used by device '{}'", volume.device.value, master.def.name);
                let help = Some(format!("put the volume on '{}'", master.def.name));
                self.add(&volume.device.span, "device", message, help);
            }
            let pool = config.pools.iter().find(|pool| pool.def.devices().contains(&volume.device.value.as_str()));
            if let Some(pool) = pool {
                let name = &pool.def.name;
                let message = format!("device '{}' is already used by pool '{name}'", volume.device.value);
                self.add(&volume.device.span, "device", message, Some(format!("write pool = \"{name}\" instead")));
            }
            self.volume_fits(volume, device);
            for other in config.volumes[..index].iter().filter(|other| other.device.value == volume.device.value) {
                self.volumes_together(volume, other);
            }
        }
    }

    fn volume_fits(&mut self, volume: &VolumeEntry, device: &DeviceEntry) {
        let (Some(size), Some(device_size)) = (&volume.size, device.def.size()) else { return };
        let end = size.value.checked_add(volume.offset.as_ref().map_or(0, |offset| offset.value));
        if end.is_none_or(|end| end > device_size) {
            let message = format!(
                "volume '{}' would end at {}, past the end of device '{}' ({})",
                volume.name.value,
                end.map_or("more than 16 EiB".to_string(), |end| ByteSize(end).to_string()),
                device.def.name,
                ByteSize(device_size)
            );
            self.add(&size.span, "size", message, None);
        }
    }

    fn volumes_together(&mut self, volume: &VolumeEntry, other: &VolumeEntry) {
        let at = self.line_of(&other.name.span);
        let (name, other_name, device) = (&volume.name.value, &other.name.value, &volume.device.value);
        let (Some(size), Some(other_size)) = (&volume.size, &other.size) else {
            let whole = if volume.size.is_none() { name } else { other_name };
            let message = format!("volumes '{name}' and '{other_name}' ({at}) are both on device '{device}'");
            let help = format!("volume '{whole}' takes the whole device: give it a size");
            return self.add(&volume.device.span, "device", message, Some(help));
        };
        let (Some(offset), Some(other_offset)) = (&volume.offset, &other.offset) else { return };
        let end = |offset: &Located<u64>, size: &Located<u64>| offset.value.saturating_add(size.value);
        if offset.value < end(other_offset, other_size) && other_offset.value < end(offset, size) {
            let message = format!("volumes '{name}' and '{other_name}' ({at}) overlap on device '{device}'");
            let help = format!("'{other_name}' ends at {}", end(other_offset, other_size));
            self.add(&offset.span, "offset", message, Some(help));
        }
    }

    fn namespaces(&mut self) {
        let config = self.config;
        for subsystem in &config.subsystems {
            for (index, namespace) in subsystem.namespaces.iter().enumerate() {
                let volume = &namespace.volume;
                let names = config.volumes.iter().map(|volume| volume.name.value.as_str());
                let names = names.chain(config.pool_volumes.iter().map(|volume| volume.name.value.as_str()));
                if !names.clone().any(|known| known == volume.value) {
                    self.unknown("volume", "volume", volume, names);
                }
                if subsystem.namespaces[..index].iter().any(|other| other.volume.value == volume.value) {
                    let message = format!("volume '{}' is a namespace of this subsystem already", volume.value);
                    self.add(&volume.span, "volume", message, None);
                }
            }
        }
    }

    fn limits(&mut self) {
        let config = self.config;
        for (index, limit) in config.limits.iter().enumerate() {
            let of = &limit.of;
            if config.limits[..index].iter().any(|other| other.of.value == of.value) {
                self.add(&of.span, "limit", format!("{} is limited twice", of.value), None);
            }
            // A volume in a pool may have been made by command.
            let Limited::Volume(name) = &of.value else { continue };
            let names = config.volumes.iter().map(|volume| volume.name.value.as_str());
            let names = names.chain(config.pool_volumes.iter().map(|volume| volume.name.value.as_str()));
            if config.pools.is_empty() && !names.clone().any(|known| known == name) {
                let volume = Located { value: name.clone(), span: of.span.clone() };
                self.unknown("volume", "volume", &volume, names);
            }
        }
    }

    /// States at ports where the node does not listen do nothing.
    fn ports(&mut self) {
        let config = self.config;
        let listen: Vec<_> = config.nvmf.listen.iter().chain(&config.nvmf.listen_tls).copied().collect();
        // Which port the kernel picks shows later.
        if listen.iter().any(|address| address.port() == 0) {
            return;
        }
        let ports =
            config.subsystems.iter().flat_map(|subsystem| &subsystem.ana).filter_map(|entry| entry.port.as_ref());
        for port in ports.filter(|port| !listen.contains(&port.value)) {
            let known: Vec<_> = listen.iter().map(ToString::to_string).collect();
            let help = if known.is_empty() {
                "[nvmf] has no 'listen'".into()
            } else {
                format!("it listens on {}", known.join(", "))
            };
            self.add(&port.span, "port", format!("the node does not listen on {}", port.value), Some(help));
        }
    }

    fn vhosts(&mut self) {
        let config = self.config;
        let names = config.vhosts.iter().map(|vhost| (&vhost.name.value, &vhost.name.span));
        self.duplicates_among("vhost", "name", names);
        for (index, vhost) in config.vhosts.iter().enumerate() {
            let names = config.volumes.iter().map(|volume| volume.name.value.as_str());
            let names = names.chain(config.pool_volumes.iter().map(|volume| volume.name.value.as_str()));
            if !names.clone().any(|known| known == vhost.volume.value) {
                self.unknown("volume", "volume", &vhost.volume, names);
            }
            let Some(socket) = &vhost.socket else { continue };
            let same = |other: &&VhostEntry| other.socket.as_ref().is_some_and(|path| path.value == socket.value);
            if let Some(other) = config.vhosts[..index].iter().find(same) {
                let message = format!("vhost '{}' has the socket {} too", other.name.value, socket.value.display());
                self.add(&socket.span, "socket", message, None);
            }
        }
    }

    /// Whether a pool stands on this device, directly or through others.
    fn below_a_pool(&self, name: &str) -> bool {
        let mut name = name;
        // As many steps as there are devices are enough, also around a cycle.
        for _ in 0..=self.config.devices.len() {
            if self.config.pools.iter().any(|pool| pool.def.devices().contains(&name)) {
                return true;
            }
            let above = self.config.devices.iter().find(|one| one.def.children().iter().any(|child| child == name));
            match above {
                Some(above) => name = &above.def.name,
                None => return false,
            }
        }
        false
    }

    fn resources(&mut self) {
        let config = self.config;
        let mut paths: BTreeMap<&str, &str> = BTreeMap::new();
        for device in &config.devices {
            match &device.def.params {
                DeviceParams::File { path, size, .. } => {
                    if let Some(other) = paths.insert(path, &device.def.name) {
                        let message = format!("device '{other}' uses {path} too");
                        self.add(&device.resource_span, "path", message, None);
                    }
                    // A pool whose device is missing is shown as such; the rest of the node goes on without it.
                    let missing = self.below_a_pool(&device.def.name) && !Path::new(path).exists();
                    if !missing && let Err((message, help)) = check_file(path, *size) {
                        self.add(&device.resource_span, "path", message, Some(help));
                    }
                }
                DeviceParams::Encrypt { key_file, .. } => {
                    if let Err((message, help)) = check_key_file(key_file) {
                        self.add(&device.resource_span, "key_file", message, Some(help));
                    }
                }
                DeviceParams::Nvmf { tls_key, dhchap_key, dhchap_ctrl_key, .. } => {
                    if let Some(Err((message, help))) = tls_key.as_ref().map(|file| read_tls_key(file)) {
                        self.add(&device.resource_span, "tls_key", message, Some(help));
                    }
                    for (key, file) in [("dhchap_key", dhchap_key), ("dhchap_ctrl_key", dhchap_ctrl_key)] {
                        if let Some(Err((message, help))) = file.as_ref().map(|file| read_dhchap_key(file)) {
                            self.add(&device.resource_span, key, message, Some(help));
                        }
                    }
                }
                _ => {}
            }
        }
        for entry in config.subsystems.iter().flat_map(|subsystem| &subsystem.host_keys) {
            if let Some(file) = &entry.tls_key_file
                && let Err((message, help)) = read_tls_key(&file.value)
            {
                self.add(&file.span, "tls_key", message, Some(help));
            }
            for (key, file) in [("dhchap_key", &entry.key_file), ("dhchap_ctrl_key", &entry.ctrl_key_file)] {
                if let Some(file) = file
                    && let Err((message, help)) = read_dhchap_key(&file.value)
                {
                    self.add(&file.span, key, message, Some(help));
                }
            }
        }
    }
}

/// Whether a device takes whole rows alone, as a parity device does, or passes on what one does.
fn has_rows(config: &Config, name: &str) -> bool {
    let mut name = name;
    // As many steps as there are devices are enough, also around a cycle.
    for _ in 0..=config.devices.len() {
        match config.devices.iter().find(|device| device.def.name == name).map(|device| &device.def.params) {
            Some(DeviceParams::Parity { .. } | DeviceParams::ZoneBands { .. }) => return true,
            Some(
                DeviceParams::Delay { device, .. }
                | DeviceParams::Error { device, .. }
                | DeviceParams::RateLimit { device, .. },
            ) => name = device,
            _ => return false,
        }
    }
    false
}

fn child_key(device: &DeviceEntry) -> &'static str {
    match device.def.params {
        DeviceParams::Stripe { .. } | DeviceParams::Mirror { .. } | DeviceParams::Parity { .. } => "devices",
        DeviceParams::ZoneBands { .. } => "head",
        _ => "device",
    }
}

/// Whether a file device can be opened or created; otherwise why not and what to do.
pub fn check_file(path: &str, size: Option<u64>) -> Result<(), (String, String)> {
    use std::os::unix::fs::FileTypeExt;
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Err((format!("{path} is a directory"), "name a file inside it".into())),
        Ok(found) if !found.is_file() && !found.file_type().is_block_device() => {
            Err((format!("{path} is neither a regular file nor a block device"), "name one that is".into()))
        }
        Ok(found) if found.is_file() && found.len() == 0 && size.is_none() => {
            Err((format!("{path} is empty"), "add size = ... to give it a size".into()))
        }
        Ok(_) => match std::fs::OpenOptions::new().read(true).write(true).open(path) {
            Ok(_) => Ok(()),
            Err(error) => Err((format!("cannot open {path} for writing: {error}"), "check its permissions".into())),
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => match (size, Path::new(path).parent()) {
            (None, _) => Err((format!("{path} does not exist"), "add size = ... to have it created".into())),
            (Some(_), Some(parent)) if !parent.is_dir() => Err((
                format!("{} is not a directory", parent.display()),
                format!("create it: mkdir -p {}", parent.display()),
            )),
            _ => Ok(()),
        },
        Err(error) => Err((format!("cannot look at {path}: {error}"), "check the permissions of its directory".into())),
    }
}

/// Whether a key file holds a key; otherwise why not and what to do.
pub fn check_key_file(path: &str) -> Result<(), (String, String)> {
    use std::os::unix::fs::MetadataExt;
    let make = || format!("make one: (umask 077; head -c 64 /dev/urandom > {path})");
    let found = std::fs::metadata(path).map_err(|error| (format!("cannot read {path}: {error}"), make()))?;
    if found.mode() & 0o077 != 0 {
        return Err((format!("{path} can be read by others"), format!("chmod 600 {path}")));
    }
    read_key(path).map(|_| ()).map_err(|reason| (reason, make()))
}

/// The key in a key file.
pub fn read_key(path: &str) -> Result<bdev::UserKey, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {path}: {error}"))?;
    let wrong = || format!("{path} holds {} bytes, expected at least 32, or 64 hexadecimal digits", bytes.len());
    bdev::UserKey::from_file_content(&bytes).ok_or_else(wrong)
}
