//! The data path from one end to the other does not allocate once it is warm: the host on one reactor, the target on
//! another, digests on, and behind the target a checksum filter over a stripe over files.

use bdev::{
    BlockDevice, Channel, ChecksumDevice, ChecksumOptions, FileDevice, FileDeviceOptions, Io, Lba, StripeDevice,
};
use nvme::initiator::{HostIdentity, NvmfDevice, Options};
use nvme::spec::Nqn;
use nvme::target::SubsystemConfig;
use nvme::tcp_target::{Config, TcpTarget};
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{Reactor, ReactorHandle, SgList};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

const NQN: &str = "nqn.2024-01.org.example:allocations";

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

fn count() {
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: passes everything on to the system's allocator; the counter is a plain thread-local cell.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: by the caller.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: by the caller.
        unsafe { System.realloc(start, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

async fn checksum_over_stripe(reactor: Rc<Reactor>, directory: std::path::PathBuf) -> Arc<dyn BlockDevice> {
    let file = |name: &str| -> Arc<dyn BlockDevice> {
        let path = directory.join(name);
        let options =
            FileDeviceOptions { create_bytes: Some(16 << 20), ..FileDeviceOptions::new(path.to_str().unwrap()) };
        Arc::new(FileDevice::open(&reactor, name, options).unwrap())
    };
    let stripe = Arc::new(StripeDevice::new("stripe", vec![file("a"), file("b")], 16).unwrap());
    let options = ChecksumOptions { create: true, ..ChecksumOptions::default() };
    Arc::new(ChecksumDevice::open(&reactor, "checksum", stripe, &options).await.unwrap())
}

/// Four operations at a time, writes and reads.
async fn rounds(reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, bytes: usize, count: u64) {
    let blocks = (bytes / 4096) as u32;
    let buf = || SgList::from_iter([reactor.pool().try_alloc(bytes).expect("buffers")]);
    for round in 0..count {
        let (here, there) = (round % 512, 2048 + round % 512);
        let write = |lba: u64| channel.submit(Io::write(Lba(lba), blocks, buf()));
        let read = |lba: u64| channel.submit(Io::read(Lba(lba), blocks, buf()));
        let (first, second) = (write(here), write(there));
        let (third, fourth) = (read(1024 + round % 32), read(3072));
        for status in [first.await.status, second.await.status, third.await.status, fourth.await.status] {
            assert!(status.is_ok(), "{status}");
        }
    }
}

fn allocations_of(reactor: &ReactorHandle) -> u64 {
    reactor.call(|_| ALLOCATIONS.with(Cell::get)).unwrap()
}

#[test]
fn neither_host_nor_target_allocates_for_an_operation_in_steady_state() {
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![None; 2], ..RuntimeConfig::default() }).unwrap();
    let (target_side, host_side) = (runtime.handles()[0].clone(), runtime.handles()[1].clone());
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().to_path_buf();
    let device = target_side.call_async(move |reactor| checksum_over_stripe(reactor, path)).unwrap();
    let target = TcpTarget::new(&runtime.handles()[..1], Config::default());
    let address = target.call(move |home| {
        home.add_subsystem(SubsystemConfig::new(Nqn::new(NQN).unwrap()))?;
        home.add_namespace(NQN, None, device, uuid::Uuid::from_u128(7))?;
        home.listen("127.0.0.1:0".parse().unwrap())
    });
    let address = address.unwrap();
    for digests in [true, false] {
        let identity = HostIdentity::from_uuid(uuid::Uuid::from_u128(1));
        let options = Options {
            header_digest: digests,
            data_digest: digests,
            ..Options::new(address, Nqn::new(NQN).unwrap(), identity)
        };
        let device = host_side
            .call_async(move |reactor| async move { NvmfDevice::open(&reactor, "remote", &options, None).await })
            .unwrap();
        let device = Arc::new(device.unwrap());
        // In capsules, then through R2Ts: a block, and two chunks of the stripe.
        for (bytes, count) in [(4096, 300), (64 << 10, 150)] {
            let run = |count: u64| {
                let device = device.clone();
                let ran = host_side.call_async(move |reactor| async move {
                    let channel = device.open_channel(&reactor).unwrap();
                    rounds(&reactor, &channel, bytes, count / 2).await;
                    // Opening a channel is no operation.
                    let before = ALLOCATIONS.with(Cell::get);
                    rounds(&reactor, &channel, bytes, count).await;
                    ALLOCATIONS.with(Cell::get) - before
                });
                ran.unwrap()
            };
            run(count);
            let before = allocations_of(&target_side);
            let host_count = run(count);
            let target_count = allocations_of(&target_side) - before;
            // Timers of the control path tick meanwhile, and the target's count includes a queue that comes and goes; one
            // allocation per operation would show as 600 at least.
            let limit = count / 3;
            assert!(host_count < limit, "host, {bytes} bytes, digests {digests}: {host_count}");
            assert!(target_count < limit, "target, {bytes} bytes, digests {digests}: {target_count}");
        }
        let closing = device.clone();
        host_side.call_async(move |_| async move { closing.close().await }).unwrap();
    }
    target
        .call(|home| {
            home.close();
            Ok(())
        })
        .unwrap();
}
