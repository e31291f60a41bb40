//! Operations made of reads and writes, for devices whose medium does not do them: compare, compare-and-write, copy,
//! verify, write-zeroes. And the buffer work that goes with them.

use crate::io::{Done, Flags, Io, Lba, Op, Status};
use base::Errno;
use reactor::{BUF_BYTES_MAX, Buf, Reactor, SgList};
use std::rc::Rc;

/// Longest wait for a pool buffer. Only a pool far too small for its load comes near; failing the operation then frees
/// what it holds, so that layers which each need a buffer cannot wait for each other for ever.
const ALLOC_WAIT_MAX_NS: u64 = 10_000_000_000;

/// Something that reads and writes blocks without taking the device's locks.
pub trait Medium {
    /// Whose pool buffers come from.
    fn reactor(&self) -> &Rc<Reactor>;
    /// Bytes per block.
    fn block_size(&self) -> u32;
    /// Performs a read or a write.
    fn transfer(&self, io: Io) -> impl Future<Output = Done>;
}

/// Operations without data are cut at multiples of so many bytes: what a device sets aside as one, such as an extent of a pool, it
/// can give back when all of it is freed at once.
const BARE_BYTES: u64 = 4 << 20;

/// Blocks of an Unmap or Write Zeroes that are carried out as one, of `rest` from block `lba` on: little enough that nobody waits
/// long for it.
pub fn bare_blocks(block_size: u32, lba: u64, rest: u64) -> u32 {
    let unit = (BARE_BYTES / block_size as u64).max(1);
    rest.min(unit - lba % unit) as u32
}

/// A pool buffer of `len` bytes, waiting for one when there is none.
pub async fn alloc(reactor: &Rc<Reactor>, len: usize) -> Result<Buf, Status> {
    match reactor.pool().try_alloc(len) {
        Some(buf) => Ok(buf),
        None => reactor.timeout(ALLOC_WAIT_MAX_NS, reactor.pool().alloc(len)).await.ok_or(Status::Os(Errno::ENOMEM)),
    }
}

/// Gives a read without buffers its own.
pub(crate) async fn provide(reactor: &Rc<Reactor>, io: &mut Io, block_size: u32) -> Result<(), Status> {
    if io.op == Op::Read && io.bufs.is_empty() {
        let mut bytes = io.nblocks as usize * block_size as usize;
        while bytes > 0 {
            let len = bytes.min(BUF_BYTES_MAX);
            io.bufs.push(alloc(reactor, len).await?);
            bytes -= len;
        }
    }
    Ok(())
}

/// Copies `target.len()` bytes from byte `at` of a list.
pub fn sg_read_at(list: &[Buf], at: usize, target: &mut [u8]) {
    let mut filled = 0;
    sg_for_range(
        list.len(),
        |i| list[i].len(),
        at,
        target.len(),
        |index, from, len| {
            target[filled..filled + len].copy_from_slice(&list[index].as_slice()[from..from + len]);
            filled += len;
        },
    );
}

/// Copies `source` to byte `at` of a list.
pub fn sg_write_at(list: &mut [Buf], at: usize, source: &[u8]) {
    let mut used = 0;
    let lens: smallvec::SmallVec<[usize; 8]> = list.iter().map(Buf::len).collect();
    sg_for_range(
        lens.len(),
        |i| lens[i],
        at,
        source.len(),
        |index, from, len| {
            list[index].as_mut_slice()[from..from + len].copy_from_slice(&source[used..used + len]);
            used += len;
        },
    );
}

/// Whether the bytes from `at` of a list equal `other`.
pub(crate) fn sg_equal_at(list: &[Buf], at: usize, other: &[u8]) -> bool {
    let (mut seen, mut equal) = (0, true);
    sg_for_range(
        list.len(),
        |i| list[i].len(),
        at,
        other.len(),
        |index, from, len| {
            equal &= list[index].as_slice()[from..from + len] == other[seen..seen + len];
            seen += len;
        },
    );
    equal
}

fn sg_for_range(
    count: usize,
    len_of: impl Fn(usize) -> usize,
    mut skip: usize,
    mut wanted: usize,
    mut each: impl FnMut(usize, usize, usize),
) {
    for index in 0..count {
        let len = len_of(index);
        if wanted == 0 {
            return;
        }
        if skip < len {
            let take = (len - skip).min(wanted);
            each(index, skip, take);
            wanted -= take;
            skip = 0;
        } else {
            skip -= len;
        }
    }
    assert_eq!(wanted, 0, "a range past the end of a buffer list");
}

fn blocks_per_piece(medium: &impl Medium) -> u32 {
    BUF_BYTES_MAX as u32 / medium.block_size()
}

/// Reads `nblocks` (at most one buffer's worth) into a buffer of the pool.
async fn read_piece(medium: &impl Medium, lba: u64, nblocks: u32) -> Result<Buf, Status> {
    let buf = alloc(medium.reactor(), nblocks as usize * medium.block_size() as usize).await?;
    let mut bufs = SgList::new();
    bufs.push(buf);
    let mut done = medium.transfer(Io::read(Lba(lba), nblocks, bufs)).await;
    done.status.check()?;
    Ok(done.io.bufs.remove(0))
}

/// Compares the blocks of `io` with the first `nblocks` blocks of its buffers.
pub async fn compare(medium: &impl Medium, io: &Io) -> Result<(), Status> {
    let (mut at, step) = (0, blocks_per_piece(medium));
    while at < io.nblocks {
        let count = step.min(io.nblocks - at);
        let found = read_piece(medium, io.lba.0 + at as u64, count).await?;
        if !sg_equal_at(&io.bufs, at as usize * medium.block_size() as usize, found.as_slice()) {
            return Err(Status::Miscompare);
        }
        at += count;
    }
    Ok(())
}

/// Compares with the first half of the buffers and, when equal, writes the second. The caller holds the range exclusively.
pub(crate) async fn compare_and_write(medium: &impl Medium, io: &mut Io) -> Result<(), Status> {
    compare(medium, io).await?;
    let bytes = io.nblocks as usize * medium.block_size() as usize;
    let new = reactor::buf::sg_split_off(&mut io.bufs, bytes);
    let write = Io { flags: io.flags, stream: io.stream, tag: io.tag, ..Io::write(io.lba, io.nblocks, new) };
    let done = medium.transfer(write).await;
    reactor::buf::sg_append(&mut io.bufs, done.io.bufs);
    done.status.check()
}

/// Reads the blocks and forgets them.
pub async fn verify(medium: &impl Medium, io: &Io) -> Result<(), Status> {
    let (mut at, step) = (0, blocks_per_piece(medium));
    while at < io.nblocks {
        let count = step.min(io.nblocks - at);
        read_piece(medium, io.lba.0 + at as u64, count).await?;
        at += count;
    }
    Ok(())
}

/// Copies block by block range through a buffer; ranges may overlap, and the result is as if the source had been read
/// whole before.
pub async fn copy(medium: &impl Medium, io: &Io) -> Result<(), Status> {
    let (mut moved, step) = (0, blocks_per_piece(medium));
    let backwards = io.lba.0 > io.arg;
    while moved < io.nblocks {
        let count = step.min(io.nblocks - moved);
        let at = if backwards { io.nblocks - moved - count } else { moved } as u64;
        let mut bufs = SgList::new();
        bufs.push(read_piece(medium, io.arg + at, count).await?);
        let write =
            Io { flags: io.flags, stream: io.stream, tag: io.tag, ..Io::write(Lba(io.lba.0 + at), count, bufs) };
        medium.transfer(write).await.status.check()?;
        moved += count;
    }
    Ok(())
}

/// Writes zeroes from a buffer.
pub(crate) async fn write_zeroes(medium: &impl Medium, io: &Io) -> Result<(), Status> {
    let (mut at, step) = (0, blocks_per_piece(medium).min(io.nblocks));
    let mut zeroes = alloc(medium.reactor(), step as usize * medium.block_size() as usize).await?;
    zeroes.as_mut_slice().fill(0);
    while at < io.nblocks {
        let count = step.min(io.nblocks - at);
        zeroes.truncate(count as usize * medium.block_size() as usize);
        let mut bufs = SgList::new();
        bufs.push(zeroes);
        let flags = Flags(io.flags.0 & Flags::FUA.0);
        let write = Io { flags, ..Io::write(Lba(io.lba.0 + at as u64), count, bufs) };
        let mut done = medium.transfer(write).await;
        done.status.check()?;
        zeroes = done.io.bufs.remove(0);
        at += count;
    }
    Ok(())
}

/// A result as a status.
pub(crate) fn status_of(result: Result<(), Status>) -> Status {
    result.err().unwrap_or(Status::Ok)
}

/// The same bytes in buffers of the pool.
pub(crate) async fn duplicate_data(reactor: &Rc<Reactor>, bufs: &[Buf]) -> Result<SgList, Status> {
    let (total, mut at, mut copy) = (reactor::buf::sg_len(bufs), 0, SgList::new());
    while at < total {
        let mut buf = alloc(reactor, (total - at).min(BUF_BYTES_MAX)).await?;
        sg_read_at(bufs, at, buf.as_mut_slice());
        at += buf.len();
        copy.push(buf);
    }
    Ok(copy)
}
