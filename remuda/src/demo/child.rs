//! A node as a child process: this program, `serve`, with its log in a file.

use crate::cli::exit::{Exit, Failure};
use crate::rpc::client::Client;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running node; killed when dropped. It also ends by itself when this process does, as it watches its standard input.
pub struct ChildNode {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

/// Longest wait for a node to answer.
const START_MAX: Duration = Duration::from_secs(20);

impl ChildNode {
    /// Starts a node and waits until it answers.
    pub fn start(config: &Path, socket: &Path, log: &Path) -> Result<ChildNode, Failure> {
        let failed = |error: std::io::Error| Failure::new(Exit::Failed, format!("cannot start the node: {error}"));
        let program = std::env::current_exe().map_err(failed)?;
        let output = std::fs::OpenOptions::new().create(true).append(true).open(log).map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["serve", "--stop-with-stdin", "--config"]).arg(config);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(output);
        // Ctrl-C goes to the whole foreground group; the node is stopped by us, in order.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().map_err(failed)?;
        let mut node = ChildNode { child, socket: socket.to_path_buf(), log: log.to_path_buf() };
        node.wait_until_ready()?;
        Ok(node)
    }

    fn wait_until_ready(&mut self) -> Result<(), Failure> {
        let began = Instant::now();
        loop {
            if self.call("node.status", json!({})).is_ok() {
                return Ok(());
            }
            let ended = self.child.try_wait().ok().flatten();
            if ended.is_some() || began.elapsed() > START_MAX {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(10).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                let what = if ended.is_some() { "ended at once" } else { "does not answer" };
                return Err(Failure::new(
                    Exit::Failed,
                    format!("the node {what}; its log ends with:\n{}", tail.join("\n")),
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Calls the node.
    pub fn call(&self, method: &str, params: Value) -> Result<Value, Failure> {
        Ok(Client::connect(&self.socket)?.call(method, params)?)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// An orderly stop.
    pub fn stop(mut self) -> Result<(), Failure> {
        self.call("node.stop", json!({}))?;
        let status = self.child.wait();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(Failure::new(Exit::Failed, format!("the node stopped badly: {status}"))),
            Err(error) => Err(Failure::new(Exit::Failed, format!("cannot wait for the node: {error}"))),
        }
    }
}

impl Drop for ChildNode {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A TCP port that was free a moment ago, the wished-for one or one of those after it if possible. Ports that the kernel
/// gives to outgoing connections come last: a node that was killed could find its port taken by one of them.
pub fn free_port(wished: u16) -> std::io::Result<u16> {
    use std::net::{Ipv4Addr, TcpListener};
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let near = (wished..wished.saturating_add(100)).find_map(|port| bind(port).ok());
    let listener = near.map_or_else(|| bind(0), Ok)?;
    Ok(listener.local_addr()?.port())
}
