//! `remuda device|volume|subsystem|host`.

use super::device_text::{definition, show_device};
use super::docs::with_commands;
use super::exit::{Exit, Failure};
use super::hosts;
use super::{Context, output, reservations, understood};
use crate::config::ANY_HOST_WITH_KEYS;
use crate::config::device::KINDS;
use crate::config::host_key::looks_like_key;
use crate::config::reference;
use crate::node::view::{AnaView, DeviceView, HostView, SubsystemView};
use base::ByteSize;
use clap::{ArgGroup, Subcommand};
use serde_json::{Map, Value, json};

#[derive(Subcommand)]
pub enum DeviceCommand {
    /// Open a device and remember it
    #[command(after_help = "\
Keys are those of the configuration file; 'remuda device kinds KIND' lists them.

Examples:
  remuda device create fast --kind mem size=1GiB
  remuda device create disk --kind file path=/var/tmp/disk.img size=10GiB
  remuda device create both --kind stripe devices=disk0,disk1 chunk=64KiB
  remuda device create far --kind nvmf address=10.0.0.7:4420 nqn=nqn.2026-11.io.remuda:disks")]
    Create {
        /// Name
        name: String,
        /// Kind; 'remuda device kinds' lists them
        #[arg(long)]
        kind: String,
        /// Keys of the kind, such as size=1GiB
        #[arg(value_name = "KEY=VALUE")]
        keys: Vec<String>,
    },
    /// List devices
    List,
    /// Show one device
    Show {
        /// Name
        name: String,
    },
    /// Change a device's size
    Resize {
        /// Name
        name: String,
        /// New size, such as 20GiB
        size: String,
        /// Cut a volume with it even if hosts that see it are connected
        #[arg(long)]
        force: bool,
    },
    /// Change a delay, error, rate-limit or flash-cache device, or the paths of a remote one, while it is in use
    #[command(after_help = "\
Keys are those of the configuration file; 'off' takes one back. A device made by command keeps its changes; one of the
configuration file starts with those of the file again.

Examples:
  remuda device set slow read=2ms jitter=500us
  remuda device set limit iops=5000 bandwidth=off
  remuda device set faulty op=write rate=0.01 fault=fail
  remuda device set faulty rate=off
  remuda device set far paths=10.0.0.8:4420")]
    Set {
        /// Name
        name: String,
        /// What changes, such as read=2ms
        #[arg(value_name = "KEY=VALUE", required = true)]
        keys: Vec<String>,
    },
    /// Take the namespace that the paths of a remote device show now for that device
    #[command(after_help = "\
A path that leads to another namespace than the device was is not used: by mistake, its data would be overwritten. This says that
the namespace was replaced on purpose. It has to have the same block size and room for the volumes, and nothing may have used
the device since the node started.

Example:
  remuda device accept-namespace far")]
    AcceptNamespace {
        /// The remote device
        name: String,
    },
    /// Try again to open a device that is not open
    #[command(after_help = "\
A mirror waits for a leg that may have newer writes than those that are there, and refuses legs that were used without each
other. Whoever knows better says so here; writes that only the other leg has are lost.

Examples:
  remuda device open disk0
  remuda device open pair --degraded
  remuda device open pair --prefer disk1")]
    Open {
        /// Name
        name: String,
        /// A mirror: go on without absent legs, although these may have newer writes
        #[arg(long)]
        degraded: bool,
        /// A mirror whose legs were used without each other: the leg whose data survive
        #[arg(long, value_name = "LEG")]
        prefer: Option<String>,
    },
    /// Take a part that failed, or was refused, into its mirror or parity device again, or a new drive in its place
    #[command(after_help = "\
What the part lacks is written to it while the device is used; 'remuda device show' tells how far that is. A new drive of a
parity device is what is found under the failed one's path.

Examples:
  remuda device rejoin pair disk1
  remuda device rejoin array disk3 --overwrite")]
    Rejoin {
        /// The mirror or parity device
        name: String,
        /// The device that is the part
        leg: String,
        /// Give up whatever the part holds
        #[arg(long)]
        overwrite: bool,
    },
    /// Take a zone of a zoned device out of use, for good
    RetireZone {
        /// The zoned device
        name: String,
        /// Which, from 0 on
        zone: u64,
        /// Whether it can still be read
        #[arg(value_parser = ["read-only", "offline"])]
        state: String,
    },
    /// Give an encrypted device another key; the old one opens it no longer
    #[command(after_help = "\
Data are not rewritten: the key that encrypts them is wrapped anew. Keep the old key file until the command has ended.

Example:
  (umask 077; head -c 64 /dev/urandom > new.key) && remuda device change-key secret new.key")]
    ChangeKey {
        /// Name
        name: String,
        /// File with the new key
        key_file: String,
    },
    /// Destroy the key of an encrypted device, and with it all data, for good
    Erase {
        /// Name
        name: String,
        /// The device's name again
        #[arg(long, value_name = "NAME")]
        confirm: Option<String>,
        /// Even if something stands on it
        #[arg(long)]
        in_use: bool,
        /// Put a new key in its place: the device stays open, with noise in it
        #[arg(long)]
        renew: bool,
    },
    /// Forget a device; what its file holds stays
    Delete {
        /// Name
        name: String,
    },
    /// List the kinds of devices, or the keys of one
    Kinds {
        /// Kind
        kind: Option<String>,
    },
}

#[derive(Subcommand)]
pub enum SubsystemCommand {
    /// Create a subsystem
    #[command(after_help = "\
Examples:
  remuda subsystem create nqn.2026-11.io.remuda:disks --allow-any-host
  remuda subsystem create nqn.2026-11.io.remuda:disks --host nqn.2014-08.org.nvmexpress:uuid:...")]
    Create {
        /// NVMe name
        nqn: String,
        /// Let every host connect
        #[arg(long, conflicts_with = "host")]
        allow_any_host: bool,
        /// A host that may connect; can be repeated
        #[arg(long, value_name = "NQN")]
        host: Vec<String>,
        /// Serial number [default: generated]
        #[arg(long)]
        serial: Option<String>,
        /// Model number [default: Remuda]
        #[arg(long)]
        model: Option<String>,
        /// First and last id of its controllers [default: 1-65519]
        #[arg(long, value_name = "FIRST-LAST")]
        controller_ids: Option<String>,
    },
    /// List subsystems
    List,
    /// Show one subsystem, and how to connect
    Show {
        /// NVMe name
        nqn: String,
    },
    /// Remove a subsystem; its volumes stay
    Delete {
        /// NVMe name
        nqn: String,
        /// Even if hosts are connected
        #[arg(long)]
        force: bool,
    },
    /// Show a volume to the subsystem's hosts
    AddNamespace {
        /// NVMe name
        nqn: String,
        /// Volume
        volume: String,
        /// Namespace id [default: the next free one]
        #[arg(long)]
        nsid: Option<u32>,
        /// A host that sees it; can be repeated [default: every host that may connect]
        #[arg(long, value_name = "NQN")]
        host: Vec<String>,
        /// Its group for asymmetric access [default: 1]
        #[arg(long, value_name = "GROUP")]
        ana_group: Option<u32>,
        /// Its identity, where other nodes show the same data [default: the volume's]
        #[arg(long)]
        uuid: Option<String>,
    },
    /// Set how a port reaches a group of namespaces; hosts with several paths go by it
    #[command(after_help = "\
States: optimized, non-optimized, inaccessible, persistent-loss, change. Hosts use optimized ports, then others, and take
commands that an inaccessible port refuses to another one. Without --port the state is that of every port.

Examples:
  remuda subsystem set-ana NQN inaccessible --port 10.0.0.1:4420     before work on that network
  remuda subsystem set-ana NQN non-optimized --port 10.0.0.2:4420 --group 2
  remuda subsystem set-ana NQN optimized")]
    SetAna {
        /// NVMe name
        nqn: String,
        /// The state
        state: String,
        /// The address of the port [default: every port]
        #[arg(long, value_name = "ADDRESS")]
        port: Option<String>,
        /// The group [default: 1]
        #[arg(long)]
        group: Option<u32>,
    },
    /// Show a namespace to some hosts alone; for the others it does not exist
    #[command(group(ArgGroup::new("seen_by").required(true).args(["host", "nobody"])), after_help = "\
Hosts for which the namespace comes or goes are told; commands under way complete. Whoever may not connect sees nothing.

Examples:
  remuda subsystem mask-namespace NQN 2 --host nqn.2014-08.org.nvmexpress:uuid:...
  remuda subsystem mask-namespace NQN 2 --nobody")]
    MaskNamespace {
        /// NVMe name
        nqn: String,
        /// Namespace id
        nsid: u32,
        /// A host that sees it; can be repeated
        #[arg(long, value_name = "NQN")]
        host: Vec<String>,
        /// No host sees it
        #[arg(long)]
        nobody: bool,
    },
    /// Show a namespace to every host that may connect
    UnmaskNamespace {
        /// NVMe name
        nqn: String,
        /// Namespace id
        nsid: u32,
    },
    /// Hide a namespace from the subsystem's hosts; the volume stays
    RemoveNamespace {
        /// NVMe name
        nqn: String,
        /// Namespace id
        nsid: u32,
        /// Even if hosts that see it are connected
        #[arg(long)]
        force: bool,
    },
}

/// How a host authenticates, and with which key it connects.
#[derive(clap::Args)]
pub struct HostKeyArgs {
    /// File with the key with which the host connects by TLS; see 'remuda key generate --tls'
    #[arg(long, value_name = "FILE", requires = "host", conflicts_with = "no_tls")]
    tls_key: Option<String>,
    /// Take the host's key for TLS away
    #[arg(long, requires = "host")]
    no_tls: bool,
    /// File with the key that the host proves to have; see 'remuda key generate'
    #[arg(long, value_name = "FILE", requires = "host", conflicts_with = "no_dhchap")]
    dhchap_key: Option<String>,
    /// File with the key that the node proves to have when the host asks [default: as before]
    #[arg(long, value_name = "FILE", requires = "dhchap_key")]
    dhchap_ctrl_key: Option<String>,
    /// The node has no key of its own towards the host any more
    #[arg(long, requires = "dhchap_key", conflicts_with = "dhchap_ctrl_key")]
    no_dhchap_ctrl: bool,
    /// Hashes that may be used, the preferred one first [default: as before, or sha512,sha384,sha256]
    #[arg(long, value_name = "HASH,..", value_delimiter = ',', requires = "dhchap_key")]
    dhchap_hash: Vec<String>,
    /// Diffie-Hellman groups that may be used, the preferred one first [default: as before, or all, ffdhe3072 first]
    #[arg(long, value_name = "GROUP,..", value_delimiter = ',', requires = "dhchap_key")]
    dhchap_dhgroup: Vec<String>,
    /// How long the key until now is good beside the new one
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    grace: Option<std::time::Duration>,
    /// Take the host's key away
    #[arg(long, requires = "host")]
    no_dhchap: bool,
}

impl HostKeyArgs {
    fn store(&self, params: &mut Map<String, Value>) {
        let dhchap = [("dhchap_key", &self.dhchap_key), ("dhchap_ctrl_key", &self.dhchap_ctrl_key)];
        for (name, file) in dhchap.into_iter().chain([("tls_key", &self.tls_key)]) {
            params.extend(file.iter().map(|file| (name.to_string(), json!(file))));
        }
        make_path_absolute(params);
        for (name, words) in [("dhchap_hash", &self.dhchap_hash), ("dhchap_dhgroup", &self.dhchap_dhgroup)] {
            params.extend((!words.is_empty()).then(|| (name.to_string(), json!(words))));
        }
        params.extend(self.grace.map(|grace| ("grace".to_string(), json!(format!("{}s", grace.as_secs())))));
        for (name, given) in
            [("no_dhchap", self.no_dhchap), ("no_dhchap_ctrl", self.no_dhchap_ctrl), ("no_tls", self.no_tls)]
        {
            params.extend(given.then(|| (name.to_string(), json!(true))));
        }
    }
}

#[derive(Subcommand)]
pub enum HostCommand {
    /// Let a host connect to a subsystem, give it a key, or another one
    #[command(group(ArgGroup::new("who").required(true).args(["host", "any"])), after_help = "\
With a key the host has to authenticate itself (DH-HMAC-CHAP) or to connect by TLS from its next connection on; connections that
exist stay.

Examples:
  remuda host allow NQN HOST
  remuda key generate host.key && remuda host allow NQN HOST --dhchap-key host.key
  remuda host allow NQN HOST --dhchap-key new.key --grace 7d
  remuda key generate --tls host.tls && remuda host allow NQN HOST --tls-key host.tls")]
    Allow {
        /// The subsystem
        nqn: String,
        /// The host's NQN
        host: Option<String>,
        /// Every host
        #[arg(long)]
        any: bool,
        #[command(flatten)]
        keys: HostKeyArgs,
    },
    /// Take a host's permission back; it is disconnected
    #[command(group(ArgGroup::new("who").required(true).args(["host", "any"])))]
    Disallow {
        /// The subsystem
        nqn: String,
        /// The host's NQN
        host: Option<String>,
        /// Every host that is not listed
        #[arg(long)]
        any: bool,
    },
    /// List hosts and where they are allowed
    List {
        /// One subsystem only
        nqn: Option<String>,
    },
}

pub fn device(context: &Context, command: DeviceCommand) -> Result<(), Failure> {
    match command {
        DeviceCommand::Create { name, kind, keys } => {
            let mut params = key_values(&keys)?;
            params.insert("name".into(), json!(name));
            params.insert("kind".into(), json!(kind));
            make_path_absolute(&mut params);
            context.call_and_show("device.create", Value::Object(params), |device: DeviceView| {
                format!("created device '{}': {}, {}", device.name, device.kind, ByteSize(device.size))
            })
        }
        DeviceCommand::List => context.call_and_show("device.list", json!({}), |devices: Vec<DeviceView>| {
            let rows = devices.into_iter().map(|device| {
                vec![
                    device.name,
                    device.kind,
                    ByteSize(device.size).to_string(),
                    device.block_size.to_string(),
                    ByteSize(device.free).to_string(),
                    summarise(&device.used_by),
                    format!("{:?}", device.origin).to_lowercase(),
                    device.state,
                ]
            });
            output::table(&["NAME", "KIND", ">SIZE", ">BLOCK", ">FREE", "USED BY", "ORIGIN", "STATE"], rows.collect())
        }),
        DeviceCommand::Show { name } => context.call_and_show("device.show", json!({ "name": name }), show_device),
        DeviceCommand::Resize { name, size, force } => {
            let params = json!({ "name": name, "size": size, "force": force });
            context.call_and_show("device.resize", params, |device: DeviceView| {
                let grow = device.used_by.iter().filter_map(|user| user.strip_prefix("pool '")?.strip_suffix('\''));
                let grow: String =
                    grow.map(|pool| format!("\nthe pool uses it after: remuda pool grow {pool}")).collect();
                format!("device '{}' is now {}{grow}", device.name, ByteSize(device.size))
            })
        }
        DeviceCommand::Set { name, keys } => {
            let mut params = key_values(&keys)?;
            if params.insert("name".into(), json!(name)).is_some() {
                return Err(Failure::new(Exit::Usage, "a device keeps its name"));
            }
            context.call_and_show("device.set", Value::Object(params), |device: DeviceView| {
                format!("device '{}' now has {}", device.name, definition(&device))
            })
        }
        DeviceCommand::AcceptNamespace { name } => {
            let params = json!({ "name": name });
            context.call_and_show("device.accept_namespace", params, |device: DeviceView| {
                format!("device '{}' is another namespace now: {}", device.name, ByteSize(device.size))
            })
        }
        DeviceCommand::Open { name, degraded, prefer } => {
            let mut params = json!({ "name": name, "degraded": degraded });
            if let Some(leg) = prefer {
                params["prefer"] = json!(leg);
            }
            context.call_and_show("device.open", params, |device: DeviceView| {
                format!("device '{}': {}", device.name, device.state)
            })
        }
        DeviceCommand::Rejoin { name, leg, overwrite } => {
            let params = json!({ "name": name, "leg": leg, "overwrite": overwrite });
            context.call_and_show("device.rejoin", params, |device: DeviceView| {
                format!("device '{}': {}", device.name, device.state)
            })
        }
        DeviceCommand::RetireZone { name, zone, state } => {
            let params = json!({ "name": name, "zone": zone, "state": state });
            context.call_and_show("device.retire_zone", params, |device: DeviceView| {
                format!("device '{}': zone {zone} is {state} now", device.name)
            })
        }
        DeviceCommand::ChangeKey { name, key_file } => {
            let mut params = Map::from_iter([("name".into(), json!(name)), ("key_file".into(), json!(key_file))]);
            make_path_absolute(&mut params);
            context.call_and_show("device.change_key", Value::Object(params), |device: DeviceView| {
                let mut text = format!("device '{}' is opened by {key_file} now", device.name);
                if device.differs_from_file {
                    text += "\nname that file in the configuration too; until then the node remembers it";
                }
                text
            })
        }
        DeviceCommand::Erase { name, confirm, in_use, renew } => {
            let Some(confirm) = confirm else {
                let message =
                    format!("this destroys all data of device '{name}'; add --confirm {name} if that is meant");
                return Err(Failure::new(Exit::Usage, message));
            };
            let text = format!("erased device '{name}': its data cannot be read any more");
            let params = json!({ "name": name, "confirm": confirm, "in_use": in_use, "renew": renew });
            context.call_and_show("device.erase", params, |_: Value| text)
        }
        DeviceCommand::Delete { name } => {
            let text = format!("deleted device '{name}'");
            context.call_and_show("device.delete", json!({ "name": name }), |_: Value| text)
        }
        DeviceCommand::Kinds { kind } => kinds(context, kind),
    }
}

fn kinds(context: &Context, kind: Option<String>) -> Result<(), Failure> {
    let Some(kind) = kind else {
        if context.json {
            let kinds: Vec<Value> =
                KINDS.iter().map(|(name, doc, _)| json!({ "kind": name, "doc": with_commands(doc) })).collect();
            output::print_json(&Value::Array(kinds));
        } else {
            let rows = KINDS.iter().map(|(name, doc, _)| vec![name.to_string(), with_commands(doc)]).collect();
            output::print_line(&output::table(&["KIND", "WHAT IT IS"], rows));
        }
        return Ok(());
    };
    let unknown = || {
        let near = crate::config::nearest(&kind, KINDS.iter().map(|(name, _, _)| *name));
        let next =
            near.map_or("'remuda device kinds' lists them".to_string(), |near| format!("did you mean '{near}'?"));
        Failure::new(Exit::NotFound, format!("there is no kind of device '{kind}'; {next}"))
    };
    let text = with_commands(&reference::kind_text(&kind).ok_or_else(unknown)?);
    if context.json {
        let keys = crate::config::device::keys_of(&kind)
            .unwrap_or_default()
            .iter()
            .map(|key| json!({ "key": key.name, "form": key.form.describe(), "default": key.default, "doc": with_commands(key.doc) }));
        output::print_json(&json!({ "kind": kind, "keys": keys.collect::<Vec<_>>() }));
    } else {
        output::print_line(text.trim_end());
    }
    Ok(())
}

/// `key=value` words as a JSON object of strings; the node reads them by the rules of the kind.
pub fn key_values(words: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut map = Map::new();
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            return Err(Failure::new(Exit::Usage, format!("'{word}' is not of the form KEY=VALUE, such as size=1GiB")));
        };
        if map.insert(key.to_string(), json!(value)).is_some() {
            return Err(Failure::new(Exit::Usage, format!("'{key}' is given twice")));
        }
    }
    Ok(map)
}

/// The node has a working directory of its own.
fn make_path_absolute(params: &mut Map<String, Value>) {
    for key in ["path", "key_file", "dhchap_key", "dhchap_ctrl_key", "tls_key"] {
        if let Some(Value::String(path)) = params.get_mut(key)
            && !looks_like_key(path)
            && let Ok(absolute) = std::path::absolute(&*path)
        {
            *path = absolute.to_string_lossy().into_owned();
        }
    }
}

pub(super) fn summarise(names: &[String]) -> String {
    match names {
        [] => "-".to_string(),
        [one] => one.clone(),
        [one, two] => format!("{one}, {two}"),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

pub fn subsystem(context: &Context, command: SubsystemCommand) -> Result<(), Failure> {
    match command {
        SubsystemCommand::Create { nqn, allow_any_host, host, serial, model, controller_ids } => {
            let mut params = json!({ "nqn": nqn, "allow_any_host": allow_any_host, "hosts": host });
            for (key, value) in [("serial", serial), ("model", model), ("controller_ids", controller_ids)] {
                if let Some(value) = value {
                    params[key] = json!(value);
                }
            }
            context.call_and_show("subsystem.create", params, |subsystem: SubsystemView| {
                let mut text = format!("created subsystem '{}'", subsystem.nqn);
                if !subsystem.allow_any_host && subsystem.hosts.is_empty() {
                    text += &format!("\nno host may connect yet: remuda host allow {} HOST-NQN", subsystem.nqn);
                }
                text
            })
        }
        SubsystemCommand::List => {
            context.call_and_show("subsystem.list", json!({}), |subsystems: Vec<SubsystemView>| {
                let rows = subsystems.into_iter().map(|subsystem| {
                    let volumes: Vec<String> = subsystem.namespaces.iter().map(|one| one.volume.clone()).collect();
                    let hosts =
                        if subsystem.allow_any_host { "any".to_string() } else { subsystem.hosts.len().to_string() };
                    let origin =
                        format!("{:?}{}", subsystem.origin, if subsystem.differs_from_file { ", changed" } else { "" });
                    vec![subsystem.nqn, subsystem.serial, hosts, summarise(&volumes), origin.to_lowercase()]
                });
                output::table(&["NQN", "SERIAL", "HOSTS", "VOLUMES", "ORIGIN"], rows.collect())
            })
        }
        SubsystemCommand::Show { nqn } => {
            let shown = context.call("subsystem.show", json!({ "nqn": nqn }))?;
            if context.json {
                output::print_json(&shown);
                return Ok(());
            }
            let hosts = understood(context.call("host.list", json!({ "nqn": nqn }))?)?;
            output::print_line(&show_subsystem(&understood(shown)?, hosts));
            Ok(())
        }
        SubsystemCommand::Delete { nqn, force } => {
            let text = format!("deleted subsystem '{nqn}'");
            context.call_and_show("subsystem.delete", json!({ "nqn": nqn, "force": force }), |_: Value| text)
        }
        SubsystemCommand::AddNamespace { nqn, volume, nsid, host, ana_group, uuid } => {
            let mut params = json!({ "nqn": nqn, "volume": volume });
            if !host.is_empty() {
                params["hosts"] = json!(host);
            }
            if let Some(group) = ana_group {
                params["ana_group"] = json!(group);
            }
            if let Some(uuid) = uuid {
                params["uuid"] = json!(uuid);
            }
            if let Some(nsid) = nsid {
                params["nsid"] = json!(nsid);
            }
            context.call_and_show("subsystem.add_namespace", params, |subsystem: SubsystemView| {
                let added = subsystem.namespaces.iter().find(|namespace| namespace.volume == volume);
                let nsid = added.map_or(0, |namespace| namespace.nsid);
                format!("volume '{volume}' is namespace {nsid} of '{}'", subsystem.nqn)
            })
        }
        SubsystemCommand::SetAna { nqn, state, port, group } => {
            let mut params = json!({ "nqn": nqn, "state": state });
            let at = port.as_ref().map_or("every port".to_string(), |port| format!("port {port}"));
            let text = format!("group {} of '{nqn}' is {state} at {at}", group.unwrap_or(1));
            if let Some(port) = port {
                params["port"] = json!(port);
            }
            if let Some(group) = group {
                params["ana_group"] = json!(group);
            }
            context.call_and_show("subsystem.set_ana", params, |_: Value| text)
        }
        SubsystemCommand::MaskNamespace { nqn, nsid, host, .. } => {
            let params = json!({ "nqn": nqn, "nsid": nsid, "hosts": host });
            let seen_by = match host.len() {
                0 => "nobody".to_string(),
                1 => host[0].clone(),
                several => format!("{several} hosts"),
            };
            let text = format!("namespace {nsid} of '{nqn}' is seen by {seen_by}");
            context.call_and_show("subsystem.mask_namespace", params, |_: Value| text)
        }
        SubsystemCommand::UnmaskNamespace { nqn, nsid } => {
            let text = format!("namespace {nsid} of '{nqn}' is seen by every host that may connect");
            context.call_and_show("subsystem.unmask_namespace", json!({ "nqn": nqn, "nsid": nsid }), |_: Value| text)
        }
        SubsystemCommand::RemoveNamespace { nqn, nsid, force } => {
            let text = format!("removed namespace {nsid} of '{nqn}'");
            let params = json!({ "nqn": nqn, "nsid": nsid, "force": force });
            context.call_and_show("subsystem.remove_namespace", params, |_: Value| text)
        }
    }
}

fn show_subsystem(subsystem: &SubsystemView, hosts: Vec<HostView>) -> String {
    let connects = connect_lines(subsystem, &hosts);
    let hosts = if subsystem.allow_any_host { "any".to_string() } else { subsystem.hosts.join(", ") };
    let mut text = output::facts(&[
        ("nqn", subsystem.nqn.clone()),
        ("serial", subsystem.serial.clone()),
        ("model", subsystem.model.clone()),
        ("hosts", hosts),
        ("origin", format!("{:?}", subsystem.origin).to_lowercase()),
    ]);
    let rows = subsystem.namespaces.iter().map(|namespace| {
        let uuid = namespace.uuid.map_or("-".to_string(), |uuid| uuid.to_string());
        let size = ByteSize(namespace.size).to_string();
        let seen_by = match &namespace.hosts {
            None => "all".to_string(),
            Some(hosts) if hosts.is_empty() => "nobody".to_string(),
            Some(hosts) => hosts.join(", "),
        };
        let group = namespace.ana_group.to_string();
        vec![namespace.nsid.to_string(), namespace.volume.clone(), size, uuid, group, seen_by]
    });
    if !subsystem.namespaces.is_empty() {
        text += "\n\n";
        text += &output::table(&[">NSID", "VOLUME", ">SIZE", "UUID", ">GROUP", "SEEN BY"], rows.collect());
    }
    if !subsystem.ana.is_empty() {
        let row = |one: &AnaView| {
            let port = one.port.clone().unwrap_or("every other".to_string());
            vec![one.group.to_string(), port, one.state.clone()]
        };
        text += "\n\n";
        text += &output::table(&[">GROUP", "PORT", "ACCESS"], subsystem.ana.iter().map(row).collect());
    }
    for reservation in &subsystem.reservations {
        text += "\n\n";
        text += &reservations::show(&format!("namespace {}", reservation.nsid), reservation);
    }
    text + &connects
}

/// How Linux hosts connect, with what this subsystem asks of them: a name that it knows, and keys.
fn connect_lines(subsystem: &SubsystemView, known: &[HostView]) -> String {
    let lines = |addresses: &[String], more: &str| -> String {
        let lines = addresses.iter().filter_map(|address| connect_line(address, &subsystem.nqn));
        lines.map(|line| format!("\n\nfrom a Linux host: {line}{more}")).collect()
    };
    let host = match &subsystem.hosts[..] {
        _ if subsystem.allow_any_host => "",
        [host] => &format!(" --hostnqn {host}"),
        _ => " --hostnqn HOST-NQN",
    };
    let keys: Vec<_> = known.iter().filter_map(|host| host.dhchap.as_ref()).collect();
    let secret = match keys.iter().any(|key| key.both_sides) {
        _ if keys.is_empty() => "",
        true => " --dhchap-secret \"$(cat KEYFILE)\" --dhchap-ctrl-secret \"$(cat NODE-KEYFILE)\"",
        false => " --dhchap-secret \"$(cat KEYFILE)\"",
    };
    let mut text = lines(&subsystem.addresses, &format!("{host}{secret}"));
    text += &lines(&subsystem.tls_addresses, &format!("{host}{secret} --tls"));
    text
}

/// The command that attaches a Linux host.
pub fn connect_line(address: &str, nqn: &str) -> Option<String> {
    let address: std::net::SocketAddr = address.parse().ok()?;
    Some(format!("nvme connect -t tcp -a {} -s {} -n {nqn}", address.ip(), address.port()))
}

pub fn host(context: &Context, command: HostCommand) -> Result<(), Failure> {
    match command {
        HostCommand::Allow { nqn, host: Some(host), keys, .. } => {
            let has_key = keys.dhchap_key.is_some() || keys.tls_key.is_some();
            let with = if has_key { " with its key" } else { "" };
            let text = format!("'{host}' may connect to '{nqn}'{with}");
            let mut params = Map::from_iter([("nqn".into(), json!(nqn)), ("host".into(), json!(host))]);
            keys.store(&mut params);
            context.call_and_show("subsystem.allow_host", Value::Object(params), |subsystem: SubsystemView| {
                match has_key && subsystem.allow_any_host {
                    true => format!("{text}\nwarning: every host may connect: {ANY_HOST_WITH_KEYS}"),
                    false => text,
                }
            })
        }
        HostCommand::Disallow { nqn, host: Some(host), .. } => {
            let text = format!("'{host}' may no longer connect to '{nqn}'");
            context.call_and_show("subsystem.disallow_host", json!({ "nqn": nqn, "host": host }), |_: Value| text)
        }
        HostCommand::Allow { nqn, host: None, .. } => {
            let text = format!("every host may connect to '{nqn}'");
            context.call_and_show("subsystem.allow_any_host", json!({ "nqn": nqn, "allow": true }), |_: Value| text)
        }
        HostCommand::Disallow { nqn, host: None, .. } => {
            let text = format!("only listed hosts may connect to '{nqn}'");
            context.call_and_show("subsystem.allow_any_host", json!({ "nqn": nqn, "allow": false }), |_: Value| text)
        }
        HostCommand::List { nqn } => {
            let params = nqn.map_or(json!({}), |nqn| json!({ "nqn": nqn }));
            context.call_and_show("host.list", params, hosts::table)
        }
    }
}
