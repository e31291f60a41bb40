//! `cargo xtask bench`: a node of ours on a memory device, measured over loopback by our own host, as a table.
//!
//! The comparisons with other systems have their own commands in `docs/performance.md`: their peers are not built here.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::Value;

use crate::run;

/// How long to measure.
#[derive(Args)]
pub struct Options {
    /// For each row
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// The rows as JSON lines, as the bench printed them
    #[arg(long)]
    json: bool,
}

/// Workload, block size, queue depth.
const ROWS: &[(&str, &str, u32)] = &[
    ("randread", "4k", 1),
    ("randread", "4k", 16),
    ("randread", "4k", 128),
    ("randwrite", "4k", 1),
    ("randwrite", "4k", 16),
    ("randwrite", "4k", 128),
    ("randread", "16k", 128),
    ("randrw", "4k", 16),
];

const NQN: &str = "nqn.2026-11.io.remuda:bench";

/// Measures every row and prints it.
pub fn run(options: &Options) -> Result<()> {
    run::build_release()?;
    let node = Node::start()?;
    if !options.json {
        println!(
            "{:10} {:>4} {:>4} {:>12} {:>10} {:>10} {:>10}",
            "rw", "bs", "qd", "IOPS", "p50 us", "p99 us", "CPU ns/IO"
        );
    }
    for (rw, bs, qd) in ROWS {
        let text = run::output(
            run::remuda()
                .args(["bench", "nvmf", "--addr", "127.0.0.1", "--port", &node.port.to_string(), "--nqn", NQN])
                .args([
                    "--rw",
                    rw,
                    "--bs",
                    bs,
                    "--qd",
                    &qd.to_string(),
                    "--time",
                    &options.seconds.to_string(),
                    "--json",
                ]),
        )?;
        if options.json {
            println!("{}", text.trim_end());
            continue;
        }
        let row: Value = serde_json::from_str(&text).with_context(|| format!("remuda bench printed {text}"))?;
        let number = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        println!(
            "{rw:10} {bs:>4} {qd:>4} {:>12.0} {:>10.1} {:>10.1} {:>10.0}",
            number(&row["iops"]),
            number(&row["lat_ns"]["p50"]) / 1e3,
            number(&row["lat_ns"]["p99"]) / 1e3,
            number(&row["cpu_ns_per_io"]),
        );
    }
    Ok(())
}

/// A running `remuda serve`, ended and its directory removed on drop.
struct Node {
    child: Child,
    dir: PathBuf,
    port: u16,
}

impl Node {
    fn start() -> Result<Node> {
        let dir = std::env::temp_dir().join(format!("remuda-bench-{}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = dir.join("node.toml");
        fs::write(&config, config_text(&dir, port))?;
        let child = run::remuda().args(["serve", "--config"]).arg(&config).stdout(Stdio::null()).spawn();
        let mut node = Node { child: child.context("cannot run remuda")?, dir, port };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = node.child.try_wait()? {
                bail!("remuda serve ended with {status}");
            }
            if Instant::now() > deadline {
                bail!("remuda serve does not listen on port {port} after 10 s");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(node)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SIGTERM, so that the node drains; a failure here can only be that it has ended already
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn config_text(dir: &Path, port: u16) -> String {
    let dir = dir.display();
    format!(
        r#"[node]
state_dir = "{dir}/state"
rpc_socket = "{dir}/rpc.sock"
metrics_listen = "127.0.0.1:0"
[nvmf]
listen = ["127.0.0.1:{port}"]
[[device]]
name = "d0"
kind = "mem"
size = "512MiB"
block_size = 4096
[[volume]]
name = "v0"
device = "d0"
[[subsystem]]
nqn = "{NQN}"
allow_any_host = true
namespaces = [{{ nsid = 1, volume = "v0" }}]
"#
    )
}
