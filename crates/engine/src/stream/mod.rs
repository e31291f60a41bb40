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
