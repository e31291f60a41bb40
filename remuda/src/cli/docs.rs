//! `remuda docs`: the pages for operators, in the binary, since whoever has only that needs them too.

use super::exit::Failure;
use super::{Context, output};
use crate::config::reference;
use crate::rpc;
use serde_json::{Value, json};

/// A page.
struct Topic {
    name: &'static str,
    about: &'static str,
    text: Text,
}

/// Where a page comes from.
enum Text {
    /// A page of the repository.
    File(&'static str),
    /// A file of the repository that is no page, and is printed byte for byte.
    Plain(&'static str),
    /// The tables that the program itself works by.
    Made(fn() -> String),
}

const fn file(name: &'static str, about: &'static str, text: &'static str) -> Topic {
    Topic { name, about, text: Text::File(text) }
}

const fn plain(name: &'static str, about: &'static str, text: &'static str) -> Topic {
    Topic { name, about, text: Text::Plain(text) }
}

macro_rules! page {
    ($path:literal) => {
        include_str!(concat!("../../../docs/", $path))
    };
}

macro_rules! dist {
    ($path:literal) => {
        include_str!(concat!("../../../dist/", $path))
    };
}

/// In the order in which somebody needs them; files to take as they are come last.
const TOPICS: &[Topic] = &[
    file("running", "run a node: services, upgrades, what it is doing", page!("operating/running.md")),
    Topic {
        name: "config",
        about: "the configuration file: every section and key",
        text: Text::Made(reference::markdown),
    },
    file("devices", "devices in use: mirrors, parity, encryption, zones", page!("operating/devices.md")),
    file("pools", "pools: making, sizing, checking, what can go wrong", page!("operating/pools.md")),
    file("paths", "who sees which volume, and over which paths", page!("operating/paths.md")),
    file("security", "who may connect: keys, authentication, TLS", page!("operating/security.md")),
    file("reservations", "reservations of hosts that share a namespace", page!("operating/reservations.md")),
    file("vhost", "disks for virtual machines", page!("operating/vhost.md")),
    file("watching", "console, metrics, alerts, limits", page!("operating/watching.md")),
    Topic {
        name: "rpc",
        about: "the RPC interface: every method and parameter",
        text: Text::Made(rpc::reference::markdown),
    },
    file("snapshot-stream", "the format of exported snapshots", page!("formats/snapshot-stream.md")),
    plain("remuda.service", "file: a service for systemd", dist!("remuda.service")),
    plain("remuda.rules.yml", "file: alerts for Prometheus", dist!("prometheus/remuda.rules.yml")),
    plain("remuda.json", "file: a dashboard for Grafana", dist!("grafana/remuda.json")),
    plain("Containerfile", "file: how to build a container image", dist!("Containerfile")),
];

/// Names of all pages.
pub fn names() -> impl Iterator<Item = &'static str> {
    TOPICS.iter().map(|topic| topic.name)
}

/// Lists the pages, or prints one.
pub fn docs(context: &Context, name: Option<&str>) -> Result<(), Failure> {
    let Some(topic) = name.and_then(|name| TOPICS.iter().find(|topic| topic.name == name)) else {
        list(context);
        return Ok(());
    };
    let text = match topic.text {
        Text::File(text) => with_commands(text),
        Text::Made(make) => with_commands(&make()),
        Text::Plain(text) => text.to_string(),
    };
    if context.json {
        output::print_json(&json!({ "topic": topic.name, "about": topic.about, "text": text }));
    } else {
        output::print_raw(text.trim_end());
    }
    Ok(())
}

fn list(context: &Context) {
    if context.json {
        let all = TOPICS.iter().map(|topic| json!({ "topic": topic.name, "about": topic.about }));
        output::print_json(&Value::Array(all.collect()));
        return;
    }
    let rows = TOPICS.iter().map(|topic| vec![topic.name.to_string(), topic.about.to_string()]);
    let table = output::table(&["TOPIC", "WHAT IT IS ABOUT"], rows.collect());
    output::print_line(&format!(
        "{table}\n\nremuda docs TOPIC prints one, as Markdown; remuda docs pools | less\nremuda docs FILE > FILE      writes one of the files; in the repository they are in dist/"
    ));
}

/// A text whose links to pages name the command that prints them: `[pools.md](pools.md)` becomes `remuda docs pools`.
pub fn with_commands(text: &str) -> String {
    names().fold(text.to_string(), |text, name| {
        let page = format!("({name}.md");
        let (mut out, mut rest) = (String::with_capacity(text.len()), text.as_str());
        while let Some(at) = rest.find(&page) {
            let (before, link) = rest.split_at(at);
            let end = link.find(')').map_or(link.len(), |end| end + 1);
            match before.strip_suffix(']').and_then(|before| before.rsplit_once('[')) {
                // A link that has the file's name as its words says nothing else.
                Some((before, words)) if words == format!("{name}.md") => {
                    out += &format!("{before}`remuda docs {name}`")
                }
                Some((before, words)) => out += &format!("{before}{words} (`remuda docs {name}`)"),
                None => out += &format!("{before}{}", &link[..end]),
            }
            rest = &link[end..];
        }
        out + rest
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_pages_become_commands() {
        let text =
            "See [pools.md](pools.md#a-b), or [who may](security.md); [else](https://x.org/pools.md) (pools.md).";
        let shown =
            "See `remuda docs pools`, or who may (`remuda docs security`); [else](https://x.org/pools.md) (pools.md).";
        assert_eq!(with_commands(text), shown);
    }

    #[test]
    fn every_page_for_operators_is_a_topic() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating");
        for entry in std::fs::read_dir(dir).expect("the repository has its pages") {
            let file = entry.expect("an entry").file_name().to_string_lossy().into_owned();
            let name = file.strip_suffix(".md").expect("pages are Markdown");
            assert!(names().any(|known| known == name), "{name} is not among the topics");
        }
    }
}
