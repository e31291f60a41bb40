//! The NVMe/TCP host in user space: a library ([`Controller`], [`discover`]) and a block device ([`NvmfDevice`]).
//!
//! Requests go through *lanes* (`lane`), each a connected queue on one reactor; a path of a device (`multipath`) has one or more
//! per reactor and one admin queue on the reactor that opened it. Everything issued in a turn is sent in one system call, everything that
//! has arrived is received in one, and received data is copied once or not at all.
//!
//! What holds whatever a controller sends: memory is bounded by what was asked of it, data lands only in the buffers of the
//! read that it belongs to, and a breach of the rules ends the connection with a termination that names it. What holds when
//! connections are lost is argued in `fence`.

mod authenticate;
mod command;
mod compound;
mod connect;
mod controller;
mod device;
mod driver;
mod error;
mod fence;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod lane;
mod link;
mod listing;
mod multipath;
mod options;
mod plan;
mod request;
mod reservation;
mod shared;
mod status;
mod supervisor;
mod zones;

pub use authenticate::AuthenticationError;
pub use controller::{Controller, ControllerInfo, NamespaceIds, NamespaceInfo, discover};
pub use device::{Known, NvmfDevice, NvmfStats};
pub use error::{CommandError, ConnectError, NoReplacement, Seen};
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzz::fuzz_host;
pub use link::Broken;
pub use listing::{ListedNamespace, NAMESPACES_MAX, list_namespaces};
pub use multipath::{PATHS_MAX, PathStatus};
pub use options::{HostIdentity, Options, OptionsError, Replay};
pub use reservation::{ReportedHost, ReservationReport};
