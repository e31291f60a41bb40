//! `cargo xtask tidy`: the rules of the source tree that neither the compiler nor clippy knows.
//!
//! * [`arrows`]: which crate may depend on which, the licence, and which crate roots may do without `forbid(unsafe_code)`;
//! * [`orphans`]: tests that no program has;
//! * [`rules`]: what a source file may say: the operating system, `unwrap`, `unsafe` without a reason, its length;
//! * [`scan`]: source text split into code and comments, with the tests marked.
//!
//! An exception is a line in a table here with its reason, never a comment in the code it excuses.

mod arrows;
mod orphans;
mod rules;
mod scan;

use std::collections::BTreeSet;
use std::fmt;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run;

/// No file of the repository is larger, golden images of disks included.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// From the root of the repository.
    path: String,
    /// From 1; 0 for the whole file.
    line: usize,
    /// What is wrong, and what to do.
    text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line == 0 {
            write!(f, "{}: {}", self.path, self.text)
        } else {
            write!(f, "{}:{}: {}", self.path, self.line, self.text)
        }
    }
}

/// Checks the whole tree; prints every finding.
pub fn run() -> Result<()> {
    let metadata = run::output(run::cargo().args(["metadata", "--no-deps", "--format-version=1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata).context("cargo metadata")?;
    let packages = arrows::packages(&metadata, run::root());
    let mut findings = arrows::check(&packages);

    // Tracked files, and those about to be.
    let listed = run::output(Command::new("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]))?;
    let mut files = Vec::new();
    for path in listed.lines().collect::<BTreeSet<_>>() {
        // (a file deleted but still in the index has no size)
        let bytes = std::fs::metadata(run::root().join(path)).map_or(0, |found| found.len());
        if bytes > FILE_BYTES_MAX {
            let text = format!("has {bytes} bytes: what is made, or this large, is kept elsewhere");
            findings.push(Finding { path: path.to_owned(), line: 0, text });
        }
        let is_read = path.ends_with(".rs") || path.ends_with("Cargo.toml");
        if is_read && let Ok(text) = std::fs::read_to_string(run::root().join(path)) {
            files.push((path.to_owned(), text));
        }
    }
    findings.extend(arrows::check_roots(&packages, &files));
    findings.extend(orphans::check(&files));
    findings.extend(rules::check(&files));
    for name in ["LICENSE-MIT", "LICENSE-APACHE"] {
        if !run::root().join(name).exists() {
            findings.push(Finding { path: name.to_owned(), line: 0, text: "is missing".to_owned() });
        }
    }

    findings.sort();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    println!("tidy: {} packages, {} files, nothing to say", packages.len(), files.len());
    Ok(())
}
