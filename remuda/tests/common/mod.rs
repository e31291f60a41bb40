//! Runs the program and nodes of it in temporary directories.

pub mod pools;

use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const BINARY: &str = env!("CARGO_BIN_EXE_remuda");

/// How a command ended.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.out, self.err))
    }
}

/// Runs the program to its end.
pub fn remuda(args: &[&str]) -> Run {
    let output = Command::new(BINARY).args(args).env_remove("REMUDA_SOCKET").output().unwrap();
    Run {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A node in a directory of its own, killed when dropped.
pub struct Node {
    dir: tempfile::TempDir,
    child: Option<Child>,
    /// Where it listens for commands, if not where its configuration says.
    given_socket: Option<String>,
}

/// Waits until a node that was started answers at `socket`.
pub fn wait_for_node(child: &mut Child, socket: &str, log: impl Fn() -> String) {
    let began = Instant::now();
    while remuda(&["--socket", socket, "rpc", "node.status"]).code != 0 {
        let late = began.elapsed() > Duration::from_secs(20);
        assert!(child.try_wait().unwrap().is_none() && !late, "the node did not start: {}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Node {
    /// Starts a node whose configuration has `rest` after its `[node]` section.
    pub fn start(rest: &str) -> Node {
        Node::start_with(&[], rest)
    }

    /// As [`start`](Self::start) with files that only the owner can read beside its configuration.
    pub fn start_with(files: &[(&str, &str)], rest: &str) -> Node {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = dir.path().join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
        let text =
            format!("[node]\nstate_dir = 'state'\nrpc_socket = 'r.sock'\nmetrics_listen = '127.0.0.1:0'\n{rest}");
        std::fs::write(dir.path().join("node.toml"), text).unwrap();
        let mut node = Node { dir, child: None, given_socket: None };
        node.restart();
        node
    }

    /// Starts it (again) and waits until it answers.
    pub fn restart(&mut self) {
        self.restart_by(Command::new(BINARY));
    }

    /// As [`restart`](Self::restart) after a command of the shell, such as `ulimit -n 64`.
    pub fn restart_after(&mut self, shell: &str) {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{shell}; exec \"$0\" \"$@\""), BINARY]);
        self.restart_by(command);
    }

    fn restart_by(&mut self, mut command: Command) {
        assert!(self.child.is_none());
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        command.args(["serve", "--config", &self.config()]);
        if let Some(socket) = &self.given_socket {
            command.args(["--socket", socket]);
        }
        let mut child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        wait_for_node(&mut child, &self.socket(), || self.log());
        self.child = Some(child);
    }

    /// Starts it again, listening for commands elsewhere than its configuration says.
    pub fn restart_on(&mut self, socket: &str) {
        self.given_socket = Some(self.path(socket).to_string_lossy().into_owned());
        self.restart();
    }

    /// The first line of its log with these words, once it is there.
    pub fn log_line(&self, what: &str) -> String {
        let began = Instant::now();
        loop {
            let log = self.log();
            if let Some(line) = log.lines().find(|line| line.contains(what)) {
                return line.to_string();
            }
            assert!(began.elapsed() < Duration::from_secs(20), "no '{what}' in {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn config(&self) -> String {
        self.path("node.toml").to_string_lossy().into_owned()
    }

    pub fn socket(&self) -> String {
        self.given_socket.clone().unwrap_or_else(|| self.path("r.sock").to_string_lossy().into_owned())
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// Runs a command against it.
    pub fn run(&self, args: &[&str]) -> Run {
        remuda(&[&["--socket", &self.socket()], args].concat())
    }

    /// Runs a command that must succeed.
    pub fn ok(&self, args: &[&str]) {
        let run = self.run(args);
        assert_eq!(run.code, 0, "{args:?}: {}\n{}", run.err, self.log());
    }

    /// Runs a command that must succeed, and reads its JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let run = self.run(&[&["--json"], args].concat());
        assert_eq!(run.code, 0, "{args:?}: {}", run.out);
        run.json()
    }

    /// The node as a whole, whether or not it is well.
    pub fn status(&self) -> Value {
        self.json(&["rpc", "node.status"])
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// SIGTERM; gives the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        child.wait().unwrap().code()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The whole answer to a plain GET.
pub fn http_get(url: &str) -> String {
    let rest = url.strip_prefix("http://").unwrap();
    let (address, path) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A TCP port that was free a moment ago, below those that the kernel gives to outgoing connections: a node that is
/// restarted on it finds it free again.
pub fn free_port() -> u16 {
    use std::sync::atomic::{AtomicU16, Ordering};
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let start = (std::process::id() % 10_000) as u16;
    let candidates = std::iter::repeat_with(|| 20_000 + (start + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000);
    let free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    candidates.take(10_000).find(free).expect("one of ten thousand ports is free")
}
