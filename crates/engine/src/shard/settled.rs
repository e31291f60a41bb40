//! Reading blocks that all lie where placement puts them, the way most reads of a large volume go.
//!
//! Their checksums are in the map page. When it is not in memory, the blocks and the part of the page that has their
//! checksums are read at the same time, since both places are computed. The answer is judged when everything is there: the
//! blocks must still be settled, the part must be what the store confirms by then, and each block what its entry says
//! by then. Whatever else comes out, the long way (`read`) is taken.

use super::data::copy_into;
use super::index::Knows;
use super::{Defect, Outcome, Shard, Target};
use crate::checksums::block_crcs;
use crate::meta::glance::{Glance, Glanced};
use crate::meta::{self, HOLE, INHERIT, LOST};
use crate::units::{BLOCK_BYTES, EXTENT_BLOCKS};
use bdev::{Done, Io, Status};
use reactor::{BUF_BYTES_MAX, IoFuture, SgList};
use std::rc::Rc;

impl Shard {
    /// Reads whole blocks of an extent this way, or gives the buffers back.
    #[inline]
    pub(super) fn read_settled(
        self: &Rc<Self>,
        target: Target,
        extent: u32,
        bufs: SgList,
    ) -> Result<IoFuture<'static, Outcome>, SgList> {
        let blocks = target.blocks();
        // Where a block of a shaped pool is, its page has to say first.
        if target.bytes as usize > BUF_BYTES_MAX || self.meta.bands().is_some() {
            return Err(bufs);
        }
        let glance = match self.index.knows(extent, blocks.clone()) {
            // What has no bytes on the device is not asked for there.
            Some(Knows::Page(page)) if blocks.clone().any(|index| page.get(index) >= INHERIT) => return Err(bufs),
            Some(Knows::Page(_)) => None,
            Some(Knows::Media) => match self.meta.glance(extent, blocks.clone()) {
                Some(glance) => Some(glance),
                None => return Err(bufs),
            },
            None => return Err(bufs),
        };
        let place = self.meta.data_block(extent * EXTENT_BLOCKS + blocks.start);
        let io = self.capacity_io(place, blocks.len() as u32, |lba, count| Io::read(lba, count, bufs));
        let data = IoFuture::begin(&self.capacity, |capacity| capacity.submit(io));
        let (glance, data) = match (glance.map(Glance::try_ready).transpose(), data) {
            (Ok(glanced), Ok(mut done)) => {
                return match self.judge_settled(&target, extent, glanced.as_ref(), &mut done) {
                    Some(status) => Ok(IoFuture::ready(Outcome { status, bufs: done.io.bufs })),
                    None => Err(done.io.bufs),
                };
            }
            under_way => under_way,
        };
        let shard = self.clone();
        Ok(IoFuture::steps(&self.reactor, async move {
            let mut done = match data {
                Ok(done) => done,
                Err(begun) => begun.await,
            };
            let glanced = match glance {
                Ok(glanced) => glanced,
                Err(glance) => Some(glance.ended().await),
            };
            match shard.judge_settled(&target, extent, glanced.as_ref(), &mut done) {
                Some(status) => Outcome { status, bufs: done.io.bufs },
                None => shard.read_blocks(target, done.io.bufs).await,
            }
        }))
    }

    /// The answer to give, if there is one.
    fn judge_settled(
        self: &Rc<Self>,
        target: &Target,
        extent: u32,
        glanced: Option<&Glanced>,
        done: &mut Done,
    ) -> Option<Status> {
        if self.index.extent(target.volume, target.vextent) != Some(extent) || !done.status.is_ok() {
            return None;
        }
        match self.index.knows(extent, target.blocks())? {
            Knows::Page(page) => self.check_entries(target, done, |index| page.get(index)),
            Knows::Media => {
                let entries = self.meta.entries(glanced?)?;
                self.check_entries(target, done, |index| entries.get(index))
            }
        }
    }

    /// As [`judge_settled`](Self::judge_settled), by what the map page says of each block.
    #[inline]
    fn check_entries(self: &Rc<Self>, target: &Target, done: &mut Done, entry: impl Fn(u32) -> u32) -> Option<Status> {
        let crcs = block_crcs(&done.io.bufs);
        for (step, (index, crc)) in target.blocks().zip(crcs).enumerate() {
            match entry(index) {
                HOLE => copy_into(&mut done.io.bufs, step * BLOCK_BYTES, &[0; BLOCK_BYTES]),
                LOST => return Some(Status::ReadError),
                INHERIT => return None,
                // Read once more, and reported, by the long way. That may meet a version that is right.
                stored if meta::stored_crc(crc) != stored && !self.is_broken(Defect::SkipVerify) => {
                    if self.has_versions() {
                        self.mend_later(target.volume, target.vextent, index);
                    }
                    return None;
                }
                _ => {}
            }
        }
        Some(Status::Ok)
    }
}
