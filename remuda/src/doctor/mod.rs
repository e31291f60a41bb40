//! `remuda doctor`: looks at what a node needs of its machine, and says what is in its way and what to do.
//!
//! Every check tells what it found, so that a clean bill says what was looked at. Nothing is changed: no file is made, and a
//! port is bound only for a moment.

mod machine;
mod network;
mod node;
mod storage;
mod view;

use crate::cli::exit::{Exit, Failure};
use crate::cli::{Context, output};
use crate::config::{BadConfig, Config};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use view::View;

/// Arguments of `remuda doctor`.
#[derive(Args)]
pub struct DoctorArgs {
    /// Look at what this configuration needs as well: its ports, devices, memory and directories
    #[arg(long, value_name = "FILE")]
    config: Option<String>,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works; this would be better.
    Note,
    /// It does not work, or will lose its service.
    Problem,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    check: String,
    level: Level,
    /// What was found.
    found: String,
    /// What to do; empty when there is nothing to be done.
    next: String,
}

impl Finding {
    fn ok(check: impl Into<String>, found: impl Into<String>) -> Finding {
        Finding { check: check.into(), level: Level::Ok, found: found.into(), next: String::new() }
    }

    fn note(check: impl Into<String>, found: impl Into<String>, next: impl Into<String>) -> Finding {
        Finding { check: check.into(), level: Level::Note, found: found.into(), next: next.into() }
    }

    fn problem(check: impl Into<String>, found: impl Into<String>, next: impl Into<String>) -> Finding {
        Finding { level: Level::Problem, ..Finding::note(check, found, next) }
    }
}

/// Runs the checks and shows what they found; fails when there is a problem.
pub fn run(context: &Context, args: &DoctorArgs) -> Result<(), Failure> {
    let findings = findings(context, args.config.as_deref());
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, notes) = (count(Level::Problem), count(Level::Note));
    if context.json {
        output::print_json(&json!({ "problems": problems, "notes": notes, "findings": findings }));
    } else {
        output::print_line(&to_text(&findings));
        let plural = crate::config::diagnostic::plural;
        let counts = format!("{problems} problem{}, {notes} note{}", plural(problems), plural(notes));
        let hint =
            if args.config.is_none() { "; with --config FILE it looks at ports, devices and memory too" } else { "" };
        output::print_line(&format!("\n{counts}{hint}"));
    }
    if problems > 0 { Err(Failure::quiet(Exit::Failed)) } else { Ok(()) }
}

/// Runs the checks, on what the configuration at a path needs as well.
pub fn findings(context: &Context, config: Option<&str>) -> Vec<Finding> {
    let view = View::of_this_machine();
    let loaded = config.map(|path| (path, Config::load(path)));
    let config = loaded.as_ref().and_then(|(_, loaded)| loaded.as_ref().ok());
    let socket = context.given_socket().or_else(|| config.map(|config| config.node.rpc_socket.clone()));
    let socket = socket.unwrap_or_else(|| context.socket());
    let (is_running, about_node) = node::check(&socket);
    let mut findings = machine::check(&view, config, is_running);
    match &loaded {
        None => {}
        Some((path, Ok(_))) => findings.push(Finding::ok("configuration", format!("{path} is good"))),
        Some((path, Err(error))) => findings.push(of_bad_config(path, error)),
    }
    findings.extend(about_node);
    findings.extend(network::check(&view, config, is_running));
    if let Some(config) = config {
        findings.extend(storage::check(&view, config, is_running));
        if !is_running {
            findings.extend(storage::check_state(&view, config));
        }
    }
    findings
}

fn of_bad_config(path: &str, error: &BadConfig) -> Finding {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or("it cannot be read").trim_start_matches("error: ").to_string();
    Finding::problem("configuration", first, format!("all of it: remuda config check {path}"))
}

fn to_text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let lines = findings.iter().map(|finding| {
        let level = match finding.level {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Problem => "PROBLEM",
        };
        let mut line = format!("{level:7}  {:width$}  {}", finding.check, finding.found);
        if !finding.next.is_empty() {
            line += &format!("\n{:7}  {:width$}  -> {}", "", "", finding.next);
        }
        line
    });
    lines.collect::<Vec<_>>().join("\n")
}
