//! Doors for virtual machines: which volumes are there as vhost-user-blk sockets.
//!
//! A door is open while its volume is. One whose volume comes late opens then; a virtual machine monitor that reconnects
//! waits for it. One that cannot listen keeps nothing else from starting: it is tried again until it can.

use super::refusal::Refusal;
use super::state::{Origin, VhostRecord};
use super::view::{ConnectedVhost, VhostCounters, VhostView};
use super::{Node, OBJECTS_MAX};
use crate::config::vhost::check_socket;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use vhost_door::{Door, DoorError, DoorOptions};

/// How long a killed node may take to let go of its sockets, and how often that is looked at.
const LISTEN_PATIENCE: Duration = Duration::from_secs(3);
const LISTEN_PAUSE: Duration = Duration::from_millis(5);
/// Between two attempts to open a door whose volume is there.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// Characters of a serial number.
const SERIAL_CHARS: usize = 20;

/// A door.
pub(super) struct VhostSlot {
    origin: Origin,
    record: VhostRecord,
    /// The door, or why it is not open.
    live: Result<Door, String>,
    /// When it is tried again, if it is not open although its volume is.
    due: Instant,
}

impl VhostSlot {
    fn new(origin: Origin, record: VhostRecord, live: Result<Door, String>) -> VhostSlot {
        VhostSlot { origin, record, live, due: Instant::now() + REOPEN_PAUSE }
    }
}

fn object(name: &str) -> String {
    format!("vhost '{name}'")
}

fn refused(name: &str, error: DoorError) -> Refusal {
    let next = "stop what listens there, or choose another socket";
    match error.is_conflict() {
        true => Refusal::conflict(object(name), error.to_string(), next),
        false => Refusal::failed(object(name), error, ""),
    }
}

/// Closes a door without keeping this thread: requests under way end first.
async fn close(door: Door) {
    let (done, closed) = tokio::sync::oneshot::channel();
    let closing = move || {
        door.close();
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("vhost-close".into()).spawn(closing).is_ok() {
        let _ = closed.await;
    }
}

impl Node {
    pub(super) async fn open_doors(&mut self) {
        for entry in self.config.vhosts.clone() {
            let name = entry.name.value;
            let record = VhostRecord {
                volume: entry.volume.value,
                socket: entry.socket.map_or_else(|| self.default_door_socket(&name), |socket| socket.value),
                queues: entry.queues,
                read_only: entry.read_only,
            };
            self.add_door(name, record, Origin::Config).await;
        }
        for (name, record) in self.state.vhosts.clone() {
            if self.vhosts.contains_key(&name) {
                let path = &self.config.source.path;
                self.warn(format!(
                    "{} is defined in {path} and was also created at run time: the file wins",
                    object(&name)
                ));
                continue;
            }
            self.add_door(name, record, Origin::Runtime).await;
        }
    }

    fn default_door_socket(&self, name: &str) -> PathBuf {
        let beside = self.config.node.rpc_socket.parent().unwrap_or(Path::new("/"));
        beside.join(format!("vhost-{name}.sock"))
    }

    /// Opens a door if its volume is there, and keeps it in any case.
    async fn add_door(&mut self, name: String, record: VhostRecord, origin: Origin) {
        let live = match self.volumes.contains_key(&record.volume) {
            true => self.open_door(&name, &record, LISTEN_PATIENCE).await.map_err(|refusal| refusal.cause),
            false => Err(format!("volume '{}' is not open", record.volume)),
        };
        self.vhosts.insert(name, VhostSlot::new(origin, record, live));
    }

    /// Doors that are not open although their volumes are.
    fn doors_out(&self) -> impl Iterator<Item = (&String, &VhostSlot)> {
        self.vhosts.iter().filter(|(_, slot)| slot.live.is_err() && self.volumes.contains_key(&slot.record.volume))
    }

    /// Whether any door could be tried again.
    pub(super) fn has_doors_out(&self) -> bool {
        self.doors_out().next().is_some()
    }

    /// Tries the doors again that are due.
    pub async fn seek_doors(&mut self) {
        let now = Instant::now();
        let due = self.doors_out().filter(|(_, slot)| slot.due <= now).map(|(name, _)| name.clone());
        for name in due.collect::<Vec<_>>() {
            self.reopen_door(&name).await;
        }
    }

    /// Tries a door again that is there and not open; it is told when that changes anything.
    async fn reopen_door(&mut self, name: &str) {
        let record = self.vhosts[name].record.clone();
        let opened = self.open_door(name, &record, Duration::ZERO).await;
        let slot = self.vhosts.get_mut(name).expect("it is there");
        slot.due = Instant::now() + REOPEN_PAUSE;
        match opened {
            Ok(door) => {
                tracing::info!(vhost = %name, volume = %record.volume, "open now");
                slot.live = Ok(door);
            }
            Err(refusal) if slot.live.as_ref().err() != Some(&refusal.cause) => {
                slot.live = Err(refusal.cause.clone());
                self.warn_now(refusal.to_string());
            }
            Err(_) => {}
        }
    }

    /// Opens a door; a socket that is in use may become free for so long.
    async fn open_door(&self, name: &str, record: &VhostRecord, patience: Duration) -> Result<Door, Refusal> {
        let device = self.volume_device(&record.volume)?;
        let serial = self.door_serial(&record.volume);
        let deadline = Instant::now() + patience;
        loop {
            let options = DoorOptions {
                name: name.to_string(),
                socket: record.socket.clone(),
                device: device.clone(),
                reactors: self.reactors.handles().to_vec(),
                first_reactor: self.vhosts.len(),
                queues: record.queues,
                read_only: record.read_only,
                serial: serial.clone(),
            };
            match Door::open(options) {
                // A node that was killed a moment ago may still hold the socket.
                Err(DoorError::InUse(_)) if Instant::now() < deadline => tokio::time::sleep(LISTEN_PAUSE).await,
                outcome => return outcome.map_err(|error| refused(name, error)),
            }
        }
    }

    /// What guests see as the disk's serial number: it comes from the volume's identity and lasts as long as that.
    fn door_serial(&self, volume: &str) -> String {
        let identity = self.identity_of(volume).map(|(_, uuid)| uuid.simple().to_string());
        identity.unwrap_or_default().chars().take(SERIAL_CHARS).collect()
    }

    /// The volumes that doors show.
    pub(super) fn volumes_at_doors(&self) -> impl Iterator<Item = &str> {
        self.vhosts.values().map(|slot| slot.record.volume.as_str())
    }

    /// Doors that show `volume`, as `vhost/NAME`.
    pub(super) fn doors_of(&self, volume: &str) -> impl Iterator<Item = String> {
        let shows = self.vhosts.iter().filter(move |(_, slot)| slot.record.volume == volume);
        shows.map(|(name, _)| format!("vhost/{name}"))
    }

    /// `volume` has opened, or has another size.
    pub(super) async fn announce_to_doors(&mut self, volume: &str) {
        let names: Vec<String> =
            self.vhosts.iter().filter(|(_, slot)| slot.record.volume == volume).map(|(name, _)| name.clone()).collect();
        for name in names {
            match &self.vhosts[&name].live {
                Ok(door) => door.device_changed(),
                Err(_) if self.volumes.contains_key(volume) => self.reopen_door(&name).await,
                Err(_) => {}
            }
        }
    }

    /// Doors that are not open, and why.
    pub(super) fn closed_doors(&self) -> impl Iterator<Item = String> {
        let closed = self.vhosts.iter().filter_map(|(name, slot)| Some((name, slot.live.as_ref().err()?)));
        closed.map(|(name, reason)| format!("{} is not open: {reason}", object(name)))
    }

    fn vhost_view(&self, name: &str, slot: &VhostSlot) -> VhostView {
        let status = slot.live.as_ref().map(Door::status).unwrap_or_default();
        let state = match &slot.live {
            Err(reason) => format!("not open: {reason}"),
            Ok(_) if status.peer.is_some() => "connected".to_string(),
            Ok(_) => "listening".to_string(),
        };
        let totals = status.totals;
        VhostView {
            name: name.to_string(),
            volume: slot.record.volume.clone(),
            socket: slot.record.socket.display().to_string(),
            queues_max: slot.record.queues,
            read_only: slot.record.read_only,
            serial: self.door_serial(&slot.record.volume),
            origin: slot.origin,
            state,
            peer: status.peer,
            queues: status.queues,
            counters: VhostCounters {
                reads: totals.reads,
                writes: totals.writes,
                flushes: totals.flushes,
                discards: totals.discards,
                other: totals.other,
                errors: totals.errors,
                read_bytes: totals.read_bytes,
                write_bytes: totals.write_bytes,
                kicks: totals.kicks,
                calls: totals.calls,
                queues_stopped: totals.stopped,
                resubmitted: totals.resubmitted,
            },
        }
    }

    /// All doors.
    pub fn vhost_list(&self) -> Vec<VhostView> {
        self.vhosts.iter().map(|(name, slot)| self.vhost_view(name, slot)).collect()
    }

    /// Doors that are in use.
    pub(super) fn machines(&self) -> Vec<ConnectedVhost> {
        let connected = self.vhost_list().into_iter().filter_map(|door| {
            let VhostView { name, volume, queues, .. } = door;
            Some(ConnectedVhost { name, volume, peer: door.peer?, queues })
        });
        connected.collect()
    }

    /// One door.
    pub fn vhost_show(&self, name: &str) -> Result<VhostView, Refusal> {
        let known = self.vhosts.keys().map(String::as_str);
        let slot = self.vhosts.get(name).ok_or_else(|| Refusal::not_found("vhost", name, known))?;
        Ok(self.vhost_view(name, slot))
    }

    /// A new door for a volume that is open.
    pub async fn vhost_create(
        &mut self,
        name: &str,
        volume: &str,
        socket: Option<PathBuf>,
        queues: u16,
        read_only: bool,
    ) -> Result<VhostView, Refusal> {
        self.check_running()?;
        let object = object(name);
        if self.vhosts.contains_key(name) {
            return Err(Refusal::conflict(object, "it exists already", "choose another name, or delete it first"));
        }
        if self.vhosts.len() >= OBJECTS_MAX {
            let cause = format!("there are {OBJECTS_MAX} doors already");
            return Err(Refusal::conflict(object, cause, "delete some first"));
        }
        self.volume_device(volume)?;
        self.check_not_imported(volume)?;
        let socket = socket.unwrap_or_else(|| self.default_door_socket(name));
        check_socket(&socket).map_err(|reason| Refusal::invalid(&object, reason, "choose another socket"))?;
        if let Some((other, _)) = self.vhosts.iter().find(|(_, slot)| slot.record.socket == socket) {
            let cause = format!("{} is the socket of vhost '{other}'", socket.display());
            return Err(Refusal::conflict(object, cause, "choose another socket"));
        }
        let record = VhostRecord { volume: volume.to_string(), socket, queues, read_only };
        let door = self.open_door(name, &record, Duration::ZERO).await?;
        let mut state = self.state.clone();
        state.vhosts.insert(name.to_string(), record.clone());
        if let Err(refusal) = self.remember(state) {
            close(door).await;
            return Err(refusal);
        }
        let slot = VhostSlot::new(Origin::Runtime, record, Ok(door));
        self.vhosts.insert(name.to_string(), slot);
        tracing::info!(vhost = name, volume, "vhost door created");
        self.vhost_show(name)
    }

    /// Closes a door; its volume stays.
    pub async fn vhost_delete(&mut self, name: &str, force: bool) -> Result<(), Refusal> {
        self.check_running()?;
        let door = self.vhost_show(name)?;
        if self.vhosts[name].origin == Origin::Config {
            return Err(self.belongs_to_config(object(name)));
        }
        if let Some(peer) = door.peer.filter(|_| !force && door.queues > 0) {
            let cause = format!("process {peer}, a virtual machine, uses volume '{}' through it", door.volume);
            return Err(Refusal::conflict(object(name), cause, "detach the disk or end it first, or add --force"));
        }
        let mut state = self.state.clone();
        state.vhosts.remove(name);
        self.remember(state)?;
        let slot = self.vhosts.remove(name);
        if let Some(Ok(door)) = slot.map(|slot| slot.live) {
            close(door).await;
        }
        tracing::info!(vhost = name, "vhost door deleted");
        Ok(())
    }

    /// Ends all connections, after the requests under way.
    pub(super) async fn close_doors(&mut self) {
        let doors = std::mem::take(&mut self.vhosts).into_values().filter_map(|slot| slot.live.ok());
        for closing in doors.map(|door| tokio::spawn(close(door))).collect::<Vec<_>>() {
            let _ = closing.await;
        }
    }
}
