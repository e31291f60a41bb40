//! The node's reactors, as the control thread sees them.

use super::refusal::Refusal;
use super::view::ReactorView;
use crate::config::{NodeConfig, Policy};
use reactor::linux::{Runtime, RuntimeConfig, RuntimeError};
use reactor::{PollPolicy, PoolConfig, Reactor, ReactorConfig, ReactorCounters, ReactorHandle, ReactorStats};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// How long reactors may go on once the node has drained: by then only housekeeping is left.
pub const END_MAX_NS: u64 = 250_000_000;

/// Running reactors.
pub struct Reactors {
    runtime: Runtime,
    cores: Vec<Option<usize>>,
    stats: Vec<Arc<ReactorStats>>,
    started: Instant,
}

impl Reactors {
    /// Starts them as configured.
    pub fn start(config: &NodeConfig) -> Result<Reactors, RuntimeError> {
        let policy = match config.policy {
            Policy::Busy => PollPolicy::Busy,
            Policy::Sleep => PollPolicy::Sleep,
            Policy::Adaptive(spin_max_ns) => PollPolicy::Adaptive { spin_max_ns },
        };
        let pool = PoolConfig { bytes_max: config.buffer_memory as usize };
        let reactor = ReactorConfig { policy, pool, ..ReactorConfig::default() };
        Reactors::start_with(config.reactors.clone(), reactor, END_MAX_NS)
    }

    /// Starts one reactor per entry of `cores`.
    pub fn start_with(
        cores: Vec<Option<usize>>,
        reactor: ReactorConfig,
        drain_max_ns: u64,
    ) -> Result<Reactors, RuntimeError> {
        let runtime = Runtime::start(&RuntimeConfig { cores: cores.clone(), reactor, drain_max_ns })?;
        let stats = runtime.handles().iter().filter_map(|handle| handle.call(|reactor| reactor.stats().clone()));
        let stats = stats.collect();
        Ok(Reactors { runtime, cores, stats, started: Instant::now() })
    }

    /// All of them, by index.
    pub fn handles(&self) -> &[ReactorHandle] {
        self.runtime.handles()
    }

    /// The one that control work runs on.
    pub fn first(&self) -> &ReactorHandle {
        &self.runtime.handles()[0]
    }

    /// How each spends its time.
    pub async fn views(&self) -> Vec<ReactorView> {
        let mut views = Vec::new();
        for (index, handle) in self.handles().iter().enumerate() {
            let counters = self.counters(index);
            let facts = on_reactor(handle, |reactor| (reactor.live_tasks(), reactor.pool().bytes_mapped())).await;
            let (tasks, buffer_bytes) = facts.unwrap_or_default();
            views.push(ReactorView {
                index,
                core: self.cores[index],
                busy_ns: counters.busy_ns,
                spin_ns: counters.spin_ns,
                sleep_ns: counters.sleep_ns,
                tasks,
                buffer_bytes,
            });
        }
        views
    }

    /// How a reactor has spent its time, by index.
    pub fn counters(&self, index: usize) -> ReactorCounters {
        clocks(&self.stats[index], self.started)
    }

    /// What reads the counters on another thread: one per reactor, to be called at any time.
    pub fn meters(&self) -> Vec<Meter> {
        self.stats.iter().map(|stats| Meter { stats: stats.clone(), started: self.started }).collect()
    }

    /// Asks all to end and waits.
    pub fn stop(&mut self) {
        self.runtime.stop();
    }
}

/// Reads one reactor's counters from any thread.
#[derive(Clone)]
pub struct Meter {
    stats: Arc<ReactorStats>,
    started: Instant,
}

impl Meter {
    /// The counters now.
    pub fn read(&self) -> ReactorCounters {
        clocks(&self.stats, self.started)
    }
}

/// A reactor counts a sleep when it ends, so the time asleep is what busy and spin leave.
fn clocks(stats: &ReactorStats, started: Instant) -> ReactorCounters {
    let counters = stats.read();
    let elapsed_ns = started.elapsed().as_nanos() as u64;
    ReactorCounters { sleep_ns: elapsed_ns.saturating_sub(counters.busy_ns + counters.spin_ns), ..counters }
}

fn gone() -> Refusal {
    Refusal::failed("reactor", "it has ended", "restart the node and look at its log")
}

/// Runs `action` on a reactor and waits without blocking this thread.
pub async fn on_reactor<T: Send + 'static>(
    handle: &ReactorHandle,
    action: impl FnOnce(&Rc<Reactor>) -> T + Send + 'static,
) -> Result<T, Refusal> {
    let (reply, result) = tokio::sync::oneshot::channel();
    handle.run(move |reactor| {
        let _ = reply.send(action(reactor));
    });
    result.await.map_err(|_| gone())
}

/// Runs a future on a reactor and waits without blocking this thread.
pub async fn on_reactor_async<T, F, M>(handle: &ReactorHandle, make: M) -> Result<T, Refusal>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
    M: FnOnce(Rc<Reactor>) -> F + Send + 'static,
{
    let (reply, result) = tokio::sync::oneshot::channel();
    handle.run(move |reactor| {
        let future = make(reactor.clone());
        reactor.spawn(async move {
            let _ = reply.send(future.await);
        });
    });
    result.await.map_err(|_| gone())
}
