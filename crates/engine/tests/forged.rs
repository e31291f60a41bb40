//! Fields of every structure of pools, and of the devices below them, forged, with all checksums right: opening, checking and using
//! such a pool may fail in any way but a panic, and never takes for ever.

use crate::common::disk::Disk;
use crate::common::forge::{field_of, forge_field, setting};
use crate::common::golden::SECTOR;
use crate::common::images::{Golden, golden};
use crate::common::seals::{BLOCK, Sealed};
use crate::common::tank::*;
use crate::common::used_up::{First, use_up};
use crate::common::*;
use base::Rng;
use bdev::BlockDevice;
use engine::LogDevice;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// More than a pool so small takes, in virtual time and on any machine.
const END_MAX_NS: u64 = 1_000_000_000_000_000;
const REAL_END_MAX_NS: u64 = 60_000_000_000;
/// By so much disks are larger when a log is given up, so that there is room for what is lost.
const MORE_BLOCKS: u64 = 32 << 10;
/// Blocks of a golden image that are looked at.
const LOOKS: usize = 24;

/// More of them: `REMUDA_FORGED_ROUNDS=100000 cargo test -p remuda-engine forged`.
fn rounds(default: u64) -> u64 {
    setting("REMUDA_FORGED_ROUNDS", default)
}

/// Log and capacity device of a pool with a snapshot and a clone, and something in the log.
fn layered(is_shaped: bool) -> (Sealed, u64, u64) {
    let reactor = reactor();
    let tank = Tank::filled_as(&reactor, is_shaped);
    let at = tank.clone();
    reactor.block_on(async move {
        let pool = at.open().await.unwrap();
        pool.snapshot(&at.reactor, &[("v", "s")], 0).await.unwrap();
        let clone = pool.clone_volume(&at.reactor, "v@s", "c", 0).await.unwrap();
        at.write(&clone, 1, 3).await;
        pool.settle(&at.reactor).await.unwrap();
        at.write(&clone, 9, 4).await;
        at.write(&pool.volume("v").unwrap(), 3, 5).await;
        drop(clone);
        // (Not closed: the records after the checkpoint are replayed.)
        at.reactor.keep(std::rc::Rc::new(pool));
    });
    let blocks = |disk: &Disk| disk.info().blocks;
    (Sealed::new(vec![tank.log.image(), tank.capacity.image()]), blocks(&tank.log), blocks(&tank.capacity))
}

/// Another number in a field of one structure, and mostly in all that devices have like it.
fn forge(sealed: &mut Sealed, rng: &mut Rng) -> String {
    let kinds = sealed.kinds();
    // (Kinds with few structures are as likely as the others.)
    let (kind, places) = kinds.iter().nth(rng.below(kinds.len() as u64) as usize).unwrap();
    let (device, start) = places[rng.below(places.len() as u64) as usize];
    let (at, size) = field_of(BLOCK - start % BLOCK, rng);
    let (alone, seed) = (rng.one_in(3), rng.next_u64());
    let alike = if alone { vec![(device, start)] } else { sealed.alike(device, start, at, size) };
    for (device, start) in &alike {
        let within = start % BLOCK + at;
        let change = |bytes: &mut [u8]| forge_field(&mut bytes[within..within + size], &mut Rng::new(seed));
        sealed.forge(*device, (*start / BLOCK) as u64, change);
    }
    format!(" {kind:?} device {device} byte {start} + {at}, {size} bytes, in {}", alike.len())
}

/// What is done first, and whether on another log device.
type Way = (First, bool);

const WAYS: [Way; 5] = [
    (First::Check, false),
    (First::Repair, false),
    (First::Check, false),
    (First::ForgetLog, true),
    (First::ForgetLog, false),
];

/// `used` says whether a pool with such devices opened.
fn never_panics(pristine: &Sealed, default_rounds: u64, used: impl Fn(&Sealed, Way) -> bool) {
    assert!(used(pristine, WAYS[0]), "it does not open as it was");
    let (mut opened, mut failed, first) = (0, Vec::new(), setting("REMUDA_FORGED_FIRST", 0));
    let rounds = rounds(default_rounds);
    for round in first..first + rounds {
        let mut rng = Rng::new(round);
        let (mut sealed, mut what) = (pristine.clone(), String::new());
        for _ in 0..rng.between(1, 3) {
            what += &forge(&mut sealed, &mut rng);
        }
        match catch_unwind(AssertUnwindSafe(|| used(&sealed, WAYS[round as usize % WAYS.len()]))) {
            Ok(is_open) => opened += u64::from(is_open),
            Err(_) => failed.push(format!("round {round}:{what}")),
        }
    }
    assert!(failed.is_empty(), "{} panics: {failed:#?}", failed.len());
    // With checksums that are wrong hardly any would.
    assert!(opened * 3 > rounds, "only {opened} of {rounds} open");
}

fn a_tank_never_panics(is_shaped: bool) {
    let (pristine, log_blocks, capacity_blocks) = layered(is_shaped);
    let blocks: Vec<u64> = SETTLED.into_iter().chain(LOGGED).chain([9, 3, 40_000]).collect();
    never_panics(&pristine, 80, |sealed, (first, on_new_log)| {
        let reactor = clock_reactor();
        let tank = Tank {
            reactor: reactor.clone(),
            log: match on_new_log {
                true => Disk::new("log", log_blocks),
                false => Disk::with("log", log_blocks, sealed.devices[0].clone()),
            },
            capacity: Disk::with("capacity", capacity_blocks, sealed.devices[1].clone()),
        };
        if first == First::ForgetLog {
            tank.capacity.enlarge(capacity_blocks + MORE_BLOCKS);
        }
        let blocks = blocks.clone();
        reactor.block_on(async move {
            let devices = tank.devices();
            let used = use_up(&tank.reactor, &devices, &blocks, first);
            tank.reactor.timeout(END_MAX_NS, used).await.expect("it does not end")
        })
    });
}

/// Blocks of a golden image with something in them, and some others.
fn looks(golden: &Golden) -> Vec<u64> {
    let sectors = |content: &golden::Content| content.sectors.iter().map(|word| *word != 0).collect::<Vec<bool>>();
    let used: Vec<u64> = golden
        .volumes
        .iter()
        .flat_map(|content| {
            let blocks = sectors(content);
            blocks
                .chunks(BLOCK / SECTOR)
                .zip(0..)
                .filter(|(block, _)| block.contains(&true))
                .map(|(_, at)| at)
                .collect::<Vec<u64>>()
        })
        .collect();
    used.iter().copied().step_by(used.len().div_ceil(LOOKS)).chain([0, 1, 1999]).collect()
}

/// A pool of a golden image, with all that its capacity device is made of.
fn an_image_never_panics(name: &'static str, default_rounds: u64) {
    let golden = golden(name);
    let (pristine, blocks) = (Sealed::new(golden.images()), looks(&golden));
    never_panics(&pristine, default_rounds, |sealed, (first, on_new_log)| {
        // (Memory that is mapped is the real driver's business.)
        let (reactor, end_ns) =
            if golden.is_mapped { (reactor(), REAL_END_MAX_NS) } else { (clock_reactor(), END_MAX_NS) };
        let forged = golden.with_images(&sealed.devices);
        if first == First::ForgetLog {
            forged.disks.iter().for_each(|disk| disk.enlarge(disk.info().blocks + MORE_BLOCKS));
        }
        let Ok((mut devices, stack)) = forged.devices_of(&reactor, forged.fork_disks()) else { return false };
        if on_new_log && !golden.is_mapped {
            devices.log = LogDevice::Block(Disk::new("new-log", golden.log_blocks));
        }
        let (inner, blocks) = (reactor.clone(), blocks.clone());
        reactor.block_on(async move {
            let used = async {
                let is_open = use_up(&inner, &devices, &blocks, first).await;
                for built in stack.built.iter().rev() {
                    let _ = built.settle(&inner).await;
                }
                is_open
            };
            inner.timeout(end_ns, used).await.expect("it does not end")
        })
    });
}

#[test]
fn a_forged_hot_pool_never_panics() {
    a_tank_never_panics(false);
}

#[test]
fn a_forged_shaped_pool_never_panics() {
    a_tank_never_panics(true);
}

#[test]
fn a_forged_pool_with_a_mapped_log_never_panics() {
    an_image_never_panics("mapped-5", 25);
}

#[test]
fn a_forged_pool_on_a_mirror_never_panics() {
    an_image_never_panics("mirror-5", 25);
}

#[test]
fn a_forged_pool_on_parity_never_panics() {
    an_image_never_panics("parity-5", 25);
}

#[test]
fn a_forged_pool_on_zones_never_panics() {
    an_image_never_panics("zones-5", 25);
}

#[test]
fn a_forged_pool_behind_a_flash_cache_never_panics() {
    an_image_never_panics("warm-5", 25);
}

#[test]
fn every_structure_can_be_forged() {
    let magics = |is_shaped| layered(is_shaped).0.magics().into_iter().collect::<Vec<String>>();
    assert_eq!(magics(false), ["RMDACAT1", "RMDADIRT", "RMDAPOOL", "RMDAROOT", "RMDASEGM", "RMGR", "RMRC"]);
    assert_eq!(magics(true), ["RMDACAT1", "RMDADIRT", "RMDAPOOL", "RMDAROOT", "RMDASEGM", "RMGR", "RMRC", "RMST"]);
    // Beside those of the pool.
    let below = |name| {
        let magics = Sealed::new(golden(name).images()).magics().into_iter();
        magics.filter(|magic| !magic.starts_with("RMDA") && !["RMGR", "RMRC"].contains(&&magic[..])).collect::<Vec<_>>()
    };
    assert_eq!(below("mapped-5"), ["RMSP"]);
    assert_eq!(below("mirror-5"), ["RMDMIRB\x01", "RMDMIRR\x01", "RMSM"]);
    assert_eq!(below("parity-5"), ["RMDPRTY\x01", "RMSM", "RMST"]);
    assert_eq!(below("zones-5"), ["RMDZBHD\x01", "RMDZBZN\x01", "RMDZONE\x01", "RMDZTAB\x01", "RMSM", "RMST"]);
    assert_eq!(below("warm-5"), ["RMDFCAN\x01", "RMDFCIM\x01", "RMDFCLB\x01", "RMDFCMK\x01", "RMDFCSG\x01", "RMSM"]);
}
