//! The host without I/O: the commands that an initiator sends, what it makes of the answers, and the transfers in between.
//!
//! * [`command`]: every command an initiator needs, ready to be put into a capsule.
//! * [`transfer`]: per command, what R2T and C2HData may ask for and bring.
//! * [`info`]: what Identify and the discovery log say, reduced to what a host acts upon.
#![forbid(unsafe_code)]

pub mod command;
pub mod info;
pub mod transfer;

pub use info::{ControllerInfo, DiscoveredSubsystem, InfoError, NamespaceInfo};
pub use transfer::{Arrival, ReadTransfer, WriteTransfer};
