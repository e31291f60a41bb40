//! `remuda key`: keys with which hosts and nodes authenticate each other.

use super::exit::{Exit, Failure};
use super::output;
use clap::Subcommand;
use nvme::auth::{Hash, Secret};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// See the module.
#[derive(Subcommand)]
pub enum KeyCommand {
    /// Make a new key for DH-HMAC-CHAP
    #[command(after_help = "\
Examples:
  remuda key generate host.key
  remuda host allow NQN HOST --dhchap-key host.key
  nvme connect ... --dhchap-secret \"$(cat host.key)\"")]
    Generate {
        /// A new file for it, readable for its owner alone [default: print it]
        file: Option<PathBuf>,
        /// The hash that ties it to the name of its owner, which also says how long it is
        #[arg(long, value_parser = ["none", "sha256", "sha384", "sha512"], default_value = "sha256")]
        hash: String,
    },
}

/// Carries a command out.
pub fn key(command: KeyCommand) -> Result<(), Failure> {
    let KeyCommand::Generate { file, hash } = command;
    let failed = |what: String| move |error: std::io::Error| Failure::new(Exit::Failed, format!("{what}: {error}"));
    let mut urandom = File::open("/dev/urandom").map_err(failed("cannot open /dev/urandom".into()))?;
    let mut got = Ok(());
    let secret = Secret::generate(Hash::from_name(&hash), &mut |bytes| got = urandom.read_exact(bytes));
    got.map_err(failed("cannot read /dev/urandom".into()))?;
    let text = secret.to_text();
    let Some(path) = file else {
        output::print_line(&text);
        return Ok(());
    };
    let what = format!("cannot write '{}'", path.display());
    // Never over a key that is there: somebody may need it.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let written = file.and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()
    });
    written.map_err(failed(what))
}
