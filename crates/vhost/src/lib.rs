//! The vhost-user-blk door: virtual machines (and libblkio programs) use a device of ours through virtqueues in shared
//! memory, without a copy of the kernel's in between.
//!
//! `unix` talks to the front end; once it has told everything about a queue, the queue is on a reactor and runs there
//! without it. `queue` is the work, on top of the queue's rings (`split`), its chains (`chain`), requests (`request`) and
//! the note of what is under way (`inflight`); these name no operating system.
//!
//! What holds: nothing that a guest writes makes us read or write outside the memory that it shares, panic, or allocate
//! without a bound; a request that was taken is answered once; with `inflight` it is answered even if the daemon is killed
//! before.
//!
//! Not here: migration (dirty logging), packed queues, IOMMUs of guests.

#![forbid(unsafe_code)]

pub mod chain;
pub mod disk;
pub mod inflight;
mod local;
pub mod memory;
pub mod message;
mod queue;
mod request;
pub mod spec;
pub mod split;
mod stats;
mod unix;

pub use queue::{Bell, Parts, Queue, QueueDefect};
pub use stats::{Counters, Totals};
pub use unix::{Door, DoorError, DoorOptions, DoorStatus};
