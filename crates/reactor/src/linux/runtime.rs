//! Starts one pinned thread per reactor on the Linux driver and joins them into a mesh.

use super::{LinuxDriver, check};
use crate::mesh::{MeshBuilder, ReactorHandle};
use crate::reactor::{Reactor, ReactorConfig};
use base::Errno;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use thiserror::Error;

/// Which reactors to start.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// One reactor per entry: the core to pin it to, or `None` to let the scheduler place it.
    pub cores: Vec<Option<usize>>,
    /// Settings of each reactor.
    pub reactor: ReactorConfig,
    /// How long tasks may go on after [`Runtime::stop`], ns.
    pub drain_max_ns: u64,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        RuntimeConfig { cores: vec![None], reactor: ReactorConfig::default(), drain_max_ns: 5_000_000_000 }
    }
}

/// Why reactors could not start.
#[derive(Debug, Error)]
pub enum RuntimeError {
    /// No memory of this user may be locked any more for a ring.
    #[error(
        "reactor {index}: no locked memory is left for its io_uring; configure fewer reactors, end other programs of this user \
         that have some, or raise the limit (ulimit -l, LimitMEMLOCK= in a systemd unit; 20 KiB per reactor at least)"
    )]
    LockedMemory {
        /// Which reactor.
        index: usize,
    },
    /// The kernel refuses io_uring.
    #[error(
        "reactor {index}: io_uring is not available: {errno}; it needs Linux 5.19 or later and a sandbox that permits it \
         (sysctl kernel.io_uring_disabled must be 0, container seccomp profiles must allow io_uring_setup)"
    )]
    Driver {
        /// Which reactor.
        index: usize,
        /// Why.
        errno: Errno,
    },
    /// The core does not exist or is not allowed.
    #[error("reactor {index}: cannot run on core {core}: {errno}; choose cores from the allowed set (taskset -p)")]
    Pin {
        /// Which reactor.
        index: usize,
        /// Which core.
        core: usize,
        /// Why.
        errno: Errno,
    },
    /// The system has no room for a thread.
    #[error("reactor {index}: cannot start a thread: {errno}")]
    Thread {
        /// Which reactor.
        index: usize,
        /// Why.
        errno: Errno,
    },
}

/// Running reactors; stopped and joined when dropped.
pub struct Runtime {
    handles: Vec<ReactorHandle>,
    threads: Vec<JoinHandle<()>>,
}

impl Runtime {
    /// Starts all reactors; on error none is left running.
    pub fn start(config: &RuntimeConfig) -> Result<Runtime, RuntimeError> {
        let mut runtime = Runtime { handles: Vec::new(), threads: Vec::new() };
        for (index, core) in config.cores.iter().copied().enumerate() {
            let (ready, started) = mpsc::sync_channel(1);
            let reactor_config = config.reactor.clone();
            let drain_max_ns = config.drain_max_ns;
            let body = move || match set_up(index, core, reactor_config) {
                Ok(reactor) => {
                    let _ = ready.send(Ok(reactor.handle()));
                    drop(ready);
                    reactor.run(drain_max_ns);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            };
            let thread = std::thread::Builder::new().name(format!("reactor-{index}")).spawn(body);
            let thread = thread.map_err(|error| RuntimeError::Thread { index, errno: Errno::from_io(&error) })?;
            runtime.threads.push(thread);
            let gone = Err(RuntimeError::Thread { index, errno: Errno::EIO });
            runtime.handles.push(started.recv().unwrap_or(gone)?);
        }
        let builder = Arc::new(MeshBuilder::new(runtime.handles.len()));
        for handle in &runtime.handles {
            let (builder, peers) = (builder.clone(), runtime.handles.clone());
            handle.call(move |reactor| reactor.join_mesh(&builder, peers));
        }
        Ok(runtime)
    }

    /// Handles of all reactors, by index.
    pub fn handles(&self) -> &[ReactorHandle] {
        &self.handles
    }

    /// Asks all reactors to end once their tasks have, and waits for them.
    pub fn stop(&mut self) {
        for handle in &self.handles {
            handle.run(|reactor| reactor.stop());
        }
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

fn set_up(index: usize, core: Option<usize>, config: ReactorConfig) -> Result<Rc<Reactor>, RuntimeError> {
    if let Some(core) = core {
        pin(core).map_err(|errno| RuntimeError::Pin { index, core, errno })?;
    }
    let driver = LinuxDriver::new().map_err(|errno| match errno {
        Errno::ENOMEM => RuntimeError::LockedMemory { index },
        errno => RuntimeError::Driver { index, errno },
    })?;
    Ok(Reactor::new(index, Rc::new(driver), config))
}

fn pin(core: usize) -> Result<(), Errno> {
    if core >= libc::CPU_SETSIZE as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: an all-zero cpu_set_t is the empty set; `core` is below its size.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::CPU_SET(core, &mut set) };
    // SAFETY: passes a local set of its own size, for the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) }.into()).map(|_| ())
}
