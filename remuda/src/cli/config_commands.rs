//! `remuda config`.

use super::exit::Failure;
use super::{Context, output};
use crate::config::diagnostic::plural;
use crate::config::{Config, reference};
use clap::Subcommand;
use serde_json::json;

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Check a file without starting anything; all problems at once
    Check {
        /// The file
        file: String,
    },
    /// Print a file to start from
    Example,
    /// Print every section and key, as Markdown
    Reference,
}

pub fn run(context: &Context, command: ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check { file } => check(context, &file),
        ConfigCommand::Example => {
            output::print_line(reference::EXAMPLE.trim_end());
            Ok(())
        }
        ConfigCommand::Reference => {
            output::print_line(reference::markdown().trim_end());
            Ok(())
        }
    }
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
    let count = |number: usize, what: &str| format!("{number} {what}{}", plural(number));
    output::print_line(&format!(
        "{file}: good: {}, {}, {}, {}, {}",
        count(config.node.reactors.len(), "reactor"),
        count(devices, "device"),
        count(pools, "pool"),
        count(volumes, "volume"),
        count(subsystems, "subsystem")
    ));
    for warning in config.warnings() {
        output::print_line(&format!("warning: {warning}"));
    }
    Ok(())
}
