//! Steady-state I/O does not allocate: through a checksum filter over a stripe over files, and through other stacks.

mod common;

use bdev::{
    BlockDevice, Channel, ChecksumDevice, ChecksumOptions, EncryptDevice, EncryptOptions, Flags, Io, Lba, Limits,
    MirrorDevice, MirrorOptions, Op, RateLimitDevice, StatsDevice, Status, StripeDevice, UserKey,
};
use common::*;
use reactor::{Reactor, SgList};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator; the counter is a plain thread-local cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: by the caller.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One round: `depth` tasks at once, each a write, a forced write, a read and a lent read of `nblocks`; then a flush.
async fn round(reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, depth: u64, nblocks: u32, rounds: u64) {
    let left = Rc::new(Cell::new(depth));
    let done = Rc::new(reactor::sync::Notify::default());
    for task in 0..depth {
        let (inner, channel, left, done) = (reactor.clone(), channel.clone(), left.clone(), done.clone());
        reactor.spawn(async move {
            for nth in 0..rounds {
                let lba = Lba(task * 40 + nth % 3);
                let mut bufs = SgList::new();
                bufs.push(inner.pool().alloc(nblocks as usize * 4096).await);
                bufs[0].as_mut_slice().fill((task + nth) as u8);
                let flags = if nth % 4 == 0 { Flags::FUA } else { Flags::NONE };
                let wrote = channel.submit(Io { flags, ..Io::write(lba, nblocks, bufs) }).await;
                assert_eq!(wrote.status, Status::Ok);
                let read = channel.submit(Io::read(lba, nblocks, wrote.io.bufs)).await;
                assert_eq!(read.status, Status::Ok);
                drop(read);
                assert_eq!(channel.submit(Io::read_loan(lba, nblocks)).await.status, Status::Ok);
                if nth % 8 == 0 {
                    assert_eq!(channel.submit(Io::new(Op::Flush, Lba(0), 0)).await.status, Status::Ok);
                }
            }
            left.set(left.get() - 1);
            done.notify_all();
        });
    }
    done.wait_until(|| left.get() == 0).await;
}

fn allocations_in_steady_state(reactor: &Rc<Reactor>, device: Arc<dyn BlockDevice>, nblocks: u32) -> u64 {
    let inner = reactor.clone();
    reactor.block_on(async move {
        let channel = device.open_channel(&inner).unwrap();
        let mut counts = Vec::new();
        for _ in 0..4 {
            let before = ALLOCATIONS.with(Cell::get);
            round(&inner, &channel, 4, nblocks, 96).await;
            counts.push(ALLOCATIONS.with(Cell::get) - before);
        }
        counts[1..].iter().min().copied().unwrap()
    })
}

/// What `round` allocates without any device: two `Rc`s, and a list of wakers for each task that ends.
const OF_THE_TEST_ITSELF: u64 = 10;

fn assert_none(reactor: &Rc<Reactor>, device: Arc<dyn BlockDevice>, nblocks: u32) {
    let name = device.name().to_string();
    let count = allocations_in_steady_state(reactor, device, nblocks);
    assert!(count <= OF_THE_TEST_ITSELF, "{name}, {nblocks} blocks: {count} allocations for 1,200 operations");
}

#[test]
fn checksum_over_stripe_over_files_does_not_allocate() {
    let reactor = reactor();
    for directory in [tempfile::tempdir_in("/dev/shm").unwrap(), disk_dir()] {
        let children: Vec<_> = (0..2).map(|i| file(&reactor, &directory, &format!("f{i}"), 4 << 20)).collect();
        let stripe = Arc::new(StripeDevice::new("stripe", children, 2).unwrap());
        let inner = reactor.clone();
        let device = reactor.block_on(async move {
            let options = ChecksumOptions { create: true, ..ChecksumOptions::default() };
            ChecksumDevice::open(&inner, "checksum", stripe, &options).await.unwrap()
        });
        let device: Arc<dyn BlockDevice> = Arc::new(device);
        for nblocks in [1, 4] {
            assert_none(&reactor, device.clone(), nblocks);
        }
    }
}

#[test]
fn other_stacks_do_not_allocate() {
    let reactor = reactor();
    let inner = reactor.clone();
    let devices = reactor.block_on(async move {
        let options = MirrorOptions { create: true, assume_clean: true, ..MirrorOptions::default() };
        let legs = vec![Some(mem("a", 900)), Some(mem("b", 900))];
        let mirror: Arc<dyn BlockDevice> =
            Arc::new(MirrorDevice::open(&inner, "mirror", legs, &options).await.unwrap());
        let key = UserKey::from_bytes(&[1; 32]).unwrap();
        let create = EncryptOptions { create: true, ..EncryptOptions::default() };
        let encrypt = EncryptDevice::open(&inner, "encrypt", mirror.clone(), &key, &create).await.unwrap();
        let limits = Limits { iops: 200_000, bytes_per_second: 0, burst_ns: 0 };
        let limit = RateLimitDevice::new("limit", mem("c", 900), limits);
        let stats: Arc<dyn BlockDevice> = Arc::new(StatsDevice::new(Arc::new(limit)));
        vec![mem("mem", 900), mirror, Arc::new(encrypt), stats]
    });
    for device in devices {
        assert_none(&reactor, device, 2);
    }
}
