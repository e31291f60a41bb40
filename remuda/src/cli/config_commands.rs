//! `remuda config`.

use super::exit::Failure;
use super::{Context, output};
use crate::config::diagnostic::counted;
use crate::config::{Config, reference};
use crate::node::differences::{DifferencesView, Differs, FileIs};
use clap::Subcommand;
use serde_json::json;

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Check a file without starting anything; all problems at once
    Check {
        /// The file
        file: String,
    },
    /// Show where the running node differs from its file; exits with 1 when it does
    #[command(after_help = "\
Two things make a difference. What commands have added and changed is remembered by the node and stays over restarts; to have it
in the file as well, write it there. What is changed in the file is taken up when the node is started again, save for a pool that is not
open: 'remuda pool open' takes up its new definition at once.

Example:
  remuda config diff")]
    Diff,
    /// Print a file to start from
    Example,
    /// Print every section and key, as Markdown
    Reference,
}

pub fn run(context: &Context, command: ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check { file } => check(context, &file),
        ConfigCommand::Diff => diff(context),
        ConfigCommand::Example => {
            output::print_text(context, reference::EXAMPLE);
            Ok(())
        }
        ConfigCommand::Reference => {
            output::print_text(context, &reference::markdown());
            Ok(())
        }
    }
}

fn diff(context: &Context) -> Result<(), Failure> {
    let show = |view: &DifferencesView| {
        let path = &view.config;
        let about_file = match view.file {
            FileIs::Same => format!("{path} is as the node has read it"),
            FileIs::Changed => format!("{path} has been changed since the node has read it"),
            FileIs::Wrong => format!("{path} is wrong by now: remuda config check {path}"),
            FileIs::Gone => format!("{path} is not there any more: the node would not start again"),
        };
        let rows = view.differences.iter().map(|one| {
            let differs = match one.differs {
                Differs::AddedAtRunTime => "added at run time",
                Differs::ChangedAtRunTime => "changed at run time",
                Differs::AddedToTheFile => "added to the file",
                Differs::RemovedFromTheFile => "removed from the file",
                Differs::ChangedInTheFile => "changed in the file",
            };
            vec![one.object.clone(), differs.to_string(), one.detail.clone()]
        });
        let differences = match view.differences.is_empty() {
            true => "no differences".to_string(),
            false => output::table(&["OBJECT", "DIFFERENCE", "DETAIL"], rows.collect()),
        };
        format!("{differences}\n{about_file}")
    };
    context.call_and_judge("config.diff", json!({}), show, |view| {
        view.differences.is_empty() && matches!(view.file, FileIs::Same | FileIs::Changed)
    })
}

fn check(context: &Context, file: &str) -> Result<(), Failure> {
    let config = Config::load_and_look(file)?;
    let volumes = config.volumes.len() + config.pool_volumes.len();
    let (devices, pools, subsystems) = (config.devices.len(), config.pools.len(), config.subsystems.len());
    if context.json {
        let counts = json!({
            "ok": true, "devices": devices, "pools": pools, "volumes": volumes, "subsystems": subsystems,
            "warnings": config.warnings(),
        });
        output::print_json(&counts);
        return Ok(());
    }
    output::print_line(&format!(
        "{file}: good: {}, {}, {}, {}, {}",
        counted(config.node.reactors.len(), "reactor"),
        counted(devices, "device"),
        counted(pools, "pool"),
        counted(volumes, "volume"),
        counted(subsystems, "subsystem")
    ));
    for warning in config.warnings() {
        output::print_line(&format!("warning: {warning}"));
    }
    Ok(())
}
