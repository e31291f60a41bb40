//! `remuda volume flatten`.

use super::exit::{Exit, Failure};
use super::{Context, output, poll};
use crate::node::flatten::{FlattenView, FlattenWord};
use base::ByteSize;
use clap::Args;
use serde_json::json;

#[derive(Args)]
pub struct FlattenArgs {
    /// Name
    name: String,
    /// Stop it; the next one goes on from there
    #[arg(long, conflicts_with = "status")]
    stop: bool,
    /// Only say how far it is
    #[arg(long)]
    status: bool,
    /// Wait until it has ended; exits with 1 when it has failed or was stopped
    #[arg(long, conflicts_with = "stop")]
    wait: bool,
}

pub fn flatten(context: &Context, args: &FlattenArgs) -> Result<(), Failure> {
    let name = json!({ "name": args.name });
    let first = match (args.stop, args.status) {
        (true, _) => context.call("volume.flatten_stop", name.clone())?,
        (_, true) => context.call("volume.flatten_status", name.clone())?,
        _ => context.call("volume.flatten", name.clone())?,
    };
    let waits = args.wait || args.stop;
    let is_over = |view: &FlattenView| !waits || view.state != FlattenWord::Running;
    let (raw, view) = poll::until_told(context, first, ("volume.flatten_status", name), is_over)?;
    if context.json {
        output::print_json(&raw);
    } else {
        output::print_line(&format!("flattening of volume '{}': {}", args.name, line(&view)));
    }
    let has_failed = matches!(view.state, FlattenWord::Failed | FlattenWord::Stopped);
    if has_failed && args.wait { Err(Failure::quiet(Exit::Failed)) } else { Ok(()) }
}

/// How far it is, in a line.
pub fn line(view: &FlattenView) -> String {
    let share = 100.0 * view.share();
    let mut copied = format!("{} copied", ByteSize(view.copied_bytes));
    if view.lost_blocks > 0 {
        copied += &format!(", {} blocks lost: 'remuda pool scrub' lists them", output::count(view.lost_blocks));
    }
    let trouble = view.trouble.as_deref().unwrap_or_default();
    match view.state {
        FlattenWord::None => "none since the pool was opened".to_string(),
        FlattenWord::Running if trouble.is_empty() => format!("running, {share:.1} % passed, {copied}"),
        FlattenWord::Running => format!("running, {share:.1} % passed, {copied}; it is tried again: {trouble}"),
        FlattenWord::Stopped => format!("stopped at {share:.1} %, {copied}; the next one goes on from there"),
        FlattenWord::Failed => {
            format!("failed at {share:.1} %, {copied}: {trouble}; put that right, the next one goes on from there")
        }
        FlattenWord::Done => format!("done, {copied}; it depends on no other volume"),
    }
}
