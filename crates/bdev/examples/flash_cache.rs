//! What the flash cache makes of streams of reads: `cargo run --release -p remuda-bdev --example flash_cache`. Its own logic in virtual
//! time, without devices: hit ratios beside LRU's, and the bytes written to flash beside the budget.

use base::Rng;
use bdev::flash_cache::workload::{Lru, Model, Zipf};

const CAPACITY: u64 = 20_000;
const BLOCKS: u64 = 200_000;
const DAYS: u64 = 10;
/// Reads per second.
const RATE: u64 = 2;

/// Which block is read next.
type Next = Box<dyn FnMut(u64) -> u64>;

fn main() {
    let zipf = |theta| {
        let (zipf, mut rng) = (Zipf::new(BLOCKS, theta), Rng::new(7));
        Box::new(move |_| zipf.next(&mut rng)) as Next
    };
    let mut uniform = Rng::new(8);
    let (mut mixed, hot) = (Rng::new(9), Zipf::new(15_000, 0.6));
    let rows: Vec<(&str, Next)> = vec![
        ("Zipf 0.6", zipf(0.6)),
        ("Zipf 0.8", zipf(0.8)),
        ("Zipf 1.0", zipf(1.0)),
        ("Zipf 1.2", zipf(1.2)),
        ("uniform", Box::new(move |_| uniform.below(BLOCKS))),
        ("one scan", Box::new(|nth| nth)),
        (
            "Zipf 0.6 of 15,000 beside a scan",
            Box::new(move |nth| if nth % 2 == 0 { (1 << 37) + nth } else { hot.next(&mut mixed) }),
        ),
    ];
    println!("| reads | LRU | ample budget | written/day | 64 MiB a day | most in 24 h | in all |");
    println!("|---|---|---|---|---|---|---|");
    for (name, mut next) in rows {
        let tight = 64u64 << 20;
        let new = |per_day| Model::new(CAPACITY, 256, per_day, 5).expect("the budget holds segments");
        let (mut ample, mut small) = (new(1 << 50), new(tight));
        let mut lru = Lru::new(ample.capacity());
        let (mut hits, reads) = ([0u64; 3], DAYS * 86_400 * RATE);
        for nth in 0..reads {
            let (block, now_ns) = (next(nth), nth * (1_000_000_000 / RATE));
            let hit = [lru.read(block), ample.read(block, now_ns), small.read(block, now_ns)];
            if nth >= reads / 2 {
                hits.iter_mut().zip(hit).for_each(|(hits, hit)| *hits += hit as u64);
            }
        }
        let [of_lru, of_ample, of_small] = hits.map(|hits| hits as f64 / (reads - reads / 2) as f64);
        let (most, all) =
            (small.written_day_max() as f64 / tight as f64, small.written() as f64 / (tight * DAYS) as f64);
        let daily = (ample.written() / DAYS) >> 20;
        println!("| {name} | {of_lru:.3} | {of_ample:.3} | {daily} MiB | {of_small:.3} | {most:.3} | {all:.3} |");
    }
}
