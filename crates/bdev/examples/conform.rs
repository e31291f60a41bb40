//! The conformance suite on a file, a block device or a drive with zones. What is on it is overwritten.
//!
//! `cargo run --release -p remuda-bdev --example conform -- PATH [BLOCK_SIZE [SEED]]`

use bdev::conformance::{self, Options};
use bdev::{DeviceSpec, FileDeviceOptions};
use reactor::linux::{Runtime, RuntimeConfig};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = args.first().cloned() else {
        eprintln!("usage: conform PATH [BLOCK_SIZE [SEED]]");
        std::process::exit(2);
    };
    let number = |at: usize, otherwise: u64| {
        args.get(at).map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("'{text}' is no number")))
    };
    let (block_size, options) = (number(1, 4096) as u32, Options::new(number(2, 1)));
    let runtime = Runtime::start(&RuntimeConfig { cores: vec![None], ..RuntimeConfig::default() }).expect("a reactor");
    let outcome = runtime.handles()[0].call_async(move |reactor| async move {
        let spec = DeviceSpec::File(FileDeviceOptions { block_size, ..FileDeviceOptions::new(&path) });
        let device = bdev::build(&reactor, "it", &spec, vec![]).await.map_err(|error| error.to_string())?.device();
        println!("{}: {:?}", device.kind(), device.info());
        conformance::run(&reactor, &device, options).await.map_err(|failure| failure.to_string())
    });
    match outcome.expect("the reactor runs") {
        Ok(()) => println!("it conforms"),
        Err(why) => {
            eprintln!("{why}");
            std::process::exit(1);
        }
    }
}
