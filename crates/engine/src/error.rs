//! Why a pool could not be made, opened or changed.

use crate::holds::Holds;
use crate::layout::PlanError;
use crate::log::LogError;
use crate::meta::MetaError;
use base::ByteSize;
use bdev::{DeviceError, Status};
use thiserror::Error;

/// On what grounds a request is refused: what it asks for, or how things are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grounds {
    /// A value of it cannot be.
    Value,
    /// Something that it names is not there.
    Missing,
    /// How things are does not allow it: what it would make exists, is in use, or has changed meanwhile.
    State,
    /// There is not enough room.
    Room,
    /// The pool's devices cannot be used, or are not what they should be.
    Devices,
}

/// See the module.
#[derive(Debug, Error)]
pub enum PoolError {
    /// The devices do not make a pool of this kind.
    #[error("pool '{pool}': {error}")]
    Plan {
        /// The pool.
        pool: String,
        /// Why not.
        error: PlanError,
    },
    /// The pool's metadata cannot be read or written.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A device below cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The request cannot be carried out; the reason says what would be right.
    #[error("pool '{pool}': {reason}")]
    Refused {
        /// The pool.
        pool: String,
        /// On what grounds.
        grounds: Grounds,
        /// Why.
        reason: String,
    },
    /// A device holds something already.
    #[error("pool '{pool}': {}", .holds.in_use(.device, .pool))]
    InUse {
        /// The pool.
        pool: String,
        /// The device.
        device: String,
        /// What it holds.
        holds: Box<Holds>,
    },
    /// A log that only memory would hold, and nobody has said that this will do.
    #[error("pool '{pool}': {}", volatile_log(.log))]
    VolatileLog {
        /// The pool.
        pool: String,
        /// The path of its log.
        log: String,
    },
    /// What a volume shows of others does not fit beside them.
    #[error(
        "pool '{pool}': what volume '{volume}' shows of others takes up to {} more, and {} are free", ByteSize(*.needed_bytes),
        ByteSize(*.free_bytes)
    )]
    NoRoom {
        /// The pool.
        pool: String,
        /// The volume.
        volume: String,
        /// Bytes that it may take, in the shards that have less.
        needed_bytes: u64,
        /// Bytes that may be taken there.
        free_bytes: u64,
    },
    /// An operation ended badly.
    #[error("pool '{pool}': cannot {action}: {status}")]
    Io {
        /// The pool.
        pool: String,
        /// What was tried.
        action: &'static str,
        /// How it ended.
        status: Status,
    },
    /// It was told to end before its end.
    #[error("pool '{pool}': it was stopped before its end")]
    Stopped {
        /// The pool.
        pool: String,
    },
}

/// Why memory at a path does not do as a log.
pub fn volatile_log(path: &str) -> String {
    format!("its log {path} would not survive a power loss: it is no DAX mapping with MAP_SYNC")
}
