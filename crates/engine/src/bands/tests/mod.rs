mod append;
mod disk;
mod errors;
mod flushes;
mod life;
mod model;
#[path = "../../../../bdev/tests/common/run.rs"]
mod run;
mod walk;
mod zones;

use super::writer::Places;
use super::*;
use crate::format::band::{BAND_ENTRY_BYTES, BandState};
use crate::format::stripe::StripeHead;
use base::crc32c;
use bdev::Status;
use disk::Disk;
pub(super) use run::reactor;

/// 4 MiB bands of at most four stripes.
const GEOMETRY: BandGeometry = BandGeometry { first_block: 64, bands: 16, band_blocks: 1024, unit_blocks: 16 };
/// Bands of two small stripes, for what needs many of them.
const SMALL: BandGeometry = BandGeometry { first_block: 8, bands: 16, band_blocks: 16, unit_blocks: 8 };
const OWNER: BandOwner = BandOwner { shard: 3, salt: 0x5A17, epoch: 7 };

/// New bands on a disk, and their reactor.
struct Rig {
    reactor: Rc<Reactor>,
    disk: Rc<Disk>,
    bands: Rc<Bands>,
}

impl Rig {
    fn new(geometry: BandGeometry) -> Rig {
        Rig::on(Disk::new(reactor()), geometry, OWNER, &[])
    }

    fn on(disk: Rc<Disk>, geometry: BandGeometry, owner: BandOwner, table: &[BandEntry]) -> Rig {
        let reactor = disk.reactor.clone();
        let bands = Bands::new(&reactor, disk.clone(), &disk.info.get(), geometry, &[], owner, table);
        bands.recount_ended();
        Rig { reactor, disk, bands }
    }

    fn run<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        self.reactor.block_on(future)
    }

    fn turns(&self, count: usize) {
        for _ in 0..count {
            self.reactor.turn();
        }
    }

    /// Appends these blocks with a writer of their own.
    fn put(&self, stream: Stream, blocks: std::ops::Range<u32>) -> Result<Vec<BandAt>, Status> {
        let bands = self.bands.clone();
        self.run(async move {
            let mut writer = bands.writer(stream);
            append(&mut writer, blocks).await?;
            Ok(settle(&bands, writer.finish().await?))
        })
    }

    /// Fills bands of a stream whole, with blocks that are live, and closes them.
    fn fill(&self, stream: Stream, bands: u32) -> Vec<BandAt> {
        let blocks = self.bands.geometry.band_data_blocks() * bands;
        self.put(stream, 0..blocks).expect("there is room")
    }

    fn head(&self, at: BandAt) -> Option<StripeHead> {
        StripeHead::decode(OWNER.salt, &self.disk.block(self.bands.device_block(at)))
    }

    /// A checkpoint that leads to what is live now.
    fn checkpoint(&self) -> Vec<BandEntry> {
        let token = self.bands.checkpoint_begun();
        let table = self.bands.table(token);
        self.bands.checkpointed(token);
        self.turns(4);
        table
    }
}

/// What is in a block, so that each is another.
fn content(block: u32, target: &mut [u8]) {
    target.fill(block as u8);
    target[..4].copy_from_slice(&block.to_le_bytes());
}

fn bytes(block: u32) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    content(block, &mut bytes);
    bytes
}

fn entry(block: u32) -> Entry {
    Entry { block, crc: crc32c(&bytes(block)) }
}

async fn append(writer: &mut Writer, blocks: impl IntoIterator<Item = u32>) -> Result<(), Status> {
    let entries: Vec<_> = blocks.into_iter().map(entry).collect();
    let fill = |index: usize, target: &mut [u8]| {
        content(entries[index].block, target);
        true
    };
    writer.append(&entries, fill).await
}

/// Enters places in a map: they are live.
fn settle(bands: &Bands, places: Places) -> Vec<BandAt> {
    let all: Vec<_> = places.iter().flatten().collect();
    all.iter().for_each(|at| bands.live(*at));
    all
}
