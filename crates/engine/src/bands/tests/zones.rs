//! Bands that are zones of a real zone-bands device.

use super::*;
use bdev::{
    BlockDevice, ErrorDevice, ErrorRule, Fault, MemDevice, Op, ZoneBandsDevice, ZoneBandsOptions, ZonedDevice,
    ZonedOptions,
};
use std::sync::Arc;

/// Bands on zones whose operations fail where they are told to.
struct Zones {
    reactor: Rc<Reactor>,
    errors: Arc<ErrorDevice>,
    device: Arc<ZoneBandsDevice>,
    bands: Rc<Bands>,
}

impl Zones {
    fn new(active_max: u32) -> Zones {
        let reactor = reactor();
        let inner = reactor.clone();
        let (errors, device) = reactor.block_on(async move {
            let mem = |name: &str, blocks: u64| Arc::new(MemDevice::new(name, 4096, blocks, 0).unwrap());
            let zone_bytes = SMALL.band_blocks as u64 * 4096;
            let options =
                ZonedOptions { create: true, zone_bytes, active_zones_max: active_max, ..ZonedOptions::default() };
            let below = mem("below", 4 + 17 * SMALL.band_blocks as u64);
            let zoned = Arc::new(ZonedDevice::open(&inner, "zones", below, &options).await.unwrap());
            let errors = Arc::new(ErrorDevice::new("errors", zoned, &[], 1).unwrap());
            let options = ZoneBandsOptions { create: true, ..ZoneBandsOptions::default() };
            let head = mem("head", 2 + SMALL.first_block);
            let opened = ZoneBandsDevice::open(&inner, "bands", head, errors.clone(), &options).await;
            (errors, Arc::new(opened.unwrap()))
        });
        let bands = Zones::open(&reactor, &device, OWNER.epoch, &[]);
        Zones { reactor, errors, device, bands }
    }

    fn open(reactor: &Rc<Reactor>, device: &ZoneBandsDevice, epoch: u32, table: &[BandEntry]) -> Rc<Bands> {
        let channel = device.open_channel(reactor).unwrap();
        let bands = Bands::new(reactor, channel, &device.info(), SMALL, &[], BandOwner { epoch, ..OWNER }, table);
        let adopted = bands.clone();
        reactor.block_on(async move { adopted.adopt_zones().await });
        bands.recount_ended();
        bands.root_settled();
        bands
    }

    /// Another opening of the bands, of which a root has this table.
    fn reopen(&mut self, table: &[BandEntry]) {
        let bands = self.bands.clone();
        self.reactor.block_on(async move { bands.rest().await });
        self.bands = Zones::open(&self.reactor, &self.device, self.bands.owner.epoch + 1, table);
    }

    fn put(&self, stream: Stream, blocks: std::ops::Range<u32>) -> Result<Vec<BandAt>, Status> {
        let bands = self.bands.clone();
        self.reactor.block_on(async move {
            let mut writer = bands.writer(stream);
            append(&mut writer, blocks).await?;
            Ok(settle(&bands, writer.finish().await?))
        })
    }

    fn flush(&self) -> Result<(), Status> {
        let bands = self.bands.clone();
        self.reactor.block_on(async move { bands.flush().await })
    }

    fn fail(&self, ops: &[Op]) {
        let rules: Vec<_> = ops.iter().map(|op| ErrorRule::always(&[*op], Fault::Fail(Status::WriteError))).collect();
        self.errors.set_rules(&rules).unwrap();
    }

    fn table(&self) -> Vec<BandEntry> {
        self.bands.table(self.bands.checkpoint_begun())
    }

    fn checkpoint(&self) {
        self.bands.checkpointed(self.bands.checkpoint_begun());
        self.wait(1);
    }

    fn wait(&self, ms: u64) {
        let reactor = self.reactor.clone();
        self.reactor.block_on(async move { reactor.sleep_ns(ms * 1_000_000).await });
    }
}

#[test]
fn a_band_that_was_opened_after_the_root_is_reset_before_it_is_opened_again() {
    let mut zones = Zones::new(4);
    let before = zones.table();
    for stream in Stream::ALL {
        zones.put(stream, 0..3).unwrap();
    }
    assert_eq!(zones.device.status().open, Stream::ALL.len() as u64);
    zones.reopen(&before);
    zones.wait(1);
    assert_eq!((zones.device.status().open, zones.bands.room().free), (0, 16));
    for stream in Stream::ALL {
        zones.put(stream, 10..20).unwrap();
    }
    assert_eq!(zones.device.status().misplaced_writes, 0);
}

#[test]
fn an_open_band_is_gone_on_with_where_its_zone_is_and_finished_otherwise() {
    let mut zones = Zones::new(4);
    zones.put(Stream::User, 0..3).unwrap();
    let table = zones.table();
    zones.reopen(&table);
    zones.put(Stream::User, 3..6).unwrap();
    assert_eq!((zones.device.status().full, zones.bands.room().closed), (1, 1), "it is full");
    // What the table counts was under way, and the zone has less.
    zones.put(Stream::User, 6..9).unwrap();
    let mut table = zones.table();
    let open = table.iter().position(|entry| entry.state == BandState::Open).unwrap();
    table[open].written = 16;
    zones.reopen(&table);
    zones.wait(1);
    let status = zones.device.status();
    assert_eq!((status.open, zones.bands.room().open), (0, 0), "{status:?}");
    assert_eq!(zones.table()[open].written, 8);
    zones.put(Stream::User, 9..12).unwrap();
    assert_eq!(zones.device.status().misplaced_writes, 0);
}

#[test]
fn a_zone_that_cannot_be_reset_retires_its_band() {
    let zones = Zones::new(0);
    let places = zones.put(Stream::User, 0..14).unwrap();
    places.iter().for_each(|at| zones.bands.dead(*at));
    zones.fail(&[Op::ZoneReset]);
    zones.checkpoint();
    assert_eq!((zones.bands.room().unmapping, zones.bands.room().retired), (1, 0), "it is tried again");
    zones.wait(4_000);
    assert_eq!((zones.bands.room().unmapping, zones.bands.room().retired), (1, 0), "the device may refuse everything");
    assert_eq!(zones.bands.reset_error(), Some(Status::WriteError));
    // While others are written it is the zone.
    for block in 14..24 {
        zones.put(Stream::User, block..block + 1).unwrap();
        zones.wait(300);
    }
    assert_eq!((zones.bands.room().unmapping, zones.bands.room().retired), (0, 1));
    assert!(zones.table().iter().any(|entry| entry.state == BandState::Retired));
}

#[test]
fn after_a_failed_flush_none_counts_until_nothing_is_needed_where_it_may_be_lost() {
    let zones = Zones::new(0);
    let covered = zones.put(Stream::User, 0..3).unwrap();
    zones.fail(&[Op::Flush]);
    assert_eq!(zones.flush(), Err(Status::WriteError));
    zones.fail(&[]);
    assert_eq!(zones.flush(), Err(Status::WriteError));
    assert!(zones.bands.has_suspects());
    assert_eq!(zones.bands.victim().map(|cursor| cursor.band()), Some(SMALL.band_of(covered[0])));
    let moved = zones.put(Stream::Moved, 0..3).unwrap();
    assert_ne!(SMALL.band_of(moved[0]), SMALL.band_of(covered[0]));
    covered.iter().for_each(|at| zones.bands.dead(*at));
    assert!(!zones.bands.has_suspects());
    assert_eq!(zones.flush(), Err(Status::WriteError), "a root whose pages were written before may lead there");
    zones.bands.checkpoint_begun();
    assert_eq!(zones.flush(), Ok(()));
    assert_eq!(zones.device.status().misplaced_writes, 0);
}
