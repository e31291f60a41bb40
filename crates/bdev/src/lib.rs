//! Block devices: the waist that everything storing blocks implements, the leaf devices, and the filters that stack on
//! them.
#![forbid(unsafe_code)]

pub mod device;
pub mod io;
mod mem;

pub use device::{BlockDevice, Channel, DeviceError, DeviceInfo, ZonedInfo};
pub use io::{Done, Flags, Io, Lba, Op, OpSet, Status};
pub use mem::MemDevice;
