//! How fast the waist is: 4 KiB random reads of a memory device (512 MiB working set) on one core.
//! `cargo run --release -p remuda-bdev --example waist`

use base::Rng;
use bdev::{BlockDevice, Flags, Io, Lba, MemDevice};
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{PollPolicy, ReactorConfig, SgList};

fn main() {
    let reactor = ReactorConfig { policy: PollPolicy::Busy, ..ReactorConfig::default() };
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![Some(1)], reactor, ..RuntimeConfig::default() }).unwrap();
    for loan in [false, true] {
        let rate = runtime.handles()[0]
            .call_async(move |reactor| async move {
                let blocks = (512 << 20) / 4096;
                let device = MemDevice::new("mem", 4096, blocks, blocks).unwrap();
                let channel = device.open_channel(&reactor).unwrap();
                let mut rng = Rng::new(1);
                for lba in 0..blocks {
                    let mut buf = reactor.pool().try_alloc(4096).unwrap();
                    buf.as_mut_slice().fill(lba as u8);
                    channel.submit(Io::write(Lba(lba), 1, SgList::from_iter([buf]))).await;
                }
                let began = reactor.clock_ns();
                let count = 4_000_000u64;
                for _ in 0..count {
                    let lba = Lba(rng.below(blocks));
                    let io = if loan {
                        Io { flags: Flags::LOAN, ..Io::read(lba, 1, SgList::new()) }
                    } else {
                        Io::read(lba, 1, SgList::from_iter([reactor.pool().try_alloc(4096).unwrap()]))
                    };
                    let done = channel.submit(io).await;
                    assert!(done.status.is_ok());
                }
                count as f64 * 1e9 / (reactor.clock_ns() - began) as f64
            })
            .unwrap();
        println!("{}: {:.2} M reads/s", if loan { "lent" } else { "copied" }, rate / 1e6);
    }
}
