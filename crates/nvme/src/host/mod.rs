//! The host without I/O: the commands that an initiator sends, and what it makes of the answers.
//!
//! * [`command`]: every command an initiator needs, ready to be put into a capsule.
//! * [`info`]: what Identify and the discovery log say, reduced to what a host acts upon.
#![forbid(unsafe_code)]

pub mod command;
pub mod info;

pub use info::{ControllerInfo, DiscoveredSubsystem, InfoError, NamespaceInfo, ZonedNamespaceInfo};
