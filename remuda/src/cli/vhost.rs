//! `remuda vhost`.

use super::exit::Failure;
use super::{Context, output};
use crate::node::view::VhostView;
use base::ByteSize;
use clap::Subcommand;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum VhostCommand {
    /// Open a door: a vhost-user-blk socket for a volume
    #[command(after_help = "\
The virtual machine needs memory that can be shared, and QEMU one queue or more:
  -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem
  -chardev socket,id=disk0,path=PATH,reconnect=1 -device vhost-user-blk-pci,chardev=disk0

Examples:
  remuda vhost create vm0 --volume v0
  remuda vhost create vm1 --volume v1 --path /run/vm/vm1.sock --queues 4 --read-only")]
    Create {
        /// Name
        name: String,
        /// The volume
        #[arg(long)]
        volume: String,
        /// Where the socket is made [default: vhost-NAME.sock beside the RPC socket]
        #[arg(long)]
        path: Option<PathBuf>,
        /// Most queues [default: 16]
        #[arg(long)]
        queues: Option<u16>,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
    },
    /// List doors
    List,
    /// Show one door, with what it has done
    Show {
        /// Name
        name: String,
    },
    /// Close a door and disconnect its virtual machine; the volume stays
    Delete {
        /// Name
        name: String,
        /// Even if a virtual machine is connected
        #[arg(long)]
        force: bool,
    },
}

pub fn vhost(context: &Context, command: VhostCommand) -> Result<(), Failure> {
    match command {
        VhostCommand::Create { name, volume, path, queues, read_only } => {
            let mut params = json!({ "name": name, "volume": volume, "read_only": read_only });
            if let Some(path) = path {
                let absolute = std::path::absolute(&path).unwrap_or(path);
                params["socket"] = json!(absolute.display().to_string());
            }
            if let Some(queues) = queues {
                params["queues"] = json!(queues);
            }
            context.call_and_show("vhost.create", params, |door: VhostView| {
                let socket = &door.socket;
                format!(
                    "created vhost '{}' for volume '{}'\n\nqemu-system-x86_64 ... \\\n  \
                     -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\\n  \
                     -chardev socket,id={name},path={socket},reconnect=1 -device vhost-user-blk-pci,chardev={name}",
                    door.name,
                    door.volume,
                    name = door.name,
                )
            })
        }
        VhostCommand::List => context.call_and_show("vhost.list", json!({}), |doors: Vec<VhostView>| {
            let rows = doors.into_iter().map(|door| {
                let origin = format!("{:?}", door.origin).to_lowercase();
                vec![door.name, door.volume, door.state, door.queues.to_string(), door.socket, origin]
            });
            output::table(&["NAME", "VOLUME", "STATE", ">QUEUES", "SOCKET", "ORIGIN"], rows.collect())
        }),
        VhostCommand::Show { name } => context.call_and_show("vhost.show", json!({ "name": name }), show),
        VhostCommand::Delete { name, force } => {
            let text = format!("deleted vhost '{name}'");
            context.call_and_show("vhost.delete", json!({ "name": name, "force": force }), |_: Value| text)
        }
    }
}

fn show(door: VhostView) -> String {
    let peer = door.peer.map_or("nobody".to_string(), |pid| format!("process {pid}"));
    let counters = &door.counters;
    output::facts(&[
        ("name", door.name.clone()),
        ("volume", door.volume.clone()),
        ("socket", door.socket.clone()),
        ("state", door.state.clone()),
        ("connected", peer),
        ("queues", format!("{} of {}", door.queues, door.queues_max)),
        ("access", if door.read_only { "read only" } else { "read and write" }.to_string()),
        ("serial", door.serial.clone()),
        ("origin", format!("{:?}", door.origin).to_lowercase()),
        ("reads", format!("{} ({})", output::count(counters.reads), ByteSize(counters.read_bytes))),
        ("writes", format!("{} ({})", output::count(counters.writes), ByteSize(counters.write_bytes))),
        ("flushes", output::count(counters.flushes)),
        ("discards", output::count(counters.discards)),
        ("errors", output::count(counters.errors)),
        ("kicks, calls", format!("{}, {}", output::count(counters.kicks), output::count(counters.calls))),
        ("carried on", format!("{} requests of lost connections", output::count(counters.resubmitted))),
        ("stopped", format!("{} queues, for what a guest wrote into them", output::count(counters.queues_stopped))),
    ])
}
