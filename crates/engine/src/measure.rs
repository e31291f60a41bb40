//! Measuring the append of a mapped log, in a pool of its own: what a write does once it has been let in (find the extent,
//! checksums, copy, fence, index), and the bare stores beside it.

use crate::layout::CreateOptions;
use crate::log_device::LogDevice;
use crate::pool::{OpenOptions, Pool, PoolDevices};
use crate::shard::Target;
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use crate::{LogKind, PoolError};
use base::{Histogram, Rng};
use bdev::{BlockDevice, Io, Lba, Status};
use reactor::{BUF_BYTES_MAX, Buf, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

/// Appends between two rests in which the pool destages what was appended.
const CHUNK: u64 = 8192;
/// Appends at the start of each chunk that do not count: resting has emptied the caches.
const WARM_UP: u64 = 256;
/// Sources that no cache holds.
const COLD_BYTES: usize = 256 << 20;

/// What to measure.
pub struct AppendOptions {
    /// The mapped log.
    pub log: LogDevice,
    /// The capacity device; its extents are what the index is spread over.
    pub capacity: Arc<dyn BlockDevice>,
    /// Bytes of each append: 4 KiB to 64 KiB.
    pub bytes: usize,
    /// Samples of each kind.
    pub samples: u64,
}

/// One row: latencies in ns, the clock's own cost included.
pub struct AppendRow {
    /// The source was in no cache.
    pub cold: bool,
    /// Appends through the log.
    pub append: Histogram,
    /// Stores of the same bytes and a fence.
    pub store: Histogram,
}

/// What was measured.
pub struct AppendReport {
    /// Warm, then cold.
    pub rows: [AppendRow; 2],
    /// Median cost of reading the clock, contained in every sample.
    pub clock_ns: u64,
    /// Bytes of volume addresses that the index is spread over.
    pub address_bytes: u64,
}

/// Makes a pool on both devices, whatever they hold, and measures.
pub async fn measure_append(reactor: &Rc<Reactor>, options: &AppendOptions) -> Result<AppendReport, PoolError> {
    let devices = PoolDevices { log: options.log.clone(), capacity: options.capacity.clone() };
    let create = CreateOptions {
        name: "append".to_string(),
        shards: Some(1),
        log_kind: LogKind::Mapped,
        ..CreateOptions::default()
    };
    Pool::create(reactor, &devices, &create, 0, true).await?;
    let pool = Pool::open(reactor, &devices, &OpenOptions::default()).await?;
    let status = pool.status(reactor).await;
    let extents = status.shards.iter().map(|shard| shard.extents).sum::<u32>();
    let volume = pool.create_volume(reactor, "append", extents as u64 * EXTENT_BLOCKS as u64, 12, 0).await?;
    let channel = volume.open_channel(reactor)?;
    for extent in 0..extents {
        let mut bufs = SgList::new();
        bufs.push(bdev::steps::alloc(reactor, BLOCK_BYTES).await.map_err(|status| io(&pool, status))?);
        bufs[0].as_mut_slice().fill(extent as u8);
        let done = channel.submit(Io::write(Lba(extent as u64 * EXTENT_BLOCKS as u64), 1, bufs)).await;
        done.status.check().map_err(|status| io(&pool, status))?;
        if extent % 64 == 0 {
            reactor.yield_now().await;
        }
    }
    pool.settle(reactor).await?;
    let bare = reactor.driver().pmem_open(None, COLD_BYTES as u64);
    let (bare, _) = bare.map_err(|errno| io(&pool, Status::Os(errno)))?;
    for at in (0..COLD_BYTES).step_by(BLOCK_BYTES) {
        let stored = reactor.driver().pmem_store(bare, at as u64, &[1; BLOCK_BYTES]);
        stored.map_err(|errno| io(&pool, Status::Os(errno)))?;
    }
    let mut measure =
        Measure { reactor, pool: &pool, volume: volume.shown().layer(), extents, options, rng: Rng::new(7) };
    measure.lap(status.log_bytes).await?;
    let rows = [measure.row(bare, false).await?, measure.row(bare, true).await?];
    reactor.driver().pmem_close(bare);
    let mut clock = Histogram::default();
    for _ in 0..10_000 {
        let began = reactor.clock_ns();
        clock.record(reactor.clock_ns() - began);
    }
    pool.close(reactor).await;
    let address_bytes = extents as u64 * EXTENT_BLOCKS as u64 * BLOCK_BYTES as u64;
    Ok(AppendReport { rows, clock_ns: clock.percentile(50.0), address_bytes })
}

fn io(pool: &Pool, status: Status) -> PoolError {
    PoolError::Io { pool: pool.name().to_string(), action: "measure", status }
}

struct Measure<'a> {
    reactor: &'a Rc<Reactor>,
    pool: &'a Pool,
    volume: u32,
    extents: u32,
    options: &'a AppendOptions,
    rng: Rng,
}

impl Measure<'_> {
    /// Writes the whole log once, so that no sample has to map a page of it.
    async fn lap(&mut self, log_bytes: u64) -> Result<(), PoolError> {
        let sources = Sources::new(BLOCK_BYTES * 16, false);
        let shard = self.pool.shard_here(self.reactor, 0).ok_or_else(|| io(self.pool, Status::Gone))?;
        let mut written = 0;
        while written < log_bytes {
            for _ in 0..CHUNK / 16 {
                let target = self.target(BLOCK_BYTES * 16);
                written += target.bytes as u64;
                let Some(appended) = shard.append_admitted(&target, sources.next(&mut self.rng)) else { break };
                appended.map_err(|status| io(self.pool, status))?;
            }
            self.pool.settle(self.reactor).await?;
        }
        Ok(())
    }

    fn target(&mut self, bytes: usize) -> Target {
        let places = EXTENT_BLOCKS as u64 * BLOCK_BYTES as u64 / bytes as u64;
        Target {
            volume: self.volume,
            vextent: self.rng.below(self.extents as u64) as u32,
            offset: (self.rng.below(places) * bytes as u64) as u32,
            bytes: bytes as u32,
        }
    }

    async fn row(&mut self, bare: reactor::driver::PmemId, cold: bool) -> Result<AppendRow, PoolError> {
        let sources = Sources::new(self.options.bytes, cold);
        let driver = self.reactor.driver();
        let (mut append, mut store) = (Histogram::default(), Histogram::default());
        let places = (COLD_BYTES / self.options.bytes) as u64;
        for index in 0..self.options.samples + WARM_UP {
            let source = sources.next(&mut self.rng);
            let began = self.reactor.clock_ns();
            let at = index % places * self.options.bytes as u64;
            driver.pmem_store(bare, at, source[0].as_slice()).map_err(|errno| io(self.pool, Status::Os(errno)))?;
            driver.pmem_fence(bare);
            let took = self.reactor.clock_ns() - began;
            if index >= WARM_UP {
                store.record(took);
            }
        }
        while append.count() < self.options.samples {
            let shard = self.pool.shard_here(self.reactor, 0).ok_or_else(|| io(self.pool, Status::Gone))?;
            for index in 0..CHUNK + WARM_UP {
                let target = self.target(self.options.bytes);
                let source = sources.next(&mut self.rng);
                let began = self.reactor.clock_ns();
                let appended = shard.append_admitted(&target, source);
                let took = self.reactor.clock_ns() - began;
                let Some(appended) = appended else { break };
                appended.map_err(|status| io(self.pool, status))?;
                if index >= WARM_UP {
                    append.record(took);
                }
            }
            self.pool.settle(self.reactor).await?;
        }
        Ok(AppendRow { cold, append, store })
    }
}

/// What is appended: always the same bytes, or some that were not touched for long.
struct Sources(Vec<SgList>);

impl Sources {
    fn new(bytes: usize, cold: bool) -> Sources {
        assert!(bytes <= BUF_BYTES_MAX && bytes.is_multiple_of(BLOCK_BYTES));
        let count = if cold { COLD_BYTES / bytes } else { 1 };
        Sources((0..count).map(|index| [Buf::from_vec(vec![index as u8 | 1; bytes])].into_iter().collect()).collect())
    }

    /// One of them. Its bytes may be in no cache, but where they are is: whoever writes has just said so.
    fn next(&self, rng: &mut Rng) -> &SgList {
        let source = &self.0[rng.below(self.0.len() as u64) as usize];
        std::hint::black_box(source.iter().map(|buf| buf.as_slice().as_ptr()).max());
        source
    }
}
