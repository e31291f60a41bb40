//! The flash cache: what it gives back, what survives, what is refused, and what failing flash does to it.

use crate::common::*;
use bdev::flash_cache::Mode;
use bdev::{
    BlockDevice, Channel, Delay, DelayDevice, Delays, DeviceError, ErrorDevice, ErrorRule, Fault, Flags,
    FlashCacheDevice, FlashCacheOptions, FlashCacheStatus, Io, Lba, MemDevice, Op, Status,
};
use reactor::{Buf, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;

fn options() -> FlashCacheOptions {
    FlashCacheOptions { create: true, write_budget: 1 << 60, segment_bytes: 64 << 10, ..FlashCacheOptions::default() }
}

struct Cache {
    reactor: Rc<Reactor>,
    device: FlashCacheDevice,
    channel: Rc<dyn Channel>,
}

type Device = Arc<dyn BlockDevice>;

async fn open(
    reactor: &Rc<Reactor>,
    slow: &Device,
    flash: Option<&Device>,
    options: FlashCacheOptions,
) -> Result<Cache, DeviceError> {
    let device = FlashCacheDevice::open(reactor, "cache", slow.clone(), flash.cloned(), &options).await?;
    let channel = device.open_channel(reactor)?;
    // The bucket starts empty; with this budget a moment fills it.
    reactor.sleep_ns(1_000_000).await;
    Ok(Cache { reactor: reactor.clone(), device, channel })
}

impl Cache {
    async fn write(&self, lba: u64, blocks: usize, fill: u8) -> Status {
        let bufs = SgList::from_iter([Buf::from_vec(vec![fill; blocks * 4096])]);
        self.channel.submit(Io::write(Lba(lba), blocks as u32, bufs)).await.status
    }

    async fn read(&self, lba: u64, blocks: usize) -> Vec<u8> {
        let bufs = SgList::from_iter([Buf::from_vec(vec![0xEE; blocks * 4096])]);
        let done = self.channel.submit(Io::read(Lba(lba), blocks as u32, bufs)).await;
        assert_eq!(done.status, Status::Ok);
        done.io.bufs[0].as_slice().chunks(4096).map(|block| block[0]).collect()
    }

    /// Reads blocks until they are in the cache, and all of that is on flash or nearly so.
    async fn warm(&self, lba: u64, blocks: usize) {
        for _ in 0..3 {
            for block in lba..lba + blocks as u64 {
                self.read(block, 1).await;
                // A slow device is slower than memory: segments are written meanwhile.
                self.reactor.sleep_ns(20_000).await;
            }
        }
        self.reactor.sleep_ns(5_000_000).await;
    }

    fn status(&self) -> FlashCacheStatus {
        self.device.status(self.reactor.now_ns())
    }

    /// Hits of reading these blocks one by one.
    async fn hits(&self, lba: u64, blocks: u64, fill: u8) -> u64 {
        let before = self.status().counts.hits;
        for block in lba..lba + blocks {
            assert_eq!(self.read(block, 1).await, [fill], "block {block}");
        }
        self.status().counts.hits - before
    }
}

fn run(test: impl AsyncFnOnce(Rc<Reactor>) + 'static) {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.block_on(async move { test(inner).await });
}

#[test]
fn conforms_over_memory_and_files() {
    for block_size in [512, 4096, 65_536] {
        let reactor = reactor();
        let (slow, flash) = (mem_of("slow", block_size, 3000), mem_of("flash", block_size, 600));
        let segment_bytes = 16 * block_size as u64;
        let options = FlashCacheOptions { segment_bytes, ..options() };
        let inner = reactor.clone();
        let opening = async move { FlashCacheDevice::open(&inner, "cache", slow, Some(flash), &options).await };
        let cache = reactor.block_on(opening).unwrap();
        conforms(&reactor, Arc::new(cache), |_| {});
    }
    let (reactor, dir) = (reactor(), disk_dir());
    let (slow, flash) = (file(&reactor, &dir, "slow", 16 << 20), file(&reactor, &dir, "flash", 2 << 20));
    let inner = reactor.clone();
    let opening = async move { FlashCacheDevice::open(&inner, "cache", slow, Some(flash), &options()).await };
    let cache = reactor.block_on(opening).unwrap();
    conforms(&reactor, Arc::new(cache), |_| {});
}

#[test]
fn blocks_read_twice_come_from_flash_until_they_are_written() {
    run(async |reactor| {
        let (slow, flash) = (mem("slow", 3000), mem("flash", 600));
        let cache = open(&reactor, &slow, Some(&flash), options()).await.unwrap();
        assert_eq!(cache.write(0, 200, 1).await, Status::Ok);
        cache.warm(0, 200).await;
        assert_eq!(cache.hits(0, 200, 1).await, 200);
        assert_eq!(cache.read(0, 100).await, [1; 100], "in one operation too");
        assert!(cache.status().counts.written_bytes > 150 * 4096);
        assert_eq!(cache.write(50, 10, 2).await, Status::Ok);
        assert_eq!(cache.hits(50, 10, 2).await, 0);
        assert_eq!(cache.read(45, 20).await, [[1; 5].as_slice(), &[2; 10], &[1; 5]].concat());
        let zeroes = Io::new(Op::WriteZeroes, Lba(60), 10);
        assert_eq!(cache.channel.submit(zeroes).await.status, Status::Ok);
        assert_eq!(cache.hits(60, 10, 0).await, 0);
        let copy = Io { arg: 50, ..Io::new(Op::Copy, Lba(70), 10) };
        assert_eq!(cache.channel.submit(copy).await.io.arg, 50);
        assert_eq!(cache.hits(70, 10, 2).await, 0);
    });
}

#[test]
fn it_grows_with_the_slow_device_and_keeps_what_it_has() {
    run(async |reactor| {
        let slow: Device = Arc::new(MemDevice::new("slow", 4096, 3000, 14_000).unwrap());
        let flash = mem("flash", 1200);
        // A mark per block: six pages of them, and room for twenty-four.
        let options = FlashCacheOptions { region_bytes: 4096, ..options() };
        let cache = open(&reactor, &slow, Some(&flash), options.clone()).await.unwrap();
        let first = cache.device.info().blocks;
        assert_eq!(cache.device.refresh(&reactor).await.unwrap().blocks, first);
        cache.write(0, 200, 1).await;
        cache.warm(0, 200).await;
        assert!(cache.device.resize(&reactor, first - 1).await.unwrap_err().to_string().contains("does not shrink"));
        cache.device.resize(&reactor, first + 2000).await.unwrap();
        assert_eq!((cache.device.info().blocks, slow.info().blocks), (first + 2000, 5000));
        slow.resize(&reactor, 6000).await.unwrap();
        assert_eq!(cache.device.refresh(&reactor).await.unwrap().blocks, first + 3000);
        assert_eq!(cache.write(first + 2900, 100, 2).await, Status::Ok);
        assert_eq!(cache.hits(0, 200, 1).await, 200);
        cache.warm(first + 2900, 100).await;
        assert_eq!(cache.hits(first + 2900, 100, 2).await, 100);
        cache.write(first + 2950, 10, 3).await;
        cache.warm(first + 2950, 5).await;
        // Not closed: the marks of what is new count.
        let crashed = open(&reactor, &slow, Some(&flash), options.clone()).await.unwrap();
        assert_eq!(crashed.device.info().blocks, first + 3000);
        assert_eq!(crashed.hits(first + 2955, 5, 3).await, 0);
        assert!(crashed.hits(first + 2900, 50, 2).await >= 45);
        assert_eq!(crashed.hits(0, 100, 1).await, 100);
        // There is room for four times what it was made on, and to the end of that page.
        let error = crashed.device.resize(&reactor, 13_000).await.unwrap_err().to_string();
        assert!(error.contains("made with room to grow to"), "{error}");
        slow.resize(&reactor, 14_000).await.unwrap();
        assert_eq!(crashed.device.refresh(&reactor).await.unwrap().blocks, 24 * 506);
        assert_eq!(crashed.write(24 * 506 - 10, 10, 4).await, Status::Ok);
        crashed.warm(24 * 506 - 10, 10).await;
        crashed.device.settle(&reactor).await.unwrap();
        let full = open(&reactor, &slow, Some(&flash), options).await.unwrap();
        assert_eq!(full.hits(24 * 506 - 10, 10, 4).await, 10);
    });
}

#[test]
fn everything_survives_a_close_and_what_was_not_written_to_a_crash() {
    run(async |reactor| {
        let (slow, flash) = (mem("slow", 6000), mem("flash", 1200));
        let cache = open(&reactor, &slow, Some(&flash), options()).await.unwrap();
        cache.write(0, 200, 1).await;
        cache.write(2000, 200, 2).await;
        cache.warm(0, 200).await;
        cache.warm(2000, 200).await;
        cache.write(10, 1, 3).await;
        cache.device.settle(&reactor).await.unwrap();
        let written = cache.status().written_total;
        let closed = open(&reactor, &slow, Some(&flash), options()).await.unwrap();
        assert_eq!((closed.hits(11, 189, 1).await, closed.hits(2000, 200, 2).await), (189, 200));
        assert_eq!(closed.hits(10, 1, 3).await, 0);
        assert_eq!((closed.status().written_total, closed.status().written_day), (written, written));
        closed.write(20, 1, 4).await;
        drop(closed);
        let crashed = open(&reactor, &slow, Some(&flash), options()).await.unwrap();
        assert_eq!(crashed.hits(20, 1, 4).await, 0);
        assert_eq!(crashed.hits(0, 10, 1).await, 0, "its region was written to");
        assert!(crashed.hits(2000, 200, 2).await > 150, "and this one was not");
    });
}

#[test]
fn use_after_a_close_makes_the_image_void() {
    run(async |reactor| {
        let (slow, flash) = (mem("slow", 3000), mem("flash", 1200));
        let cache = open(&reactor, &slow, Some(&flash), options()).await.unwrap();
        cache.write(0, 100, 1).await;
        cache.warm(0, 100).await;
        cache.device.settle(&reactor).await.unwrap();
        cache.write(0, 50, 2).await;
        let again = open(&reactor, &slow, Some(&flash), options()).await.unwrap();
        assert_eq!(again.hits(0, 50, 2).await, 0);
        assert_eq!(again.hits(50, 50, 1).await, 0, "the whole region is in doubt");
    });
}

#[test]
fn flash_of_others_is_refused_and_an_absent_one_void_when_it_comes_back() {
    run(async |reactor| {
        let (slow, flash, other_slow, other) =
            (mem("slow", 3000), mem("flash", 600), mem("slow2", 3000), mem("other", 600));
        let cache = open(&reactor, &slow, Some(&flash), options()).await.unwrap();
        cache.write(0, 100, 1).await;
        cache.warm(0, 100).await;
        cache.device.settle(&reactor).await.unwrap();
        drop(open(&reactor, &other_slow, Some(&other), options()).await.unwrap());
        let (blank, tiny) = (mem("blank", 3000), mem("tiny", 100));
        let new = mem("new", 900);
        let reason = async |slow, flash, options| match open(&reactor, slow, flash, options).await {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it opened"),
        };
        assert!(reason(&slow, Some(&other), options()).await.contains("is another cache's"));
        assert!(reason(&slow, None, options()).await.contains("absent"));
        assert!(reason(&blank, Some(&flash), options()).await.contains("another cache's"));
        let small = FlashCacheOptions { write_budget: 1 << 20, ..options() };
        assert!(reason(&slow, Some(&flash), small).await.contains("write budget"));
        assert!(reason(&blank, Some(&tiny), options()).await.contains("at least"));
        let without = FlashCacheOptions { without_cache: true, ..options() };
        let cache = open(&reactor, &slow, None, without).await.unwrap();
        assert_eq!(cache.status().mode, Mode::Absent);
        assert_eq!(cache.hits(0, 50, 1).await, 0);
        cache.write(0, 10, 2).await;
        cache.device.settle(&reactor).await.unwrap();
        let back = open(&reactor, &slow, Some(&flash), options()).await.unwrap();
        assert_eq!(back.hits(10, 90, 1).await, 0, "it has missed writes");
        assert_eq!(back.hits(0, 10, 2).await, 0);
        back.warm(0, 100).await;
        assert!(back.hits(10, 90, 1).await > 80);
        // A blank one takes its place, and then it is not this cache's any more.
        let cache = open(&reactor, &slow, Some(&new), options()).await.unwrap();
        cache.warm(10, 90).await;
        assert!(cache.hits(10, 90, 1).await > 80);
        drop(cache);
        assert!(reason(&slow, Some(&flash), options()).await.contains("before another one took its place"));
        let force = FlashCacheOptions { force: true, ..options() };
        let cache = open(&reactor, &slow, Some(&flash), force).await.unwrap();
        assert_eq!(cache.hits(0, 10, 2).await, 0, "what the slow device has stays");
    });
}

#[test]
fn flash_that_rots_or_fails_costs_hits_only() {
    run(async |reactor| {
        for fault in [Fault::FlipBit, Fault::Fail(Status::ReadError), Fault::Fail(Status::Gone)] {
            let (slow, flash) = (mem("slow", 3000), mem("flash", 600));
            let errors = Arc::new(ErrorDevice::new("bad", flash.clone(), &[], 1).unwrap());
            let bad: Device = errors.clone();
            let cache = open(&reactor, &slow, Some(&bad), options()).await.unwrap();
            cache.write(0, 200, 1).await;
            cache.warm(0, 200).await;
            errors.set_rules(&[ErrorRule::always(&[Op::Read], fault)]).unwrap();
            cache.hits(0, 200, 1).await;
            let status = cache.status();
            assert!(status.counts.read_errors > 0);
            // What is wrong is thrown away a segment at a time; what answers no read is given up.
            let ends = fault != Fault::FlipBit;
            assert_eq!(status.mode, if ends { Mode::Failed } else { Mode::On });
            reactor.sleep_ns(5_000_000).await;
            cache.write(0, 10, 2).await;
            errors.set_rules(&[]).unwrap();
            let again = open(&reactor, &slow, Some(&bad), options()).await.unwrap();
            assert_eq!(again.hits(0, 10, 2).await, 0);
            if ends {
                assert_eq!(again.hits(10, 190, 1).await, 0, "nothing of the dead one counts");
            }
        }
    });
}

#[test]
fn flash_that_hangs_keeps_nobody_waiting_and_is_used_again_when_it_answers() {
    run(async |reactor| {
        let (slow, below) = (mem("slow", 3000), mem("flash", 600));
        let flash = Arc::new(DelayDevice::new("late", below.clone(), Delays::default(), 1));
        let late = |ns| {
            let delay = Delay { fixed_ns: ns, jitter_ns: 0 };
            flash.set(Delays { read: delay, write: delay, flush: delay });
        };
        let device: Device = flash.clone();
        let cache = open(&reactor, &slow, Some(&device), options()).await.unwrap();
        cache.write(0, 100, 1).await;
        cache.warm(0, 100).await;
        assert_eq!(cache.hits(0, 100, 1).await, 100);
        late(3600 * 1_000_000_000);
        let begun_ns = reactor.clock_ns();
        assert_eq!(cache.hits(0, 100, 1).await, 0);
        assert!(reactor.clock_ns() - begun_ns < 1_000_000_000, "one wait for all of them");
        assert_eq!((cache.status().counts.late, cache.status().mode), (1, Mode::On), "not worth a word yet");
        assert_eq!(cache.write(50, 10, 2).await, Status::Ok);
        reactor.sleep_ns(1_100_000_000).await;
        assert_eq!(cache.status().mode, Mode::Hanging);
        cache.device.settle(&reactor).await.unwrap();
        late(0);
        reactor.sleep_ns(200_000_000).await;
        assert_eq!(cache.status().mode, Mode::On);
        assert_eq!((cache.hits(0, 50, 1).await, cache.hits(50, 10, 2).await), (50, 0));
        drop(cache);
        // The marks of what was written meanwhile count.
        let crashed = open(&reactor, &slow, Some(&device), options()).await.unwrap();
        assert_eq!((crashed.hits(50, 10, 2).await, crashed.hits(0, 50, 1).await), (0, 0));
        drop(crashed);
        late(3600 * 1_000_000_000);
        let refused = open(&reactor, &slow, Some(&device), options()).await.err().unwrap().to_string();
        assert!(refused.contains("does not answer"), "{refused}");
        let without = FlashCacheOptions { without_cache: true, ..options() };
        let absent = open(&reactor, &slow, Some(&device), without).await.unwrap();
        assert_eq!((absent.status().mode, absent.hits(50, 10, 2).await), (Mode::Absent, 0));
    });
}

#[test]
fn damaged_metadata_are_refused_or_cost_hits_and_never_panic() {
    run(async |reactor| {
        let (slow, flash) = (mem("slow", 3000), mem("flash", 600));
        let cache = open(&reactor, &slow, Some(&flash), options()).await.unwrap();
        cache.write(0, 200, 1).await;
        cache.warm(0, 200).await;
        cache.device.settle(&reactor).await.unwrap();
        drop(cache);
        let mut rng = base::Rng::new(9);
        let raw = async |device: &Device, io| device.open_channel(&reactor).unwrap().submit(io).await;
        for round in 0..120u64 {
            // Metadata of the slow device are its first blocks; on flash, headers are everywhere.
            let (device, lba) = if round % 2 == 0 { (&slow, rng.below(12)) } else { (&flash, rng.below(600)) };
            let blank = SgList::from_iter([Buf::from_vec(vec![0; 4096])]);
            let mut done = raw(device, Io::read(Lba(lba), 1, blank)).await;
            let before = done.io.bufs[0].as_slice().to_vec();
            for _ in 0..rng.between(1, 8) {
                done.io.bufs[0].as_mut_slice()[rng.below(4096) as usize] ^= 1 << rng.below(8);
            }
            raw(device, Io::write(Lba(lba), 1, done.io.bufs)).await;
            match open(&reactor, &slow, Some(&flash), FlashCacheOptions { create: false, ..options() }).await {
                Ok(cache) => {
                    cache.hits(0, 200, 1).await;
                    cache.device.settle(&reactor).await.unwrap();
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
            if lba < 2 || rng.one_in(2) {
                raw(device, Io::write(Lba(lba), 1, SgList::from_iter([Buf::from_vec(before)]))).await;
            }
        }
    });
}

#[test]
fn forced_and_plain_writes_are_as_durable_as_below() {
    run(async |reactor| {
        let (slow, flash) = (mem("slow", 3000), mem("flash", 600));
        let cache = open(&reactor, &slow, Some(&flash), options()).await.unwrap();
        assert_eq!(cache.device.info().volatile_cache, slow.info().volatile_cache);
        let bufs = SgList::from_iter([Buf::from_vec(vec![7; 4096])]);
        let forced = Io { flags: Flags::FUA, ..Io::write(Lba(3), 1, bufs) };
        assert_eq!(cache.channel.submit(forced).await.status, Status::Ok);
        assert_eq!(cache.channel.submit(Io::flush()).await.status, Status::Ok);
        assert_eq!(cache.read(3, 1).await, [7]);
    });
}

#[test]
fn what_flash_has_is_found_behind_the_opening_but_for_what_has_been_written_meanwhile() {
    for is_closed in [true, false] {
        run(async move |reactor| {
            let (slow, below) = (mem("slow", 3000), mem("flash", 600));
            // A mark for eight blocks.
            let options = FlashCacheOptions { region_bytes: 8 * 4096, ..options() };
            let cache = open(&reactor, &slow, Some(&below), options.clone()).await.unwrap();
            // Whole segments: what is staged in memory goes with the process.
            cache.write(0, 195, 1).await;
            cache.warm(0, 195).await;
            if is_closed {
                cache.device.settle(&reactor).await.unwrap();
            }
            drop(cache);
            let late = DelayDevice::new("late", below.clone(), Delays::default(), 1);
            late.set(Delays { read: Delay { fixed_ns: 20_000_000, jitter_ns: 0 }, ..Delays::default() });
            let late = Arc::new(late);
            let flash: Device = late.clone();
            let options = FlashCacheOptions { loads_after_ns: Some(1_000_000), ..options };
            let cache = open(&reactor, &slow, Some(&flash), options.clone()).await.unwrap();
            assert_eq!(cache.status().mode, Mode::Loading);
            assert_eq!((cache.write(50, 10, 2).await, cache.hits(0, 48, 1).await), (Status::Ok, 0));
            while cache.status().mode == Mode::Loading {
                reactor.sleep_ns(1_000_000).await;
            }
            late.set(Delays::default());
            let found = (cache.hits(0, 48, 1).await, cache.hits(64, 131, 1).await, cache.hits(50, 10, 2).await);
            assert_eq!((cache.status().mode, found), (Mode::On, (48, 131, 0)));
            drop(cache);
            // What ended while flash was searched is known after a crash as well.
            let again =
                open(&reactor, &slow, Some(&below), FlashCacheOptions { loads_after_ns: None, ..options }).await;
            let again = again.unwrap();
            assert_eq!((again.hits(0, 48, 1).await, again.hits(50, 10, 2).await), (48, 0));
        });
    }
}
