//! What a node remembers: the objects made at run time, and of the configured ones what must stay the same across
//! restarts (extents, UUIDs, serial numbers).
//!
//! One file, `state.json`: a header line with version, length and CRC32C of the rest, then readable JSON. It is replaced
//! by writing a new file, syncing it, renaming it over the old one and syncing the directory, so a crash at any step
//! leaves the old state or the new. A file that fails its checks is refused, never repaired by guessing: an older copy
//! would give extents away twice.

use super::destroying::Destroying;
use super::host_keys::HostKeys;
use super::making::Making;
use super::remote::RemoteRecord;
use super::reservations::ReservationRecord;
use super::scrubs::{ScrubRecord, read_records};
use super::tls_keys::TlsKeys;
use crate::config::limit::{Limited, Rates};
use crate::config::{DeviceDef, PoolDef};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;
use uuid::Uuid;

/// Format version of `state.json`.
pub const STATE_VERSION: u32 = 1;
const FILE: &str = "state.json";
const LOCK: &str = "lock";
/// Where administrative actions are recorded.
pub const AUDIT_LOG: &str = "audit.log";
const TEMPORARY: &str = "state.json.new";
const FILE_BYTES_MAX: usize = 64 << 20;

/// Who defined an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The configuration file.
    Config,
    /// A command at run time.
    Runtime,
}

/// A volume's identity and place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// The device that it lies on.
    pub device: String,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Follows the size of its device.
    pub whole: bool,
    /// Made once.
    pub uuid: Uuid,
    /// Who defined it.
    pub origin: Origin,
    /// The size that the configuration file asked for when `size` was last derived from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured_size: Option<u64>,
}

/// A namespace of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceRecord {
    /// Namespace id.
    pub nsid: u32,
    /// Volume name.
    pub volume: String,
    /// The hosts that see it; `None` is every host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// Its group for asymmetric access.
    #[serde(default = "first_group", skip_serializing_if = "is_first_group")]
    pub ana_group: u32,
    /// Its identity, if not its volume's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
}

fn first_group() -> u32 {
    1
}

fn is_first_group(group: &u32) -> bool {
    *group == first_group()
}

/// The state of a group of namespaces at a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AnaRecord {
    /// Group.
    pub group: u32,
    /// The address of the port; `None` is every port that has no record of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<SocketAddr>,
    /// The name of the state.
    pub state: String,
}

/// A subsystem made at run time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubsystemRecord {
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Every host may connect.
    pub allow_any_host: bool,
    /// Hosts that may connect.
    pub hosts: Vec<String>,
    /// Namespaces by id.
    pub namespaces: Vec<NamespaceRecord>,
    /// Asymmetric access, by group and port; what is not here is optimised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ana: Vec<AnaRecord>,
    /// First and last controller id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller_ids: Option<(u16, u16)>,
}

/// What changed at run time about a configured subsystem, applied on top of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SubsystemOverlay {
    /// Serial number, made once.
    pub serial: String,
    /// Namespaces added.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<NamespaceRecord>,
    /// Configured namespaces taken away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<NamespaceRecord>,
    /// Hosts allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts_allowed: Vec<String>,
    /// Configured hosts no longer allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts_disallowed: Vec<String>,
    /// Whether every host may connect, when changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_any_host: Option<bool>,
    /// Asymmetric access, when changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ana: Option<Vec<AnaRecord>>,
}

/// A resize of a configured device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceOverlay {
    /// The size in the file at that time; another size there ends the overlay.
    pub configured_size: Option<u64>,
    /// The size now.
    pub size: u64,
}

/// A change of the key of a configured encrypted device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyOverlay {
    /// The key file in the configuration at that time; another one there ends the overlay.
    pub configured: String,
    /// The key file now.
    pub key_file: String,
    /// While a change is under way: the key file until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
}

/// A door for a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VhostRecord {
    /// The volume behind it.
    pub volume: String,
    /// Its socket.
    pub socket: PathBuf,
    /// Most queues.
    pub queues: u16,
    /// Writes are refused.
    pub read_only: bool,
}

/// Limits that a command has set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRecord {
    /// Of what.
    pub of: Limited,
    /// How much.
    pub rates: Rates,
    /// What the configuration said at that time; other limits there end this record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configured: Option<Rates>,
}

/// What hosts were told of a volume in a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownVolume {
    /// The pool.
    pub pool: String,
    /// Identity.
    pub uuid: Uuid,
    /// Bytes per block.
    pub block_size: u32,
    /// Size in blocks.
    pub blocks: u64,
}

/// Everything remembered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// This node, for as long as its state lives.
    pub node_id: Uuid,
    /// Devices made at run time, in the order of creation (children first).
    pub devices: Vec<DeviceDef>,
    /// Resized configured devices.
    #[serde(default)]
    pub device_overlays: BTreeMap<String, DeviceOverlay>,
    /// Configured encrypted devices whose key was changed.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub key_overlays: BTreeMap<String, KeyOverlay>,
    /// Encrypted devices that were erased: that they cannot be opened is no reason not to start.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub erased: BTreeSet<String>,
    /// Paths of files that were open, by the name of their device: one that has vanished is not made anew.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    /// How long they were, bytes: one that has become shorter is not made longer again.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub file_bytes: BTreeMap<String, u64>,
    /// Pools made at run time. What is in a pool is known to the pool alone.
    #[serde(default)]
    pub pools: Vec<PoolDef>,
    /// Pools that are being made; at a start, what is left of such.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub making: Vec<Making>,
    /// Pools that are being destroyed; at a start, what is to be gone on with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destroying: Vec<Destroying>,
    /// Volumes that imports are making, and their pools; at a start, those that a node's end has left without their snapshot go.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub importing: BTreeMap<String, String>,
    /// What is known of scrubs, by the name of the pool.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "read_records")]
    pub scrubs: BTreeMap<String, ScrubRecord>,
    /// Volumes in pools that are namespaces, to be shown as not ready while their pool is not open.
    #[serde(default)]
    pub shown: BTreeMap<String, ShownVolume>,
    /// Remote namespaces, by the name of their device.
    #[serde(default)]
    pub remotes: BTreeMap<String, RemoteRecord>,
    /// All volumes on devices, configured ones included.
    pub volumes: BTreeMap<String, VolumeRecord>,
    /// Subsystems made at run time.
    pub subsystems: BTreeMap<String, SubsystemRecord>,
    /// Configured subsystems.
    #[serde(default)]
    pub subsystem_overlays: BTreeMap<String, SubsystemOverlay>,
    /// Keys of hosts that were given at run time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host_keys: HostKeys,
    /// Keys of hosts for TLS that were given at run time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tls_keys: TlsKeys,
    /// Discovery services that hosts are told of, those given at run time.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub referrals: BTreeSet<SocketAddr>,
    /// Reservations that last over a loss of power, by subsystem and namespace.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reservations: BTreeMap<String, BTreeMap<u32, ReservationRecord>>,
    /// Doors for virtual machines made at run time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vhosts: BTreeMap<String, VhostRecord>,
    /// Limits of hosts and volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<LimitRecord>,
}

impl Default for State {
    fn default() -> Self {
        State {
            node_id: Uuid::new_v4(),
            devices: Vec::new(),
            device_overlays: BTreeMap::new(),
            key_overlays: BTreeMap::new(),
            erased: BTreeSet::new(),
            files: BTreeMap::new(),
            file_bytes: BTreeMap::new(),
            pools: Vec::new(),
            making: Vec::new(),
            destroying: Vec::new(),
            importing: BTreeMap::new(),
            scrubs: BTreeMap::new(),
            shown: BTreeMap::new(),
            remotes: BTreeMap::new(),
            volumes: BTreeMap::new(),
            subsystems: BTreeMap::new(),
            subsystem_overlays: BTreeMap::new(),
            host_keys: BTreeMap::new(),
            tls_keys: BTreeMap::new(),
            referrals: BTreeSet::new(),
            reservations: BTreeMap::new(),
            vhosts: BTreeMap::new(),
            limits: Vec::new(),
        }
    }
}

/// Why state could not be read or written.
#[derive(Debug, Error)]
pub enum StateError {
    /// The operating system said no.
    #[error("state directory {dir}: cannot {action}: {error}")]
    Os {
        /// The directory.
        dir: PathBuf,
        /// What was tried.
        action: &'static str,
        /// Why not.
        error: io::Error,
    },
    /// The file is not what was written.
    #[error(
        "state file {path} is damaged: {reason}; restore it from a backup, or move it away to start without run-time objects \
         (volumes without a configured offset would then be placed anew)"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Written by a newer program.
    #[error("state file {path} has version {version}, this program reads up to {STATE_VERSION}; use the newer program")]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Another node runs on it.
    #[error(
        "state directory {dir} is in use by the node with process id {pid}; stop it first, or give this one another state_dir"
    )]
    Locked {
        /// The directory.
        dir: PathBuf,
        /// The other's process id, as it wrote it down.
        pid: String,
    },
}

impl StateError {
    /// Another node is in the way.
    pub fn is_conflict(&self) -> bool {
        matches!(self, StateError::Locked { .. })
    }
}

/// The file operations that replacing the state takes; the real ones, or a model that crashes in tests.
pub trait Files {
    /// Creates or empties a file and writes all of it.
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Makes a file's contents durable.
    fn sync_file(&mut self, path: &Path) -> io::Result<()>;
    /// Renames over what is there.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes a directory's entries durable.
    fn sync_dir(&mut self, dir: &Path) -> io::Result<()>;
    /// Reads a whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
}

/// The operating system's files.
pub struct RealFiles;

impl Files for RealFiles {
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        use std::io::Write;
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
    }

    fn sync_file(&mut self, path: &Path) -> io::Result<()> {
        std::fs::File::open(path)?.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn sync_dir(&mut self, dir: &Path) -> io::Result<()> {
        std::fs::File::open(dir)?.sync_all()
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }
}

#[derive(Serialize, Deserialize)]
struct Header {
    remuda_state: u32,
    bytes: usize,
    crc32c: u32,
}

/// The state as the file holds it.
pub fn encode(state: &State) -> Vec<u8> {
    let body = serde_json::to_vec_pretty(state).expect("state has string keys only and cannot fail to serialise");
    let header = Header { remuda_state: STATE_VERSION, bytes: body.len(), crc32c: base::crc32c(&body) };
    let mut bytes = serde_json::to_vec(&header).expect("three numbers serialise");
    bytes.push(b'\n');
    bytes.extend(body);
    bytes
}

/// Reads what [`encode`] wrote.
pub fn decode(path: &Path, bytes: &[u8]) -> Result<State, StateError> {
    let damaged = |reason: String| StateError::Damaged { path: path.to_path_buf(), reason };
    if bytes.len() > FILE_BYTES_MAX {
        return Err(damaged(format!("{} bytes is too large", bytes.len())));
    }
    let line = bytes.iter().position(|byte| *byte == b'\n').ok_or_else(|| damaged("it has no header line".into()))?;
    let header: Header = serde_json::from_slice(&bytes[..line]).map_err(|error| damaged(format!("header: {error}")))?;
    if header.remuda_state > STATE_VERSION {
        return Err(StateError::Newer { path: path.to_path_buf(), version: header.remuda_state });
    }
    let body = &bytes[line + 1..];
    if body.len() != header.bytes {
        return Err(damaged(format!("{} bytes after the header, expected {}", body.len(), header.bytes)));
    }
    if base::crc32c(body) != header.crc32c {
        return Err(damaged("its checksum does not match".into()));
    }
    serde_json::from_slice(body).map_err(|error| damaged(error.to_string()))
}

/// A locked state directory.
pub struct Store<F: Files = RealFiles> {
    dir: PathBuf,
    files: F,
    _lock: Option<std::fs::File>,
}

impl Store<RealFiles> {
    /// Creates the directory if need be, locks it against a second node, and reads the state.
    pub fn open(dir: &Path) -> Result<(Store, State), StateError> {
        let os = |action| move |error| StateError::Os { dir: dir.to_path_buf(), action, error };
        create_private_dir(dir).map_err(os("create it"))?;
        let was_used = dir.join(LOCK).exists() && std::fs::metadata(dir.join(AUDIT_LOG)).is_ok_and(|log| log.len() > 0);
        let lock = lock(dir)?;
        exposed(dir).iter().for_each(|(found, next)| tracing::warn!("{found}: {next}"));
        let mut store = Store { dir: dir.to_path_buf(), files: RealFiles, _lock: Some(lock) };
        let state = match store.load()? {
            Some(state) => state,
            None => {
                if was_used {
                    tracing::warn!(
                        "{} is missing, though there was a node here: this one begins without what commands have made; if that \
                         is not meant, stop it and restore the file from a backup",
                        dir.join(FILE).display()
                    );
                }
                let state = State::default();
                store.save(&state)?;
                state
            }
        };
        Ok((store, state))
    }
}

/// What the node of a state directory remembers, while no node runs on it.
pub struct StateView {
    /// Empty where there was never a node.
    pub state: State,
    /// Keeps nodes from starting.
    _lock: Option<std::fs::File>,
}

impl StateView {
    /// Locks a directory and reads its state; changes nothing.
    pub fn open(dir: &Path) -> Result<StateView, StateError> {
        if !dir.is_dir() {
            return Ok(StateView { state: State::default(), _lock: None });
        }
        let lock = Some(lock(dir)?);
        Ok(StateView { state: StateView::look(dir)?, _lock: lock })
    }

    /// The state as it is, without a lock: a node may change it meanwhile.
    pub fn look(dir: &Path) -> Result<State, StateError> {
        let store = Store { dir: dir.to_path_buf(), files: RealFiles, _lock: None };
        Ok(store.load()?.unwrap_or_default())
    }
}

impl<F: Files> Store<F> {
    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn load(&self) -> Result<Option<State>, StateError> {
        let path = self.dir.join(FILE);
        match self.files.read(&path) {
            Ok(bytes) => decode(&path, &bytes).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StateError::Os { dir: self.dir.clone(), action: "read state.json", error }),
        }
    }

    /// Replaces the remembered state; durable when it returns.
    pub fn save(&mut self, state: &State) -> Result<(), StateError> {
        let (new, file) = (self.dir.join(TEMPORARY), self.dir.join(FILE));
        let os = |action| {
            let dir = self.dir.clone();
            move |error| StateError::Os { dir, action, error }
        };
        self.files.write(&new, &encode(state)).map_err(os("write state.json.new"))?;
        self.files.sync_file(&new).map_err(os("sync state.json.new"))?;
        self.files.rename(&new, &file).map_err(os("rename state.json.new"))?;
        self.files.sync_dir(&self.dir).map_err(os("sync it"))
    }
}

/// What lets others at what a state directory keeps, keys among it; each with the command that ends it.
pub fn exposed(dir: &Path) -> Vec<(String, String)> {
    let others_may = |path: &Path, wanted: u32| {
        let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o7777;
        let shown = path.display();
        let found = format!("{shown} holds keys, and others than its owner are let at it (mode {mode:03o})");
        (mode & 0o077 != 0).then(|| (found, format!("chmod {wanted:o} {shown}")))
    };
    [(dir.to_path_buf(), 0o700), (dir.join(FILE), 0o600)]
        .iter()
        .filter_map(|(path, mode)| others_may(path, *mode))
        .collect()
}

fn create_private_dir(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if dir.is_dir() {
        return Ok(());
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn lock(dir: &Path) -> Result<std::fs::File, StateError> {
    use std::io::{Read, Seek, Write};
    let os = |action| move |error| StateError::Os { dir: dir.to_path_buf(), action, error };
    let options = std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join(LOCK));
    let mut file = options.map_err(os("open its lock file"))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.read_to_string(&mut pid);
            let pid = if pid.trim().is_empty() { "unknown".to_string() } else { pid.trim().to_string() };
            return Err(StateError::Locked { dir: dir.to_path_buf(), pid });
        }
        Err(std::fs::TryLockError::Error(error)) => return Err(os("lock it")(error)),
    }
    let write = |file: &mut std::fs::File| {
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes())
    };
    write(&mut file).map_err(os("write its lock file"))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Files whose power can be cut: contents and names are lost unless synced, or survive by chance.
    #[derive(Clone, Default)]
    struct CrashFiles {
        contents: Vec<(Vec<u8>, bool)>,
        names: BTreeMap<PathBuf, usize>,
        durable_names: BTreeMap<PathBuf, usize>,
        steps_left: usize,
    }

    impl CrashFiles {
        fn step(&mut self) -> io::Result<()> {
            self.steps_left = self.steps_left.checked_sub(1).ok_or_else(|| io::Error::other("power cut"))?;
            Ok(())
        }

        /// What a reboot finds: `lucky` also keeps what nobody promised.
        fn reboot(&self, lucky: bool) -> CrashFiles {
            let mut after = self.clone();
            after.steps_left = usize::MAX;
            if !lucky {
                after.names = self.durable_names.clone();
                for (bytes, synced) in &mut after.contents {
                    if !*synced {
                        bytes.truncate(bytes.len() / 2);
                    }
                }
            }
            after.durable_names = after.names.clone();
            after
        }
    }

    impl Files for CrashFiles {
        fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            self.contents.push((bytes[..bytes.len() / 3].to_vec(), false));
            self.names.insert(path.to_path_buf(), self.contents.len() - 1);
            self.step()?;
            self.contents.last_mut().unwrap().0 = bytes.to_vec();
            self.step()
        }

        fn sync_file(&mut self, path: &Path) -> io::Result<()> {
            self.step()?;
            self.contents[self.names[path]].1 = true;
            Ok(())
        }

        fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
            self.step()?;
            let index = self.names.remove(from).unwrap();
            self.names.insert(to.to_path_buf(), index);
            Ok(())
        }

        fn sync_dir(&mut self, _: &Path) -> io::Result<()> {
            self.step()?;
            self.durable_names = self.names.clone();
            Ok(())
        }

        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            let index = self.names.get(path).ok_or(io::ErrorKind::NotFound)?;
            Ok(self.contents[*index].0.clone())
        }
    }

    fn store(files: CrashFiles) -> Store<CrashFiles> {
        Store { dir: PathBuf::from("/state"), files, _lock: None }
    }

    #[test]
    fn a_crash_at_any_step_leaves_the_old_state_or_the_new() {
        let (old, new) = (State::default(), State::default());
        let mut base = store(CrashFiles { steps_left: usize::MAX, ..CrashFiles::default() });
        base.save(&old).unwrap();
        let mut outcomes = BTreeSet::new();
        for steps in 0..=6 {
            for lucky in [false, true] {
                let mut cut = store(CrashFiles { steps_left: steps, ..base.files.clone() });
                let saved = cut.save(&new).is_ok();
                let mut after = store(cut.files.reboot(lucky));
                let found = after.load().unwrap().expect("state never vanishes");
                assert!(found == old || found == new);
                assert!(!saved || found == new, "an acknowledged save survives");
                outcomes.insert((saved, found == new));
                after.save(&new).unwrap();
                assert_eq!(
                    after.load().unwrap(),
                    Some(new.clone()),
                    "leftovers of the crash do not disturb the next save"
                );
            }
        }
        assert!(
            outcomes.contains(&(false, false)) && outcomes.contains(&(false, true)) && outcomes.contains(&(true, true))
        );
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let bytes = encode(&State::default());
        let state = decode(Path::new("s"), &bytes).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                // A flip inside the header's white space or digits may change nothing or be caught; it never changes state.
                if let Ok(found) = decode(Path::new("s"), &bad) {
                    assert_eq!(found, state, "byte {at} bit {bit}");
                }
            }
        }
        assert!(decode(Path::new("s"), &bytes[..bytes.len() - 1]).is_err());
        assert!(decode(Path::new("s"), b"").is_err());
    }

    #[test]
    fn a_newer_format_is_left_alone() {
        let text = b"{\"remuda_state\":2,\"bytes\":2,\"crc32c\":0}\n{}";
        assert!(matches!(decode(Path::new("s"), text), Err(StateError::Newer { version: 2, .. })));
    }

    #[test]
    fn what_others_are_let_at_is_named_with_the_way_to_end_it() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("state");
        assert!(exposed(&dir).is_empty(), "there is none");
        drop(Store::open(&dir).unwrap());
        assert!(exposed(&dir).is_empty());
        let allow = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        allow(&dir, 0o750);
        allow(&dir.join(FILE), 0o604);
        let told = exposed(&dir);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told[0].0.ends_with("(mode 750)") && told[0].1.starts_with("chmod 700 "), "{told:?}");
        assert!(told[1].0.ends_with("(mode 604)") && told[1].1.starts_with("chmod 600 "), "{told:?}");
        assert!(told[1].1.ends_with(FILE), "{told:?}");
    }

    #[test]
    fn a_second_node_is_told_who_holds_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (_first, state) = Store::open(dir.path()).unwrap();
        let second = Store::open(dir.path()).map(|_| ());
        assert!(matches!(second, Err(StateError::Locked { pid, .. }) if pid == std::process::id().to_string()));
        drop(_first);
        assert_eq!(Store::open(dir.path()).unwrap().1, state);
    }
}
