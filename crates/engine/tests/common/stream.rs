//! Streams of snapshots in memory.

use engine::{StreamSink, StreamSource};

/// One that is read, in pieces of so many bytes.
pub struct Bytes {
    pub all: Vec<u8>,
    pub at: usize,
    pub piece: usize,
}

impl StreamSource for Bytes {
    async fn next(&mut self) -> Option<Vec<u8>> {
        let piece = &self.all[self.at..(self.at + self.piece).min(self.all.len())];
        self.at += piece.len();
        (!piece.is_empty()).then(|| piece.to_vec())
    }
}

/// One that is written.
pub struct Collect(pub Vec<u8>);

impl StreamSink for Collect {
    async fn put(&mut self, bytes: Vec<u8>) -> bool {
        self.0.extend(bytes);
        true
    }
}
