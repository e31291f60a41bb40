//! What the node tells about its objects: the answers of RPC methods, and what the command line prints.

use super::state::Origin;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// What `volume.delete` answers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeletedView {
    /// The pool in which what the volume had is given back, where that goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

/// A device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceView {
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: String,
    /// Bytes; 0 while it is not open.
    pub size: u64,
    /// Bytes per block; 0 while it is not open.
    pub block_size: u32,
    /// Bytes not taken by volumes; 0 when a device above uses it.
    pub free: u64,
    /// What uses it: `device 'x'` or `volume 'y'`.
    pub used_by: Vec<String>,
    /// Who defined it.
    pub origin: Origin,
    /// It is in the configuration file, and commands have made it differ from that.
    #[serde(default, alias = "changed")]
    pub differs_from_file: bool,
    /// Operations can be sent to it.
    #[serde(default)]
    pub open: bool,
    /// `open`, with what is not as it should be, or why it is not open.
    pub state: String,
    /// Its definition.
    pub definition: serde_json::Value,
    /// How a mirror is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<MirrorView>,
    /// How a parity device is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parity: Option<ParityView>,
    /// The zones that it is written in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zoned: Option<ZonedView>,
    /// How the zones of a zone-bands device are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<ZonesView>,
    /// How a flash cache is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flash_cache: Option<FlashCacheView>,
    /// The ways to a remote namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathView>,
}

/// A path of a remote namespace in use. Counts are since the path was added.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PathView {
    /// Its address.
    pub address: String,
    /// The access state that its controller reports (`optimized`, `non-optimized`, `inaccessible`, `persistent-loss`, `change`),
    /// or why it is not connected.
    pub state: String,
    /// There is an association.
    pub connected: bool,
    /// The controller's identifier.
    pub controller: Option<u16>,
    /// Operations sent this way.
    pub operations: u64,
    /// Operations that had to be sent again, since their connection was lost.
    pub lost: u64,
    /// Operations that were refused for the sake of the path.
    pub refused: u64,
    /// Times that its association was built again.
    pub reconnects: u64,
}

/// A parity device in use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ParityView {
    /// Its members, in order.
    pub members: Vec<LegView>,
    /// A member lacks data: the loss of another one would be a loss of data.
    pub degraded: bool,
    /// What is being rebuilt.
    pub rebuild: Option<RebuildView>,
    /// Reads answered by computing what a member has, or had.
    pub reconstructed_reads: u64,
    /// Blocks that could not be rebuilt, since another member could not read its part.
    pub lost_blocks: u64,
    /// Bytes that are the same on all members, where anything can be written.
    pub head_bytes: u64,
    /// Those of them that are still to be compared after a crash.
    #[serde(default)]
    pub head_uncompared_bytes: u64,
    /// Bytes of data in a row.
    pub row_bytes: u64,
}

/// The zones of a device that is written zone by zone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ZonedView {
    /// How many.
    pub zones: u64,
    /// Bytes from one to the next.
    pub zone_bytes: u64,
    /// Bytes of each that can be written.
    pub capacity_bytes: u64,
    /// Most that may be open; 0 is no limit.
    pub open_max: u32,
    /// Most that may be active; 0 is no limit.
    pub active_max: u32,
}

/// The zones of a zone-bands device in use, without the one that has its label.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ZonesView {
    /// In all.
    pub zones: u64,
    /// Nothing is written to them.
    pub empty: u64,
    /// Written in part.
    pub open: u64,
    /// Written to their ends, or finished.
    pub full: u64,
    /// They can only be read.
    pub read_only: u64,
    /// Out of use.
    pub offline: u64,
    /// Most that may be open; 0 is no limit.
    pub open_max: u32,
    /// Bytes of each.
    pub zone_bytes: u64,
    /// Bytes in front of them, which are written in place.
    pub head_bytes: u64,
}

/// A member of a parity device that is being rebuilt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RebuildView {
    /// Which.
    pub device: String,
    /// Bytes that it has got.
    pub done_bytes: u64,
    /// Bytes that it is still to get.
    pub left_bytes: u64,
    /// Bytes per second lately; 0 while the rebuild rests.
    pub bytes_per_s: u64,
    /// Seconds that it takes at this rate.
    pub left_s: Option<u64>,
    /// Why it has come to a halt. It is tried again by itself.
    #[serde(default)]
    pub halted: Option<String>,
}

/// A flash cache in use. Counts are since it was opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlashCacheView {
    /// `on`, `loading` (what it has is being found), `hanging` (flash does not answer, and is used again when it does), `absent` or `failed`.
    pub mode: String,
    /// Bytes read from flash.
    pub hit_bytes: u64,
    /// Bytes read from the slow device.
    pub miss_bytes: u64,
    /// Bytes of blocks in the cache.
    pub cached_bytes: u64,
    /// Bytes of blocks that it can hold.
    pub capacity_bytes: u64,
    /// Bytes written to flash in the last 24 hours in which it was open.
    pub written_day_bytes: u64,
    /// Most bytes written to flash in a day.
    pub write_budget_bytes: u64,
    /// Bytes written to flash in its life.
    pub written_total_bytes: u64,
    /// Bytes that may be written to flash in its life.
    pub endurance_bytes: Option<u64>,
    /// Days until the endurance is used up, at the rate of the last day.
    pub days_left: Option<f64>,
    /// Bytes let in.
    pub admitted_bytes: u64,
    /// Bytes that were written again because they had been read.
    pub readmitted_bytes: u64,
    /// Bytes that were not let in for want of budget.
    pub refused_bytes: u64,
    /// Reads of flash that failed, or gave back something else.
    pub read_errors: u64,
    /// Writes of flash that failed.
    pub write_errors: u64,
    /// Operations of flash that were not waited for any longer.
    #[serde(default)]
    pub late: u64,
    /// Bytes of memory for index, sketch and marks.
    pub memory_bytes: u64,
    /// While it fills for the first time, or anew: seconds until it is full, if all that its budget gives is written. Longer where
    /// less is read often enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_in_seconds: Option<u64>,
}

impl FlashCacheView {
    /// Whether nobody has to see to its flash.
    pub fn is_in_order(&self) -> bool {
        matches!(self.mode.as_str(), "on" | "loading")
    }

    /// Bytes that the budget gives each second.
    pub fn budget_bytes_per_second(&self) -> f64 {
        self.write_budget_bytes as f64 / 86_400.0
    }

    /// Whether it fills, and how long that takes at least. Once everything that it can hold has been written, it is as full as
    /// what is read and written leaves it, unless it was emptied.
    pub(crate) fn filling(&self) -> Option<u64> {
        let is_first =
            self.written_total_bytes < self.capacity_bytes && self.cached_bytes < self.capacity_bytes / 10 * 9;
        let was_emptied = self.cached_bytes < self.capacity_bytes / 4;
        let left = self.capacity_bytes.saturating_sub(self.cached_bytes);
        let rate = self.budget_bytes_per_second();
        (self.mode == "on" && (is_first || was_emptied) && rate > 0.0).then(|| (left as f64 / rate) as u64)
    }
}

/// A mirror in use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MirrorView {
    /// Its legs, in order.
    pub legs: Vec<LegView>,
    /// Fewer legs than there should be have every write.
    pub degraded: bool,
    /// Regions, of which the following are parts.
    pub regions: u64,
    /// Regions that were written lately, or that a leg which is out may lack.
    pub dirty_regions: u64,
    /// Regions that remain to be copied.
    pub resync_left_regions: u64,
    /// Bytes of a region.
    #[serde(default)]
    pub region_bytes: u64,
    /// Bytes per second that are being copied, of late.
    #[serde(default)]
    pub resync_bytes_per_s: u64,
}

/// A leg of a mirror, or a member of a parity device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LegView {
    /// The device.
    pub device: String,
    /// `in sync`, `copying` or `rebuilding`, `failed` or `absent`.
    pub state: String,
    /// Reads that failed on it, or that a pool above it found wrong.
    pub read_errors: u64,
    /// Operations repaired by writing back what the others had.
    pub repairs: u64,
    /// Why it lacks data and what puts that right, if it holds an older copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeView {
    /// Name.
    pub name: String,
    /// The device that it lies on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The pool that it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Bytes.
    pub size: u64,
    /// First byte on the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Bytes per block; 0 while it is not open.
    pub block_size: u32,
    /// Identity seen by hosts; all zeroes where it is not known, since the pool is not open.
    pub uuid: Uuid,
    /// How far it could grow where it is; in a pool, without regard to the pool's free space.
    pub size_max: u64,
    /// In an open pool: bytes that it has for itself, in extents of 4 MiB. What it had when a snapshot was made is the
    /// snapshot's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated: Option<u64>,
    /// Of one volume alone, in an open pool: what stands on it, and it on.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub kin: Option<KinView>,
    /// Namespaces and doors that show it, as `NQN/nsid` and `vhost/NAME`.
    pub exports: Vec<String>,
    /// Who defined it.
    pub origin: Origin,
    /// `open`, or why it is not.
    pub state: String,
}

/// Snapshots and clones of a volume.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KinView {
    /// Its snapshots, the oldest first.
    pub snapshots: Vec<String>,
    /// Bytes that these have, in extents of 4 MiB.
    pub snapshots_allocated: u64,
    /// Volumes that are clones of it: what neither has written, both share.
    pub clones: Vec<String>,
    /// The snapshot that it is a clone of.
    pub clone_of: Option<String>,
}

/// What is logged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogLevelView {
    /// The level now.
    pub level: String,
    /// What the configuration file says, with which the node starts again.
    pub configured: String,
}

/// A snapshot of a volume in a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotView {
    /// Name: `volume@snapshot`.
    pub name: String,
    /// Its volume.
    pub volume: String,
    /// The pool that both are in.
    pub pool: String,
    /// Bytes: those of the volume when it was made.
    pub size: u64,
    /// Identity seen by hosts.
    pub uuid: Uuid,
    /// When it was made, seconds since 1970.
    pub created_s: u64,
    /// Volumes and snapshots that show what it has, its own volume's among them.
    pub users: usize,
    /// Namespaces and doors that show it, as `NQN/nsid` and `vhost/NAME`.
    pub exports: Vec<String>,
}

/// A snapshot that is being written as a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExportView {
    /// The snapshot.
    pub snapshot: String,
    /// What the stream goes on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Bytes of the snapshot.
    pub size: u64,
}

/// A snapshot that was read from a stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImportView {
    /// The snapshot.
    pub snapshot: String,
    /// Its pool.
    pub pool: String,
    /// Bytes that came with their data.
    pub data_bytes: u64,
    /// Bytes that read as zeroes, where the stream says so.
    pub hole_bytes: u64,
    /// Bytes whose data are lost, as they are in the original.
    pub lost_bytes: u64,
    /// Bytes of the stream.
    pub stream_bytes: u64,
}

/// A range that differs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangeView {
    /// Its first byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// `data`, `zero`, or `lost`: reading fails.
    pub kind: String,
}

/// What differs between a snapshot and an older one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangesView {
    /// In order.
    pub changes: Vec<ChangeView>,
    /// The byte to go on from; absent: these were all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NamespaceView {
    /// Namespace id.
    pub nsid: u32,
    /// Volume.
    pub volume: String,
    /// Bytes.
    pub size: u64,
    /// Identity.
    pub uuid: Option<Uuid>,
    /// The hosts that see it; absent is every host that may connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
    /// Its group for asymmetric access.
    pub ana_group: u32,
}

/// The state of a group of namespaces at a port.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AnaView {
    /// Group.
    pub group: u32,
    /// The address of the port; absent is every port that is not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
    /// The state.
    pub state: String,
}

/// A host that has registered with a namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistrantView {
    /// Its host identifier.
    pub host_id: Uuid,
    /// What it calls itself, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_nqn: Option<String>,
    /// Its key, hexadecimal.
    pub key: String,
    /// It holds the reservation.
    pub holder: bool,
}

/// What hosts have reserved of a namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReservationView {
    /// Namespace id.
    pub nsid: u32,
    /// Type of the reservation; none if hosts have only registered.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// It lasts over a restart of the node.
    pub persistent: bool,
    /// Counts changes of registrations.
    pub generation: u32,
    /// Hosts that have registered.
    pub registrants: Vec<RegistrantView>,
}

/// A namespace, and what hosts have reserved of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReservedView {
    /// The subsystem.
    pub nqn: String,
    /// The volume behind it.
    pub volume: String,
    /// What is reserved.
    #[serde(flatten)]
    pub reservation: ReservationView,
}

/// A subsystem.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SubsystemView {
    /// Name.
    pub nqn: String,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Every host may connect.
    pub allow_any_host: bool,
    /// Hosts that may connect.
    pub hosts: Vec<String>,
    /// Namespaces.
    pub namespaces: Vec<NamespaceView>,
    /// Asymmetric access; what is not listed is optimised.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ana: Vec<AnaView>,
    /// Reservations of its namespaces, when one subsystem is shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reservations: Vec<ReservationView>,
    /// Where hosts connect.
    pub addresses: Vec<String>,
    /// Where hosts reach it by TLS.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tls_addresses: Vec<String>,
    /// Who defined it.
    pub origin: Origin,
    /// It is in the configuration file, and commands have made it differ from that.
    #[serde(default, alias = "changed")]
    pub differs_from_file: bool,
}

/// How much a host may do, or how much may be done to a volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LimitView {
    /// The host, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The volume, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Operations each second.
    pub iops: Option<u64>,
    /// Bytes each second.
    pub bandwidth: Option<u64>,
    /// Who defined it.
    pub origin: Origin,
    /// It is in the configuration file, and commands have made it differ from that.
    #[serde(default, alias = "changed")]
    pub differs_from_file: bool,
}

/// A discovery service that hosts are told of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReferralView {
    /// Where it is.
    pub address: String,
    /// Who defined it.
    pub origin: Origin,
}

/// What guests have asked a door for since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VhostCounters {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and write zeroes.
    pub discards: u64,
    /// Other requests.
    pub other: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Times a guest said that there is something to do.
    pub kicks: u64,
    /// Times a guest was told that something is done.
    pub calls: u64,
    /// Queues stopped because what a guest wrote into them makes no sense.
    pub queues_stopped: u64,
    /// Requests that were under way when an earlier connection was lost, and were carried out after that.
    pub resubmitted: u64,
}

/// A door for a virtual machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VhostView {
    /// Name.
    pub name: String,
    /// The volume behind it.
    pub volume: String,
    /// Its socket.
    pub socket: String,
    /// Most queues.
    pub queues_max: u16,
    /// Writes are refused.
    pub read_only: bool,
    /// What guests see as the serial number of the disk.
    pub serial: String,
    /// Who defined it.
    pub origin: Origin,
    /// `listening`, `connected`, or why it is not open.
    pub state: String,
    /// Process id of the virtual machine monitor that is connected.
    pub peer: Option<u32>,
    /// Queues at work.
    pub queues: usize,
    /// What guests have asked for.
    pub counters: VhostCounters,
}

/// A host and where it is allowed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostView {
    /// The host's NQN; `*` is every host.
    pub host: String,
    /// The subsystem.
    pub subsystem: String,
    /// How it authenticates, if it has to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap: Option<HostKeyView>,
    /// Its key for TLS, if it has one and connects by that alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsKeyView>,
    /// Its controllers; of `*` those of hosts that are not listed by themselves.
    #[serde(default)]
    pub connected: Vec<ConnectedHost>,
}

/// The key of a host for TLS, which is not shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TlsKeyView {
    /// The hash of its cipher suite.
    pub hash: String,
    /// Until when the key before is good too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_key_until: Option<String>,
}

/// How a host authenticates; the keys are not shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostKeyView {
    /// The node authenticates itself too when the host asks.
    pub both_sides: bool,
    /// Hashes that may be used; empty is all.
    pub hashes: Vec<String>,
    /// Groups that may be used; empty is all.
    pub dhgroups: Vec<String>,
    /// Until when the key before is good too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former_key_until: Option<String>,
}

/// A host with a controller.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectedHost {
    /// Its NQN.
    pub host: String,
    /// The subsystem that it uses.
    pub subsystem: String,
    /// Its controller.
    pub controller: u16,
    /// Its I/O queues.
    pub io_queues: usize,
    /// Its keep-alive timeout; 0 is none.
    pub keep_alive_ms: u32,
    /// Its host identifier, by which reservations know it.
    #[serde(default)]
    pub host_id: Uuid,
    /// Addresses that its connections come from.
    #[serde(default)]
    pub peers: Vec<String>,
    /// All of its connections are encrypted.
    #[serde(default)]
    pub tls: bool,
    /// It has authenticated itself.
    #[serde(default)]
    pub authenticated: bool,
    /// A limit holds it back now.
    #[serde(default)]
    pub throttled: bool,
}

/// A door that a virtual machine is connected to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConnectedVhost {
    /// The door.
    pub name: String,
    /// The volume behind it.
    pub volume: String,
    /// Process id of the virtual machine monitor.
    pub peer: u32,
    /// Queues at work.
    pub queues: usize,
}

/// One reactor's time.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReactorView {
    /// Its number.
    pub index: usize,
    /// The core it is pinned to.
    pub core: Option<usize>,
    /// Nanoseconds with work.
    pub busy_ns: u64,
    /// Nanoseconds spinning.
    pub spin_ns: u64,
    /// Nanoseconds asleep.
    pub sleep_ns: u64,
    /// Live tasks.
    pub tasks: usize,
    /// Buffer memory mapped, bytes.
    pub buffer_bytes: usize,
}

/// The node as a whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StatusView {
    /// Program version.
    pub version: String,
    /// Process id.
    pub pid: u32,
    /// Identity.
    pub node_id: Uuid,
    /// Nanoseconds since it was started.
    pub uptime_ns: u64,
    /// State directory.
    pub state_dir: String,
    /// Configuration file.
    pub config: String,
    /// Addresses of the NVMe/TCP target.
    pub nvmf_listen: Vec<String>,
    /// Where every connection to it is encrypted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nvmf_listen_tls: Vec<String>,
    /// Address of `/metrics`.
    pub metrics: Option<String>,
    /// Address of the console for browsers.
    #[serde(default)]
    pub console: Option<String>,
    /// Connected hosts' TCP connections.
    pub connections: u64,
    /// Hosts with a controller.
    pub hosts: Vec<ConnectedHost>,
    /// Virtual machines at doors.
    #[serde(default)]
    pub machines: Vec<ConnectedVhost>,
    /// Number of devices.
    pub devices: usize,
    /// Number of pools.
    pub pools: usize,
    /// Number of volumes.
    pub volumes: usize,
    /// Number of subsystems.
    pub subsystems: usize,
    /// Number of doors for virtual machines.
    #[serde(default)]
    pub vhosts: usize,
    /// Reactors.
    pub reactors: Vec<ReactorView>,
    /// Those of the warnings because of which hosts do not get what they should: pools that are not open, full or in trouble,
    /// and volumes, namespaces and doors that are not served.
    #[serde(default)]
    pub failing: Vec<String>,
    /// Things that want attention.
    pub warnings: Vec<String>,
}
