//! What the shaped pool costs the host, measured: CPU time of this build, on this machine.
//!
//! The pool runs on devices in memory that take no time, and what they take of the CPU is not counted: a drive moves its data by
//! itself. All the rest counts: cutting and copying what users write, checksums, groups of the log, index, destage, reading and
//! verifying what the collector moves, and the reactor under it. Three loads tell three costs apart, by how much each wrote
//! to the bands: 4 KiB at random, 64 KiB at random, and 64 KiB in order, for which nothing is collected.

use super::disk::DiskError;
use super::host::{Cores, HostCore, HostCost};
use super::pool::{PoolPlan, ShapedPool};
use super::run::{RunError, in_world};
use super::sparse::SparseDevice;
use super::stack::{Sizes, Target};
use base::Rng;
use bdev::{BlockDevice, Op};
use reactor::Reactor;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes under way, before and while it is measured: as many as the table's jobs have.
const DEPTH: u64 = 32;
/// Each load is measured so many times; the median counts.
const ROUNDS: usize = 7;
/// Measured with a volume of 1 GiB, and a quarter of that spare.
const SCALE: u64 = 16;

/// A load, measured.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// CPU time of a request.
    request_ns: f64,
    /// Blocks written to the bands for each block of the user's.
    band_blocks: f64,
}

/// CPU time of a request, of each of its blocks, and of each block that is written to the bands.
pub fn measure_host_cost() -> Result<HostCost, RunError> {
    let [small, large, ordered] = in_world(1, move |reactor| async move { measure(&reactor).await })?;
    let cost = solve(small, large, ordered);
    if cost.request_ns == 0 || cost.band_block_ns == 0 {
        let cause = "what the pool's code costs cannot be told on a machine that is so busy: run again when it is quiet, or give the \
                     costs (--pool-ns, --pool-block-ns, --pool-band-ns)";
        return Err(RunError::Failed(cause.to_string()));
    }
    Ok(cost)
}

/// `small` are single blocks at random, `large` requests of sixteen at random, `ordered` of sixteen one after the other. What
/// does not come out as positive costs nothing.
fn solve(small: Sample, large: Sample, ordered: Sample) -> HostCost {
    let more = (large.band_blocks - ordered.band_blocks).max(0.1);
    let band = ((large.request_ns - ordered.request_ns) / 16.0 / more).max(0.0);
    let sixteen = (ordered.request_ns - 16.0 * ordered.band_blocks * band).max(0.0);
    let one = (small.request_ns - small.band_blocks * band).max(0.0);
    let block = ((sixteen - one) / 15.0).max(0.0);
    let request = (one - block).max(0.0);
    let [request_ns, block_ns, band_block_ns] = [request, block, band].map(|cost| cost.round() as u64);
    HostCost { request_ns, block_ns, band_block_ns, cores: Cores::Shared(1) }
}

struct Bench {
    reactor: Rc<Reactor>,
    pool: Rc<ShapedPool>,
    user_bytes: u64,
    /// Of the devices.
    spent_ns: Arc<AtomicU64>,
}

async fn measure(reactor: &Rc<Reactor>) -> Result<[Sample; 3], RunError> {
    let sizes = Sizes::of(SCALE, 64 << 10);
    let spent_ns = Arc::new(AtomicU64::new(0));
    let timed = |bytes: u64| -> Arc<dyn BlockDevice> { Arc::new(SparseDevice::timed(bytes, &spent_ns)) };
    let plan = PoolPlan {
        log: timed(sizes.cache_bytes),
        capacity: timed(sizes.user_bytes * 5 / 4),
        user_bytes: sizes.user_bytes,
        band_bytes: Some(sizes.superblock_bytes),
        reinsertion: None,
    };
    let made = ShapedPool::make(plan, HostCore::new(HostCost::FREE), reactor).await;
    let pool = Rc::new(made.map_err(RunError::Failed)?);
    let bench = Bench { reactor: reactor.clone(), pool, user_bytes: sizes.user_bytes, spent_ns };
    let next = Rc::new(Cell::new(0));
    let ordered = Rc::new(move |_: &mut Rng, units: u64| next.replace(next.get() + 1) % units);
    let random = Rc::new(|rng: &mut Rng, units: u64| rng.below(units));
    bench.write(256 << 10, sizes.user_bytes, &ordered).await?;
    let small = bench.load(4 << 10, &random).await?;
    let large = bench.load(64 << 10, &random).await?;
    // Whatever was scattered before goes, so that nothing is left to collect.
    let ordered = bench.load(64 << 10, &ordered).await?;
    Ok([small, large, ordered])
}

impl Bench {
    /// Writes the whole volume to warm up, then an eighth of it in each round.
    async fn load(&self, bytes: u64, choose: &Rc<impl Fn(&mut Rng, u64) -> u64 + 'static>) -> Result<Sample, RunError> {
        self.write(bytes, self.user_bytes, choose).await?;
        let mut samples = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let total = self.user_bytes / 8;
            let (cpu, spent) = (crate::sys::process_cpu_ns(), self.spent_ns.load(Ordering::Relaxed));
            let bands = self.pool.band_bytes(&self.reactor).await;
            self.write(bytes, total, choose).await?;
            let bands = self.pool.band_bytes(&self.reactor).await - bands;
            let cpu = crate::sys::process_cpu_ns() - cpu;
            let own = cpu.saturating_sub(self.spent_ns.load(Ordering::Relaxed) - spent);
            let requests = (total / bytes) as f64;
            samples.push(Sample { request_ns: own as f64 / requests, band_blocks: bands as f64 / total as f64 });
        }
        samples.sort_by(|a, b| a.request_ns.total_cmp(&b.request_ns));
        Ok(samples[ROUNDS / 2])
    }

    /// Writes `total` bytes in units of `bytes`.
    async fn write(
        &self,
        bytes: u64,
        total: u64,
        choose: &Rc<impl Fn(&mut Rng, u64) -> u64 + 'static>,
    ) -> Result<(), RunError> {
        let units = self.user_bytes / bytes;
        let lanes: Vec<_> = (0..DEPTH)
            .map(|lane| {
                let (pool, choose, mut rng) = (self.pool.clone(), choose.clone(), Rng::new(lane));
                self.reactor.spawn_join(async move {
                    for _ in 0..total / bytes / DEPTH {
                        pool.perform(Op::Write, choose(&mut rng, units) * bytes, bytes).await?;
                    }
                    Ok::<(), DiskError>(())
                })
            })
            .collect();
        for lane in lanes {
            lane.await.map_err(RunError::Failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_loads_tell_three_costs_apart() {
        let cost = HostCost { request_ns: 700, block_ns: 250, band_block_ns: 400, cores: Cores::Shared(1) };
        let sample = |blocks: u64, band_blocks: f64| Sample {
            request_ns: (cost.request_ns + blocks * cost.block_ns) as f64
                + blocks as f64 * band_blocks * cost.band_block_ns as f64,
            band_blocks,
        };
        assert_eq!(solve(sample(1, 3.5), sample(16, 3.0), sample(16, 1.0)), cost);
    }

    #[test]
    fn nothing_costs_less_than_nothing() {
        let sample = |request_ns, band_blocks| Sample { request_ns, band_blocks };
        let cost = solve(sample(100.0, 1.0), sample(3_000.0, 1.0), sample(4_000.0, 1.0));
        assert_eq!(cost.band_block_ns, 0);
    }
}
