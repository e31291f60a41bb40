//! `remuda dev`: a node to play with, on files in a directory, and what to type next.

use super::child::free_port;
use crate::cli::connect_line;
use crate::cli::exit::{Exit, Failure};
use crate::node::view::StatusView;
use clap::Args;
use std::path::{Path, PathBuf};

const NQN: &str = "nqn.2026-11.io.remuda:dev";

/// Where to play.
#[derive(Args)]
pub struct DevArgs {
    /// Directory of the node; its configuration is made once and then left alone
    #[arg(long, value_name = "DIR", default_value = "remuda-dev")]
    dir: PathBuf,
}

/// Makes the directory if need be, and runs the node until Ctrl-C.
pub fn run(args: DevArgs, socket: Option<&Path>) -> Result<(), Failure> {
    let dir = std::path::absolute(&args.dir).unwrap_or(args.dir);
    let config = dir.join("node.toml");
    if !config.exists() {
        let failed = |error: std::io::Error| {
            Failure::new(Exit::Failed, format!("cannot write {}: {error}; choose another --dir", config.display()))
        };
        std::fs::create_dir_all(&dir).map_err(failed)?;
        let text = config_text(free_port(crate::config::NVMF_PORT).map_err(failed)?);
        std::fs::write(&config, text).map_err(failed)?;
    }
    let path = config.to_string_lossy().into_owned();
    crate::serve::serve(&path, socket, false, move |status, socket| eprintln!("{}", welcome(status, socket, &dir)))
}

fn config_text(port: u16) -> String {
    let metrics = free_port(9420).unwrap_or(9420);
    format!(
        r#"# Made by 'remuda dev'; change it as you like. 'remuda config reference' explains every key.

[node]
state_dir = "state"
rpc_socket = "remuda.sock"
metrics_listen = "127.0.0.1:{metrics}"
log_level = "warn"

[nvmf]
listen = ["127.0.0.1:{port}"]

[[device]]
name = "disk0"
kind = "file"
path = "disk0.img"
size = "2GiB"

[[device]]
name = "disk1"
kind = "file"
path = "disk1.img"
size = "2GiB"

[[device]]
name = "pair"
kind = "stripe"
devices = ["disk0", "disk1"]

[[device]]
name = "log"
kind = "file"
path = "log.img"
size = "256MiB"

[[device]]
name = "memory"
kind = "mem"
size = "256MiB"

# Writes go to the log first; here it is a file like the others, in earnest it is the fastest device there is.
[pool.hot]
log = "log"
capacity = "pair"

[[volume]]
name = "data"
pool = "hot"
size = "10GiB"

[[volume]]
name = "fast"
device = "memory"

[[subsystem]]
nqn = "{NQN}"
allow_any_host = true
namespaces = ["data", "fast"]
"#
    )
}

fn welcome(status: &StatusView, socket: &Path, dir: &Path) -> String {
    let address = status.nvmf_listen.first().map_or("nowhere", String::as_str);
    let (ip, port) = address.rsplit_once(':').unwrap_or((address, ""));
    let socket = socket.display();
    let metrics = status.metrics.as_deref().unwrap_or("off");
    let console = status.console.as_deref().unwrap_or("off");
    let connect = connect_line(address, NQN).unwrap_or_default();
    let dir = dir.display();
    format!(
        "\
A node is running; Ctrl-C stops it, and 'remuda dev' brings it back as it was.

  files       {dir}
  NVMe/TCP    {address}   subsystem {NQN}
                namespace 1: volume 'data', 10 GiB, thin, in pool 'hot' (a log and two striped files)
                namespace 2: volume 'fast', 256 MiB of memory
  commands    {socket}
  metrics     {metrics}
  console     {console}

In another terminal:

  export REMUDA_SOCKET={socket}
  remuda status
  remuda pool status hot
  remuda volume create mine --pool hot --size 20GiB
  remuda subsystem add-namespace {NQN} mine
  remuda bench nvmf --addr {ip} --port {port} --nqn {NQN} --nsid 2 --rw randread --time 5s

From a Linux host on this machine (as root, with the nvme-tcp module):

  {connect}
"
    )
}
