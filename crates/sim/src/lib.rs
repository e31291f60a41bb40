//! The simulated world: a driver for reactors in virtual time, with storage that tears, drops, reorders, rots, slows,
//! sticks and fails, persistent memory with unfenced lines, a network that delays, stalls, resets and partitions, and
//! machines that are killed and lose power, all decided by one seed.
//!
//! The code under test is the shipped code; only the [`Driver`](reactor::Driver) differs. Same seed, same trace hash.
//! [`ClockDriver`] is the opposite: a world in which only time passes, for measuring models of devices.
//! What is not here: threads, real time, real files, and any knowledge of what runs in the world (scenarios have it).

mod clock_driver;
mod disk;
mod driver;
mod faults;
mod files;
mod image;
mod net;
pub mod oracle;
mod pages;
mod pmem;
mod state;
mod trace;
mod world;
mod zones;

pub use clock_driver::ClockDriver;
pub use disk::{CacheLoss, Disk, DiskOptions};
pub use driver::SimDriver;
pub use faults::{DiskFaults, FaultAtlas, Mutation, NetFaults, OneIn, ScheduleFaults};
pub use image::{Boundary, Image};
pub use state::{Crash, NodeId};
pub use trace::Trace;
pub use world::{Failure, Handle, Step, World};
