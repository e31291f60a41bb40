//! A target with one memory namespace, for measurements:
//! `cargo run --release -p remuda-nvme --example mem_target -- [PORT [MIB [CORES [busy|adaptive|sleep]]]]`

use bdev::{BlockDevice, Io, Lba, MemDevice};
use nvme::spec::Nqn;
use nvme::target::SubsystemConfig;
use nvme::tcp_target::{Config, TcpTarget};
use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{PollPolicy, ReactorConfig, SPIN_MAX_NS_DEFAULT, SgList};
use std::sync::Arc;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().map_or(4420, |text| text.parse().expect("PORT is a number"));
    let mib: u64 = arguments.next().map_or(512, |text| text.parse().expect("MIB is a number"));
    let cores: Vec<usize> = arguments
        .next()
        .unwrap_or("0".into())
        .split(',')
        .map(|core| core.parse().expect("CORES is a list of numbers"))
        .collect();
    let policy = match arguments.next().as_deref() {
        Some("busy") => PollPolicy::Busy,
        Some("sleep") => PollPolicy::Sleep,
        _ => PollPolicy::Adaptive { spin_max_ns: SPIN_MAX_NS_DEFAULT },
    };
    let reactor = ReactorConfig { policy, ..ReactorConfig::default() };
    let cores = cores.into_iter().map(Some).collect();
    let runtime =
        Runtime::start(&RuntimeConfig { cores, reactor, ..RuntimeConfig::default() }).expect("reactors start");
    let blocks = mib << 8;
    let device = Arc::new(MemDevice::new("mem", 4096, blocks, blocks).expect("memory"));
    // Untouched memory would flatter reads (they share one page of zeroes) and hamper writes (they take page faults).
    let filled = device.clone();
    let fill = runtime.handles()[0].call_async(move |reactor| async move {
        let channel = filled.open_channel(&reactor).expect("a channel");
        for lba in 0..blocks {
            let mut buf = reactor.pool().try_alloc(4096).expect("a buffer");
            buf.as_mut_slice().fill(lba as u8 | 1);
            let done = channel.submit(Io::write(Lba(lba), 1, SgList::from_iter([buf]))).await;
            assert!(done.status.is_ok());
        }
    });
    fill.expect("the reactor answers");
    let target = TcpTarget::new(runtime.handles(), Config::default());
    let nqn = "nqn.2026-11.io.remuda:mem";
    let address = target.call(move |home| {
        home.add_subsystem(SubsystemConfig::new(Nqn::new(nqn).expect("a valid NQN")))?;
        home.add_namespace(nqn, None, device, uuid::Uuid::from_u128(1))?;
        home.listen(format!("127.0.0.1:{port}").parse().expect("a valid address"))
    });
    println!("{nqn} on {}", address.expect("the target listens"));
    loop {
        std::thread::park();
    }
}
