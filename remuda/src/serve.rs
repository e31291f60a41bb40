//! `remuda serve`: the life of a node process, from configuration to the last flush.
//!
//! The first SIGTERM, SIGINT or SIGHUP begins an orderly stop with a deadline; another one, later than half a second after it, ends the
//! process at once.

use crate::cli::exit::{Exit, Failure};
use crate::config::{Config, NvmfConfig};
use crate::console::Console;
use crate::http;
use crate::log::{self, LogControl};
use crate::node::view::StatusView;
use crate::node::{Arrival, Joined, KeepReservation, Node, Reactors, Refusal, ReservationDoor, Store, TcpExporter};
use crate::open_files;
use crate::rpc::audit::Audit;
use crate::rpc::methods::{self, Surroundings};
use crate::rpc::server::{Request, Socket, SocketError};
use crate::under_way::{self, Others};
use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::mpsc;

/// Requests waiting for the node at most; clients wait beyond that.
const QUEUE_MAX: usize = 64;
/// How often the node looks whether a device that it waits for is to be tried again.
const SEEK_EVERY: Duration = Duration::from_millis(100);
/// How often files of the state directory that could not be written are tried again.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// How often the node looks whether scrubs have ended.
const SCRUB_LOOK_EVERY: Duration = Duration::from_secs(1);
/// A second signal so soon after the first is the same one: a process group and its leader are often told both.
const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// Runs a node until it is told to stop.
///
/// It listens for commands on `socket`, or else where the file says. `on_ready` is told how it is and where its socket is, once it
/// can be used. With `stop_with_stdin` it also stops when its
/// standard input ends, so that it does not outlive the process that started it.
pub fn serve(
    path: &str,
    socket: Option<&Path>,
    stop_with_stdin: bool,
    on_ready: impl FnOnce(&StatusView, &Path),
) -> Result<(), Failure> {
    let config = Config::load(path)?;
    let log = log::start(&config.node.log_level, config.node.log_json);
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let (store, state) = Store::open(&config.node.state_dir).map_err(|error| {
        Failure::new(if error.is_conflict() { Exit::Conflict } else { Exit::Failed }, error.to_string())
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Failure::new(Exit::Failed, format!("cannot start the control thread: {error}")))?;
    let (signals, stop) = mpsc::unbounded_channel();
    watch_signals(signals.clone())?;
    if stop_with_stdin {
        watch_stdin(signals.clone())?;
    }
    let node = runtime.block_on(async {
        let socket = Socket::bind(socket.unwrap_or(&config.node.rpc_socket)).map_err(|error| {
            let exit = if matches!(error, SocketError::InUse(_) | SocketError::Taken(_)) {
                Exit::Conflict
            } else {
                Exit::Failed
            };
            Failure::new(exit, error.to_string())
        })?;
        let reactors = Reactors::start(&config.node).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        let (door, kept) = mpsc::unbounded_channel();
        let nvmf = NvmfConfig { max_connections: open_files::fit(&config, &state), ..config.nvmf.clone() };
        let exporter = TcpExporter::new(&nvmf, reactors.handles(), ReservationDoor(door));
        let node = Node::start(config, store, state, reactors, Box::new(exporter)).await?;
        run(node, socket, Process { log, signals }, stop, kept, on_ready).await
    })?;
    node.stop();
    tracing::info!("stopped");
    Ok(())
}

struct Process {
    log: LogControl,
    signals: mpsc::UnboundedSender<&'static str>,
}

impl Surroundings for Process {
    fn stop(&self) {
        let _ = self.signals.send("node.stop");
    }

    fn log_level(&self) -> String {
        self.log.level()
    }

    fn set_log_level(&self, level: &str) -> Result<(), Refusal> {
        self.log.set_level(level).map_err(|reason| Refusal::failed("log", reason, ""))?;
        tracing::info!(level, "log level changed");
        Ok(())
    }
}

/// What a signal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Stop in order.
    Stop,
    /// What the one before meant.
    Same,
    /// End without order.
    AtOnce,
}

/// What a signal at this time means after the first one, which is noted.
fn meaning(first: &mut Option<Instant>, now: Instant) -> Meaning {
    match *first {
        None => {
            *first = Some(now);
            Meaning::Stop
        }
        Some(first) if now.saturating_duration_since(first) < SAME_SIGNAL => Meaning::Same,
        Some(_) => Meaning::AtOnce,
    }
}

/// Whether whoever started the process wants it to go on when the terminal is gone, as `nohup` does.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 != 0)
}

/// Turns the first signal into a message, and ends the process on the second.
fn watch_signals(stop: mpsc::UnboundedSender<&'static str>) -> Result<(), Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let cannot = |error: std::io::Error| Failure::new(Exit::Failed, format!("cannot handle signals: {error}"));
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(cannot)?;
    if !ignores_hangups() {
        signals.add_signal(SIGHUP).map_err(cannot)?;
    }
    let watch = move || {
        let mut first = None;
        for signal in signals.forever() {
            let name = match signal {
                SIGINT => "SIGINT",
                SIGHUP => "SIGHUP",
                _ => "SIGTERM",
            };
            match meaning(&mut first, Instant::now()) {
                Meaning::Stop => drop(stop.send(name)),
                Meaning::Same => {}
                Meaning::AtOnce => {
                    tracing::error!("{name} again: ending at once, without draining");
                    std::process::exit(Exit::Failed as i32);
                }
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(cannot)?;
    Ok(())
}

/// Turns the end of standard input into a message.
fn watch_stdin(stop: mpsc::UnboundedSender<&'static str>) -> Result<(), Failure> {
    let watch = move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = stop.send("the end of standard input");
    };
    let cannot = |error: std::io::Error| Failure::new(Exit::Failed, format!("cannot watch standard input: {error}"));
    std::thread::Builder::new().name("stdin".into()).spawn(watch).map_err(cannot)?;
    Ok(())
}

async fn run(
    mut node: Node,
    socket: Socket,
    process: Process,
    mut stop: mpsc::UnboundedReceiver<&'static str>,
    kept: mpsc::UnboundedReceiver<KeepReservation>,
    on_ready: impl FnOnce(&StatusView, &Path),
) -> Result<Node, Failure> {
    node.kept = Some(kept);
    let (sender, mut requests) = mpsc::channel::<Request>(QUEUE_MAX);
    let (metrics, mut scrapes) = http::Metrics::new(&node);
    let (console, mut looks) = Console::new(&node.config().node, process.log.recent());
    let console = node.config().node.console.then_some(console);
    if let Some(address) = node.config().node.metrics {
        match http::bind(address).await {
            Ok((listener, address)) => {
                node.metrics = Some(format!("http://{address}/metrics"));
                node.console = console.is_some().then(|| format!("http://{address}/"));
                // Whoever asks before the node has time for it hears how it began.
                metrics.update(&node).await;
                tokio::spawn(http::serve(listener, metrics.clone(), console));
            }
            Err(error) if node.config().node.metrics_explicit => {
                let message = format!("metrics_listen {address}: {error}; choose another address, or \"off\"");
                return Err(Failure::new(Exit::Failed, message));
            }
            Err(error) => tracing::warn!("no metrics: {address}: {error} (set metrics_listen to choose an address)"),
        }
    }
    let mut audit = Audit::new(Path::new(&node.status().await.state_dir));
    let rpc_socket = socket.path().to_path_buf();
    let words = |all: &[std::net::SocketAddr]| all.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    tracing::info!(
        rpc = %rpc_socket.display(),
        nvmf = words(&node.exporter().addresses()),
        nvmf_tls = words(&node.exporter().tls_addresses()),
        metrics = node.metrics.as_deref().unwrap_or("off"),
        "ready"
    );
    on_ready(&node.status().await, &rpc_socket);
    let (found, mut arrivals) = mpsc::unbounded_channel::<Arrival>();
    let mut landings = node.landings().expect("taken here alone");
    let mut given_up = node.logs_given_up().expect("taken here alone");
    let (joining, mut joins) = mpsc::unbounded_channel::<Joined>();
    let mut ticks = tokio::time::interval(SEEK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut retries = tokio::time::interval(RETRY_EVERY);
    retries.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut looks_at_scrubs = tokio::time::interval(SCRUB_LOOK_EVERY);
    looks_at_scrubs.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut waiting = VecDeque::new();
    let cause = {
        let serve_rpc = socket.serve(sender);
        tokio::pin!(serve_rpc);
        loop {
            tokio::select! {
                () = &mut serve_rpc => break "the RPC socket closed",
                cause = stop.recv() => break cause.unwrap_or("a signal"),
                request = next_request(&mut waiting, &mut requests) => {
                    let Some(request) = request else { continue };
                    let (method, params) = (request.method, request.params.as_ref());
                    let call = methods::call(&mut node, &process, method, params, request.transfer);
                    let others = Others {
                        serve: serve_rpc.as_mut(),
                        requests: &mut requests,
                        waiting: &mut waiting,
                        stop: &mut stop,
                    };
                    let ended = under_way::carry_out(&under_way::words(method.name, params), call, others).await;
                    audit.record(request.peer, method, params, &ended.answer, SystemTime::now());
                    node.audit_problem = audit.problem();
                    let _ = request.reply.send(ended.answer);
                    if let Some(cause) = ended.stop {
                        break cause;
                    }
                }
                _ = ticks.tick(), if node.is_waiting() => {
                    node.seek(&found);
                    node.mend(&joining);
                    node.seek_doors().await;
                }
                _ = retries.tick(), if node.is_unsaved() || node.audit_problem.is_some() => {
                    if node.is_unsaved() {
                        node.save_again();
                    }
                    audit.write_waiting();
                    node.audit_problem = audit.problem();
                }
                _ = looks_at_scrubs.tick(), if node.is_scrubbing() => node.note_scrubs().await,
                Some(request) = node.next_kept() => node.keep_reservation(request),
                Some(outcome) = joins.recv() => node.joined(outcome),
                Some(landing) = landings.recv() => node.landed(landing).await,
                Some(pool) = given_up.recv() => node.log_given_up(&pool).await,
                Some(arrival) = arrivals.recv() => {
                    node.arrived(arrival).await;
                    node.seek(&found);
                }
                scrape = scrapes.recv() => {
                    let Some(done) = scrape else { continue };
                    metrics.update(&node).await;
                    let _ = done.send(());
                }
                Some(reply) = looks.recv() => {
                    let _ = reply.send(node.look().await);
                }
            }
        }
    };
    // The answer to `node.stop` is on its way to the client's task; let it go out.
    tokio::task::yield_now().await;
    tracing::info!("stopping ({cause}): draining and flushing");
    metrics.stopping();
    // Whoever waits for a look, or for the end of an import, is told that there will be none.
    drop((looks, landings));
    let deadline = Duration::from_nanos(node.config().node.drain_timeout_ns);
    if tokio::time::timeout(deadline, node.drain()).await.is_err() {
        tracing::error!("not everything was drained and flushed within {deadline:?}");
        return Err(Failure::new(Exit::Failed, format!("draining took longer than drain_timeout ({deadline:?})")));
    }
    drop(socket);
    Ok(node)
}

/// The request that has waited longest.
async fn next_request(waiting: &mut VecDeque<Request>, requests: &mut mpsc::Receiver<Request>) -> Option<Request> {
    match waiting.pop_front() {
        Some(request) => Some(request),
        None => requests.recv().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_comes_twice_at_once_is_one_and_a_later_one_ends_the_process() {
        let (mut first, at) = (None, Instant::now());
        let meanings = [0, 0, 3, 499, 500, 9000].map(|ms| meaning(&mut first, at + Duration::from_millis(ms)));
        assert_eq!(meanings[0], Meaning::Stop);
        assert_eq!(meanings[1..4], [Meaning::Same; 3]);
        assert_eq!(meanings[4..], [Meaning::AtOnce; 2]);
    }
}
