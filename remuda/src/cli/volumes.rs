//! `remuda volume`.

use super::exit::{Exit, Failure};
use super::flatten::{self, FlattenArgs};
use super::objects::summarise;
use super::{Context, output, poll, understood};
use crate::config::diagnostic::plural;
use crate::node::pool_view::PoolView;
use crate::node::view::{DeletedView, KinView, VolumeView};
use base::ByteSize;
use clap::{ArgGroup, Subcommand};
use serde_json::json;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// When nothing has gone for so long it is not waited for any more: it goes on by itself.
const STILL_MAX: Duration = Duration::from_secs(30);

#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Take a part of a device, or make a thin volume in a pool
    #[command(group(ArgGroup::new("place").required(true).args(["device", "pool"])), after_help = "\
Examples:
  remuda volume create v0 --pool hot --size 1TiB        thin: takes space as it is written
  remuda volume create v0 --device disk --size 4GiB
  remuda volume create rest --device disk               the largest free range
  remuda volume create old --device disk --offset 8GiB --size 1GiB   keeps what is there")]
    Create {
        /// Name
        name: String,
        /// Device
        #[arg(long)]
        device: Option<String>,
        /// Pool
        #[arg(long, requires = "size")]
        pool: Option<String>,
        /// Size [default: the largest free range of the device]
        #[arg(long)]
        size: Option<String>,
        /// Where it starts; what is there is kept [default: chosen by the node]
        #[arg(long, requires_all = ["size", "device"])]
        offset: Option<String>,
        /// In a pool: bytes per block, 512 or 4096 [default: 4096]
        #[arg(long, requires = "pool")]
        block_size: Option<String>,
        /// Take a device that holds something else: what the volume gets of it is lost
        #[arg(long, requires = "device")]
        force: bool,
    },
    /// List volumes
    List,
    /// Show one volume
    Show {
        /// Name
        name: String,
    },
    /// Grow a volume where it is, or cut it
    #[command(after_help = "\
Examples:
  remuda volume resize v0 8GiB
  remuda volume resize v0 +1GiB
  remuda volume resize v0 max
  remuda volume resize v0 1GiB --shrink")]
    Resize {
        /// Name
        name: String,
        /// New size, '+SIZE', or 'max'
        #[arg(allow_hyphen_values = true)]
        size: String,
        /// Permit a smaller size; the data past the new end is lost
        #[arg(long)]
        shrink: bool,
        /// With --shrink: even if hosts that see it are connected
        #[arg(long, requires = "shrink")]
        force: bool,
    },
    /// Make a volume in a pool that begins as a snapshot is, at once and without copying
    #[command(after_help = "\
What neither of them writes, the volume, its snapshot and the clone share. A clone outlives the snapshot that it is of.

Example:
  remuda snapshot create v0@golden
  remuda volume clone v0@golden v1")]
    Clone {
        /// The snapshot: VOLUME@SNAPSHOT
        snapshot: String,
        /// Name of the new volume
        name: String,
    },
    /// Make a clone independent of what it was cloned from, in the background, giving way to hosts
    #[command(after_help = "\
What the volume and its snapshots show of other volumes is copied and becomes their own. Then the snapshot that it was cloned from
can be deleted and all of its space is free, and reads look in fewer layers. It takes as much space as is copied. It may be
interrupted at any time, by a crash as well: what has been copied stays, and the next one goes on from there.

Examples:
  remuda volume flatten v1
  remuda volume flatten v1 --status
  remuda volume flatten v1 --wait")]
    Flatten(FlattenArgs),
    /// Give a volume's place back; its data is lost
    Delete {
        /// Name
        name: String,
        /// Of a volume in a pool: with all of its snapshots
        #[arg(long)]
        snapshots: bool,
        /// Do not wait until what it had of a pool has been given back
        #[arg(long)]
        no_wait: bool,
    },
}

/// Deletes it, and shows meanwhile what there is left to remove. Who interrupts that interrupts nothing but the waiting.
fn delete(context: &Context, name: &str, snapshots: bool, no_wait: bool) -> Result<(), Failure> {
    let params = json!({ "name": name, "snapshots": snapshots, "background": true });
    let raw = context.call("volume.delete", params)?;
    let deleted: DeletedView = understood(raw.clone())?;
    let pool = deleted.pool.filter(|_| !no_wait);
    let left = pool.map(|pool| wait_until_gone(context, &pool)).transpose()?.flatten();
    if context.json {
        output::print_json(&raw);
        return Ok(());
    }
    let left = left.map_or(String::new(), |left| format!("; {left}"));
    output::print_line(&format!("deleted volume '{name}'{left}"));
    Ok(())
}

/// Waits until everything that is deleted in a pool, and that nobody shows, has gone. Why it does not, if it does not.
fn wait_until_gone(context: &Context, pool: &str) -> Result<Option<String>, Failure> {
    let is_seen = !context.json && std::io::stderr().is_terminal();
    let line = if is_seen { indicatif::ProgressBar::no_length() } else { indicatif::ProgressBar::hidden() };
    line.set_style(indicatif::ProgressStyle::with_template("{msg}").expect("the template is right"));
    let (mut seen, mut changed) = ((0, 0), Instant::now());
    let ask = || {
        let view: PoolView = understood(context.call("pool.show", json!({ "name": pool }))?)?;
        let Some(open) = view.open else {
            let left =
                format!("pool '{pool}' has been closed: what the volume had is given back when it is open again");
            return Ok(Some(Some(left)));
        };
        let trouble = open.total.trouble.or(open.total.log_trouble);
        if let Some(trouble) = trouble.filter(|_| open.going_unshown > 0) {
            return Ok(Some(Some(format!("what it had is given back later: pool '{pool}': {trouble}"))));
        }
        let now = (open.going, open.going_extents);
        if std::mem::replace(&mut seen, now) != now {
            changed = Instant::now();
        } else if open.going_unshown > 0 && changed.elapsed() > STILL_MAX {
            let left = format!("what it had is given back in the background: see 'remuda pool show {pool}'");
            return Ok(Some(Some(left)));
        }
        let (going, extents) = (output::count(open.going as u64), output::count(open.going_extents));
        line.set_message(format!("{going} volumes and snapshots left to remove, with {extents} extents"));
        Ok((open.going_unshown == 0).then_some(None))
    };
    let ended = poll::until(ask, Option::is_some);
    line.finish_and_clear();
    Ok(ended?.flatten())
}

/// Where a volume is, in words.
fn place(volume: &VolumeView) -> String {
    match (&volume.pool, &volume.device) {
        (Some(pool), _) => format!("in pool '{pool}'"),
        (None, Some(device)) => format!("on device '{device}'"),
        (None, None) => "nowhere".to_string(),
    }
}

fn allocated(volume: &VolumeView) -> String {
    match (volume.allocated, &volume.kin) {
        (Some(own), Some(kin)) if !kin.snapshots.is_empty() => {
            format!("{}, and {} by its snapshots", ByteSize(own), ByteSize(kin.snapshots_allocated))
        }
        (Some(own), _) => ByteSize(own).to_string(),
        (None, _) if volume.pool.is_some() => "not known now".to_string(),
        (None, _) => "all of it".to_string(),
    }
}

/// What stands on a volume, and it on.
fn kin(kin: KinView) -> String {
    let list = |what: &str, names: &[String]| match names.len() {
        0 => format!("no {what}s"),
        count => format!("{count} {what}{}: {}", plural(count), summarise(names)),
    };
    let of = kin.clone_of.map_or(String::new(), |of| format!("; a clone of {of}"));
    format!("{}; {}{of}", list("snapshot", &kin.snapshots), list("clone", &kin.clones))
}

/// Says for people when the volumes of a thin volume's pool promise more than it has room for: no mistake, but good to know. What
/// cannot be learned now is no failure of what has been done.
fn note_promises(context: &Context, name: &str) {
    if !context.json
        && let Ok(Some(note)) = promises(context, name)
    {
        output::print_line(&note);
    }
}

fn promises(context: &Context, name: &str) -> Result<Option<String>, Failure> {
    let volume: VolumeView = understood(context.call("volume.show", json!({ "name": name }))?)?;
    let Some(pool) = volume.pool else { return Ok(None) };
    let volumes: Vec<VolumeView> = understood(context.call("volume.list", json!({}))?)?;
    let in_pool = volumes.iter().filter(|one| one.pool.as_ref() == Some(&pool));
    let (promised, taken) = in_pool.fold((0u64, 0u64), |(promised, taken), one| {
        (promised.saturating_add(one.size), taken.saturating_add(one.allocated.unwrap_or(0)))
    });
    let view: PoolView = understood(context.call("pool.show", json!({ "name": pool }))?)?;
    let Some(open) = view.open.filter(|open| promised.saturating_sub(taken) > open.total.free_bytes) else {
        return Ok(None);
    };
    let (free, promised) = (ByteSize(open.total.free_bytes), ByteSize(promised));
    Ok(Some(format!("note: thin: pool '{pool}' has {free} free, and its volumes promise {promised}")))
}

pub fn volume(context: &Context, command: VolumeCommand) -> Result<(), Failure> {
    match command {
        VolumeCommand::Create { name, device, pool, size, offset, block_size, force } => {
            let mut params = json!({ "name": name });
            let given =
                [("device", device), ("pool", pool), ("size", size), ("offset", offset), ("block_size", block_size)];
            for (key, value) in given {
                if let Some(value) = value {
                    params[key] = json!(value);
                }
            }
            if force {
                params["force"] = json!(true);
            }
            context.call_and_show("volume.create", params, |volume: VolumeView| {
                format!("created volume '{}': {} {}", volume.name, ByteSize(volume.size), place(&volume))
            })?;
            note_promises(context, &name);
            Ok(())
        }
        VolumeCommand::List => context.call_and_show("volume.list", json!({}), |volumes: Vec<VolumeView>| {
            let rows = volumes.into_iter().map(|volume| {
                let place = place(&volume);
                vec![
                    volume.name,
                    place,
                    ByteSize(volume.size).to_string(),
                    volume.allocated.map_or("-".to_string(), |bytes| ByteSize(bytes).to_string()),
                    volume.offset.map_or("thin".to_string(), |offset| ByteSize(offset).to_string()),
                    summarise(&volume.exports),
                    format!("{:?}", volume.origin).to_lowercase(),
                    volume.state,
                ]
            });
            let headings = ["NAME", "WHERE", ">SIZE", ">ALLOCATED", ">OFFSET", "EXPORTED AS", "ORIGIN", "STATE"];
            output::table(&headings, rows.collect())
        }),
        VolumeCommand::Show { name } => {
            context.call_and_show("volume.show", json!({ "name": name }), |volume: VolumeView| {
                let (place, used) = (place(&volume), allocated(&volume));
                output::facts(&[
                    ("name", volume.name),
                    ("where", place),
                    ("size", ByteSize(volume.size).to_string()),
                    ("allocated", used),
                    ("offset", volume.offset.map_or("thin".to_string(), |offset| ByteSize(offset).to_string())),
                    ("can grow to", ByteSize(volume.size_max).to_string()),
                    ("block size", volume.block_size.to_string()),
                    ("uuid", volume.uuid.to_string()),
                    ("exported as", volume.exports.join(", ")),
                    ("kin", volume.kin.map_or("-".to_string(), kin)),
                    ("origin", format!("{:?}", volume.origin).to_lowercase()),
                    ("state", volume.state),
                ])
            })
        }
        VolumeCommand::Resize { name, size, shrink, force } => {
            let params = json!({ "name": name, "size": size, "shrink": shrink, "force": force });
            context.call_and_show("volume.resize", params, |volume: VolumeView| {
                format!("volume '{}' is now {}", volume.name, ByteSize(volume.size))
            })?;
            note_promises(context, &name);
            Ok(())
        }
        VolumeCommand::Clone { snapshot, name } => {
            let text = format!("of '{snapshot}'");
            let params = json!({ "snapshot": snapshot, "name": name });
            context.call_and_show("volume.clone", params, |volume: VolumeView| {
                format!("created volume '{}': {}, a clone {text}", volume.name, ByteSize(volume.size))
            })
        }
        VolumeCommand::Flatten(args) => flatten::flatten(context, &args),
        VolumeCommand::Delete { name, .. } if name.contains('@') => {
            let text = format!("'{name}' is a snapshot; use: remuda snapshot delete {name}");
            Err(Failure::new(Exit::Usage, text))
        }
        VolumeCommand::Delete { name, snapshots, no_wait } => delete(context, &name, snapshots, no_wait),
    }
}
