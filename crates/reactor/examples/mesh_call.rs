//! What calls between two cores cost: each reactor has so many under way to the other, and answers those of the other.
//!
//! ```text
//! cargo run --release -p remuda-reactor --example mesh_call -- [UNDER_WAY] [SECONDS]
//! ```
//! A call takes and gives back as much as a write to another core's part of a volume: its place, and a list of buffers.

use reactor::linux::{Runtime, RuntimeConfig};
use reactor::{IoFuture, Reactor, SgList};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

async fn caller(here: Rc<Reactor>, to: usize, stop: Arc<AtomicBool>, calls: Arc<AtomicU64>) {
    let mut bufs = SgList::new();
    bufs.push(here.pool().alloc(4096).await);
    let mut count = 0;
    while !stop.load(Relaxed) {
        let place = [count; 3];
        let serve = move |_: &Rc<Reactor>| IoFuture::ready((std::hint::black_box(place), bufs).1);
        bufs = here.begin_io_on(to, serve).expect("it has not stopped").await.expect("nor has it since");
        count += 1;
    }
    calls.fetch_add(count, Relaxed);
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let (under_way, seconds) = (numbers.next().unwrap_or(32), numbers.next().unwrap_or(2));
    let cores = vec![Some(0), Some(1)];
    let runtime = Runtime::start(&RuntimeConfig { cores, ..RuntimeConfig::default() }).expect("two cores");
    for round in 0..5 {
        let (stop, calls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        for (index, handle) in runtime.handles().iter().enumerate() {
            for _ in 0..under_way {
                let (stop, calls) = (stop.clone(), calls.clone());
                handle.run(move |here| here.spawn(caller(here.clone(), 1 - index, stop, calls)));
            }
        }
        let begun = Instant::now();
        std::thread::sleep(Duration::from_secs(seconds));
        stop.store(true, Relaxed);
        let elapsed = begun.elapsed();
        while Arc::strong_count(&calls) > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let calls = calls.load(Relaxed);
        let each_ns = 2 * elapsed.as_nanos() as u64 / calls.max(1);
        println!(
            "round {round}: {under_way} under way each, {} K calls/s, {each_ns} ns of two cores for each",
            calls as u128 * 1_000_000 / elapsed.as_nanos()
        );
    }
}
