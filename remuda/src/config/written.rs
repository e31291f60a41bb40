//! What a configuration file says of each object, key by key and as it is written: for those who compare two of them.

use super::value::{Data, Table, Value, from_toml};
use std::collections::{BTreeMap, BTreeSet};

/// Longest value that is shown, in characters.
const SHOWN_MAX: usize = 60;

/// The keys of each section that has a name, by what the section is called in messages; `[[limit]]` has none.
pub struct Written(BTreeMap<String, BTreeMap<String, String>>);

impl Written {
    /// Of a file's text. What cannot be read is left out: who asks has a configuration that was read from it.
    pub fn of(text: &str) -> Written {
        let (table, _) = toml::de::DeTable::parse_recoverable(text);
        let mut objects = BTreeMap::new();
        for (name, value) in from_toml(table.get_ref()) {
            match (name.value.as_str(), value.data) {
                (name @ ("node" | "nvmf"), Data::Table(section)) => {
                    objects.insert(format!("[{name}]"), keys(text, &section));
                }
                ("pool", Data::Table(sections)) => {
                    for (name, section) in &sections {
                        if let Data::Table(section) = &section.data {
                            objects.insert(format!("pool '{}'", name.value), keys(text, section));
                        }
                    }
                }
                (kind, Data::List(sections)) => {
                    for section in &sections {
                        if let Data::Table(section) = &section.data
                            && let Some(name) = name_of(section)
                        {
                            objects.insert(format!("{kind} '{name}'"), keys(text, section));
                        }
                    }
                }
                _ => {}
            }
        }
        Written(objects)
    }

    /// The keys in which an object differs in another file, with both values where they are short.
    pub fn changes(&self, after: &Written, object: &str) -> String {
        let none = BTreeMap::new();
        let (before, after) = (self.0.get(object).unwrap_or(&none), after.0.get(object).unwrap_or(&none));
        let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
        let differ = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
        let show = |value: Option<&String>| value.map_or("none".to_string(), String::clone);
        let is_long = |value: Option<&String>| value.is_some_and(|text| text.chars().count() > SHOWN_MAX);
        let each = differ.map(|key| match (before.get(key), after.get(key)) {
            (one, other) if is_long(one) || is_long(other) => format!("{key}: other text"),
            (one, other) => format!("{key}: {} -> {}", show(one), show(other)),
        });
        each.collect::<Vec<_>>().join("; ")
    }
}

/// What a section calls itself.
fn name_of(section: &Table) -> Option<&str> {
    section.iter().find_map(|(key, value)| match &value.data {
        Data::Text(name) if key.value == "name" || key.value == "nqn" => Some(name.as_str()),
        _ => None,
    })
}

/// Every key with its value in one line. What is in a table below a key is many keys with a dot.
fn keys(text: &str, section: &Table) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for (key, value) in section {
        match &value.data {
            Data::Table(below) => {
                found.extend(
                    keys(text, below).into_iter().map(|(below, shown)| (format!("{}.{below}", key.value), shown)),
                );
            }
            _ => {
                found.insert(key.value.clone(), shown(text, value));
            }
        }
    }
    found
}

/// A value in one line. A list goes by its items: how it is broken into lines means nothing.
fn shown(text: &str, value: &Value) -> String {
    match &value.data {
        Data::List(items) => {
            let items: Vec<String> = items.iter().map(|item| shown(text, item)).collect();
            format!("[{}]", items.join(", "))
        }
        Data::Table(below) => {
            let below: Vec<String> =
                keys(text, below).into_iter().map(|(key, shown)| format!("{key} = {shown}")).collect();
            format!("{{ {} }}", below.join(", "))
        }
        Data::Text(text) => format!("{text:?}"),
        _ => value.span.clone().and_then(|span| text.get(span)).unwrap_or_default().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_told_key_by_key() {
        let before = Written::of(
            "[node]\nreactors = 1\n[[subsystem]]\nnqn = 's'\nhosts = ['a',\n 'b']\nnamespaces = [{ volume = 'v' }]\n[pool.p]\nlog = { device = 'l' }\n",
        );
        let after = Written::of(
            "[node]\nreactors = 2\nlog_level = 'warn'\n[[subsystem]]\nnqn = 's'\nhosts = ['a', 'b']\nnamespaces = [{ volume = 'w' }]\n[pool.p]\nlog = { device = 'm' }\n",
        );
        assert_eq!(before.changes(&after, "[node]"), "log_level: none -> \"warn\"; reactors: 1 -> 2");
        assert_eq!(before.changes(&after, "subsystem 's'"), "namespaces: [{ volume = \"v\" }] -> [{ volume = \"w\" }]");
        assert_eq!(before.changes(&after, "pool 'p'"), "log.device: \"l\" -> \"m\"");
        let long = Written::of(&format!("[node]\nreactors = 1\nstate_dir = '{}'\n", "x".repeat(100)));
        assert_eq!(before.changes(&long, "[node]"), "state_dir: other text");
    }
}
