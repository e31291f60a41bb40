//! A drive with a volatile cache of its own, some of whose flushes fail. What such a flush covered reads well, and may never
//! reach the medium, while later flushes succeed. (A [`FileDevice`](bdev::FileDevice) refuses all flushes after one that failed.)

use base::Rng;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Flags, Io, Lba, Op, OpSet, Status};
use reactor::{IoFuture, Reactor, SgList};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Wait before it is looked again whether another flush has ended.
const LOOK_NS: u64 = 10_000;

/// What the drive gives back of a block, and the medium may not have.
struct Cached {
    data: Vec<u8>,
    number: u64,
    /// No flush writes it any more.
    is_forgotten: bool,
}

struct Cache {
    blocks: BTreeMap<u64, Cached>,
    /// Writes so far.
    writes: u64,
    /// One flush at a time: of two, the one that began earlier would bring older content.
    is_flushing: bool,
    rng: Rng,
}

/// See the module.
pub(crate) struct ForgetfulDevice {
    below: Arc<dyn BlockDevice>,
    cache: Arc<Mutex<Cache>>,
    /// One flush in so many fails.
    fails: u64,
}

impl ForgetfulDevice {
    pub(crate) fn over(below: Arc<dyn BlockDevice>, fails: u64, seed: u64) -> ForgetfulDevice {
        let cache = Cache { blocks: BTreeMap::new(), writes: 0, is_flushing: false, rng: Rng::new(seed) };
        ForgetfulDevice { below, cache: Arc::new(Mutex::new(cache)), fails }
    }
}

impl BlockDevice for ForgetfulDevice {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn kind(&self) -> &'static str {
        "forgetful"
    }

    fn info(&self) -> DeviceInfo {
        let ops = OpSet::of(&[Op::Read, Op::Write, Op::Flush]);
        DeviceInfo { volatile_cache: true, loans: false, ops, ..self.below.info() }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(Open {
            below: self.below.open_channel(reactor)?,
            cache: self.cache.clone(),
            fails: self.fails,
            block_size: self.below.info().block_size as usize,
            reactor: reactor.clone(),
        }))
    }
}

struct Open {
    below: Rc<dyn Channel>,
    cache: Arc<Mutex<Cache>>,
    fails: u64,
    block_size: usize,
    reactor: Rc<Reactor>,
}

impl Open {
    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the cache has of the blocks of an operation.
    fn look(&self, io: &Io) -> Vec<(usize, Vec<u8>)> {
        let found =
            |(block, cached): (&u64, &Cached)| ((*block - io.lba.0) as usize * self.block_size, cached.data.clone());
        self.cache().blocks.range(io.lba.0..io.end()).map(found).collect()
    }

    async fn read(&self, io: Io, newer: Vec<(usize, Vec<u8>)>) -> Done {
        let mut done = self.below.submit(io).await;
        if done.status.is_ok() {
            newer.iter().for_each(|(at, data)| bdev::steps::sg_write_at(&mut done.io.bufs, *at, data));
        }
        done
    }

    fn take(&self, io: &Io) {
        let cache = &mut *self.cache();
        for index in 0..io.nblocks as usize {
            let mut data = vec![0; self.block_size];
            bdev::steps::sg_read_at(&io.bufs, index * self.block_size, &mut data);
            cache.writes += 1;
            let cached = Cached { data, number: cache.writes, is_forgotten: false };
            cache.blocks.insert(io.lba.0 + index as u64, cached);
        }
    }

    /// The blocks of a durable write are as they are below.
    async fn write_through(&self, io: Io) -> Done {
        let blocks = io.lba.0..io.end();
        let done = self.below.submit(io).await;
        if done.status.is_ok() {
            self.cache().blocks.retain(|block, _| !blocks.contains(block));
        }
        done
    }

    async fn flush(&self, io: Io) -> Done {
        while std::mem::replace(&mut self.cache().is_flushing, true) {
            self.reactor.sleep_ns(LOOK_NS).await;
        }
        let status = self.write_back().await;
        self.cache().is_flushing = false;
        io.done(status)
    }

    async fn write_back(&self) -> Status {
        let (fails, covered) = {
            let cache = &mut *self.cache();
            let fails = self.fails > 0 && cache.rng.one_in(self.fails);
            let mut covered = Vec::new();
            for (block, cached) in cache.blocks.iter_mut().filter(|(_, cached)| !cached.is_forgotten) {
                match if fails { cache.rng.below(3) } else { 0 } {
                    0 => covered.push((*block, cached.number, cached.data.clone())),
                    1 => {}
                    _ => cached.is_forgotten = true,
                }
            }
            (fails, covered)
        };
        for (block, number, data) in covered {
            let mut bufs = SgList::new();
            bufs.push(self.reactor.pool().alloc(self.block_size).await);
            bufs[0].as_mut_slice().copy_from_slice(&data);
            let write = Io { flags: Flags::FUA, ..Io::write(Lba(block), 1, bufs) };
            let done = self.below.submit(write).await;
            if !done.status.is_ok() {
                return done.status;
            }
            self.cache().blocks.retain(|other, cached| *other != block || cached.number != number);
        }
        if fails { Status::WriteError } else { Status::Ok }
    }
}

impl Channel for Open {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        match io.op {
            Op::Read => {
                let newer = self.look(&io);
                IoFuture::new(self.read(io, newer))
            }
            Op::Write if io.flags.has(Flags::FUA) => IoFuture::new(self.write_through(io)),
            Op::Write => {
                self.take(&io);
                IoFuture::ready(io.done(Status::Ok))
            }
            Op::Flush => IoFuture::new(self.flush(io)),
            _ => IoFuture::ready(io.done(Status::Unsupported)),
        }
    }
}
