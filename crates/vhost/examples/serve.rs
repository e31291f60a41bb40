//! A door for a file and nothing around it, to be measured with the example `load`:
//!
//!     serve SOCKET FILE [direct]
//!
//! One reactor, the daemon's default policy. It runs until it is killed.

use bdev::{FileDevice, FileDeviceOptions};
use reactor::linux::{Runtime, RuntimeConfig};
use std::sync::Arc;
use vhost_door::{Door, DoorOptions};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let (Some(socket), Some(path)) = (args.get(1), args.get(2)) else {
        eprintln!("usage: serve SOCKET FILE [direct]");
        std::process::exit(2);
    };
    let options = FileDeviceOptions {
        path: path.clone(),
        create_bytes: None,
        block_size: 4096,
        direct: args.get(3).is_some(),
        lock: false,
        read_only: false,
    };
    let runtime = Runtime::start(&RuntimeConfig::default()).expect("a reactor");
    let opened = runtime.handles()[0].call(move |reactor| FileDevice::open(reactor, "file", options));
    let device = opened.expect("the reactor runs").expect("the file can be opened");
    let door = Door::open(DoorOptions {
        name: "file".into(),
        socket: socket.into(),
        device: Arc::new(device),
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
