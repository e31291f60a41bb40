//! `remuda snapshot`.

use super::exit::Failure;
use super::{Context, output};
use crate::node::view::{SnapshotView, VolumeView};
use base::ByteSize;
use clap::Subcommand;
use serde_json::{Value, json};
use std::time::{Duration, UNIX_EPOCH};

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Make snapshots, all of them at one moment
    #[command(after_help = "\
It takes no time and no space, however large the volumes are, and those who use them go on. Each 4 MiB that are written to for
the first time afterwards take 4 MiB (in a shaped pool: what is written). A snapshot is a volume that can be read: it can be a namespace.

Examples:
  remuda snapshot create v0@monday
  remuda snapshot create data@before log@before      of one moment: both or none of a transaction
  remuda subsystem add-namespace nqn.2026-01.io.remuda:s v0@monday")]
    Create {
        /// Names: VOLUME@SNAPSHOT
        #[arg(required = true, value_name = "VOLUME@SNAPSHOT")]
        names: Vec<String>,
    },
    /// List snapshots
    List {
        /// Those of this volume
        volume: Option<String>,
    },
    /// Delete a snapshot
    #[command(after_help = "\
What only this snapshot has is freed; what the volume, or a later snapshot, still shows becomes its own, in the background. While
several clones show it, its blocks stay; 'remuda pool status' tells how many deleted volumes and snapshots have not gone yet.

Example:
  remuda snapshot delete v0@monday")]
    Delete {
        /// Name
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        name: String,
    },
    /// Make a volume what its snapshot is; what was written since is lost
    #[command(after_help = "\
Later snapshots stay. Hosts must not use the volume meanwhile: what they have in memory of it would be wrong.

Example:
  remuda snapshot rollback v0@monday")]
    Rollback {
        /// Name
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        name: String,
        /// Even if it is exported
        #[arg(long)]
        in_use: bool,
    },
}

/// When a snapshot was made, in UTC.
fn time(created_s: u64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(created_s)).to_string()
}

fn table(all: &[SnapshotView]) -> String {
    let rows = all.iter().map(|snapshot| {
        vec![
            snapshot.name.clone(),
            snapshot.pool.clone(),
            ByteSize(snapshot.size).to_string(),
            time(snapshot.created_s),
            output::count(snapshot.users as u64),
            snapshot.exports.join(", "),
        ]
    });
    output::table(&["NAME", "POOL", ">SIZE", "MADE", ">SHOWN BY", "EXPORTED AS"], rows.collect())
}

pub fn snapshot(context: &Context, command: SnapshotCommand) -> Result<(), Failure> {
    match command {
        SnapshotCommand::Create { names } => {
            context.call_and_show("snapshot.create", json!({ "names": names }), |all: Vec<SnapshotView>| {
                let line = |made: &SnapshotView| format!("made snapshot '{}': {}", made.name, ByteSize(made.size));
                all.iter().map(line).collect::<Vec<_>>().join("\n")
            })
        }
        SnapshotCommand::List { volume } => {
            let params = volume.map_or(json!({}), |volume| json!({ "volume": volume }));
            context.call_and_show("snapshot.list", params, |all: Vec<SnapshotView>| table(&all))
        }
        SnapshotCommand::Delete { name } => {
            let text = format!("deleted snapshot '{name}'");
            context.call_and_show("snapshot.delete", json!({ "snapshot": name }), |_: Value| text)
        }
        SnapshotCommand::Rollback { name, in_use } => {
            let text = format!("as '{name}' is");
            let params = json!({ "snapshot": name, "in_use": in_use });
            context.call_and_show("snapshot.roll_back", params, |volume: VolumeView| {
                format!("volume '{}' is now {text}: {}", volume.name, ByteSize(volume.size))
            })
        }
    }
}
