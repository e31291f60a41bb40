//! Snapshots as streams of bytes, whole or as what differs from an older one: out of one pool, into another. Bytes:
//! `docs/formats/snapshot-stream.md`.

mod export;
mod format;
mod import;
mod order;
mod verify;

pub use import::{CheckName, ImportOptions, Imported};
pub use verify::{StreamAbout, StreamVerifier};

use crate::error::PoolError;
use crate::format::Malformed;
use bdev::Status;
use thiserror::Error;

/// Takes a stream.
pub trait StreamSink {
    /// Takes the next bytes. False: nobody wants the rest.
    fn put(&mut self, bytes: Vec<u8>) -> impl Future<Output = bool>;
}

/// Gives a stream.
pub trait StreamSource {
    /// The next bytes, as many as there happen to be; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Option<Vec<u8>>>;
}

/// Why a stream ended early.
#[derive(Debug, Error)]
pub enum StreamError {
    /// The pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// Nobody wants the rest.
    #[error("whoever was to take the stream has gone")]
    NobodyTakes,
    /// It ends before its end.
    #[error("the stream ends too early, after {bytes} bytes: what wrote it was stopped, or it was cut off on its way")]
    Cut {
        /// Bytes that were there.
        bytes: u64,
    },
    /// It is none, or damaged.
    #[error("the stream is damaged at byte {byte}: {cause}")]
    Damaged {
        /// Where what is damaged begins.
        byte: u64,
        /// How.
        cause: Malformed,
    },
    /// It needs something that this program does not know.
    #[error("the stream was written by a newer program: it needs features {0:#x}, which this one does not know")]
    Newer(u64),
    /// It failed, and what it had done could not be undone.
    #[error("{error}; nor could '{volume}' be put right: {again}")]
    NotUndone {
        /// Why it failed.
        error: Box<StreamError>,
        /// The volume.
        volume: String,
        /// Why that was not undone.
        again: PoolError,
    },
    /// Who wrote it could not go on.
    #[error("who wrote the stream could not go on: {0}")]
    Source(String),
    /// There is no such snapshot to write.
    #[error("the pool has no snapshot '{0}': those are named 'volume@snapshot'")]
    NoSnapshot(String),
    /// Blocks of the snapshot that is to be written cannot be read.
    #[error("'{snapshot}' cannot be read at byte {byte} ({bytes} bytes from there on): {status}")]
    NotRead {
        /// The snapshot.
        snapshot: String,
        /// Where they begin.
        byte: u64,
        /// How many bytes.
        bytes: u64,
        /// How the read ended.
        status: Status,
    },
    /// The copy cannot have this name.
    #[error("the copy cannot be named '{name}': {reason}")]
    BadName {
        /// The name.
        name: String,
        /// Why not.
        reason: String,
    },
    /// There is a snapshot of the copy's name.
    #[error("the pool already has a snapshot '{0}'")]
    SnapshotExists(String),
    /// There is a volume of the name of the one that is to be made.
    #[error("the pool already has a volume '{volume}': the stream has all of '{of}' and makes a new one")]
    VolumeExists {
        /// The volume.
        volume: String,
        /// What the stream has.
        of: String,
    },
    /// There is no volume to go on from.
    #[error("the pool has no volume '{volume}', and the stream goes on from '{since}'")]
    NoVolume {
        /// The volume.
        volume: String,
        /// The snapshot.
        since: String,
    },
    /// The volume does not have what the stream goes on from.
    #[error("volume '{volume}' has no copy of '{since}', which the stream goes on from")]
    NoBase {
        /// The volume.
        volume: String,
        /// The snapshot.
        since: String,
    },
    /// The volume's blocks have another size than those of the stream.
    #[error("volume '{volume}' has blocks of another size than '{of}'")]
    BlockSize {
        /// The volume.
        volume: String,
        /// What the stream has.
        of: String,
    },
    /// Somebody has written to the volume.
    #[error("volume '{volume}' has changed since '{since}', which the stream goes on from")]
    Changed {
        /// The volume.
        volume: String,
        /// The snapshot.
        since: String,
    },
    /// The volume that takes the stream cannot be written.
    #[error("volume '{volume}' cannot be written: {status}")]
    NotWritten {
        /// The volume.
        volume: String,
        /// How the write ended.
        status: Status,
    },
    /// There are no buffers for it.
    #[error("there is no memory for it: {0}")]
    NoMemory(Status),
}

/// What a stream carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// Blocks of 4 KiB with their data.
    pub data_blocks: u64,
    /// Blocks that read as zeroes.
    pub hole_blocks: u64,
    /// Blocks whose data are lost.
    pub lost_blocks: u64,
}

/// Why a stream says that it failed.
fn failure_words(payload: &[u8]) -> StreamError {
    StreamError::Source(String::from_utf8_lossy(payload).chars().filter(|char| !char.is_control()).collect())
}
