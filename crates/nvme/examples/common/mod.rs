//! What the examples share that work on somebody's namespace.

use base::Rng;
use bdev::{Channel, Flags, Io, Lba, Status};
use reactor::{Reactor, SgList};
use std::rc::Rc;

/// Random bytes of this seed, in buffers of odd lengths, so that data crosses buffers everywhere.
pub fn filled(reactor: &Rc<Reactor>, bytes: usize, seed: u64) -> SgList {
    let mut rng = Rng::new(seed);
    let mut bufs = SgList::new();
    let mut left = bytes;
    while left > 0 {
        let len = left.min(if seed.is_multiple_of(2) { 1 << 20 } else { 4096 * 3 });
        let mut buf = reactor.pool().try_alloc(len).expect("buffers");
        rng.fill(buf.as_mut_slice());
        bufs.push(buf);
        left -= len;
    }
    bufs
}

/// Writes `bytes`, which are `blocks`, reads them back, and says what is wrong.
pub async fn round_trip(
    reactor: &Rc<Reactor>,
    channel: &dyn Channel,
    lba: Lba,
    blocks: u32,
    bytes: usize,
    seed: u64,
) -> Result<(), String> {
    let failed = |what: &str, status: Status| format!("{what} of {bytes} bytes at block {}: {status}", lba.0);
    let flags = if seed.is_multiple_of(3) { Flags::FUA } else { Flags::NONE };
    let written = channel.submit(Io { flags, ..Io::write(lba, blocks, filled(reactor, bytes, seed)) }).await;
    written.status.check().map_err(|status| failed("write", status))?;
    let read = channel.submit(Io::read(lba, blocks, filled(reactor, bytes, !seed))).await;
    read.status.check().map_err(|status| failed("read", status))?;
    let contents = |bufs: &SgList| bufs.iter().flat_map(|buf| buf.as_slice().to_vec()).collect::<Vec<u8>>();
    match contents(&written.io.bufs) == contents(&read.io.bufs) {
        true => Ok(()),
        false => Err(format!("{bytes} bytes at block {} came back different", lba.0)),
    }
}
