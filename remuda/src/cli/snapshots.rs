//! `remuda snapshot`.

use super::exit::Failure;
use super::{Context, output, streams};
use crate::clock::timestamp;
use crate::node::view::{SnapshotView, VolumeView};
use base::ByteSize;
use clap::Subcommand;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum SnapshotCommand {
    /// Make snapshots, all of them at one moment
    #[command(after_help = "\
It takes no time and no space, however large the volumes are, and those who use them go on. Each 4 MiB that are written to for
the first time afterwards take 4 MiB (in a shaped pool: what is written, and an extent). A snapshot is a volume that can be read: it can be a namespace.

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
    /// Delete snapshots, all of them at once
    #[command(after_help = "\
What only the snapshot has is freed; what the volume, or a later snapshot, still shows becomes its own, in the background. While
several clones show it, its blocks stay; 'remuda pool status' tells how many deleted volumes and snapshots have not gone yet.

Examples:
  remuda snapshot delete v0@monday
  remuda snapshot delete data@before log@before")]
    Delete {
        /// Names: VOLUME@SNAPSHOT
        #[arg(required = true, value_name = "VOLUME@SNAPSHOT")]
        names: Vec<String>,
    },
    /// Make volumes what a snapshot of each is, all of them or none; what was written since is lost
    #[command(after_help = "\
Later snapshots stay. Hosts must not use the volumes meanwhile: what they have in memory of them would be wrong.

Examples:
  remuda snapshot rollback v0@monday
  remuda snapshot rollback data@before log@before      both go back, or none if the power fails")]
    Rollback {
        /// Names: VOLUME@SNAPSHOT
        #[arg(required = true, value_name = "VOLUME@SNAPSHOT")]
        names: Vec<String>,
        /// Even if it is exported
        #[arg(long)]
        in_use: bool,
    },
    /// Show what differs between a snapshot, or a volume as it is, and an older snapshot of it
    #[command(after_help = "\
It is told from the index alone, whatever the size. What was written with the bytes that were there already counts. Without --since
everything is shown that is not a hole.

Examples:
  remuda snapshot diff v0@tuesday --since v0@monday
  remuda snapshot diff v0 --since v0@tuesday --json      what is new since: for a backup of its own")]
    Diff {
        /// The snapshot, or the volume
        #[arg(value_name = "VOLUME[@SNAPSHOT]")]
        name: String,
        /// An older snapshot of the same volume, or of the one that it is a clone of
        #[arg(long, value_name = "VOLUME@SNAPSHOT")]
        since: Option<String>,
    },
    /// Write a snapshot as a stream: for a backup, or for another pool
    #[command(after_help = "\
Examples:
  remuda snapshot export v0@monday --output monday.snap
  remuda snapshot export v0@tuesday --since v0@monday | zstd > tuesday.snap.zst
  remuda snapshot export v0@monday | ssh other remuda snapshot import v0 --pool fast")]
    Export {
        /// Name
        #[arg(value_name = "VOLUME@SNAPSHOT")]
        name: String,
        /// An older snapshot: the stream has what differs from that, and not everything
        #[arg(long, value_name = "VOLUME@SNAPSHOT")]
        since: Option<String>,
        /// File to write; it gets its name when all of it is there [default: standard output]
        #[arg(long, short, value_name = "FILE")]
        output: Option<PathBuf>,
        /// Replace the file if it exists
        #[arg(long, requires = "output")]
        force: bool,
    },
    /// Read a stream into a volume: a new one, or what differs into the copy of an older snapshot
    #[command(after_help = "\
The snapshot is there when the whole stream was right; otherwise everything is as it was before (with --roll-back: as that snapshot is). A stream that goes on from a snapshot
needs a volume with a copy of that one, and nothing written since. Hosts must not use the volume meanwhile.

Examples:
  remuda snapshot import v0 --pool fast --input monday.snap
  zstd -d < tuesday.snap.zst | remuda snapshot import v0
  remuda snapshot import copy@first --pool fast < monday.snap      under other names")]
    Import {
        /// The volume; with the snapshot, if that is to have another name than it had
        #[arg(value_name = "VOLUME[@SNAPSHOT]")]
        target: String,
        /// Pool in which a new volume is made
        #[arg(long, value_name = "POOL")]
        pool: Option<String>,
        /// Give up what was written to the volume since the snapshot that the stream goes on from
        #[arg(long)]
        roll_back: bool,
        /// File to read [default: standard input]
        #[arg(long, short, value_name = "FILE")]
        input: Option<PathBuf>,
    },
    /// Tell whether a stream is whole and undamaged; needs no node
    #[command(after_help = "Example:\n  zstd -d < tuesday.snap.zst | remuda snapshot verify")]
    Verify {
        /// File [default: standard input]
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
    },
}

fn table(all: &[SnapshotView]) -> String {
    let rows = all.iter().map(|snapshot| {
        vec![
            snapshot.name.clone(),
            snapshot.pool.clone(),
            ByteSize(snapshot.size).to_string(),
            timestamp(snapshot.created_s),
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
        SnapshotCommand::Delete { names } => {
            let lines: Vec<String> = names.iter().map(|name| format!("deleted snapshot '{name}'")).collect();
            context.call_and_show("snapshot.delete", json!({ "names": names }), |_: Value| lines.join("\n"))
        }
        SnapshotCommand::Diff { name, since } => streams::diff(context, &name, since.as_deref()),
        SnapshotCommand::Export { name, since, output, force } => {
            streams::export(context, &name, since.as_deref(), output.as_deref(), force)
        }
        SnapshotCommand::Import { target, pool, roll_back, input } => {
            streams::import(context, &target, pool.as_deref(), roll_back, input.as_deref())
        }
        SnapshotCommand::Verify { file } => streams::verify(context, file.as_deref()),
        SnapshotCommand::Rollback { names, in_use } => {
            let params = json!({ "names": names, "in_use": in_use });
            context.call_and_show("snapshot.roll_back", params, |volumes: Vec<VolumeView>| {
                let line = |(volume, name): (&VolumeView, &String)| {
                    format!("volume '{}' is now as '{name}' is: {}", volume.name, ByteSize(volume.size))
                };
                volumes.iter().zip(&names).map(line).collect::<Vec<_>>().join("\n")
            })
        }
    }
}
