//! Several ways to one namespace: which path an operation takes, and what becomes of it when that path fails.
//!
//! A device has one or more *paths*: addresses at which controllers of its subsystem listen, on one target or several. Each path
//! has a supervisor, an association and lanes of its own, as if it were alone; what they share is the namespace ([`Namespace`]).
//! A path counts only after its controller has shown the same identifiers and block size as the others, and the same size.
//!
//! # Which path
//! An operation goes to a path that is connected on its reactor and whose access state is "optimised", else to one that is
//! "non-optimised", never to another one. Among equals it stays where the last one went, so that a disk behind two targets is not
//! pulled back and forth; reactors begin with different paths. When no path is of use operations wait, until
//! [`Options::fail_fast_ns`](super::Options::fail_fast_ns) after the last one was; later ones fail at once, until one is back.
//!
//! # What moves, and when
//! Lanes do not keep what they could not finish: they give it back, and [`Way`] sends it on.
//! * What a controller refused for the sake of the path (its access state, an internal error of the path) is done with there. It
//!   is sent elsewhere at once, or after a pause where only the same path is left. A refusal for the access state stops the use
//!   of the path until its log has been read again.
//! * What was lost with a connection may still be done there. Reads are sent elsewhere at once; a write waits on the other path
//!   until the old association can do nothing more: `fence` has the rules, and they know no paths.
//!
//! # Flushes
//! Where the namespace has a volatile cache, a flush goes to every usable path that was written to since its last one: targets that
//! export one device each may have a cache each. A path that is lost with what it was written is as the single path of a device
//! whose target restarts: what its target kept in memory alone is gone, and nobody tells. So targets with volatile caches over one
//! device have to make their writes durable by themselves, or with `FUA`.
//!
//! # What it does not do
//! Operations are not spread over several optimised paths of one reactor. A reservation is made on one path: it belongs to the host
//! identifier, which is the same on all of them.

mod channel;
mod group;
mod status;
mod unflushed;

pub(in crate::initiator) use channel::{NvmfChannel, Way};
pub use group::PATHS_MAX;
pub(in crate::initiator) use group::{Group, Namespace};
pub use status::PathStatus;
pub(in crate::initiator) use unflushed::Unflushed;
