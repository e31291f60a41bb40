//! Into a pool.

use super::format::{HEADER_BYTES, Header, RECORD_BYTES, Record, RecordKind};
use super::order::Order;
use super::{StreamError, StreamSource, StreamTotals, failure_words};
use crate::format::Malformed;
use crate::pool::{Pool, SnapshotInfo};
use crate::shard::{ChangeKind, Defect};
use crate::together::Together;
use crate::units::BLOCK_BYTES;
use crate::volume::PoolVolume;
use base::crc32c;
use bdev::{BlockDevice, Channel, Io, Lba, Op, Status};
use reactor::buf::sg_append;
use reactor::{BUF_BYTES_MAX, IoFuture, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;
use uuid::Uuid;

/// Operations under way.
const WRITES: usize = 4;
/// Most blocks of a hole that are cleared by one operation: whole extents, however large a block is.
const HOLE_BLOCKS_MAX: u64 = 1 << 31;

/// Says why a name cannot be used.
pub type CheckName = fn(&str) -> Result<(), String>;

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
    /// Whether a volume or snapshot can have this name; the reason why not.
    pub check_name: Option<CheckName>,
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

    async fn header(&mut self) -> Result<Header, StreamError> {
        let mut bytes = [0; HEADER_BYTES];
        match self.fill(&mut bytes).await {
            Ok(()) => Header::decode(&bytes).map_err(self.damaged(HEADER_BYTES)),
            Err(_) => Err(Header::cut(&bytes[..self.taken as usize])),
        }
    }

    /// That nothing follows.
    async fn end(&mut self) -> Result<(), StreamError> {
        while self.at == self.held.len() {
            let Some(held) = self.source.next().await else { return Ok(()) };
            (self.held, self.at) = (held, 0);
        }
        Err(self.damaged(0)(Malformed("it goes on behind its end")))
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
    /// The volume is a new one.
    Delete,
    /// It goes on from this snapshot.
    RollBack(String),
}

impl Pool {
    /// Reads a stream into a volume, and makes a snapshot of that. A stream of everything makes a new volume; one that goes on
    /// from a snapshot needs the volume that has it, or a copy of it, or is a clone of that, and nothing newer. The snapshot is
    /// there when the whole stream was right; otherwise everything is as it was before, or as that snapshot is. Nobody may use the
    /// volume meanwhile, nor delete the snapshot.
    pub async fn import_snapshot(
        &self,
        reactor: &Rc<Reactor>,
        options: ImportOptions<'_>,
        source: &mut impl StreamSource,
    ) -> Result<Imported, StreamError> {
        let mut puller = Puller { source, held: Vec::new(), at: 0, taken: 0 };
        let header = puller.header().await?;
        if header.features != 0 {
            return Err(StreamError::Newer(header.features));
        }
        let (of_volume, of_snapshot) = header.name.split_once('@').unwrap_or((&header.name, ""));
        let volume = options.volume.unwrap_or(of_volume);
        let snapshot = options.snapshot.unwrap_or(of_snapshot);
        let full = self.snapshot_name(volume, snapshot)?;
        if let Some(check) = options.check_name {
            let checked = check(volume).and_then(|()| check(snapshot));
            checked.map_err(|reason| StreamError::BadName { name: full.clone(), reason })?;
        }
        if self.volume(&full).is_some() {
            return Err(StreamError::SnapshotExists(full));
        }
        let (target, undo) = match header.since.is_nil() {
            true => self.begin_whole(reactor, volume, &header, options.now_s).await?,
            false => self.begin_on(reactor, volume, &header, options.roll_back).await?,
        };
        let ended = async {
            let shift = BLOCK_BYTES.trailing_zeros() - header.block_shift as u32;
            if target.shown().blocks() != header.blocks {
                target.resize(reactor, header.blocks << shift).await.map_err(crate::PoolError::from)?;
            }
            let freeze = || self.snapshot_copy(reactor, volume, snapshot, header.content, header.created_s);
            let early = if self.is_broken(Defect::FreezeEarly) { Some(freeze().await?) } else { None };
            let totals = self.apply(reactor, &target, &header, &mut puller).await?;
            let made = match early {
                Some(made) => made,
                None => freeze().await?,
            };
            Ok::<_, StreamError>((totals, made))
        };
        let error = match ended.await {
            Ok((totals, snapshot)) => return Ok(Imported { volume: target, snapshot, totals }),
            Err(error) => error,
        };
        let undone = match &undo {
            Undo::Delete => self.let_go_beside(reactor, target).await,
            Undo::RollBack(snapshot) => self.roll_back_volume(reactor, volume, snapshot).await,
        };
        Err(match undone {
            Ok(()) => error,
            Err(again) => StreamError::NotUndone { error: Box::new(error), volume: volume.to_string(), again },
        })
    }

    async fn begin_whole(
        &self,
        reactor: &Rc<Reactor>,
        volume: &str,
        header: &Header,
        now_s: u64,
    ) -> Result<(Arc<PoolVolume>, Undo), StreamError> {
        if self.volume(volume).is_some() {
            return Err(StreamError::VolumeExists { volume: volume.to_string(), of: header.name.clone() });
        }
        let target = self.create_volume(reactor, volume, header.blocks, header.block_shift, now_s).await?;
        Ok((target, Undo::Delete))
    }

    async fn begin_on(
        &self,
        reactor: &Rc<Reactor>,
        volume: &str,
        header: &Header,
        roll_back: bool,
    ) -> Result<(Arc<PoolVolume>, Undo), StreamError> {
        let (name, of_stream) = (volume.to_string(), header.since_name.clone());
        let Ok(target) = self.live(volume) else {
            return Err(StreamError::NoVolume { volume: name, since: of_stream });
        };
        let Some(base) = self.copy_of(reactor, volume, header.since).await? else {
            return Err(StreamError::NoBase { volume: name, since: of_stream });
        };
        if header.block_shift != target.identity().block_shift {
            return Err(StreamError::BlockSize { volume: name, of: header.name.clone() });
        }
        let is_other_size = target.shown().blocks() * BLOCK_BYTES as u64 != base.bytes;
        let changed = is_other_size || self.differs(reactor, volume, &base.name).await?;
        if changed && !roll_back {
            return Err(StreamError::Changed { volume: name, since: base.name });
        }
        if changed {
            self.roll_back_volume(reactor, volume, &base.name).await?;
        }
        Ok((target, Undo::RollBack(base.name)))
    }

    /// Whether a volume differs from a snapshot, or does not go on from it at all.
    async fn differs(&self, reactor: &Rc<Reactor>, volume: &str, snapshot: &str) -> Result<bool, StreamError> {
        let mut from = Some(0);
        while let Some(block) = from {
            match self.changes(reactor, volume, Some(snapshot), block, 1).await {
                Ok(found) if found.changes.is_empty() => from = found.next,
                Ok(_) | Err(crate::PoolError::Refused { .. }) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }

    /// The snapshot that holds this, of a volume or of the one that it is a clone of.
    async fn copy_of(
        &self,
        reactor: &Rc<Reactor>,
        volume: &str,
        content: Uuid,
    ) -> Result<Option<SnapshotInfo>, StreamError> {
        let (tree, _) = self.tree(reactor).await?;
        let below = tree.iter().find(|other| other.name == volume).and_then(|found| found.clone_of.clone());
        let counts = |of: &str, snapshot: &SnapshotInfo| of == volume || Some(&snapshot.name) == below.as_ref();
        let mut all = tree.into_iter().flat_map(|other| {
            let name = other.name;
            other.snapshots.into_iter().map(move |snapshot| (name.clone(), snapshot))
        });
        let found = all.find(|(of, snapshot)| snapshot.content == content && counts(of, snapshot));
        Ok(found.map(|(_, snapshot)| snapshot))
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
        let failed = |status| StreamError::NotWritten { volume: target.name().to_string(), status };
        let read = async {
            let mut order = Order::default();
            while let Some((kind, record, bufs)) = Self::next(reactor, puller, header, &mut order).await? {
                if pending == WRITES {
                    under_way.first().await.unwrap_or(Ok(())).map_err(failed)?;
                    pending -= 1;
                }
                under_way.push(writer.write(kind, record.first, record.blocks, bufs));
                pending += 1;
            }
            puller.end().await?;
            Ok(StreamTotals { stream_bytes: puller.taken, ..order.totals })
        };
        let mut ended: Result<StreamTotals, StreamError> = read.await;
        // Even after an error: what is undone then must not be written to any more.
        while let Some(written) = under_way.first().await {
            if let (Ok(_), Err(status)) = (&ended, written) {
                ended = Err(failed(status));
            }
        }
        ended
    }

    /// The next record with blocks and its payload; `None` at the end.
    async fn next(
        reactor: &Rc<Reactor>,
        puller: &mut Puller<'_, impl StreamSource>,
        header: &Header,
        order: &mut Order,
    ) -> Result<Option<(ChangeKind, Record, SgList)>, StreamError> {
        let head = puller.take::<RECORD_BYTES>().await?;
        let record = Record::decode(&head, header.blocks).and_then(|record| order.accept(&record).map(|()| record));
        let record = record.map_err(puller.damaged(RECORD_BYTES))?;
        // In ordinary memory until it is there: that may take long, and buffers are few.
        let mut payload = vec![0; record.payload_bytes as usize];
        puller.fill(&mut payload).await?;
        if crc32c(&payload) != record.payload_crc {
            return Err(puller.damaged(payload.len())(Malformed("the checksum of its data is wrong")));
        }
        match record.kind {
            RecordKind::Blocks(kind) => {
                let bufs = in_buffers(reactor, &payload).await;
                let bufs = bufs.map_err(StreamError::NoMemory)?;
                Ok(Some((kind, record, bufs)))
            }
            RecordKind::End => Ok(None),
            RecordKind::Failed => Err(failure_words(&payload)),
        }
    }
}

async fn in_buffers(reactor: &Rc<Reactor>, bytes: &[u8]) -> Result<SgList, Status> {
    let mut bufs = SgList::new();
    for part in bytes.chunks(BUF_BYTES_MAX) {
        let mut buf = bdev::steps::alloc(reactor, part.len()).await?;
        buf.as_mut_slice()[..part.len()].copy_from_slice(part);
        sg_append(&mut bufs, [buf].into_iter().collect());
    }
    Ok(bufs)
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
                        let piece = (end - at).min(HOLE_BLOCKS_MAX);
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
