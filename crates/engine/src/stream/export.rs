//! Out of a pool.

use super::format::{DATA_BLOCKS_MAX, Header, Record, RecordKind, words};
use super::{StreamError, StreamSink, StreamTotals};
use crate::pool::{Pool, SnapshotInfo};
use crate::shard::{Change, ChangeKind};
use crate::together::Together;
use crate::units::BLOCK_BYTES;
use base::crc32c;
use bdev::{BlockDevice, Channel, Done, Io, Lba, Status};
use reactor::buf::sg_append;
use reactor::{BUF_BYTES_MAX, IoFuture, Reactor, SgList};
use std::collections::VecDeque;
use std::rc::Rc;
use uuid::Uuid;

/// Changes that are asked for together.
const CHANGES: usize = 1024;
/// Reads under way.
const READS: usize = 4;

impl Pool {
    /// Writes a snapshot as a stream: everything it has or, with `since`, what differs from that older snapshot. Neither may be
    /// deleted meanwhile. What cannot be read ends the stream with the reason in it, so that nobody takes it for whole.
    pub async fn export_snapshot(
        &self,
        reactor: &Rc<Reactor>,
        name: &str,
        since: Option<&str>,
        sink: &mut impl StreamSink,
    ) -> Result<StreamTotals, StreamError> {
        let mut writer = Writer { sink, records: 0, totals: StreamTotals::default() };
        let ended = self.export(reactor, name, since, &mut writer).await;
        if let Err(error) = &ended
            && !matches!(error, StreamError::NobodyTakes)
        {
            // Whoever reads it learns of it even where nobody sees what the exporter said.
            let _ = writer.record(RecordKind::Failed, 0, 0, words(&error.to_string())).await;
        }
        ended
    }

    async fn export(
        &self,
        reactor: &Rc<Reactor>,
        name: &str,
        since: Option<&str>,
        writer: &mut Writer<'_, impl StreamSink>,
    ) -> Result<StreamTotals, StreamError> {
        let snapshot = self.of_name(name)?;
        let of_snapshot = self.snapshot_info(reactor, name).await?;
        let of_since = match since {
            Some(since) => Some(self.snapshot_info(reactor, since).await?),
            None => None,
        };
        let header = Header {
            features: 0,
            block_shift: snapshot.identity().block_shift,
            blocks: of_snapshot.bytes / BLOCK_BYTES as u64,
            created_s: of_snapshot.created_s,
            content: of_snapshot.content,
            since: of_since.as_ref().map_or(Uuid::nil(), |info| info.content),
            name: of_snapshot.name,
            since_name: of_since.map_or(String::new(), |info| info.name),
        };
        let shift = BLOCK_BYTES.trailing_zeros() - header.block_shift as u32;
        let channel = snapshot.open_channel(reactor).map_err(crate::PoolError::from)?;
        let reader = Reader { reactor: reactor.clone(), channel, shift };
        // First of all: whatever fails from here on is told behind it.
        writer.put(header.encode()).await?;
        let mut from = Some(0);
        while let Some(block) = from {
            let found = self.changes(reactor, name, since, block, CHANGES).await?;
            self.send(name, &reader, &found.changes, writer).await?;
            from = found.next;
        }
        let (data, records) = (writer.totals.data_blocks, writer.records);
        writer.record(RecordKind::End, data, records, &[]).await?;
        Ok(writer.totals)
    }

    /// A snapshot in the catalog.
    pub(super) async fn snapshot_info(&self, reactor: &Rc<Reactor>, name: &str) -> Result<SnapshotInfo, StreamError> {
        let found = self.snapshot_infos(reactor, vec![name.to_string()]).await?.pop();
        found.ok_or_else(|| StreamError::NoSnapshot(name.to_string()))
    }

    async fn send(
        &self,
        name: &str,
        reader: &Reader,
        changes: &[Change],
        writer: &mut Writer<'_, impl StreamSink>,
    ) -> Result<(), StreamError> {
        let pieces = changes.iter().flat_map(|change| {
            let most = if change.kind == ChangeKind::Data { DATA_BLOCKS_MAX } else { u64::MAX };
            let end = change.first + change.blocks;
            let starts = (change.first..end).step_by(most.min(change.blocks) as usize);
            starts.map(move |first| Change { first, blocks: most.min(end - first), ..*change })
        });
        let mut under_way = Together::new();
        let mut begun = VecDeque::new();
        for piece in pieces {
            if begun.len() == READS {
                self.send_one(name, &mut under_way, &mut begun, writer).await?;
            }
            under_way.push(match piece.kind {
                ChangeKind::Data => reader.read(piece),
                _ => IoFuture::ready(Ok(Vec::new())),
            });
            begun.push_back(piece);
        }
        while !begun.is_empty() {
            self.send_one(name, &mut under_way, &mut begun, writer).await?;
        }
        Ok(())
    }

    async fn send_one(
        &self,
        name: &str,
        under_way: &mut Together<'static, Result<Vec<u8>, Status>>,
        begun: &mut VecDeque<Change>,
        writer: &mut Writer<'_, impl StreamSink>,
    ) -> Result<(), StreamError> {
        let (Some(piece), Some(read)) = (begun.pop_front(), under_way.first().await) else { return Ok(()) };
        let bytes = read.map_err(|status| {
            let (byte, bytes) = (piece.first * BLOCK_BYTES as u64, piece.blocks * BLOCK_BYTES as u64);
            StreamError::NotRead { snapshot: name.to_string(), byte, bytes, status }
        })?;
        writer.blocks(piece, &bytes).await
    }
}

/// Reads of a snapshot.
struct Reader {
    reactor: Rc<Reactor>,
    channel: Rc<dyn Channel>,
    /// Device blocks in one of 4 KiB, as log2.
    shift: u32,
}

impl Reader {
    /// The bytes are given in ordinary memory: whoever takes them may take long, and buffers are few.
    fn read(&self, piece: Change) -> IoFuture<'static, Result<Vec<u8>, Status>> {
        let (reactor, channel, shift) = (self.reactor.clone(), self.channel.clone(), self.shift);
        let read = self.reactor.spawn_join(async move {
            let (mut bufs, mut bytes) = (SgList::new(), piece.blocks as usize * BLOCK_BYTES);
            while bytes > 0 {
                let part = bytes.min(BUF_BYTES_MAX);
                sg_append(&mut bufs, [bdev::steps::alloc(&reactor, part).await?].into_iter().collect());
                bytes -= part;
            }
            let Done { io, status } =
                channel.submit(Io::read(Lba(piece.first << shift), (piece.blocks << shift) as u32, bufs)).await;
            status.check().map(|()| io.bufs.iter().map(|buf| buf.as_slice()).collect::<Vec<_>>().concat())
        });
        IoFuture::new(read)
    }
}

/// Writes records.
struct Writer<'a, S> {
    sink: &'a mut S,
    records: u64,
    totals: StreamTotals,
}

impl<S: StreamSink> Writer<'_, S> {
    async fn put(&mut self, bytes: Vec<u8>) -> Result<(), StreamError> {
        self.totals.stream_bytes += bytes.len() as u64;
        if self.sink.put(bytes).await { Ok(()) } else { Err(StreamError::NobodyTakes) }
    }

    async fn record(&mut self, kind: RecordKind, first: u64, blocks: u64, payload: &[u8]) -> Result<(), StreamError> {
        let (payload_bytes, payload_crc) = (payload.len() as u32, crc32c(payload));
        let record = Record { kind, sequence: self.records, first, blocks, payload_bytes, payload_crc };
        self.records += 1;
        self.put([&record.encode(), payload].concat()).await
    }

    async fn blocks(&mut self, piece: Change, bytes: &[u8]) -> Result<(), StreamError> {
        let is_zero = piece.kind == ChangeKind::Data && is_zero(bytes);
        let kind = if is_zero { ChangeKind::Hole } else { piece.kind };
        self.totals.count(kind, piece.blocks);
        let payload = if kind == ChangeKind::Data { bytes } else { &[] };
        self.record(RecordKind::Blocks(kind), piece.first, piece.blocks, payload).await
    }
}

/// Whether all bytes are zero: the first few of most blocks tell.
fn is_zero(bytes: &[u8]) -> bool {
    let (head, rest) = bytes.split_at(bytes.len().min(16));
    head.iter().all(|byte| *byte == 0) && rest.iter().fold(0, |all, byte| all | byte) == 0
}
