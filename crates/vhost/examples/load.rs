//! Loads a vhost-user-blk socket, whoever listens on it, and tells what that cost the listener:
//!
//!     load SOCKET PID [SECONDS 5] [DEPTH 32] [read|write] [SPAN_MIB 256] [QUEUES 1]
//!
//! Random 4 KiB requests, DEPTH on each queue, with event indices. The client spins on the used ring; only the CPU time of the
//! listener (process PID) is counted.

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Guest, Wish};
use std::path::Path;
use std::time::{Duration, Instant};
use vhost_door::spec::{request, status};

const BYTES: u32 = 4096;

/// Time that the threads of a process have had on cores, seconds.
fn cpu_seconds(pid: &str) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let times = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("schedstat")).ok());
    times.filter_map(|times| times.split_whitespace().next()?.parse::<u64>().ok()).sum::<u64>() as f64 / 1e9
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |at: usize, default: u64| args.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (Some(socket), Some(pid)) = (args.get(1), args.get(2)) else {
        eprintln!("usage: load SOCKET PID [SECONDS] [DEPTH] [read|write] [SPAN_MIB] [QUEUES]");
        std::process::exit(2);
    };
    let (seconds, depth, span) = (number(3, 5), number(4, 32).min(common::CHAINS_MAX), number(6, 256) << 20);
    let writes = args.get(5).is_some_and(|word| word == "write");
    let queues = number(7, 1).max(1) as usize;
    let mut guest = Guest::connect(Path::new(socket), Wish { queues, ..Wish::default() });
    let mut load = Load { guest: &mut guest, random: 0x9e37_79b9_7f4a_7c15, span, writes, depth, queues };
    load.run(pid, Duration::from_secs(1));
    let (done, spent, elapsed) = load.run(pid, Duration::from_secs(seconds));
    println!(
        "{:.0} IOPS, {spent:.2} CPU seconds in {elapsed:.2} s, {:.0} I/O per CPU second",
        done as f64 / elapsed,
        done as f64 / spent
    );
}

struct Load<'a> {
    guest: &'a mut Guest,
    random: u64,
    span: u64,
    writes: bool,
    depth: u64,
    queues: usize,
}

impl Load<'_> {
    fn submit(&mut self, queue: usize) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let sector = self.random % (self.span / u64::from(BYTES)) * 8;
        let head = match self.writes {
            true => self.guest.prepare(queue, request::OUT, sector, &[7; BYTES as usize], 0),
            false => self.guest.prepare(queue, request::IN, sector, &[], BYTES),
        };
        let before = self.guest.rings[queue].available;
        self.guest.offer(queue, head);
        if self.guest.wants_kick(queue, before) {
            self.guest.kick(queue);
        }
    }

    /// Requests done, CPU seconds of the listener and seconds that it took.
    fn run(&mut self, pid: &str, time: Duration) -> (u64, f64, f64) {
        let (cpu, begun) = (cpu_seconds(pid), Instant::now());
        let queues = (0..self.queues).cycle();
        queues.clone().take(self.queues * self.depth as usize).for_each(|queue| self.submit(queue));
        let (mut under_way, mut done, mut waits) = (self.queues as u64 * self.depth, 0u64, 0u64);
        for queue in queues {
            if under_way == 0 {
                break;
            }
            if self.guest.used(queue) == self.guest.rings[queue].used_seen {
                waits += 1;
                std::hint::spin_loop();
                if waits.is_multiple_of(1024) {
                    std::thread::yield_now();
                }
                continue;
            }
            assert_eq!(self.guest.next_status(queue), status::OK);
            done += 1;
            match begun.elapsed() < time {
                true => self.submit(queue),
                false => under_way -= 1,
            }
        }
        (done, cpu_seconds(pid) - cpu, begun.elapsed().as_secs_f64())
    }
}
