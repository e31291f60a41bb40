//! A model of a flash drive: when would an operation end on it, and what would it program?
//!
//! Three layers, none of which reads a clock or draws a random number: [`nand`] has dies whose programs, reads and erases
//! take their time one after the other; [`ftl`] has what a drive does behind plain blocks (a map of indirection units,
//! read-modify-write, garbage collection), [`Ssd`] what the host sees of it: a write buffer, acknowledgements, zones. The
//! whole is a function of the calls made and their times, in nanoseconds.
//!
//! [`ModelSsdDevice`] puts it behind the waist: another device keeps the data, and operations end when the model says so, by
//! the reactor's clock, simulated or not.
//!
//! What it deliberately does not have: wear, errors, a link that is shared between commands, caches for reads, data.

mod device;
mod die;
mod ftl;
mod nand;
mod params;
mod ssd;
mod work;

pub use device::ModelSsdDevice;
pub use params::SsdModel;
pub use ssd::{Ssd, SsdCounters, StreamCounters};
pub use work::{Request, Work};
