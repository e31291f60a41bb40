//! The host of a stack: what requests and blocks cost its cores. The drive's time and the cores' pass in the same virtual clock.
//!
//! A pool's costs are of two kinds. A request and its blocks pay when they come, as those of all stacks do. What the pool writes to its
//! bands pays when it is written ([`HostedDevice`]), for having been read, verified, copied and noted: destage and collection take
//! their share of the core whenever they work, and nobody pays for what a load does not cause. A pool of several shards has a core
//! for each.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Op};
use reactor::{IoFuture, Reactor};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BLOCK: u64 = 4096;
/// Blocks after which work in the background lets requests of users go first, about as long as a reactor's turn may be.
const BACKGROUND_BLOCKS: u64 = 16;

/// What a request costs the host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostCost {
    pub request_ns: u64,
    /// Of each block of 4 KiB that a user writes or reads.
    pub block_ns: u64,
    /// Of each block that a pool writes to its bands.
    pub band_block_ns: u64,
    pub cores: Cores,
}

/// Who serves requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cores {
    /// They take their time and no queue.
    Unlimited,
    /// One after the other on each of so many cores.
    Shared(u16),
}

impl HostCost {
    /// Nothing takes time.
    pub const FREE: HostCost = HostCost { request_ns: 0, block_ns: 0, band_block_ns: 0, cores: Cores::Unlimited };

    /// Cores with a queue; none where requests only take their time.
    pub fn shared_cores(&self) -> Option<u16> {
        match self.cores {
            Cores::Unlimited => None,
            Cores::Shared(count) => Some(count),
        }
    }
}

/// One at a time, in the order of arrival. One reactor uses it; it is atomic because devices are shared.
#[derive(Default)]
pub struct Server {
    free_at_ns: AtomicU64,
    busy_ns: AtomicU64,
}

impl Server {
    /// When what arrives now ends.
    pub fn serve(&self, now_ns: u64, occupied_ns: u64) -> u64 {
        let end = self.free_at_ns.load(Ordering::Relaxed).max(now_ns) + occupied_ns;
        self.free_at_ns.store(end, Ordering::Relaxed);
        self.busy_ns.fetch_add(occupied_ns, Ordering::Relaxed);
        end
    }
}

/// The cores that serve requests.
#[derive(Clone)]
pub struct HostCore {
    cost: HostCost,
    servers: Arc<[Server]>,
}

impl HostCore {
    pub fn new(cost: HostCost) -> HostCore {
        let servers = (0..cost.shared_cores().unwrap_or(1).max(1)).map(|_| Server::default());
        HostCore { cost, servers: servers.collect() }
    }

    /// How many there are; one where they have no queue.
    pub fn cores(&self) -> u16 {
        self.servers.len() as u16
    }

    /// Time that its cores were busy, all together.
    pub fn busy_ns(&self) -> u64 {
        self.servers.iter().map(|server| server.busy_ns.load(Ordering::Relaxed)).sum()
    }

    /// A request of so many bytes passes through the only core.
    pub async fn pass(&self, reactor: &Rc<Reactor>, bytes: u64) {
        self.pass_on(reactor, 0, bytes).await;
    }

    /// A request passes through the core that this number falls on.
    pub async fn pass_on(&self, reactor: &Rc<Reactor>, core: u64, bytes: u64) {
        let takes = self.cost.request_ns + self.cost.block_ns * bytes.div_ceil(BLOCK);
        self.occupy(reactor, core, takes).await;
    }

    /// Work in the background on so many blocks, a little at a time.
    async fn work(&self, reactor: &Rc<Reactor>, core: u64, blocks: u64) {
        let mut left = blocks;
        while left > 0 && self.cost.band_block_ns > 0 {
            let part = left.min(BACKGROUND_BLOCKS);
            self.occupy(reactor, core, self.cost.band_block_ns * part).await;
            left -= part;
        }
    }

    async fn occupy(&self, reactor: &Rc<Reactor>, core: u64, takes_ns: u64) {
        let now = reactor.now_ns();
        let end = match self.cost.cores {
            Cores::Unlimited => now + takes_ns,
            Cores::Shared(_) => self.servers[(core % self.servers.len() as u64) as usize].serve(now, takes_ns),
        };
        if end > now {
            reactor.sleep_until(end).await;
        }
    }
}

/// The capacity device of a pool, whose writes take the cores' time before they reach it. Shards have equal parts of it, one after
/// the other.
pub struct HostedDevice {
    child: Arc<dyn BlockDevice>,
    host: HostCore,
}

impl HostedDevice {
    pub fn new(child: Arc<dyn BlockDevice>, host: HostCore) -> HostedDevice {
        HostedDevice { child, host }
    }
}

impl BlockDevice for HostedDevice {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        "hosted"
    }

    fn info(&self) -> DeviceInfo {
        self.child.info()
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        let (child, info) = (self.child.open_channel(reactor)?, self.child.info());
        let inner = Inner { child, host: self.host.clone(), info, reactor: reactor.clone() };
        Ok(Rc::new(HostedChannel(Rc::new(inner))))
    }

    fn children(&self) -> Vec<Arc<dyn BlockDevice>> {
        vec![self.child.clone()]
    }
}

struct HostedChannel(Rc<Inner>);

struct Inner {
    child: Rc<dyn Channel>,
    host: HostCore,
    info: DeviceInfo,
    reactor: Rc<Reactor>,
}

impl Channel for HostedChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        if io.op != Op::Write {
            return self.0.child.submit(io);
        }
        let inner = self.0.clone();
        IoFuture::steps(&self.0.reactor, async move {
            let blocks = (u64::from(io.nblocks) * u64::from(inner.info.block_size)).div_ceil(BLOCK);
            let shard = io.lba.0 * inner.host.servers.len() as u64 / inner.info.blocks.max(1);
            inner.host.work(&inner.reactor, shard, blocks).await;
            inner.child.submit(io).await
        })
    }

    fn abort(&self, tag: u64) {
        self.0.child.abort(tag);
    }
}

#[cfg(test)]
mod tests {
    use super::super::run::{RunError, in_world};
    use super::super::sparse::SparseDevice;
    use super::*;
    use reactor::SgList;

    fn shared(cores: u16) -> HostCost {
        HostCost { request_ns: 1_000_000, block_ns: 0, band_block_ns: 1_000_000, cores: Cores::Shared(cores) }
    }

    /// When four requests for different cores, begun together, have all ended.
    fn four(cost: HostCost) -> u64 {
        in_world(1, move |reactor| async move {
            let host = HostCore::new(cost);
            let lanes: Vec<_> = (0..4)
                .map(|core| {
                    let (host, inner) = (host.clone(), reactor.clone());
                    reactor.spawn_join(async move { host.pass_on(&inner, core, 4096).await })
                })
                .collect();
            for lane in lanes {
                lane.await;
            }
            Ok::<_, RunError>(reactor.now_ns())
        })
        .unwrap()
    }

    #[test]
    fn requests_queue_for_their_core_and_only_for_that() {
        let times = [Cores::Shared(1), Cores::Shared(2), Cores::Shared(4), Cores::Unlimited]
            .map(|cores| four(HostCost { cores, ..shared(1) }) / 1_000_000);
        assert_eq!(times, [4, 2, 1, 1]);
    }

    #[test]
    fn what_is_written_to_bands_takes_the_core_of_its_shard_and_lets_users_in_between() {
        let (device_end, user_end) = in_world(1, |reactor| async move {
            let host = HostCore::new(shared(2));
            let blocks = 64;
            let device = HostedDevice::new(Arc::new(SparseDevice::new(blocks * BLOCK)), host.clone());
            let channel = device.open_channel(&reactor).unwrap();
            let buf = reactor.pool().alloc(32 << 12).await;
            let (inner, of_user) = (reactor.clone(), host.clone());
            // The second half of the device is the second shard's.
            let user = reactor.spawn_join(async move {
                inner.sleep_until(1).await;
                of_user.pass_on(&inner, 1, BLOCK).await;
                inner.now_ns()
            });
            let done = channel.submit(Io::write(bdev::Lba(32), 32, SgList::from_iter([buf]))).await;
            assert!(done.status.is_ok());
            Ok::<_, RunError>((reactor.now_ns(), user.await))
        })
        .unwrap();
        assert_eq!(device_end / 1_000_000, 33, "32 blocks, and the user's request between them");
        assert_eq!(user_end / 1_000_000, 17, "after the first sixteen");
    }
}
