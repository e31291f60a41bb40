//! A door for a file, or for memory, and nothing around it, to be measured with the example `load`:
//!
//!     serve SOCKET FILE [direct]
//!     serve SOCKET memory:MIB
//!     serve SOCKET null:MIB
//!
//! One reactor, the daemon's default policy. It runs until it is killed.

use bdev::{BlockDevice, FileDevice, FileDeviceOptions, MemDevice, NullDevice};
use reactor::linux::{Runtime, RuntimeConfig};
use std::sync::Arc;
use vhost_door::{Door, DoorOptions};

const BLOCK_BYTES: u32 = 4096;

fn blocks(mib: &str) -> u64 {
    mib.parse::<u64>().expect("a number of MiB") * 256
}

fn memory(mib: &str) -> Arc<dyn BlockDevice> {
    let blocks = blocks(mib);
    Arc::new(MemDevice::new("memory", BLOCK_BYTES, blocks, blocks).expect("a good size"))
}

/// Moves no data, as QEMU's `null-co` does without `read-zeroes`.
fn null(mib: &str) -> Arc<dyn BlockDevice> {
    Arc::new(NullDevice::new("null", BLOCK_BYTES, blocks(mib), false).expect("a good size"))
}

fn file(runtime: &Runtime, path: &str, direct: bool) -> Arc<dyn BlockDevice> {
    let options = FileDeviceOptions {
        path: path.into(),
        create_bytes: None,
        block_size: BLOCK_BYTES,
        direct,
        lock: false,
        read_only: false,
    };
    let opened = runtime.handles()[0].call(move |reactor| FileDevice::open(reactor, "file", options));
    Arc::new(opened.expect("the reactor runs").expect("the file can be opened"))
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (Some(socket), Some(path)) = (args.get(1), args.get(2)) else {
        eprintln!("usage: serve SOCKET FILE [direct] | serve SOCKET memory:MIB | serve SOCKET null:MIB");
        std::process::exit(2);
    };
    let runtime = Runtime::start(&RuntimeConfig::default()).expect("a reactor");
    let device = match path.split_once(':') {
        Some(("memory", mib)) => memory(mib),
        Some(("null", mib)) => null(mib),
        _ => file(&runtime, path, args.get(3).is_some()),
    };
    let door = Door::open(DoorOptions {
        name: "file".into(),
        socket: socket.into(),
        device,
        reactors: runtime.handles().to_vec(),
        first_reactor: 0,
        queues: 4,
        read_only: false,
        serial: "file".into(),
    });
    let _door = door.expect("the socket can be made");
    loop {
        std::thread::park();
    }
}
