//! The headers of stripes: each block of a band that a map page names is found by one. By them alone bands are collected, and the
//! index of a lost log device built anew.

use super::Checker;
use super::bands::BandUse;
use crate::bands::{Bands, Unspoken};
use crate::format::root::Root;
use crate::format::superblock::Superblock;
use crate::meta::open_bands;
use bdev::Status;
use std::rc::Rc;

const SCRUB: &str = "open the pool and scrub it ('pool scrub'): that writes them anew elsewhere";

impl Checker {
    pub(super) async fn stripes(&mut self, superblock: &Superblock, shard: u16, root: &Root, used: &BandUse) {
        let channel = match self.capacity.open_channel(&self.reactor) {
            Ok(channel) => channel,
            Err(error) => {
                let meaning = format!("the headers of their stripes are not read: {error}");
                return self.report.error(format!("bands of shard {shard}"), "all", meaning, "check the device");
            }
        };
        let bands = open_bands(&self.reactor, (channel, self.capacity.info()), superblock, shard, &root.bands);
        for band in 0..bands.bands_and_free().0 {
            if let Err(status) = self.band(&bands, shard, band, used).await {
                let (object, place) = (format!("band {band} of shard {shard}"), "headers of its stripes");
                self.report.error(object, place, format!("they cannot be read: {status}"), "check the device");
            }
        }
    }

    async fn band(&mut self, bands: &Rc<Bands>, shard: u16, band: u32, used: &BandUse) -> Result<(), Status> {
        let (mut unspoken, Some(mut review)) = (Vec::new(), bands.review(band)) else { return Ok(()) };
        while review.next(|| false, &mut unspoken).await? {
            self.report.counts.stripes += 1;
        }
        for Unspoken { places, is_found, .. } in unspoken {
            let blocks = used.named_in(places.start.0..places.end.0);
            if blocks == 0 {
                // Never written, or of no use any more.
                continue;
            }
            self.report.counts.damaged_headers += 1;
            let (first, end) =
                (bands.position(places.start), bands.position(places.start) + places.end.0 - places.start.0);
            let object = format!("header of a stripe in band {band} of shard {shard}");
            let place = format!("block {}", bands.device_block(places.start));
            let meaning = match is_found {
                true => format!(
                    "it is damaged in one version of the device (a leg of a mirror, what parity says) and right in another; {blocks} blocks \
                     in use are found by it"
                ),
                false => format!(
                    "it is damaged: {blocks} blocks in use, of those from {first} to {} of the band, can be read, but their band is hardly \
                     ever collected, and without the log device they are lost",
                    end - 1
                ),
            };
            self.report.warning(object, place, meaning, SCRUB);
        }
        Ok(())
    }
}
