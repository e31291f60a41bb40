//! Dependency arrows between our own crates, read from `cargo metadata`, and what else a manifest must say.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::Finding;

/// Crate -> the crates right below it. A crate may use these and everything below them, in any kind of dependency.
///
/// `sim` stands aside: it depends on `reactor` alone, and only what drives scenarios depends on it. So a library crate
/// cannot name it, tests included: its scenarios live with `remuda` or in `scenarios`.
const BELOW: &[(&str, &[&str])] = &[
    ("remuda-base", &[]),
    ("remuda-reactor", &["remuda-base"]),
    ("remuda-bdev", &["remuda-reactor"]),
    ("remuda-nvme", &["remuda-bdev"]),
    ("remuda-vhost", &["remuda-bdev"]),
    ("remuda-engine", &["remuda-bdev"]),
    ("remuda-fs", &["remuda-bdev"]),
    ("remuda-kv", &["remuda-bdev"]),
    ("remuda-volume", &["remuda-nvme", "remuda-engine"]),
    ("remuda-object", &["remuda-fs", "remuda-kv"]),
    ("remuda-cluster", &["remuda-volume"]),
    ("remuda-sim", &["remuda-reactor"]),
    ("remuda-scenarios", &["remuda-cluster", "remuda-object", "remuda-vhost", "remuda-sim"]),
    ("remuda", &["remuda-scenarios"]),
    ("xtask", &[]),
];

/// Crates that may contain `unsafe`, with what for. Every other crate root says `#![forbid(unsafe_code)]`.
const UNSAFE: &[(&str, &str)] = &[
    ("remuda-base", "folds checksums with instructions that not every processor has"),
    ("remuda-reactor", "buffers, the slab of pinned futures, io_uring, memory mappings"),
    ("remuda-nvme", "calls OpenSSL where its bindings lack a function, with the feature `tls` alone"),
    ("remuda-sim", "stands in for the kernel, which reads and fills buffers by address"),
    ("remuda", "asks the system for the CPU time used"),
];

/// The licence of everything here.
const LICENCE: &str = "MIT OR Apache-2.0";

/// What matters of a package.
pub struct Package {
    name: String,
    /// From the root of the repository.
    manifest: String,
    licence: String,
    /// Names of our own packages that it depends on, for building, testing or running.
    ours: BTreeSet<String>,
    /// Crate roots of its libraries and binaries, from the root of the repository.
    roots: Vec<String>,
}

/// The packages of the workspace.
pub fn packages(metadata: &Value, root: &Path) -> Vec<Package> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let relative = |value: &Value| {
        let path = Path::new(value.as_str().unwrap_or_default());
        path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
    };
    let rows = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_root = |target: &Value| {
        rows(&target["kind"])
            .iter()
            .any(|kind| kind != "test" && kind != "bench" && kind != "example" && kind != "custom-build")
    };
    rows(&metadata["packages"])
        .iter()
        .map(|package| Package {
            name: text(&package["name"]),
            manifest: relative(&package["manifest_path"]),
            licence: text(&package["license"]),
            // (only what lies in this repository has a path)
            ours: rows(&package["dependencies"])
                .iter()
                .filter(|dep| dep["path"].is_string())
                .map(|dep| text(&dep["name"]))
                .collect(),
            roots: rows(&package["targets"])
                .iter()
                .filter(|target| is_root(target))
                .map(|target| relative(&target["src_path"]))
                .collect(),
        })
        .collect()
}

/// Everything that a crate may depend on; `None` for a crate not in the table.
fn allowed(name: &str) -> Option<BTreeSet<&'static str>> {
    let table: BTreeMap<_, _> = BELOW.iter().copied().collect();
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = table.get(name)?.to_vec();
    while let Some(next) = open.pop() {
        if found.insert(next) {
            open.extend(table.get(next).copied().unwrap_or_default());
        }
    }
    Some(found)
}

/// Arrows and licences.
pub fn check(packages: &[Package]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let mut found = |text| findings.push(Finding { path: package.manifest.clone(), line: 0, text });
        if package.licence != LICENCE {
            found(format!(
                "{} has the licence `{}` and not `{LICENCE}`; say `license.workspace = true`",
                package.name, package.licence
            ));
        }
        let Some(allowed) = allowed(&package.name) else {
            found(format!("{} is not in the table of arrows; add it to xtask/src/tidy/arrows.rs", package.name));
            continue;
        };
        for other in &package.ours {
            if !allowed.contains(other.as_str()) {
                found(format!("{} must not depend on {other}: arrows point down only", package.name));
            }
        }
    }
    findings
}

/// What each crate root and each manifest of ours must say.
pub fn check_roots(packages: &[Package], files: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let text_of = |path: &str| files.iter().find(|(name, _)| name == path).map(|(_, text)| text.as_str());
    for package in packages {
        let may = UNSAFE.iter().any(|(name, _)| *name == package.name);
        for root in &package.roots {
            if !may && !text_of(root).is_some_and(|text| text.contains("#![forbid(unsafe_code)]")) {
                let text = format!(
                    "the root of {} does not say #![forbid(unsafe_code)]; a crate that needs unsafe is named in xtask/src/tidy/arrows.rs",
                    package.name
                );
                findings.push(Finding { path: root.clone(), line: 1, text });
            }
        }
        if !text_of(&package.manifest).is_some_and(|text| text.contains("[lints]\nworkspace = true")) {
            findings.push(Finding {
                path: package.manifest.clone(),
                line: 0,
                text: "has no `[lints] workspace = true`".to_owned(),
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, depends: &[&str]) -> Value {
        let depends: Vec<Value> =
            depends.iter().map(|name| json!({"name": name, "path": "/r/x", "kind": "dev"})).collect();
        json!({"name": name, "manifest_path": format!("/r/crates/{name}/Cargo.toml"), "license": LICENCE, "dependencies": depends,
            "targets": [{"kind": ["lib"], "src_path": format!("/r/crates/{name}/src/lib.rs")}, {"kind": ["test"], "src_path": "/r/t.rs"}]})
    }

    fn findings(packages_: &[Value]) -> Vec<String> {
        let packages = packages(&json!({ "packages": packages_ }), Path::new("/r"));
        check(&packages).into_iter().map(|finding| finding.to_string()).collect()
    }

    #[test]
    fn the_arrows_of_the_design_are_allowed() {
        let fine = [
            package("remuda-base", &[]),
            package("remuda-nvme", &["remuda-base", "remuda-reactor", "remuda-bdev"]),
            package("remuda-volume", &["remuda-nvme", "remuda-engine", "remuda-base"]),
            package("remuda-sim", &["remuda-base", "remuda-reactor"]),
            package("remuda", &["remuda-sim", "remuda-cluster", "remuda-object"]),
        ];
        assert_eq!(findings(&fine), [""; 0]);
    }

    #[test]
    fn an_arrow_up_or_across_or_to_the_simulator_is_found() {
        for (name, depends) in [
            ("remuda-base", "remuda-reactor"),
            ("remuda-nvme", "remuda-engine"),
            ("remuda-fs", "remuda-volume"),
            ("remuda-bdev", "remuda-sim"),
            ("remuda-cluster", "remuda-sim"),
            ("remuda-sim", "remuda-bdev"),
            ("xtask", "remuda-base"),
        ] {
            let found = findings(&[package(name, &[depends])]);
            assert_eq!(found.len(), 1, "{name} -> {depends}: {found:?}");
            assert!(found[0].contains("must not depend on"), "{found:?}");
        }
    }

    #[test]
    fn an_unknown_crate_and_another_licence_are_found() {
        assert!(findings(&[package("remuda-else", &[])])[0].contains("table of arrows"));
        let mut other = package("remuda-base", &[]);
        other["license"] = json!("GPL-3.0");
        assert!(findings(&[other])[0].contains("licence"));
    }

    #[test]
    fn a_root_without_forbid_and_a_manifest_without_lints_are_found() {
        let packages = packages(&json!({"packages": [package("remuda-engine", &[])]}), Path::new("/r"));
        let root = |text: &str| ("crates/remuda-engine/src/lib.rs".to_owned(), text.to_owned());
        let manifest = |text: &str| ("crates/remuda-engine/Cargo.toml".to_owned(), text.to_owned());
        let (good_root, good_manifest) = (root("#![forbid(unsafe_code)]\n"), manifest("[lints]\nworkspace = true\n"));
        assert_eq!(check_roots(&packages, &[good_root.clone(), good_manifest.clone()]), []);
        assert_eq!(check_roots(&packages, &[root("fn f() {}"), good_manifest]).len(), 1);
        assert_eq!(check_roots(&packages, &[good_root, manifest("[package]\n")]).len(), 1);
    }
}
