//! `remuda key`: keys with which hosts and nodes authenticate each other.

use super::exit::{Exit, Failure};
use super::out_file::{Existing, OutFile, Readers, cannot_write};
use super::{Context, output};
use clap::Subcommand;
use nvme::auth::{Hash, Secret};
use nvme::tls::Psk;
use serde_json::json;
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;

/// See the module.
#[derive(Subcommand)]
pub enum KeyCommand {
    /// Make a new key for DH-HMAC-CHAP, or for TLS
    #[command(after_help = "\
Examples:
  remuda key generate host.key
  remuda host allow NQN HOST --dhchap-key host.key
  nvme connect ... --dhchap-secret \"$(cat host.key)\"
  remuda key generate --tls host.tls
  remuda host allow NQN HOST --tls-key host.tls")]
    Generate {
        /// A new file for it, readable for its owner alone [default: print it]
        file: Option<PathBuf>,
        /// The hash that ties it to the name of its owner, which also says how long it is
        #[arg(long, value_parser = ["none", "sha256", "sha384", "sha512"], default_value = "sha256")]
        hash: String,
        /// For TLS; the hash, sha256 or sha384, decides on the cipher suite
        #[arg(long)]
        tls: bool,
    },
}

/// Carries a command out.
pub fn key(context: &Context, command: KeyCommand) -> Result<(), Failure> {
    let KeyCommand::Generate { file, hash, tls } = command;
    let hash = Hash::from_name(&hash);
    if tls && !matches!(hash, Some(Hash::Sha256 | Hash::Sha384)) {
        return Err(Failure::new(Exit::Usage, "a key for TLS has --hash sha256 or sha384"));
    }
    let failed = |what: String| move |error: std::io::Error| Failure::new(Exit::Failed, format!("{what}: {error}"));
    let mut urandom = File::open("/dev/urandom").map_err(failed("cannot open /dev/urandom".into()))?;
    let mut got = Ok(());
    let mut random = |bytes: &mut [u8]| got = urandom.read_exact(bytes);
    let text = match hash {
        Some(hash) if tls => Psk::generate(hash, &mut random).to_text(),
        hash => Secret::generate(hash, &mut random).to_text(),
    };
    got.map_err(failed("cannot read /dev/urandom".into()))?;
    let kind = if tls { "tls" } else { "dhchap" };
    let mut made = json!({ "kind": kind, "hash": hash.map_or("none", Hash::name), "file": file });
    let Some(path) = file else {
        match context.json {
            true => {
                made["key"] = json!(text.as_str());
                output::print_json(&made);
            }
            false => output::print_line(&text),
        }
        return Ok(());
    };
    // Never over a key that is there: somebody may need it.
    let mut file = OutFile::open(&path, Existing::Keep, Readers::Owner)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.write_all(b"\n"));
    written.map_err(|error| cannot_write(&path, &error))?;
    let is_stdout = file.is_stdout();
    file.finish()?;
    if context.json && !is_stdout {
        output::print_json(&made);
    }
    Ok(())
}
