//! The flash cache of a warm pool, by the cache's own logic (`bdev::flash_cache`): what is let in, under the write budget and without one,
//! for several sizes, and beside each an LRU cache that lets in everything and wears flash as it likes.
//!
//! What the log answers does not come here; what leaves the log ends what was cached of it. A cache of which one block in `2^shift` is
//! simulated is smaller by that, and so is its budget: the blocks of a segment stay, unless too few segments would be left.

use super::args::{SimulateArgs, usage};
use super::cache::Cache;
use super::plan::Plan;
use super::space::BLOCK;
use crate::cli::exit::Failure;
use base::ByteSize;
use bdev::flash_cache::workload::Model;
use bdev::flash_cache::{FlashCacheCounts, SEGMENT_BYTES_DEFAULT};

/// Other sizes of the flash device, as parts of the one that was asked for.
const PARTS: [(u64, u64); 4] = [(1, 4), (1, 2), (2, 1), (4, 1)];
/// A budget that is none: more than anything writes in a day, and no more than is counted without overflow.
const AMPLE_PER_DAY: u64 = 1 << 50;
/// Segments that a simulated cache has at least, and blocks of each.
const SEGMENTS_MIN: u64 = 32;
const SEGMENT_BLOCKS_MIN: u64 = 32;
const SEED: u64 = 1;

/// What one cache has done in a pass, in blocks of what is simulated.
#[derive(Clone, Copy, Debug, Default)]
pub struct CachePass {
    /// Blocks that reads have asked it for.
    pub reads: u64,
    pub hits: u64,
    pub counts: FlashCacheCounts,
    pub hits_ample: u64,
    pub written_ample_bytes: u64,
    pub hits_lru: u64,
}

/// A cache of one size.
pub struct FlashAside {
    pub bytes: u64,
    budgeted: Model,
    ample: Model,
    lru: Cache,
    before: CachePass,
}

/// See the module.
pub struct FlashCaches {
    /// The one that was asked for first, then the others.
    pub sizes: Vec<FlashAside>,
    blocks: Vec<u64>,
    /// The budget is of bytes in a time that nobody knows: it is left out.
    is_timeless: bool,
}

fn model(bytes: u64, per_day: u64, plan: &Plan) -> Result<Model, String> {
    let (blocks, per_day) = (plan.scaled(bytes) / BLOCK, plan.scaled(per_day));
    let usual = SEGMENT_BYTES_DEFAULT / BLOCK;
    let sizes = std::iter::successors(Some(usual), |blocks| Some(blocks / 2));
    let mut fitting = sizes.take_while(|blocks| *blocks >= SEGMENT_BLOCKS_MIN);
    let is_fine = |segment: &u64| *segment == usual && plan.shift == 0 || blocks / segment >= SEGMENTS_MIN;
    let made =
        fitting.find_map(|segment| is_fine(&segment).then(|| Model::new(blocks, segment, per_day, SEED).ok())?);
    made.ok_or_else(|| {
        format!(
            "of these volumes one block in {} is simulated, and of so small a cache or budget too little is left then; the least are about \
             {} of flash and {} a day",
            1u64 << plan.shift,
            ByteSize((SEGMENTS_MIN * SEGMENT_BLOCKS_MIN * BLOCK) << plan.shift),
            ByteSize((SEGMENT_BLOCKS_MIN * BLOCK * 42) << plan.shift)
        )
    })
}

impl FlashCaches {
    /// Caches of the sizes that were asked for, or of the one and parts of it.
    pub fn new(args: &SimulateArgs, plan: &Plan, is_timeless: bool) -> Result<FlashCaches, Failure> {
        let asked: Vec<u64> = args.cache.iter().map(|size| size.0).collect();
        if let Some(large) = asked.iter().find(|bytes| **bytes > plan.volume_bytes) {
            let (large, volumes) = (ByteSize(*large), ByteSize(plan.volume_bytes));
            return Err(usage(format!(
                "--cache {large}: volumes of this pool have no more than {volumes}; give a smaller one"
            )));
        }
        let budget = if is_timeless { AMPLE_PER_DAY } else { args.write_budget().min(AMPLE_PER_DAY) };
        let aside = |bytes| -> Result<FlashAside, String> {
            Ok(FlashAside {
                bytes,
                budgeted: model(bytes, budget, plan)?,
                ample: model(bytes, AMPLE_PER_DAY, plan)?,
                lru: Cache::new(plan.scaled(bytes) / BLOCK),
                before: CachePass::default(),
            })
        };
        let made: Result<Vec<FlashAside>, String> = match *asked.as_slice() {
            // Of the others those that can be.
            [bytes] => aside(bytes).map(|first| {
                let others = PARTS.iter().map(|(part, whole)| (bytes / whole).saturating_mul(*part));
                let others = others.filter(|bytes| *bytes <= plan.volume_bytes).filter_map(|bytes| aside(bytes).ok());
                std::iter::once(first).chain(others).collect()
            }),
            _ => asked.iter().map(|bytes| aside(*bytes)).collect(),
        };
        let sizes = made.map_err(|reason| usage(format!("--cache, --write-budget: {reason}")))?;
        Ok(FlashCaches { sizes, blocks: Vec::new(), is_timeless })
    }

    pub fn is_timeless(&self) -> bool {
        self.is_timeless
    }

    /// A read of blocks that follow one another.
    pub fn read(&mut self, blocks: impl Iterator<Item = u32>, now_ns: u64) {
        self.blocks.clear();
        self.blocks.extend(blocks.map(u64::from));
        for aside in &mut self.sizes {
            aside.budgeted.read_all(&self.blocks, now_ns);
            if !self.is_timeless {
                aside.ample.read_all(&self.blocks, now_ns);
            }
            self.blocks.iter().for_each(|block| aside.lru.read(*block as u32));
        }
    }

    /// Blocks are written to the disks.
    pub fn write(&mut self, blocks: impl Iterator<Item = u32> + Clone) {
        for aside in &mut self.sizes {
            blocks.clone().for_each(|block| {
                aside.budgeted.write(u64::from(block));
                aside.ample.write(u64::from(block));
            });
        }
    }

    pub fn begin_pass(&mut self) {
        self.sizes.iter_mut().for_each(|aside| aside.before = aside.total());
    }

    /// Of each size, what has happened in this pass.
    pub fn pass(&self) -> Vec<CachePass> {
        self.sizes.iter().map(|aside| aside.total().since(&aside.before)).collect()
    }

    /// Whether the cache that was asked for does in this pass what it did in the one before, and not for want of budget alone.
    pub fn is_steady(&self, before: &CachePass, now: &CachePass) -> bool {
        let budgeted = &self.sizes[0].budgeted;
        let change = now.hits.abs_diff(before.hits) as f64 / now.reads.max(1) as f64;
        let wanted = now.counts.admitted + now.counts.refused_budget;
        let is_filling = budgeted.cached() * 100 < budgeted.capacity() * 95 && now.counts.refused_budget * 100 > wanted;
        change < 0.005 && !is_filling
    }
}

impl FlashAside {
    fn total(&self) -> CachePass {
        let (counts, ample) = (self.budgeted.counts(), self.ample.counts());
        CachePass {
            reads: counts.hits + counts.misses,
            hits: counts.hits,
            counts,
            hits_ample: ample.hits,
            written_ample_bytes: ample.written_bytes,
            hits_lru: self.lru.hits,
        }
    }

    /// The part of it that is in use.
    pub fn filled(&self) -> f64 {
        self.budgeted.cached() as f64 / self.budgeted.capacity().max(1) as f64
    }
}

impl CachePass {
    fn since(&self, before: &CachePass) -> CachePass {
        let (now, then) = (&self.counts, &before.counts);
        CachePass {
            reads: self.reads - before.reads,
            hits: self.hits - before.hits,
            counts: FlashCacheCounts {
                hits: now.hits - then.hits,
                misses: now.misses - then.misses,
                admitted: now.admitted - then.admitted,
                readmitted: now.readmitted - then.readmitted,
                refused_once: now.refused_once - then.refused_once,
                refused_budget: now.refused_budget - then.refused_budget,
                invalidated: now.invalidated - then.invalidated,
                written_bytes: now.written_bytes - then.written_bytes,
                ..FlashCacheCounts::default()
            },
            hits_ample: self.hits_ample - before.hits_ample,
            written_ample_bytes: self.written_ample_bytes - before.written_ample_bytes,
            hits_lru: self.hits_lru - before.hits_lru,
        }
    }

    /// The share of what was read often enough that the budget refused.
    pub fn refused(&self) -> Option<f64> {
        let let_in = self.counts.admitted - self.counts.readmitted;
        let wanted = let_in + self.counts.refused_budget;
        (wanted > 0).then(|| self.counts.refused_budget as f64 / wanted as f64)
    }
}
