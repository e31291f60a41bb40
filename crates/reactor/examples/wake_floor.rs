//! What a machine takes to answer a first request after idle, without any storage or reactor in between: the floor under the
//! first I/O of an idle target.
//!
//! ```text
//! cargo run --release -p remuda-reactor --example wake_floor -- [REQUESTS] [GAP_MS]
//! ```
//! A thread on core 0 blocks in `recv` and answers 72 bytes with 4,120, as a target does a 4 KiB read. A client on core 1
//! asks once in each gap over loopback: first sleeping between requests, then spinning.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const REQUEST: usize = 72;
const ANSWER: usize = 4096 + 24;

fn pin(core: usize) {
    // SAFETY: a zeroed set is a valid one, and the call only reads it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
    }
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    pin(0);
    let (mut request, answer) = ([0; REQUEST], [0; ANSWER]);
    loop {
        stream.read_exact(&mut request)?;
        stream.write_all(&answer)?;
    }
}

fn ask(stream: &mut TcpStream) -> std::io::Result<Duration> {
    let begun = Instant::now();
    stream.write_all(&[0; REQUEST])?;
    let (mut answer, mut got) = ([0; ANSWER], 0);
    while got < ANSWER {
        match stream.read(&mut answer[got..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => got += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(begun.elapsed())
}

fn main() -> std::io::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>().expect("a number"));
    let (requests, gap_ms) = (numbers.next().unwrap_or(100).max(1), numbers.next().unwrap_or(100));
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let served = listener.accept()?.0;
    served.set_nodelay(true)?;
    stream.set_nodelay(true)?;
    std::thread::spawn(move || serve(served));
    pin(1);
    for spins in [false, true] {
        stream.set_nonblocking(spins)?;
        let mut taken = Vec::new();
        for _ in 0..requests {
            let until = Instant::now() + Duration::from_millis(gap_ms);
            if !spins {
                std::thread::sleep(Duration::from_millis(gap_ms));
            }
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            taken.push(ask(&mut stream)?);
        }
        taken.sort();
        let client = if spins { "spinning" } else { "sleeping" };
        let at = |share: usize| taken[(taken.len() - 1) * share / 100].as_nanos() as f64 / 1e3;
        println!("{client} client: p50 {:.1} us, p99 {:.1} us, least {:.1} us", at(50), at(99), at(0));
    }
    Ok(())
}
