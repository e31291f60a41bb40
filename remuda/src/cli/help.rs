//! What `--help` says beyond commands and options: commands grouped by what an operator does, an example for each, and the pages
//! that say more.

use super::Cli;
use clap::{Command, CommandFactory};
use std::fmt::Write as _;

/// Commands that belong together.
struct Group {
    title: &'static str,
    commands: &'static [&'static str],
    example: &'static str,
    /// Lines on what to choose, below the commands.
    notes: &'static [&'static str],
}

/// Every command is in one of them.
const GROUPS: &[Group] = &[
    Group {
        title: "Getting started",
        commands: &["demo", "dev", "config", "doctor", "serve", "docs"],
        example: "remuda config example > node.toml && remuda serve --config node.toml",
        notes: &[
            "demo   is to see that it works: it shows it and leaves nothing",
            "dev    is to try it yourself: a node on files, kept for the next time",
            "serve  is to use it: a node as its configuration file says",
        ],
    },
    Group {
        title: "Devices and pools",
        commands: &["device", "pool"],
        example: "remuda pool create hot --log fast0 --capacity big0",
        notes: &[],
    },
    Group {
        title: "Volumes and snapshots",
        commands: &["volume", "snapshot"],
        example: "remuda volume create v0 --pool hot --size 1TiB",
        notes: &[],
    },
    Group {
        title: "Exports and hosts",
        commands: &["subsystem", "host", "key", "limit", "reservation", "referral", "discover", "vhost"],
        example: "remuda subsystem create nqn.2026-11.io.remuda:disks --allow-any-host",
        notes: &[
            "To connect as a host:",
            "from Linux      nvme connect -t tcp -a ADDRESS -s PORT -n NQN      (remuda subsystem show NQN prints it)",
            "from a node     remuda device create NAME --kind nvmf address=ADDRESS:PORT nqn=NQN",
            "to measure it   remuda bench nvmf --addr ADDRESS --port PORT --nqn NQN",
        ],
    },
    Group { title: "Watching", commands: &["status", "top", "stats", "log-level"], example: "remuda top", notes: &[] },
    Group {
        title: "Care",
        commands: &["stop", "debug"],
        example: "remuda debug bundle --config node.toml    (pools: remuda pool check, scrub, grow)",
        notes: &[],
    },
    Group {
        title: "Measuring, trying, programs",
        commands: &["bench", "sim", "rpc", "completions", "man", "version"],
        example: "remuda bench device --kind mem size=512MiB --rw randread",
        notes: &[],
    },
];

/// Examples of the commands whose declaration has no text of its own below its options.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("dev", &["remuda dev --dir /var/tmp/play"]),
    ("status", &["remuda status", "remuda --json status | jq .warnings"]),
    ("stop", &["remuda stop"]),
    ("stats", &["remuda stats", "remuda --json stats | jq '.objects[] | select(.kind == \"volume\")'"]),
    ("top", &["remuda top", "remuda --json top --once --interval 5 | jq .objects"]),
    ("log-level", &["remuda log-level", "remuda log-level debug"]),
    ("rpc", &["remuda rpc rpc.discover", "remuda rpc volume.show '{\"name\": \"v0\"}'"]),
    ("version", &["remuda version"]),
    ("docs", &["remuda docs", "remuda docs pools | less"]),
    ("device list", &["remuda device list"]),
    ("device show", &["remuda device show disk0"]),
    ("device resize", &["remuda device resize disk0 20GiB"]),
    ("device retire-zone", &["remuda device retire-zone smr0 17 read-only"]),
    ("device erase", &["remuda device erase secret --confirm secret"]),
    ("device delete", &["remuda device delete disk0"]),
    ("device kinds", &["remuda device kinds", "remuda device kinds mirror"]),
    ("pool list", &["remuda pool list"]),
    ("pool show", &["remuda pool show hot"]),
    ("pool status", &["remuda pool status", "remuda pool status hot"]),
    ("pool top", &["remuda pool top hot --interval 5"]),
    ("pool open", &["remuda pool open hot"]),
    ("pool settle", &["remuda pool settle hot"]),
    ("pool grow", &["remuda device resize big0 40GiB", "remuda pool grow hot"]),
    (
        "pool forget-log",
        &[
            "remuda pool forget-log hot                                     what would be lost",
            "remuda pool forget-log hot --log fast1 --yes-lose-data",
            "remuda pool forget-log hot --status                            how far that is, from elsewhere",
        ],
    ),
    ("pool destroy", &["remuda pool destroy hot"]),
    ("volume list", &["remuda volume list"]),
    ("volume show", &["remuda volume show v0"]),
    ("volume delete", &["remuda volume delete v0", "remuda volume delete v0 --snapshots --no-wait"]),
    ("snapshot list", &["remuda snapshot list", "remuda snapshot list v0"]),
    ("subsystem list", &["remuda subsystem list"]),
    ("subsystem show", &["remuda subsystem show nqn.2026-11.io.remuda:disks"]),
    ("subsystem delete", &["remuda subsystem delete nqn.2026-11.io.remuda:disks"]),
    (
        "subsystem add-namespace",
        &[
            "remuda subsystem add-namespace nqn.2026-11.io.remuda:disks v0",
            "remuda subsystem add-namespace nqn.2026-11.io.remuda:disks v1 --nsid 7 --host HOST-NQN",
        ],
    ),
    ("subsystem unmask-namespace", &["remuda subsystem unmask-namespace nqn.2026-11.io.remuda:disks 1"]),
    ("subsystem remove-namespace", &["remuda subsystem remove-namespace nqn.2026-11.io.remuda:disks 1"]),
    ("host disallow", &["remuda host disallow NQN HOST", "remuda host disallow NQN --any"]),
    ("host list", &["remuda host list", "remuda host list nqn.2026-11.io.remuda:disks"]),
    ("limit remove", &["remuda limit remove --volume v0"]),
    ("limit list", &["remuda limit list"]),
    ("referral remove", &["remuda referral remove 192.0.2.2:8009"]),
    ("referral list", &["remuda referral list"]),
    ("vhost list", &["remuda vhost list"]),
    ("vhost show", &["remuda vhost show vm0"]),
    ("vhost delete", &["remuda vhost delete vm0"]),
    ("config check", &["remuda config check node.toml"]),
    ("reservation list", &["remuda reservation list"]),
    ("config example", &["remuda config example > node.toml"]),
    ("config reference", &["remuda config reference | less"]),
    ("sim list", &["remuda sim list"]),
];

/// Pages that say more about a group of commands.
const PAGES: &[(&str, &str)] = &[
    ("config", "config"),
    ("device", "devices"),
    ("pool", "pools"),
    ("volume", "pools"),
    ("snapshot", "pools"),
    ("subsystem", "paths"),
    ("host", "security"),
    ("key", "security"),
    ("limit", "watching"),
    ("vhost", "vhost"),
    ("referral", "running"),
    ("debug", "running"),
];

/// The whole command line, with what this file adds to its help.
pub fn command() -> Command {
    let command = with_examples(Cli::command(), "");
    let groups = grouped(&command);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}'remuda help COMMAND' explains one, 'remuda docs' has pages \
         on running a node.\n\nOptions:\n{{options}}{{after-help}}"
    ))
}

fn with_examples(command: Command, path: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_string()).collect();
    names.into_iter().fold(command, |command, name| {
        let path = format!("{path} {name}").trim_start().to_string();
        let example = EXAMPLES.iter().find(|(of, _)| *of == path).map(|(_, lines)| {
            let title = if lines.len() > 1 { "Examples" } else { "Example" };
            format!("{title}:\n  {}", lines.join("\n  "))
        });
        let page = PAGES.iter().find(|(of, _)| *of == path).map(|(_, page)| format!("More: remuda docs {page}"));
        command.mut_subcommand(name, |command| {
            // What is no size hears so from whoever reads sizes.
            let command = with_examples(command, &path).allow_negative_numbers(true);
            let declared = command.get_after_help().map(|text| reflowed(&text.to_string()));
            match declared.or(example).or(page) {
                Some(text) => command.after_help(text),
                None => command,
            }
        })
    })
}

/// A text whose paragraphs are one line each: they are broken again where the terminal ends. What is indented stays.
fn reflowed(text: &str) -> String {
    let (mut out, mut goes_on) = (String::with_capacity(text.len()), false);
    for line in text.lines() {
        let is_prose = !line.is_empty() && !line.starts_with(' ');
        match (goes_on && is_prose, out.is_empty()) {
            (true, _) => out.push(' '),
            (false, false) => out.push('\n'),
            (false, true) => {}
        }
        out.push_str(line);
        goes_on = is_prose && !line.ends_with(':');
    }
    out
}

/// Commands with what they do, group by group.
fn grouped(command: &Command) -> String {
    let mut text = String::new();
    for group in GROUPS {
        let _ = writeln!(text, "{}:", group.title);
        for name in group.commands {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let _ = writeln!(text, "  {name:11}  {}", about.map(ToString::to_string).unwrap_or_default());
        }
        for note in group.notes {
            let _ = writeln!(text, "  {note}");
        }
        let _ = writeln!(text, "  e.g. {}\n", group.example);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::docs;

    /// Every command that does something, with the words that call it.
    fn leaves(command: &Command, path: &str, all: &mut Vec<(String, Command)>) {
        for one in command.get_subcommands() {
            let path = format!("{path} {}", one.get_name()).trim_start().to_string();
            match one.has_subcommands() {
                true => leaves(one, &path, all),
                false => all.push((path, one.clone())),
            }
        }
    }

    #[test]
    fn paragraphs_become_lines_and_examples_stay() {
        let text = "One that\nis long.\n\nTwo:\n  a\n  b\nExamples:\n  c";
        assert_eq!(reflowed(text), "One that is long.\n\nTwo:\n  a\n  b\nExamples:\n  c");
    }

    #[test]
    fn every_command_is_in_one_group_and_every_group_has_commands_alone() {
        let command = command();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|group| group.commands).copied().collect();
        let mut all: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
        grouped.sort_unstable();
        all.sort_unstable();
        assert_eq!(grouped, all);
    }

    #[test]
    fn every_command_has_an_example_in_one_place() {
        let (mut here, mut declared) = (Vec::new(), Vec::new());
        leaves(&command(), "", &mut here);
        leaves(&Cli::command(), "", &mut declared);
        for (path, command) in &here {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let call = format!("remuda {path}");
            assert!(text.contains("Example") && text.contains(&call), "'{call}' has no example: {text}");
        }
        for (path, _) in EXAMPLES {
            let (_, command) = declared.iter().find(|(known, _)| known == path).expect("an example of a command");
            assert!(command.get_after_help().is_none(), "{path} has a text of its own");
        }
        assert!(PAGES.iter().all(|(_, page)| docs::names().any(|name| name == *page)));
    }
}
