//! The conformance suite on every device and on stacks of them, under the Linux driver.

use crate::common::*;
use bdev::{
    BlockDevice, Delay, DelayDevice, Delays, ErrorDevice, Extent, FileDevice, FileDeviceOptions, LinearDevice,
    MemDevice, ModelSsdDevice, NullDevice, SsdModel, StripeDevice, ZonedDevice, ZonedOptions,
};
use std::sync::Arc;

#[test]
fn mem_conforms() {
    for block_size in [512, 4096, 65_536] {
        let device = Arc::new(MemDevice::new("mem", block_size, 1000, 2000).unwrap());
        conforms(&reactor(), device, |options| options.resize_to = Some(1500));
    }
}

#[test]
fn null_conforms() {
    for zero_reads in [false, true] {
        let device = Arc::new(NullDevice::new("null", 4096, 1000, zero_reads).unwrap());
        conforms(&reactor(), device, |options| options.stores_data = false);
    }
}

#[test]
fn file_conforms_direct_buffered_and_in_memory() {
    let reactor = reactor();
    for (directory, direct) in
        [(disk_dir(), true), (disk_dir(), false), (tempfile::tempdir_in("/dev/shm").unwrap(), true)]
    {
        for block_size in [512, 4096] {
            let name = format!("file-{direct}-{block_size}");
            let options = FileDeviceOptions { direct, block_size, ..file_options(&directory, &name, 8 << 20) };
            let device = Arc::new(FileDevice::open(&reactor, &name, options).unwrap());
            let blocks = device.info().blocks;
            conforms(&reactor, device, |options| options.resize_to = Some(blocks * 3 / 2));
        }
    }
}

#[test]
fn stripe_conforms() {
    let reactor = reactor();
    for (children, chunk) in [(1, 4), (2, 1), (3, 5), (4, 16)] {
        let row = children * chunk as u64;
        let children: Vec<_> = (0..children).map(|i| mem(&format!("m{i}"), 300)).collect();
        let device = Arc::new(StripeDevice::new("stripe", children, chunk).unwrap());
        let blocks = device.info().blocks;
        conforms(&reactor, device, |options| options.resize_to = Some(blocks + 4 * row));
    }
}

#[test]
fn stripe_over_files_conforms() {
    let (reactor, dir) = (reactor(), disk_dir());
    let children: Vec<_> = (0..3).map(|i| file(&reactor, &dir, &format!("f{i}"), 4 << 20)).collect();
    conforms(&reactor, Arc::new(StripeDevice::new("stripe", children, 16).unwrap()), |_| {});
}

#[test]
fn linear_conforms() {
    let reactor = reactor();
    conforms(&reactor, Arc::new(LinearDevice::window("window", mem("m", 1000), 100, 700).unwrap()), |_| {});
    let extents = [(0, 10, 33), (1, 0, 100), (0, 500, 64), (0, 43, 7), (2, 1, 99)];
    let extents = extents.map(|(child, start, blocks)| Extent { child, start, blocks }).to_vec();
    let children = vec![mem("a", 600), mem("b", 100), mem("c", 100)];
    conforms(&reactor, Arc::new(LinearDevice::new("linear", children, extents).unwrap()), |_| {});
}

#[test]
fn delay_conforms() {
    let delay = Delay { fixed_ns: 1_000, jitter_ns: 200_000 };
    let delays = Delays { read: delay, write: delay, flush: delay };
    let device = Arc::new(DelayDevice::new("delay", mem("m", 500), delays, 3));
    conforms(&reactor(), device, |options| options.random_ops = 200);
}

#[test]
fn error_without_rules_conforms() {
    conforms(&reactor(), Arc::new(ErrorDevice::new("error", mem("m", 500), &[], 3).unwrap()), |_| {});
}

#[test]
fn a_deep_stack_conforms() {
    let (reactor, dir) = (reactor(), disk_dir());
    let delay = Delay { fixed_ns: 0, jitter_ns: 50_000 };
    let delays = Delays { read: delay, write: delay, flush: delay };
    let children: Vec<Arc<dyn BlockDevice>> = (0..2)
        .map(|i| {
            let file = file(&reactor, &dir, &format!("f{i}"), 4 << 20);
            let delayed = Arc::new(DelayDevice::new("delay", file, delays, i));
            Arc::new(LinearDevice::window("window", delayed, 3, 600).unwrap()) as Arc<dyn BlockDevice>
        })
        .collect();
    let stripe = Arc::new(StripeDevice::new("stripe", children, 8).unwrap());
    conforms(&reactor, Arc::new(ErrorDevice::new("error", stripe, &[], 3).unwrap()), |_| {});
}

#[test]
fn zoned_conforms() {
    let reactor = reactor();
    let sizes = [(512, 64, 64), (4096, 64, 50), (4096, 2, 1), (65_536, 4, 3)];
    for ((block_size, zone, capacity), (open, active)) in
        sizes.into_iter().flat_map(|size| [(0, 0), (2, 4), (1, 0), (3, 3)].map(|limits| (size, limits)))
    {
        let options = ZonedOptions {
            create: true,
            zone_bytes: zone * u64::from(block_size),
            capacity_bytes: capacity * u64::from(block_size),
            open_zones_max: open,
            active_zones_max: active,
            ..ZonedOptions::default()
        };
        let (inner, child) = (reactor.clone(), mem_of("m", block_size, 700));
        let device = reactor.block_on(async move { ZonedDevice::open(&inner, "zoned", child, &options).await });
        conforms(&reactor, Arc::new(device.unwrap()), |_| {});
    }
}

#[test]
fn zoned_over_a_slow_file_conforms_behind_filters() {
    let (reactor, dir) = (reactor(), disk_dir());
    let delay = Delay { fixed_ns: 0, jitter_ns: 50_000 };
    let child = Arc::new(DelayDevice::new(
        "delay",
        file(&reactor, &dir, "f", 4 << 20),
        Delays { read: delay, write: delay, flush: delay },
        5,
    ));
    let options = ZonedOptions { create: true, zone_bytes: 256 << 10, ..ZonedOptions::default() };
    let inner = reactor.clone();
    let zoned = reactor.block_on(async move { ZonedDevice::open(&inner, "zoned", child, &options).await });
    let filtered = ErrorDevice::new("error", Arc::new(zoned.unwrap()), &[], 3).unwrap();
    conforms(&reactor, Arc::new(filtered), |options| options.random_ops = 200);
}

/// A drive of the model's rules that is quick enough to wait for.
fn quick(model: SsdModel) -> SsdModel {
    SsdModel { program_ns: 20_000, read_ns: 5_000, read_4k_ns: 100, suspend_ns: 1_000, ..model }
}

#[test]
fn model_ssd_conforms() {
    for (block_size, unit_bytes) in [(512, 4 << 10), (4096, 16 << 10), (4096, 64 << 10)] {
        let bytes = 4 << 20;
        let model = SsdModel { superblock_bytes: 1 << 20, raw_bytes: 16 << 20, unit_bytes, ..SsdModel::qlc(bytes, 0) };
        let child = mem_of("m", block_size, bytes / u64::from(block_size));
        let device = Arc::new(ModelSsdDevice::new("ssd", child, quick(model)).unwrap());
        conforms(&reactor(), device.clone(), |options| options.random_ops = 200);
        let counters = device.counters();
        assert!(counters.host_write_bytes > 0 && counters.nand_bytes > counters.host_write_bytes);
    }
}

#[test]
fn model_ssd_with_zones_conforms() {
    let reactor = reactor();
    let options = ZonedOptions {
        create: true,
        zone_bytes: 1 << 20,
        capacity_bytes: 768 << 10,
        open_zones_max: 3,
        active_zones_max: 4,
        ..ZonedOptions::default()
    };
    let (inner, child) = (reactor.clone(), mem("m", 2000));
    let zoned = reactor.block_on(async move { ZonedDevice::open(&inner, "zoned", child, &options).await }).unwrap();
    let zones = zoned.zones().len() as u64;
    let model = SsdModel::qlc_zoned(zones, 768 << 10);
    let device = Arc::new(ModelSsdDevice::new("ssd", Arc::new(zoned), quick(model)).unwrap());
    conforms(&reactor, device.clone(), |options| options.random_ops = 200);
    let counters = device.counters();
    assert!(counters.erases > 0 && counters.nand_bytes > 0 && counters.collected_bytes == 0);
}

#[test]
fn a_model_ssd_that_does_not_fit_its_child_says_why() {
    let refusal = |model: SsdModel| match ModelSsdDevice::new("ssd", mem("m", 1024), model) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("it is refused"),
    };
    assert!(refusal(SsdModel::qlc(2 << 20, 1000)).contains("the model only 2097152"));
    assert!(refusal(SsdModel::qlc_zoned(4, 1 << 20)).contains("zones"));
    assert!(refusal(SsdModel::qlc(4 << 20, 0)).contains("spare flash"));
}
