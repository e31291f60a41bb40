//! The scheduling layer: one [`Reactor`] per core runs tasks over a [`Driver`], the one boundary between this code and
//! the world. `LinuxDriver` is the real world; the `sim` crate has the other one.
//!
//! What is not here: locks on the data path, allocation per I/O, a thread pool, a clock or a socket outside a driver.

mod arena;
mod block;
pub mod buf;
mod call;
mod checked_stores;
pub mod driver;
mod exec;
mod file;
pub mod gate;
/// What `gate` is made of; its model check puts loom's atomics here.
mod gate_atomics {
    pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};
}
mod hot;
mod iofuture;
mod kept;
#[cfg(target_os = "linux")]
pub mod linux;
mod mesh;
mod net;
mod ops;
mod pool;
mod prefetch;
mod reactor;
mod signal;
mod spin;
mod stats;
mod stores;
pub mod sync;
mod table;
mod task;
mod timer;
mod zones;

pub use base::Errno;
pub use buf::{Buf, Region, SgList};
pub use driver::{Driver, Event, FileInfo, FileOptions, Slice};
pub use file::File;
pub use iofuture::{Begun, IoFuture};
pub use mesh::{MeshBuilder, Message, ReactorHandle};
pub use net::{TcpListener, TcpStream};
pub use ops::{Completion, OpFuture, RemoteFuture};
pub use pool::{BUF_BYTES_MAX, BufPool, CLASS_BYTES, PoolConfig};
pub use prefetch::{prefetch, prefetch_bytes};
pub use reactor::{PollPolicy, Poller, PollerId, Reactor, ReactorConfig, SPIN_MAX_NS_DEFAULT, Sleep, TurnEnd};
pub use signal::Signal;
pub use stats::{ReactorCounters, ReactorStats};
pub use table::Table;
pub use timer::{TimerKey, TimerWheel};
pub use zones::{FILE_ZONE_BYTES, FileZone, FileZoneCondition, FileZones, ZoneAction};
