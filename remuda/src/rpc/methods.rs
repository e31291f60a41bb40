//! The methods: their names, parameters and what they call. Parameters are read by the same code as the configuration
//! file, so a misspelt one is met with the nearest right one here too.

use super::params::Params;
use crate::config::ana;
use crate::config::device::read_device;
use crate::config::diagnostic::Problems;
use crate::config::host_key;
use crate::config::limit::{self, Rates};
use crate::config::pool::{POOL_CREATE, PoolRequest, REINSERTION, read_pool_request};
use crate::config::section::{Form, Key, key};
use crate::config::value::{Data, Table, from_json};
use crate::config::vhost;
use crate::config::{LogDef, check_uuid, parse_controller_ids};
use crate::node::view::LogLevelView;
use crate::node::{NewHostKeys, NewNamespace, NewSize};
use crate::node::{Node, Refusal, RefusalKind, Transfer};
use engine::CheckOptions;
use nvme::spec::ana::AnaState;
use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

/// A method as `rpc.discover` describes it.
pub struct Method {
    /// Name.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// Its parameters.
    pub params: &'static [Key],
    /// It is more than a question.
    pub changes: bool,
    /// Whether a stream of bytes follows.
    pub streams: Streams,
}

/// Which way the stream of a method goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// It has none.
    None,
    /// From the node to the client, behind the answer.
    Out,
    /// From the client to the node, behind the answer; another answer follows at its end.
    In,
}

const NAME: Key = key("name", Form::Text, "required", "The object's name.");
const NQN: Key = key("nqn", Form::Text, "required", "The subsystem's name.");
const HOST: Key = key("host", Form::Text, "required", "The host's NQN.");
const CUT_OFF: Key = key("force", Form::Flag, "false", "Even if that is taken from who is connected.");
const ADDRESS: Key = key("address", Form::Text, "required", "The address of its port.");
const LIMITED_HOST: Key = key("host", Form::Text, "this or volume", "The host's NQN.");
const LIMITED_VOLUME: Key = key("volume", Form::Text, "this or host", "The volume.");
const SNAPSHOTS: Key = key("names", Form::TextList, "required", "The snapshots: volume@snapshot.");
const SNAPSHOT: Key = key("snapshot", Form::Text, "required", "The snapshot: volume@snapshot.");
const NSID: Form = Form::Count(1, 1024);
const ANA_GROUP: Form = Form::Count(1, nvme::target::ANA_GROUPS_MAX as u64);
/// Bytes a second that a scrub reads unless told otherwise: a few percent of a drive, 1 TB in three hours.
const SCRUB_RATE_DEFAULT: u64 = 100 << 20;

/// Ranges of one answer to `snapshot.diff`, about.
const CHANGES_MAX: usize = 4096;

const PATH_FROM_ROOT: &str = "give the path from the root, since the node has another working directory";

const fn method(name: &'static str, doc: &'static str, params: &'static [Key]) -> Method {
    Method { name, doc, params, changes: true, streams: Streams::None }
}

/// A method that changes nothing.
const fn question(name: &'static str, doc: &'static str, params: &'static [Key]) -> Method {
    Method { name, doc, params, changes: false, streams: Streams::None }
}

/// Every method.
pub const METHODS: &[Method] = &[
    question("rpc.discover", "Lists the methods and their parameters.", &[]),
    question("node.status", "The node as a whole.", &[]),
    method("node.stop", "Drains, flushes and ends the node; the answer comes first.", &[]),
    question("log.level", "What is logged now, and what the configuration file says.", &[]),
    method(
        "log.set_level",
        "Changes what is logged.",
        &[key("level", Form::Choice(&["error", "warn", "info", "debug", "trace"]), "required", "The new level.")],
    ),
    question(
        "config.diff",
        "Where the node differs from its configuration file: what commands have changed, and what was changed in the file since.",
        &[],
    ),
    question("stats", "Counters and latency percentiles of devices, volumes and reactors.", &[]),
    method("device.create", "Opens and remembers a device; parameters as in [[device]].", &[]),
    question("device.list", "All devices.", &[]),
    question("device.show", "One device.", &[NAME]),
    method(
        "device.resize",
        "Changes a device's size.",
        &[
            NAME,
            key("size", Form::Size, "required", "The new size."),
            key("force", Form::Flag, "false", "Cuts a volume with it even if hosts that see it are connected."),
        ],
    ),
    method(
        "device.set",
        "Changes parameters of a delay, error, rate-limit or flash-cache device in use, or the paths of a remote one: keys as in [[device]], \
         \"off\" for none.",
        &[NAME],
    ),
    method(
        "device.accept_namespace",
        "Has the namespace that a remote device's paths show now take the place of the one that it was: it was replaced on purpose.",
        &[NAME],
    ),
    method(
        "device.open",
        "Tries again to open a device that is not open.",
        &[
            NAME,
            key(
                "degraded",
                Form::Flag,
                "false",
                "A mirror: without absent legs, although these may have newer writes.",
            ),
            key("prefer", Form::Text, "none", "A mirror whose legs were used without each other: whose data survive."),
        ],
    ),
    method(
        "device.rejoin",
        "Takes a part that failed, or a new drive in its place, into a mirror or parity device again, and writes what it lacks.",
        &[
            NAME,
            key("leg", Form::Text, "required", "The device that is the leg or the member."),
            key("overwrite", Form::Flag, "false", "Whatever it holds is given up."),
        ],
    ),
    method(
        "device.retire_zone",
        "Takes a zone of a zoned device out of use, for good.",
        &[
            NAME,
            key("zone", Form::Count(0, bdev::ZONES_MAX - 1), "required", "Which, from 0 on."),
            key(
                "state",
                Form::Choice(&["read-only", "offline"]),
                "required",
                "Whether it can still be read; from read-only to offline there is a way, and no other.",
            ),
        ],
    ),
    method(
        "device.change_key",
        "Wraps the key of an encrypted device with that of another key file; the old one opens it no longer.",
        &[NAME, key("key_file", Form::Text, "required", "The new key file.")],
    ),
    method(
        "device.erase",
        "Destroys the key of an encrypted device, and with it all data, for good.",
        &[
            NAME,
            key("confirm", Form::Text, "required", "The device's name again."),
            key("in_use", Form::Flag, "false", "Even if something stands on it."),
            key("renew", Form::Flag, "false", "Put a new key in its place: the device stays open, with noise in it."),
        ],
    ),
    method("device.delete", "Forgets a device; what its file holds stays.", &[NAME]),
    method("pool.create", "Makes, opens and remembers a pool, all of it or nothing.", POOL_CREATE),
    question("pool.list", "All pools, with their numbers.", &[]),
    question("pool.show", "One pool, with its numbers.", &[NAME]),
    method("pool.open", "Tries again to open a pool that is not open.", &[NAME]),
    method(
        "pool.settle",
        "Begins to move everything from the log to the capacity device; 'settling' says when that is over.",
        &[NAME],
    ),
    method(
        "pool.set",
        "Changes a shaped pool in use; what is left out is as by default. One of the configuration file starts as that says again.",
        &[NAME, REINSERTION],
    ),
    method("pool.grow", "Takes into use by what the capacity device has become larger.", &[NAME]),
    method(
        "pool.scrub",
        "Begins, or goes on, to read every block of every volume in the background; of a scrub that runs it changes the pace.",
        &[NAME, key("rate", Form::Size, "100MiB", "Bytes to read each second, at most.")],
    ),
    method("pool.scrub_stop", "Stops a scrub; the next one goes on from there.", &[NAME]),
    question("pool.scrub_status", "How far the scrub is, and what it has found.", &[NAME]),
    method(
        "pool.check",
        "Begins to check a pool that is not open.",
        &[
            NAME,
            key(
                "repair",
                Form::Flag,
                "false",
                "Restore what has a valid copy, give back the space of volumes that there are not, and give up table pages that \
                 neither of their places has: what these may have described is lost.",
            ),
            key("payloads", Form::Flag, "false", "Verify what every log record carries."),
            key("data", Form::Flag, "false", "Read and verify every block of every volume."),
        ],
    ),
    question("pool.check_report", "Whether the check has ended, and what it found.", &[NAME]),
    method(
        "pool.forget_log",
        "Begins to give up the log of a pool that has lost it; without 'lose_data' it only says what would be lost.",
        &[
            NAME,
            key("log", Form::Text, "the pool's", "The device that is the log from now on."),
            key("log_pmem", Form::Text, "the pool's", "A DAX device or file for the log."),
            key("log_size", Form::Size, "required with log_pmem", "Bytes of it to use."),
            key("volatile", Form::Flag, "false", "Take memory that loses its contents with the power: for tests."),
            key("force", Form::Flag, "false", "Take a device that holds something, or give up a log that can be read."),
            key("lose_data", Form::Flag, "false", "Do it."),
        ],
    ),
    question("pool.forget_log_report", "How far giving up the log is, or what that took.", &[NAME]),
    method("pool.destroy", "Destroys a pool and its volumes.", &[NAME]),
    method(
        "volume.create",
        "Takes a part of a device, or makes a thin volume in a pool.",
        &[
            NAME,
            key("device", Form::Text, "this or pool", "The device."),
            key("pool", Form::Text, "this or device", "The pool."),
            key("size", Form::Size, "the largest free range of the device", "Its size."),
            key("offset", Form::Size, "chosen by the node", "Where it starts; what is there is kept."),
            key("block_size", Form::Size, "4096", "In a pool: bytes per block, 512 or 4096."),
            key("force", Form::Flag, "false", "Take a device that holds something else."),
        ],
    ),
    question("volume.list", "All volumes.", &[]),
    question("volume.show", "One volume.", &[NAME]),
    method(
        "volume.resize",
        "Grows or cuts a volume where it is.",
        &[
            NAME,
            key("size", Form::Text, "required", "The new size, '+SIZE', or 'max'."),
            key("shrink", Form::Flag, "false", "Permits a smaller size."),
            key("force", Form::Flag, "false", "Cuts it even if hosts that see it are connected."),
        ],
    ),
    method(
        "volume.delete",
        "Gives a volume's place back.",
        &[
            NAME,
            key("snapshots", Form::Flag, "false", "Of a volume in a pool: with all of its snapshots."),
            key(
                "background",
                Form::Flag,
                "false",
                "Of a volume in a pool: answers when nobody can use it any more. What it had is given back meanwhile, giving way to hosts; \
                 'going_unshown' of its pool is 0 at the end.",
            ),
        ],
    ),
    method(
        "volume.clone",
        "Makes a volume in a pool that begins as a snapshot is; what neither writes, both share.",
        &[SNAPSHOT, key("name", Form::Text, "required", "The new volume's name.")],
    ),
    method(
        "volume.flatten",
        "Begins to make a clone independent of what it was cloned from, in the background, or goes on with it.",
        &[NAME],
    ),
    method(
        "volume.flatten_stop",
        "Has flattening a volume stop, soon: see its status. The next one goes on from there.",
        &[NAME],
    ),
    question("volume.flatten_status", "How far the flattening of a volume is.", &[NAME]),
    method(
        "snapshot.create",
        "Makes snapshots of volumes in a pool, all of them at one moment.",
        &[key(
            "names",
            Form::TextList,
            "required",
            "Their names, such as \"v0@monday\": the volume, and the snapshot's own.",
        )],
    ),
    question("snapshot.list", "The snapshots of a volume, or all.", &[key("volume", Form::Text, "all", "The volume.")]),
    method(
        "snapshot.delete",
        "Deletes snapshots of one pool, all of them at once; what volumes and snapshots above them show becomes theirs in the background.",
        &[SNAPSHOTS],
    ),
    method(
        "snapshot.roll_back",
        "Makes volumes of one pool what a snapshot of each is, size included, all of them or none; what was written since is lost.",
        &[
            SNAPSHOTS,
            key(
                "in_use",
                Form::Flag,
                "false",
                "Even if hosts may use the volumes, which find them changed under them.",
            ),
        ],
    ),
    question(
        "snapshot.diff",
        "What differs between a snapshot, or a volume as it is, and an older snapshot of it, from the index alone.",
        &[
            key("snapshot", Form::Text, "required", "The snapshot or volume."),
            key("since", Form::Text, "none", "The older snapshot; without it, everything that is not a hole."),
            key("offset", Form::Size, "0", "The byte to begin at: the last answer's 'next'."),
        ],
    ),
    Method {
        name: "snapshot.export",
        doc: "Writes a snapshot as a stream, which follows the answer to the end of the connection; format: 'remuda docs snapshot-stream'.",
        params: &[
            SNAPSHOT,
            key(
                "since",
                Form::Text,
                "none",
                "An older snapshot: the stream has what differs from that; without it, everything.",
            ),
        ],
        changes: false,
        streams: Streams::Out,
    },
    Method {
        name: "snapshot.import",
        doc: "Reads a stream, which the client sends after the answer until it shuts its end, into a volume; a second answer tells how \
              that ended.",
        params: &[
            key(
                "target",
                Form::Text,
                "required",
                "The volume, or VOLUME@SNAPSHOT for a snapshot of another name than the stream has.",
            ),
            key("pool", Form::Text, "that of the volume", "The pool in which a new volume is made."),
            key(
                "roll_back",
                Form::Flag,
                "false",
                "What was written to the volume since the snapshot that the stream goes on from is given up.",
            ),
        ],
        changes: true,
        streams: Streams::In,
    },
    method(
        "subsystem.create",
        "A new, empty subsystem.",
        &[
            NQN,
            key("serial", Form::Text, "generated", "Serial number, up to 20 characters."),
            key("model", Form::Text, "Remuda", "Model number, up to 40 characters."),
            key("allow_any_host", Form::Flag, "false", "Whether every host may connect."),
            key("hosts", Form::TextList, "[]", "Hosts that may connect."),
            key("controller_ids", Form::Text, "1-65519", "First and last id of its controllers."),
        ],
    ),
    question("subsystem.list", "All subsystems.", &[]),
    question("subsystem.show", "One subsystem, with the reservations that hosts have.", &[NQN]),
    method("subsystem.delete", "Removes a subsystem; its volumes stay.", &[NQN, CUT_OFF]),
    method(
        "subsystem.add_namespace",
        "Shows a volume to the subsystem's hosts.",
        &[
            NQN,
            key("volume", Form::Text, "required", "The volume."),
            key("nsid", NSID, "the next free one", "Namespace id."),
            key("hosts", Form::TextList, "every host that may connect", "The hosts that see it."),
            key("ana_group", ANA_GROUP, "1", "Its group for asymmetric access."),
            key("uuid", Form::Text, "the volume's", "Its identity, where other nodes show the same data."),
        ],
    ),
    method(
        "subsystem.set_ana",
        "Sets how a port reaches a group of namespaces; hosts with several paths go by it. A state of all ports takes the place of those of single ports.",
        &[
            NQN,
            key("state", ana::STATES, "required", "The state."),
            key("ana_group", ANA_GROUP, "1", "The group."),
            key("port", Form::Text, "every port", "The address of the port."),
        ],
    ),
    method(
        "subsystem.mask_namespace",
        "Shows a namespace to these hosts alone; for the others it does not exist.",
        &[
            NQN,
            key("nsid", NSID, "required", "Namespace id."),
            key("hosts", Form::TextList, "required", "The hosts that see it; an empty list is nobody."),
        ],
    ),
    method(
        "subsystem.unmask_namespace",
        "Shows a namespace to every host that may connect.",
        &[NQN, key("nsid", NSID, "required", "Namespace id.")],
    ),
    method(
        "subsystem.remove_namespace",
        "Hides a namespace; the volume stays.",
        &[NQN, key("nsid", NSID, "required", "Namespace id."), CUT_OFF],
    ),
    method(
        "subsystem.allow_host",
        "Lets a host connect. With a key it has to authenticate itself from its next connection on.",
        &[
            NQN,
            HOST,
            key(
                "tls_key",
                Form::Text,
                "as before",
                "File on the node with the key with which the host connects by TLS.",
            ),
            key("dhchap_key", Form::Text, "as before", "File on the node with the key that the host proves to have."),
            key(
                "dhchap_ctrl_key",
                Form::Text,
                "as before",
                "File with the key that the node proves to have when the host asks.",
            ),
            key(
                "dhchap_hash",
                Form::TextList,
                "as before, or all",
                "Hashes that may be used, the preferred one first.",
            ),
            key(
                "dhchap_dhgroup",
                Form::TextList,
                "as before, or all",
                "Groups that may be used, the preferred one first.",
            ),
            key(
                "grace",
                Form::Duration,
                "0s",
                "How long the keys until now are good beside the new ones, at most 90 days.",
            ),
            key("no_dhchap", Form::Flag, "false", "Take the host's key away."),
            key("no_dhchap_ctrl", Form::Flag, "false", "With the host's new key: take the node's key towards it away."),
            key("no_tls", Form::Flag, "false", "Take the host's key for TLS away."),
        ],
    ),
    method("subsystem.disallow_host", "Takes a host's permission back and disconnects it.", &[NQN, HOST]),
    method(
        "subsystem.allow_any_host",
        "Lets every host connect, or only those listed.",
        &[NQN, key("allow", Form::Flag, "required", "True: every host.")],
    ),
    method(
        "limit.set",
        "Limits a host, over all of its connections, or a volume, over all who use it; what is not given is not limited.",
        &[LIMITED_HOST, LIMITED_VOLUME, limit::IOPS, limit::BANDWIDTH],
    ),
    method(
        "limit.remove",
        "Limits a host or volume no longer; one that is not limited is not found.",
        &[LIMITED_HOST, LIMITED_VOLUME],
    ),
    question("limit.list", "Hosts and volumes that are limited.", &[]),
    question(
        "reservation.list",
        "What hosts have reserved, and who has registered.",
        &[key("nqn", Form::Text, "all", "One subsystem only.")],
    ),
    method(
        "reservation.clear",
        "Ends the registrations of hosts with a namespace and its reservation, for a host that is gone; the others are told.",
        &[
            key("target", Form::Text, "required", "The namespace, as NQN/NSID, or the volume that it alone shows."),
            key("host", Form::Text, "all", "End the registration of this host only: its NQN or host identifier."),
        ],
    ),
    question("referral.list", "Other discovery services that hosts are told of.", &[]),
    method("referral.add", "Tells hosts of another discovery service.", &[ADDRESS]),
    method("referral.remove", "Tells hosts of a discovery service no longer.", &[ADDRESS]),
    method(
        "vhost.create",
        "Opens a door for a virtual machine: a vhost-user-blk socket for a volume.",
        &[
            NAME,
            key("volume", Form::Text, "required", "The volume."),
            key("socket", Form::Text, "vhost-NAME.sock beside the RPC socket", "Where the socket is made."),
            key("queues", vhost::QUEUES, "16", "Most queues."),
            key("read_only", Form::Flag, "false", "Whether writes are refused."),
        ],
    ),
    question("vhost.list", "All doors for virtual machines.", &[]),
    question("vhost.show", "One door, with what it has done.", &[NAME]),
    method("vhost.delete", "Closes a door and disconnects its virtual machine; the volume stays.", &[NAME, CUT_OFF]),
    question(
        "host.list",
        "Hosts and where they are allowed, with their controllers.",
        &[key("nqn", Form::Text, "all", "One subsystem only.")],
    ),
];

/// What only the process around the node can do.
pub trait Surroundings {
    /// Begins an orderly stop.
    fn stop(&self);
    /// The log level now.
    fn log_level(&self) -> String;
    /// Changes the log level.
    fn set_log_level(&self, level: &str) -> Result<(), Refusal>;
}

/// The method called `name`.
pub fn find(name: &str) -> Option<&'static Method> {
    METHODS.iter().find(|method| method.name == name)
}

/// Carries out one request.
pub async fn call(
    node: &mut Node,
    around: &dyn Surroundings,
    method: &'static Method,
    params: Option<&Value>,
    transfer: Option<Transfer>,
) -> Result<Value, Refusal> {
    let table = match params {
        None | Some(Value::Null) => Table::new(),
        Some(Value::Object(object)) => from_json(object),
        Some(_) => {
            let next = "give parameters by name, as a JSON object";
            return Err(Refusal::invalid(format!("method '{}'", method.name), "params is not an object", next));
        }
    };
    if method.name == "device.create" {
        return device_create(node, &table).await;
    }
    if method.name == "device.set" {
        return device_set(node, table).await;
    }
    if method.name == "pool.create" {
        return pool_create(node, &table).await;
    }
    let mut problems = Problems::default();
    let params = Params::read(method, &table, &mut problems);
    if !problems.list.is_empty() {
        return Err(Refusal::invalid(format!("method '{}'", method.name), problems.one_line(), ""));
    }
    dispatch(node, around, method.name, params, transfer).await
}

async fn device_create(node: &mut Node, table: &Table) -> Result<Value, Refusal> {
    let mut problems = Problems::default();
    match read_device(table, None, true, &mut problems) {
        Some(entry) => {
            if let Some(path) = entry.def.resource_path()
                && !std::path::Path::new(path).is_absolute()
            {
                let next = PATH_FROM_ROOT;
                let object = format!("device '{}'", entry.def.name);
                return Err(Refusal::invalid(object, format!("{path} is not an absolute path"), next));
            }
            answer(node.device_create(entry.def).await?)
        }
        None => Err(Refusal::invalid("new device", problems.one_line(), "'remuda device kinds' lists kinds and keys")),
    }
}

async fn device_set(node: &mut Node, mut table: Table) -> Result<Value, Refusal> {
    let at = table.iter().position(|(key, _)| key.value == "name");
    match at.map(|at| table.remove(at).1.data) {
        Some(Data::Text(name)) => answer(node.device_set(&name, &table).await?),
        _ => Err(Refusal::invalid("method 'device.set'", "it has no 'name', or one that is no string", "")),
    }
}

async fn pool_create(node: &mut Node, table: &Table) -> Result<Value, Refusal> {
    let mut problems = Problems::default();
    let Some(PoolRequest { pool: def, cache, force }) = read_pool_request(table, &mut problems) else {
        return Err(Refusal::invalid("new pool", problems.one_line(), "see 'remuda pool create --help'"));
    };
    if let LogDef::Pmem { path, .. } = &def.log
        && !std::path::Path::new(path).is_absolute()
    {
        let next = PATH_FROM_ROOT;
        return Err(Refusal::invalid(format!("pool '{}'", def.name), format!("{path} is not an absolute path"), next));
    }
    answer(node.pool_create(def, cache, force).await?)
}

async fn forget_log(node: &mut Node, params: &Params) -> Result<Value, Refusal> {
    let wrong = |cause: &str, next: &str| Err(Refusal::invalid(format!("pool '{}'", params.name), cause, next));
    let [force, lose_data, volatile] = ["force", "lose_data", "volatile"].map(|flag| params.flags.contains(flag));
    let log = match (params.log.clone(), params.log_pmem.clone(), params.log_size) {
        (None, None, None) if !volatile => None,
        (Some(device), None, None) if !volatile => Some(LogDef::Device(device)),
        (None, Some(path), Some(_)) if !std::path::Path::new(&path).is_absolute() => {
            let next = "give the path from the root, since the node has another working directory";
            return wrong(&format!("{path} is not an absolute path"), next);
        }
        (None, Some(path), Some(size)) => Some(LogDef::Pmem { path, size, volatile }),
        _ => return wrong("its new log is a device or persistent memory", "give 'log', or 'log_pmem' with 'log_size'"),
    };
    match lose_data {
        true => answer(node.pool_forget_log(&params.name, log, force).await?),
        false => answer(node.pool_foresee_forget_log(&params.name, log, force).await?),
    }
}

async fn volume_create(node: &mut Node, params: &Params) -> Result<Value, Refusal> {
    let wrong = |cause: &str, next: &str| Err(Refusal::invalid(format!("volume '{}'", params.name), cause, next));
    match (&params.device, &params.pool) {
        (Some(device), None) if params.block_size.is_none() => {
            let force = params.flags.contains("force");
            answer(node.volume_create(&params.name, device, params.size, params.offset, force).await?)
        }
        (None, Some(pool)) if params.offset.is_none() => {
            let Some(size) = params.size else { return wrong("a volume in a pool needs a size", "") };
            let block_size = params.block_size.map_or(Ok(4096), u32::try_from).unwrap_or(u32::MAX);
            answer(node.pool_volume_create(&params.name, pool, size, block_size).await?)
        }
        (Some(_), None) => wrong("a volume on a device has the blocks of its device", "remove 'block_size'"),
        (None, Some(_)) => wrong("a volume in a pool has no offset", "remove 'offset'"),
        _ => wrong("it is on a device or in a pool", "give one of 'device' and 'pool'"),
    }
}

async fn host_allow(node: &mut Node, params: &Params) -> Result<Value, Refusal> {
    let object = format!("host '{}'", params.host);
    let wrong = |cause: &str, next: &str| Err(Refusal::invalid(&object, cause, next));
    let (nqn, host, no_tls) = (params.nqn(), params.host.as_str(), params.flags.contains("no_tls"));
    let (no_dhchap, dhchap_key) = (params.flags.contains("no_dhchap"), params.dhchap_key.as_ref());
    let no_dhchap_ctrl = params.flags.contains("no_dhchap_ctrl");
    let is_about_dhchap = no_dhchap_ctrl
        || params.dhchap_ctrl_key.is_some()
        || !params.dhchap_hash.is_empty()
        || !params.dhchap_dhgroup.is_empty();
    if params.dhchap_ctrl_key.is_some() && no_dhchap_ctrl {
        return wrong(
            "the node is to have a key and to have none",
            "give one of 'dhchap_ctrl_key' and 'no_dhchap_ctrl'",
        );
    }
    if dhchap_key.is_none() && is_about_dhchap {
        return wrong("these parameters belong to a key", "give 'dhchap_key' too");
    }
    if dhchap_key.is_none() && params.tls_key.is_none() && params.grace_ns.is_some() {
        return wrong("these parameters belong to a key", "give 'dhchap_key' or 'tls_key' too");
    }
    if dhchap_key.is_some() && no_dhchap {
        return wrong("it is to have a key and to have none", "give one of 'dhchap_key' and 'no_dhchap'");
    }
    if params.tls_key.is_some() && no_tls {
        return wrong("it is to have a key and to have none", "give one of 'tls_key' and 'no_tls'");
    }
    for path in dhchap_key.into_iter().chain(&params.dhchap_ctrl_key).chain(&params.tls_key) {
        // What looks like a key is met with its own words, and not repeated.
        if !std::path::Path::new(path).is_absolute() && !host_key::looks_like_key(path) {
            return wrong(&format!("{path} is not an absolute path"), PATH_FROM_ROOT);
        }
    }
    let grace = Duration::from_nanos(params.grace_ns.unwrap_or(0));
    let mut view = None;
    // What protects the host comes before what takes protection away: an error on the way leaves it no worse.
    if let Some(file) = &params.tls_key {
        host_key::read_tls_key(file).map_err(|(cause, next)| Refusal::failed(&object, cause, next))?;
    }
    if let Some(key_file) = dhchap_key {
        let invalid = |reason: String| Refusal::invalid(&object, reason, "");
        let new = NewHostKeys {
            key_file: key_file.clone(),
            ctrl_key_file: params.dhchap_ctrl_key.clone(),
            no_ctrl_key: no_dhchap_ctrl,
            hashes: host_key::hashes(&params.dhchap_hash).map_err(invalid)?,
            groups: host_key::groups(&params.dhchap_dhgroup).map_err(invalid)?,
            grace,
        };
        view = Some(node.host_set_key(nqn, host, &new).await?);
    }
    if let Some(file) = &params.tls_key {
        view = Some(node.host_set_tls_key(nqn, host, file, grace).await?);
    }
    if no_tls {
        view = Some(node.host_clear_tls_key(nqn, host).await?);
    }
    if no_dhchap {
        view = Some(node.host_clear_key(nqn, host).await?);
    }
    match view {
        Some(view) => answer(view),
        None => answer(node.host_allow(nqn, Some(host)).await?),
    }
}

async fn vhost_create(node: &mut Node, params: &Params) -> Result<Value, Refusal> {
    let socket = params.socket.as_ref().map(std::path::PathBuf::from);
    if let Some(path) = socket.as_ref().filter(|path| !path.is_absolute()) {
        let cause = format!("{} is not an absolute path", path.display());
        return Err(Refusal::invalid(format!("vhost '{}'", params.name), cause, PATH_FROM_ROOT));
    }
    let queues = params.queues.unwrap_or(vhost::QUEUES_DEFAULT);
    answer(node.vhost_create(&params.name, &params.volume, socket, queues, params.flag).await?)
}

fn answer(value: impl Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(value).map_err(|error| Refusal::failed("answer", error, ""))
}

async fn dispatch(
    node: &mut Node,
    around: &dyn Surroundings,
    name: &str,
    params: Params,
    transfer: Option<Transfer>,
) -> Result<Value, Refusal> {
    let done = |(): ()| json!({ "ok": true });
    match name {
        "rpc.discover" => answer(discover()),
        "node.status" => answer(node.status().await),
        "node.stop" => {
            around.stop();
            Ok(done(()))
        }
        "log.level" => {
            answer(LogLevelView { level: around.log_level(), configured: node.config().node.log_level.clone() })
        }
        "log.set_level" => around.set_log_level(&params.word).map(done),
        "config.diff" => answer(node.differences()),
        "stats" => answer(node.stats().await),
        "device.list" => answer(node.device_list()),
        "device.show" => answer(node.device_show(&params.name)?),
        "device.resize" => {
            answer(node.device_resize(&params.name, params.size.unwrap_or(0), params.flags.contains("force")).await?)
        }
        "device.accept_namespace" => answer(node.device_accept_namespace(&params.name)?),
        "device.open" => answer(node.device_open(&params.name, params.flag, params.leg.as_deref()).await?),
        "device.rejoin" => {
            answer(node.device_rejoin(&params.name, params.leg.as_deref().unwrap_or_default(), params.flag).await?)
        }
        "device.retire_zone" => {
            let is_readable = params.word == "read-only";
            let state = if is_readable { bdev::ZoneState::ReadOnly } else { bdev::ZoneState::Offline };
            answer(node.device_retire_zone(&params.name, params.nsid.unwrap_or(0).into(), state).await?)
        }
        "device.change_key" => {
            if !std::path::Path::new(&params.key_file).is_absolute() {
                let cause = format!("{} is not an absolute path", params.key_file);
                return Err(Refusal::invalid(format!("device '{}'", params.name), cause, PATH_FROM_ROOT));
            }
            answer(node.device_change_key(&params.name, &params.key_file).await?)
        }
        "device.erase" => {
            let [in_use, renew] = ["in_use", "renew"].map(|flag| params.flags.contains(flag));
            answer(node.device_erase(&params.name, &params.confirm, in_use, renew).await?)
        }
        "device.delete" => node.device_delete(&params.name).map(done),
        "pool.list" => answer(node.pool_list().await),
        "pool.show" => answer(node.pool_show(&params.name).await?),
        "pool.open" => answer(node.pool_open(&params.name).await?),
        "pool.set" => answer(node.pool_set(&params.name, params.reinsertion).await?),
        "pool.settle" => answer(node.pool_settle(&params.name).await?),
        "pool.grow" => answer(node.pool_grow(&params.name).await?),
        "pool.scrub" => {
            let rate = params.rate.unwrap_or(SCRUB_RATE_DEFAULT);
            answer(node.pool_scrub(&params.name, rate).await?)
        }
        "pool.scrub_stop" => answer(node.pool_scrub_stop(&params.name).await?),
        "pool.scrub_status" => answer(node.pool_scrub_status(&params.name).await?),
        "pool.check" => {
            let [repair, payloads, data] = ["repair", "payloads", "data"].map(|flag| params.flags.contains(flag));
            answer(node.pool_check(&params.name, CheckOptions { payloads, data, repair }).await?)
        }
        "pool.check_report" => answer(node.pool_check_report(&params.name)?),
        "pool.forget_log" => forget_log(node, &params).await,
        "pool.forget_log_report" => answer(node.pool_forget_log_report(&params.name)?),
        "pool.destroy" => node.pool_destroy(&params.name).await.map(done),
        "volume.create" => volume_create(node, &params).await,
        "volume.list" => answer(node.volume_list(&node.pool_list().await)),
        "volume.show" => answer(node.volume_look(&params.name).await?),
        "volume.resize" => {
            let size = NewSize::parse(&params.size_text);
            let size = size.map_err(|reason| Refusal::invalid(format!("volume '{}'", params.name), reason, ""))?;
            answer(
                node.volume_resize(&params.name, size, params.flags.contains("shrink"), params.flags.contains("force"))
                    .await?,
            )
        }
        "volume.delete" => {
            let [snapshots, background] = ["snapshots", "background"].map(|flag| params.flags.contains(flag));
            answer(node.volume_delete(&params.name, snapshots, background).await?)
        }
        "volume.clone" => answer(node.volume_clone(&params.snapshot, &params.name).await?),
        "volume.flatten" => answer(node.volume_flatten(&params.name).await?),
        "volume.flatten_stop" => answer(node.volume_flatten_stop(&params.name).await?),
        "volume.flatten_status" => answer(node.volume_flatten_status(&params.name).await?),
        "snapshot.create" => answer(node.snapshot_create(&params.names).await?),
        "snapshot.list" => {
            let volume = Some(params.volume.as_str()).filter(|volume| !volume.is_empty());
            answer(node.snapshot_list(volume).await?)
        }
        "snapshot.delete" => node.snapshot_delete(&params.names).await.map(done),
        "snapshot.diff" => {
            let from = params.offset.unwrap_or(0);
            answer(node.snapshot_diff(&params.snapshot, params.since.as_deref(), from, CHANGES_MAX).await?)
        }
        "snapshot.export" => answer(node.snapshot_export(&params.snapshot, params.since.as_deref(), transfer).await?),
        "snapshot.import" => {
            node.snapshot_import(&params.target, params.pool.as_deref(), params.flag, transfer).map(done)
        }
        "snapshot.roll_back" => answer(node.snapshot_roll_back(&params.names, params.flag).await?),
        "subsystem.create" => {
            let (serial, model) = (params.serial.clone(), params.model.clone());
            let hosts = params.hosts.clone().unwrap_or_default();
            let ids = params.controller_ids.as_deref().map(parse_controller_ids).transpose();
            let invalid = |reason| Refusal::invalid(format!("subsystem '{}'", params.nqn()), reason, "");
            let ids = ids.map_err(invalid)?;
            answer(node.subsystem_create(params.nqn(), serial, model, params.flag, hosts, ids).await?)
        }
        "subsystem.list" => answer(node.subsystem_list()),
        "subsystem.show" => answer(node.subsystem_show(params.nqn()).await?),
        "subsystem.delete" => node.subsystem_delete(params.nqn(), params.flag).await.map(done),
        "subsystem.add_namespace" => {
            let uuid = params.uuid.as_deref().map(check_uuid).transpose();
            let invalid = |reason| Refusal::invalid(format!("subsystem '{}'", params.nqn()), reason, "");
            let uuid = uuid.map_err(invalid)?;
            let (nsid, hosts, ana_group) = (params.nsid, params.hosts.clone(), params.ana_group);
            let new = NewNamespace { nsid, hosts, ana_group, uuid };
            answer(node.namespace_add(params.nqn(), &params.volume, new).await?)
        }
        "subsystem.set_ana" => {
            let state = AnaState::from_name(&params.word).unwrap_or_default();
            let group = params.ana_group.unwrap_or(1);
            answer(node.ana_set(params.nqn(), group, params.port.as_deref(), state).await?)
        }
        "subsystem.mask_namespace" => {
            let hosts = params.hosts.clone().unwrap_or_default();
            answer(node.namespace_mask(params.nqn(), params.nsid.unwrap_or(0), Some(hosts)).await?)
        }
        "subsystem.unmask_namespace" => {
            answer(node.namespace_mask(params.nqn(), params.nsid.unwrap_or(0), None).await?)
        }
        "subsystem.remove_namespace" => {
            answer(node.namespace_remove(params.nqn(), params.nsid.unwrap_or(0), params.flag).await?)
        }
        "subsystem.allow_host" => host_allow(node, &params).await,
        "subsystem.disallow_host" => answer(node.host_disallow(params.nqn(), Some(&params.host)).await?),
        "subsystem.allow_any_host" if params.flag => answer(node.host_allow(params.nqn(), None).await?),
        "subsystem.allow_any_host" => answer(node.host_disallow(params.nqn(), None).await?),
        "limit.set" if params.rates == Rates::default() => {
            let cause = "nothing is limited";
            Err(Refusal::invalid("method 'limit.set'", cause, "give 'iops' or 'bandwidth', or use limit.remove"))
        }
        "limit.set" => answer(node.limit_set(params.limited()?, params.rates).await?),
        "limit.remove" => answer(node.limit_remove(params.limited()?).await?),
        "limit.list" => answer(node.limit_list()),
        "reservation.list" => answer(node.reservation_list(params.nqn.as_deref()).await?),
        "reservation.clear" => answer(node.reservation_clear(&params.target, params.one_host.as_deref()).await?),
        "referral.list" => answer(node.referral_list()),
        "referral.add" => answer(node.referral_add(&params.address).await?),
        "referral.remove" => answer(node.referral_remove(&params.address).await?),
        "vhost.create" => vhost_create(node, &params).await,
        "vhost.list" => answer(node.vhost_list()),
        "vhost.show" => answer(node.vhost_show(&params.name)?),
        "vhost.delete" => node.vhost_delete(&params.name, params.flag).await.map(done),
        "host.list" => answer(node.host_list(params.nqn.as_deref()).await?),
        other => {
            Err(Refusal::new(RefusalKind::Failed, format!("method '{other}'"), "it is declared but does nothing", ""))
        }
    }
}

fn discover() -> Value {
    let methods = METHODS.iter().map(|method| {
        let params = method.params.iter().map(|param| {
            json!({ "name": param.name, "form": param.form.describe(), "default": param.default, "doc": param.doc })
        });
        json!({ "name": method.name, "doc": method.doc, "params": params.collect::<Vec<_>>() })
    });
    json!({ "methods": methods.collect::<Vec<_>>() })
}
