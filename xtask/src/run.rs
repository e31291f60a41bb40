//! Running other programs: from the repository's root, with their failure told as an error that names them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// The repository's root, where every command runs.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies one level below the root")
}

/// The cargo that called us, or the one on the PATH.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// Where the release build of the `remuda` binary is.
pub fn release_binary() -> PathBuf {
    target_dir().join("release/remuda")
}

/// The release build of the `remuda` binary.
pub fn remuda() -> Command {
    Command::new(release_binary())
}

/// Builds what [`remuda`] names.
pub fn build_release() -> Result<()> {
    checked(cargo().args(["build", "--release", "--quiet"]))
}

/// Builds the same with TLS, and puts it beside: the next build without would replace it.
pub fn build_release_tls() -> Result<PathBuf> {
    checked(cargo().args(["build", "--release", "--quiet", "--package", "remuda", "--features", "tls"]))?;
    let beside = release_binary().with_file_name("remuda-tls");
    std::fs::copy(release_binary(), &beside).with_context(|| format!("cannot write {}", beside.display()))?;
    Ok(beside)
}

/// Runs a command, its output going where ours goes; anything but success is an error.
pub fn checked(command: &mut Command) -> Result<()> {
    let status = command.current_dir(root()).status().with_context(|| format!("cannot run {}", shown(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs a command and returns its standard output; anything but success is an error.
pub fn output(command: &mut Command) -> Result<String> {
    let done = command
        .current_dir(root())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        bail!("{} ended with {}\n{text}", shown(command), done.status);
    }
    Ok(text)
}

/// The command as one would type it.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut line = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}
