//! Keys of hosts for DH-HMAC-CHAP and TLS: which files, and with which hashes and groups; and the files themselves.

use super::section::{Form, Key, Section, key};
use super::value::{Data, Located, Span};
use super::{Source, check_nqn, resolve};
use nvme::auth::{DhGroup, Hash, Secret};
use nvme::tls::Psk;
use std::sync::Arc;

/// Keys of one entry of `host_keys`.
pub const HOST_KEY: &[Key] = &[
    key("host", Form::Text, "required", "NQN of the host."),
    key("tls_key", Form::Text, "this or dhchap_key", "File with the key with which the host connects by TLS."),
    key("dhchap_key", Form::Text, "none", "File with the key that the host proves to have."),
    key("dhchap_ctrl_key", Form::Text, "none", "File with the key that this node proves to have when the host asks."),
    key("dhchap_hash", Form::TextList, "sha512, sha384, sha256", "Hashes that may be used, the preferred one first."),
    key(
        "dhchap_dhgroup",
        Form::TextList,
        "ffdhe3072, 4096, 6144, 8192, 2048, null",
        "Diffie-Hellman groups that may be used, the preferred one first; \"null\" is none.",
    ),
];

/// How a host authenticates, as it was asked for: files that have not been read.
#[derive(Clone, Debug)]
pub struct HostKeyEntry {
    /// The host.
    pub host: Located<String>,
    /// File with its key for TLS.
    pub tls_key_file: Option<Located<String>>,
    /// File with its key for authentication.
    pub key_file: Option<Located<String>>,
    /// File with the key of this node towards it.
    pub ctrl_key_file: Option<Located<String>>,
    /// Hashes; empty is all.
    pub hashes: Vec<Hash>,
    /// Groups; empty is all.
    pub groups: Vec<DhGroup>,
}

/// The hashes with these names.
pub fn hashes(names: &[String]) -> Result<Vec<Hash>, String> {
    let find = |name: &String| Hash::from_name(name).ok_or_else(|| format!("'{name}' is not sha256, sha384 or sha512"));
    distinct(names, find)
}

/// The groups with these names.
pub fn groups(names: &[String]) -> Result<Vec<DhGroup>, String> {
    let known = "null, ffdhe2048, ffdhe3072, ffdhe4096, ffdhe6144 or ffdhe8192";
    distinct(names, |name| DhGroup::from_name(name).ok_or_else(|| format!("'{name}' is not {known}")))
}

fn distinct<T: PartialEq>(names: &[String], find: impl Fn(&String) -> Result<T, String>) -> Result<Vec<T>, String> {
    let mut found = Vec::new();
    for name in names {
        let one = find(name)?;
        if found.contains(&one) {
            return Err(format!("'{name}' is named twice"));
        }
        found.push(one);
    }
    Ok(found)
}

/// Reads `host_keys` of a subsystem whose hosts are `hosts`, or all.
pub fn read_host_keys(section: &mut Section<'_>, hosts: &[Located<String>], any: bool) -> Vec<HostKeyEntry> {
    let Some(value) = section.raw("host_keys") else { return Vec::new() };
    let expected = "expected a list of {host, dhchap_key, tls_key}";
    let Data::List(items) = &value.data else {
        section.wrong(value.span.clone(), "host_keys", expected, None);
        return Vec::new();
    };
    let mut entries: Vec<HostKeyEntry> = Vec::new();
    for item in items {
        let Data::Table(table) = &item.data else {
            section.wrong(item.span.clone(), "host_keys", expected, None);
            continue;
        };
        let title = format!("host_keys of {}", section.title);
        let mut inner = Section::new(title, item.span.clone(), table, &[HOST_KEY], false, section.problems);
        inner.check_unknown(|_| None);
        let (hash_names, group_names) = (texts(&mut inner, "dhchap_hash"), texts(&mut inner, "dhchap_dhgroup"));
        let (hashes, groups) = (hashes(&hash_names.0), groups(&group_names.0));
        if let Err(reason) = &hashes {
            inner.wrong(hash_names.1, "dhchap_hash", reason, None);
        }
        if let Err(reason) = &groups {
            inner.wrong(group_names.1, "dhchap_dhgroup", reason, None);
        }
        let (host, key_file) = (inner.need_text("host"), inner.text("dhchap_key"));
        let (ctrl_key_file, tls_key_file) = (inner.text("dhchap_ctrl_key"), inner.text("tls_key"));
        if key_file.is_none() && tls_key_file.is_none() {
            inner.missing("dhchap_key");
        }
        if let (None, Some(ctrl_key)) = (&key_file, &ctrl_key_file) {
            let message = "the node proves itself to a host that authenticates itself";
            inner.wrong(ctrl_key.span.clone(), "dhchap_ctrl_key", message, Some("add 'dhchap_key'".into()));
        }
        if let Some(tls_key) = &tls_key_file {
            need_tls(&mut inner, tls_key.span.clone(), "tls_key");
        }
        let Some(host) = host else { continue };
        if let Err(reason) = check_nqn(&host.value) {
            inner.wrong(host.span.clone(), "host", reason, None);
        } else if !any && !hosts.iter().any(|known| known.value == host.value) {
            let help = format!("add \"{}\" to 'hosts'", host.value);
            inner.wrong(host.span.clone(), "host", "it may not connect, so its key has no effect", Some(help));
        }
        if entries.iter().any(|other| other.host.value == host.value) {
            inner.wrong(host.span.clone(), "host", "it has a key already", None);
        }
        let (hashes, groups) = (hashes.unwrap_or_default(), groups.unwrap_or_default());
        entries.push(HostKeyEntry { host, tls_key_file, key_file, ctrl_key_file, hashes, groups });
    }
    entries
}

fn texts(section: &mut Section<'_>, name: &str) -> (Vec<String>, Option<Span>) {
    let texts = section.texts(name).unwrap_or_default();
    let span = texts.first().and_then(|text| text.span.clone());
    (texts.into_iter().map(|text| text.value).collect(), span)
}

/// Paths are relative to the configuration file.
pub(super) fn resolve_host_keys(source: &Source, entries: &mut [HostKeyEntry]) {
    for entry in entries {
        let files = entry.key_file.iter_mut().chain(&mut entry.ctrl_key_file).chain(&mut entry.tls_key_file);
        for file in files {
            file.value = resolve(source, &file.value).to_string_lossy().into_owned();
        }
    }
}

/// What there is to say of TLS in a build without it.
pub const NO_TLS: &str = "this build has no TLS";
/// And what to do.
pub const NO_TLS_NEXT: &str = "build it with `--features tls`, which needs OpenSSL (libssl-dev)";

/// Says so if this build cannot do what `key` asks for.
pub(super) fn need_tls(section: &mut Section<'_>, span: Option<Span>, key: &str) {
    if !nvme::tls::IS_BUILT {
        section.wrong(span, key, NO_TLS, Some(NO_TLS_NEXT.to_string()));
    }
}

/// What texts of keys begin with.
const KEY_STARTS: [&str; 2] = ["DHHC-1:", "NVMeTLSkey-1:"];

/// Whether a text looks like a key, and is not to be repeated.
pub fn looks_like_key(text: &str) -> bool {
    KEY_STARTS.iter().any(|start| text.contains(start))
}

/// The text with `(a key)` in the place of everything in it that looks like one.
pub fn hide_keys(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = KEY_STARTS.iter().filter_map(|start| rest.find(start)).min() {
        let (before, key) = rest.split_at(at);
        let is_of_key = |byte: char| byte.is_ascii_alphanumeric() || matches!(byte, '+' | '/' | '=' | ':' | '-');
        shown.push_str(before);
        shown.push_str("(a key)");
        rest = key.trim_start_matches(is_of_key);
    }
    shown.push_str(rest);
    shown
}

/// The key for authentication in a file, which is for its owner alone; otherwise why not, and what to do.
pub fn read_dhchap_key(path: &str) -> Result<Arc<Secret>, (String, String)> {
    let make = format!("make one: remuda key generate {path}");
    let text = read_key_file(path, &make)?;
    let secret = Secret::parse(&text).map_err(|error| (format!("{path} holds no key: {error}"), make))?;
    Ok(Arc::new(secret))
}

/// The same of a key for TLS.
pub fn read_tls_key(path: &str) -> Result<Arc<Psk>, (String, String)> {
    let make = format!("make one: remuda key generate --tls {path}");
    let text = read_key_file(path, &make)?;
    let psk = Psk::parse(&text).map_err(|error| (format!("{path} holds no key for TLS: {error}"), make))?;
    Ok(Arc::new(psk))
}

fn read_key_file(path: &str, make: &str) -> Result<zeroize::Zeroizing<String>, (String, String)> {
    use std::os::unix::fs::MetadataExt;
    if looks_like_key(path) {
        let next = "write the key to a file for its owner alone, and name that file".to_string();
        return Err(("it is a key itself, not the name of a file".into(), next));
    }
    let failed = |error: std::io::Error| (format!("cannot read {path}: {error}"), make.to_string());
    let found = std::fs::metadata(path).map_err(failed)?;
    if found.mode() & 0o077 != 0 {
        return Err((format!("{path} can be read by others"), format!("chmod 600 {path}")));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    Ok(zeroize::Zeroizing::new(String::from_utf8(bytes).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hidden_wherever_they_stand() {
        let text = "a = 'DHHC-1:01:Zm9v+/YmFy==:'\nb = \"NVMeTLSkey-1:01:AbC/=:\", DHHC-1:00:x: c";
        assert_eq!(hide_keys(text), "a = '(a key)'\nb = \"(a key)\", (a key) c");
        assert!(!looks_like_key(&hide_keys(text)));
        assert_eq!(hide_keys("nothing \u{e9} here"), "nothing \u{e9} here");
    }
}
