//! What of the door names the operating system: the socket and its messages, descriptors that come with them, memory
//! that is mapped from them, and the thread that listens. Requests are not among it: those are in the queues, and these
//! are on the reactors.

mod door;
mod mapping;
mod session;
mod socket;

pub use door::{Door, DoorError, DoorOptions, DoorStatus};
