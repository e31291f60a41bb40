//! Into a pool.

use super::format::{HEADER_BYTES, Header, RECORD_BYTES, Record, RecordKind};
use super::{StreamError, StreamSource, StreamTotals, failure_words};
use crate::format::Malformed;
use crate::pool::{Pool, SnapshotInfo};
use crate::shard::ChangeKind;
use crate::together::Together;
use crate::units::BLOCK_BYTES;
use crate::volume::PoolVolume;
use bdev::{BlockDevice, Channel, Io, Lba, Op, Status};
use reactor::buf::sg_append;
use reactor::{BUF_BYTES_MAX, IoFuture, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Operations under way.
const WRITES: usize = 4;

/// What an import makes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportOptions<'a> {
    /// The volume that takes the stream; `None`: of the name that it had. A stream that goes on from a snapshot needs the
    /// volume that has that one; any other makes a new volume.
    pub volume: Option<&'a str>,
    /// The name of the snapshot in it; `None`: the one that it had.
    pub snapshot: Option<&'a str>,
    /// What was written to the volume since the snapshot that the stream goes on from may be given up.
    pub roll_back: bool,
    /// The time, seconds since 1970: when a new volume is created.
    pub now_s: u64,
}

/// What an import has made.
pub struct Imported {
    /// The volume.
    pub volume: Arc<PoolVolume>,
    /// Its new snapshot.
    pub snapshot: Arc<PoolVolume>,
    /// What the stream carried.
    pub totals: StreamTotals,
}

/// A stream that is being read.
struct Puller<'a, S> {
    source: &'a mut S,
    /// What has come and was not taken yet, from `at` on.
    held: Vec<u8>,
    at: usize,
    /// Bytes taken.
    taken: u64,
}

impl<S: StreamSource> Puller<'_, S> {
    async fn fill(&mut self, target: &mut [u8]) -> Result<(), StreamError> {
        let mut filled = 0;
        while filled < target.len() {
            if self.at == self.held.len() {
                self.held = self.source.next().await.ok_or(StreamError::Cut { bytes: self.taken })?;
                self.at = 0;
                continue;
            }
            let part = (target.len() - filled).min(self.held.len() - self.at);
            target[filled..filled + part].copy_from_slice(&self.held[self.at..self.at + part]);
            (self.at, filled, self.taken) = (self.at + part, filled + part, self.taken + part as u64);
        }
        Ok(())
    }

    async fn take<const N: usize>(&mut self) -> Result<[u8; N], StreamError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes).await?;
        Ok(bytes)
    }

    fn damaged(&self, back: usize) -> impl FnOnce(Malformed) -> StreamError + use<S> {
        let byte = self.taken - back as u64;
        move |cause| StreamError::Damaged { byte, cause }
    }
}

/// How to undo what an import has done.
enum Undo {
    Delete(String),
    RollBack(String),
}

impl Pool {
    /// Reads a stream into a volume, and makes a snapshot of that. A stream of everything makes a new volume; one that goes on
    /// from a snapshot needs the volume that has it, or a copy of it, and nothing newer. The snapshot is there when the whole stream
    /// was right; otherwise everything is as it was before. Nobody may use the volume meanwhile.
    pub async fn import_snapshot(
        &self,
        reactor: &Rc<Reactor>,
        options: ImportOptions<'_>,
        source: &mut impl StreamSource,
    ) -> Result<Imported, StreamError> {
        let mut puller = Puller { source, held: Vec::new(), at: 0, taken: 0 };
        let header = Header::decode(&puller.take::<HEADER_BYTES>().await?).map_err(puller.damaged(HEADER_BYTES))?;
        if header.features != 0 {
            return Err(StreamError::Newer(header.features));
        }
        let (of_volume, of_snapshot) = header.name.split_once('@').unwrap_or((&header.name, ""));
        let volume = options.volume.unwrap_or(of_volume);
        let snapshot = options.snapshot.unwrap_or(of_snapshot);
        let full = self.snapshot_name(volume, snapshot)?;
        if self.volume(&full).is_some() {
            return Err(self.refusal(format!("already has a snapshot '{full}': give the new one another name")).into());
        }
        let (target, undo) = match header.since.is_nil() {
            true => self.begin_whole(reactor, volume, &header, options.now_s).await?,
            false => self.begin_on(reactor, volume, &header, options.roll_back).await?,
        };
        let ended = async {
            let totals = self.apply(reactor, &target, &header, &mut puller).await?;
            let made = self.snapshot_copy(reactor, volume, snapshot, header.content, header.created_s).await?;
            Ok::<_, StreamError>((totals, made))
        };
        match ended.await {
            Ok((totals, snapshot)) => Ok(Imported { volume: target, snapshot, totals }),
            Err(error) => {
                drop(target);
                let (undone, name) = match &undo {
                    Undo::Delete(name) => (self.delete_volume(reactor, name).await, name),
                    Undo::RollBack(name) => (self.roll_back(reactor, name).await, name),
                };
                if let Err(again) = undone {
                    tracing::error!("an import has failed, and '{name}' could not be put right: {again}");
                }
                Err(error)
            }
        }
    }

    async fn begin_whole(
        &self,
        reactor: &Rc<Reactor>,
        volume: &str,
        header: &Header,
        now_s: u64,
    ) -> Result<(Arc<PoolVolume>, Undo), StreamError> {
        if self.volume(volume).is_some() {
            let reason = format!(
                "already has a volume '{volume}': the stream has all of '{}' and makes a new volume; give that another name",
                header.name
            );
            return Err(self.refusal(reason).into());
        }
        let target = self.create_volume(reactor, volume, header.blocks, header.block_shift, now_s).await?;
        Ok((target, Undo::Delete(volume.to_string())))
    }

    async fn begin_on(
        &self,
        reactor: &Rc<Reactor>,
        volume: &str,
        header: &Header,
        roll_back: bool,
    ) -> Result<(Arc<PoolVolume>, Undo), StreamError> {
        let target = self.live(volume)?;
        let base = self.copy_of(reactor, volume, header.since).await?.ok_or_else(|| {
            self.refusal(format!(
                "volume '{volume}' has no copy of '{}', which the stream goes on from: import that one first",
                header.since_name
            ))
        })?;
        let changed = match self.changes(reactor, volume, Some(&base.name), 0, 1).await {
            Ok(found) => !found.changes.is_empty() || target.shown().blocks() * BLOCK_BYTES as u64 != base.bytes,
            // The volume goes on from another one.
            Err(_) => true,
        };
        if changed && !roll_back {
            let reason = format!(
                "volume '{volume}' has changed since its snapshot '{}', which the stream goes on from: allow the import to roll it \
                 back, or import into a clone of that snapshot",
                base.name
            );
            return Err(self.refusal(reason).into());
        }
        if changed {
            self.roll_back(reactor, &base.name).await?;
        }
        let undo = Undo::RollBack(base.name);
        let shift = BLOCK_BYTES.trailing_zeros() - target.identity().block_shift as u32;
        if header.block_shift != target.identity().block_shift {
            let reason = format!("volume '{volume}' has blocks of another size than '{}'", header.name);
            return Err(self.refusal(reason).into());
        }
        target.resize(reactor, header.blocks << shift).await.map_err(crate::PoolError::from)?;
        Ok((target, undo))
    }

    /// The snapshot of a volume that holds this.
    async fn copy_of(
        &self,
        reactor: &Rc<Reactor>,
        volume: &str,
        content: Uuid,
    ) -> Result<Option<SnapshotInfo>, StreamError> {
        let (tree, _) = self.tree(reactor).await?;
        let mut snapshots = tree.into_iter().filter(|other| other.name == volume).flat_map(|other| other.snapshots);
        Ok(snapshots.find(|snapshot| snapshot.content == content))
    }

    async fn apply(
        &self,
        reactor: &Rc<Reactor>,
        target: &Arc<PoolVolume>,
        header: &Header,
        puller: &mut Puller<'_, impl StreamSource>,
    ) -> Result<StreamTotals, StreamError> {
        let channel = target.open_channel(reactor).map_err(crate::PoolError::from)?;
        let shift = BLOCK_BYTES.trailing_zeros() - header.block_shift as u32;
        let writer = Writer { reactor: reactor.clone(), channel, volume: target.clone(), shift };
        let (mut under_way, mut pending) = (Together::new(), 0);
        let failed = |status| self.refusal(format!("volume '{}' cannot be written: {status}", target.name()));
        let read = async {
            let mut totals = StreamTotals::default();
            for sequence in 0.. {
                let Some((kind, record, bufs)) = next(reactor, puller, header, sequence, &totals).await? else { break };
                if pending == WRITES {
                    under_way.first().await.unwrap_or(Ok(())).map_err(failed)?;
                    pending -= 1;
                }
                totals.count(kind, record.blocks);
                under_way.push(writer.write(kind, record.first, record.blocks, bufs));
                pending += 1;
            }
            Ok(StreamTotals { stream_bytes: puller.taken, ..totals })
        };
        let mut ended: Result<StreamTotals, StreamError> = read.await;
        // Even after an error: what is undone then must not be written to any more.
        while let Some(written) = under_way.first().await {
            if let (Ok(_), Err(status)) = (&ended, written) {
                ended = Err(failed(status).into());
            }
        }
        ended
    }
}

/// The next record with blocks and its payload; `None` at the end.
async fn next(
    reactor: &Rc<Reactor>,
    puller: &mut Puller<'_, impl StreamSource>,
    header: &Header,
    sequence: u64,
    totals: &StreamTotals,
) -> Result<Option<(ChangeKind, Record, SgList)>, StreamError> {
    let head = puller.take::<RECORD_BYTES>().await?;
    let damaged = puller.damaged(RECORD_BYTES);
    let record = match Record::decode(&head, header.blocks) {
        Ok(record) if record.sequence == sequence => record,
        Ok(_) => return Err(damaged(Malformed("a record is not where it belongs"))),
        Err(cause) => return Err(damaged(cause)),
    };
    let bufs = payload(reactor, puller, &record).await?;
    match record.kind {
        RecordKind::Blocks(kind) => Ok(Some((kind, record, bufs))),
        RecordKind::End if (record.first, record.blocks) == (totals.data_blocks, sequence) => Ok(None),
        RecordKind::End => Err(damaged(Malformed("its end counts something else"))),
        RecordKind::Failed => {
            let words = bufs.iter().map(|buf| buf.as_slice()).collect::<Vec<_>>().concat();
            Err(failure_words(&words))
        }
    }
}

/// The payload of a record, checked.
async fn payload(
    reactor: &Rc<Reactor>,
    puller: &mut Puller<'_, impl StreamSource>,
    record: &Record,
) -> Result<SgList, StreamError> {
    let (mut bufs, mut rest) = (SgList::new(), record.payload_bytes as usize);
    while rest > 0 {
        let part = rest.min(BUF_BYTES_MAX);
        let mut buf = bdev::steps::alloc(reactor, part).await.map_err(|_| StreamError::Source(no_memory()))?;
        puller.fill(&mut buf.as_mut_slice()[..part]).await?;
        sg_append(&mut bufs, [buf].into_iter().collect());
        rest -= part;
    }
    if base::crc::crc32c_slices(bufs.iter().map(|buf| buf.as_slice())) != record.payload_crc {
        return Err(puller.damaged(record.payload_bytes as usize)(Malformed("the checksum of its data is wrong")));
    }
    Ok(bufs)
}

fn no_memory() -> String {
    "there is no memory for it".to_string()
}

/// Writes to the volume.
struct Writer {
    reactor: Rc<Reactor>,
    channel: Rc<dyn Channel>,
    volume: Arc<PoolVolume>,
    /// Device blocks in one of 4 KiB, as log2.
    shift: u32,
}

impl Writer {
    fn write(&self, kind: ChangeKind, first: u64, blocks: u64, bufs: SgList) -> IoFuture<'static, Result<(), Status>> {
        let (reactor, channel, volume) = (self.reactor.clone(), self.channel.clone(), self.volume.clone());
        let shift = self.shift;
        let write = self.reactor.spawn_join(async move {
            match kind {
                ChangeKind::Data => {
                    channel.submit(Io::write(Lba(first << shift), (blocks << shift) as u32, bufs)).await.status.check()
                }
                ChangeKind::Hole => {
                    let (mut at, end) = (first << shift, (first + blocks) << shift);
                    while at < end {
                        let piece = (end - at).min(1 << 20);
                        channel.submit(Io::new(Op::Unmap, Lba(at), piece as u32)).await.status.check()?;
                        at += piece;
                    }
                    Ok(())
                }
                ChangeKind::Lost => volume.lose(&reactor, first, blocks).await.check(),
            }
        });
        IoFuture::new(write)
    }
}
