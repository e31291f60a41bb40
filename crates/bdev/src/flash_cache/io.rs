//! Reads and writes. A read whose blocks are all cached is flash's; any other is the slow device's, and what it brings may be
//! let in. Whatever changes blocks goes to the slow device, and nowhere else.

use super::Inner;
use super::format::block_crc;
use super::patience::READ_PATIENCE_NS;
use super::ring::{Found, LookUp};
use super::trust::Ticket;
use crate::device::Channel;
use crate::io::{Done, Flags, Io, Op, Status};
use crate::split;
use crate::steps;
use reactor::{Buf, IoFuture};
use smallvec::SmallVec;
use std::rc::Rc;

pub(super) struct FlashCacheChannel(pub(super) Rc<Inner>);

impl Channel for FlashCacheChannel {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        let inner = &self.0;
        if let Err(status) = inner.shared.info().check(&io) {
            return IoFuture::ready(io.done(status));
        }
        io.flags = Flags(io.flags.0 & !Flags::LOAN.0);
        let owned = inner.clone();
        match io.op {
            // Whoever asks for the medium itself, or for one version of what it has, means the slow device.
            Op::Read if io.flags.has(Flags::FUA) || io.arg != 0 => inner.pass(io),
            Op::Read => match inner.plan_read(&mut io) {
                Plan::Memory => IoFuture::ready(io.done(Status::Ok)),
                Plan::Slow(wanted) if wanted.is_empty() => inner.pass(io),
                Plan::Slow(wanted) => IoFuture::steps(&inner.reactor, async move { owned.fill(io, wanted).await }),
                Plan::Flash(slots) => IoFuture::steps(&inner.reactor, async move { owned.read_flash(io, slots).await }),
            },
            Op::Flush => IoFuture::steps(&inner.reactor, async move {
                let status = steps::status_of(owned.flush().await);
                owned.kick();
                io.done(status)
            }),
            op if op.modifies() => IoFuture::steps(&inner.reactor, async move { owned.change(io).await }),
            _ => inner.pass(io),
        }
    }

    fn abort(&self, tag: u64) {
        self.0.slow.abort(tag);
        if let Some(flash) = &self.0.flash {
            flash.abort(tag);
        }
    }
}

/// A cached block: its slot and checksum.
type Cached = (u32, u32);
/// A block to let in, from the start of the read on.
type Wanted = (u32, Ticket);

enum Plan {
    /// It was all in memory, and is in the buffers now.
    Memory,
    Flash(SmallVec<[Cached; 8]>),
    Slow(SmallVec<[Wanted; 8]>),
}

impl Inner {
    /// The operation, on the slow device.
    fn pass(&self, mut io: Io) -> IoFuture<'_, Done> {
        let (start, source) = (self.shared.geometry.data_start, io.arg);
        if io.op == Op::Flush {
            return self.slow.submit(io);
        }
        let at = io.lba.0 + start;
        if io.op != Op::Copy {
            return split::pass(&*self.slow, at, io);
        }
        io.arg += start;
        let future = split::pass(&*self.slow, at, io);
        IoFuture::new(async move {
            let mut done = future.await;
            done.io.arg = source;
            done
        })
    }

    // --- reading ----------------------------------------------------------------------------------------------------

    fn plan_read(&self, io: &mut Io) -> Plan {
        let (now_ns, len) = (self.reactor.now_ns(), self.shared.info.block_size as usize);
        let range = io.lba.0..io.end();
        self.shared.with(|state| {
            let is_used = state.uses_flash(now_ns);
            let ring = &mut state.ring;
            let admits = self.shared.admits && !state.is_clean;
            if !is_used {
                ring.counts.misses += io.nblocks as u64;
                return Plan::Slow(SmallVec::new());
            }
            match ring.look_up(range.clone()) {
                LookUp::Flash(cached) => return Plan::Flash(cached),
                LookUp::Staged(slots) => {
                    for (nth, slot) in slots.iter().enumerate() {
                        let data = ring.staged(*slot).expect("it was found in a stage");
                        steps::sg_write_at(&mut io.bufs, nth * len, data);
                    }
                    return Plan::Memory;
                }
                LookUp::Missed => {}
            }
            let mut wanted = SmallVec::new();
            for (nth, lba) in range.enumerate() {
                if ring.wants(lba, now_ns) && admits {
                    wanted.extend(state.trust.ticket(lba).map(|ticket| (nth as u32, ticket)));
                }
            }
            Plan::Slow(wanted)
        })
    }

    /// Reads the slow device, and lets in what is wanted of it.
    async fn fill(self: &Rc<Self>, io: Io, wanted: SmallVec<[Wanted; 8]>) -> Done {
        let lba = io.lba.0;
        let done = self.pass(io).await;
        if !done.status.is_ok() {
            return done;
        }
        let (len, mut scratch) = (self.shared.info.block_size as usize, Vec::new());
        for (nth, ticket) in wanted {
            let (block, now_ns) = (lba + nth as u64, self.reactor.now_ns());
            let data = block_of(&done.io.bufs, nth as usize * len, len, &mut scratch);
            let crc = block_crc(block, data);
            self.shared.with(|state| {
                let is_right = state.uses_flash(now_ns) && !state.is_clean && state.trust.is_current(block, ticket);
                let _ = is_right && state.ring.admit(block, crc, data, state.trust.writes(), now_ns);
            });
        }
        self.kick();
        done
    }

    /// Reads flash; where that does not have what it should, the slow device.
    async fn read_flash(self: &Rc<Self>, io: Io, slots: SmallVec<[Cached; 8]>) -> Done {
        let Some(flash) = &self.flash else { return self.pass(io).await };
        let (lba, shape, flags) = (io.lba.0, self.shape(), io.flags);
        let anew = Io { tag: io.tag, stream: io.stream, flags, ..Io::new(Op::Read, io.lba, io.nblocks) };
        let lens: SmallVec<[usize; 8]> = io.bufs.iter().map(Buf::len).collect();
        let asked = IoFuture::steps(&self.reactor, self.clone().ask_flash(flash.clone(), io, slots.clone()));
        let Some(done) = self.ask(asked, READ_PATIENCE_NS, |done| done.status).await else {
            self.shared.with(|state| state.ring.counts.missed(slots.len() as u64));
            return self.read_anew(anew, &lens).await;
        };
        if done.status == Status::Aborted {
            // Whoever gave it up gave up the whole read.
            return done;
        }
        let mut wrong: SmallVec<[u32; 8]> = SmallVec::new();
        if done.status.is_ok() {
            let (len, mut scratch) = (shape.block_size as usize, Vec::new());
            for (nth, (_, crc)) in slots.iter().enumerate() {
                let data = block_of(&done.io.bufs, nth * len, len, &mut scratch);
                if block_crc(lba + nth as u64, data) != *crc && !self.shared.skips_verify {
                    wrong.push(nth as u32);
                }
            }
            if wrong.is_empty() {
                self.flash_works();
                return done;
            }
        } else {
            wrong.extend(0..slots.len() as u32);
        }
        self.drop_wrong(lba, &wrong, &slots, done.status);
        self.pass(Io { flags, ..done.io }).await
    }

    /// The read, of flash alone.
    async fn ask_flash(self: Rc<Self>, flash: Rc<dyn Channel>, io: Io, slots: SmallVec<[Cached; 8]>) -> Done {
        let (lba, start, shape) = (io.lba.0, self.shared.ring_start, self.shape());
        let most = self.shared.flash.as_ref().map_or(1, |flash| flash.info().max_io_blocks) as u64;
        let block_at = |nth: usize| start + shape.block_of(slots[nth].0);
        let place = |block: u64| {
            let first = (block - lba) as usize;
            let follows = |nth: &usize| block_at(*nth) == block_at(first) + (*nth - first) as u64;
            let count = 1 + (first + 1..slots.len()).take_while(follows).count();
            (0, block_at(first), (count as u64).min(most))
        };
        split::runs(&self.reactor, &[flash], shape.block_size, io, place).await
    }

    /// A read of the slow device into buffers of our own: those that came with it are flash's until that answers.
    async fn read_anew(&self, mut io: Io, lens: &[usize]) -> Done {
        for len in lens {
            match steps::alloc(&self.reactor, *len).await {
                Ok(buf) => io.bufs.push(buf),
                Err(status) => return io.done(status),
            }
        }
        self.pass(io).await
    }

    /// Forgets blocks that flash does not have, unless they went from there meanwhile.
    fn drop_wrong(self: &Rc<Self>, lba: u64, wrong: &[u32], slots: &[Cached], status: Status) {
        let dropped = self.shared.with(|state| {
            let ring = &mut state.ring;
            let mut dropped = 0;
            for nth in wrong {
                let (block, (slot, crc)) = (lba + *nth as u64, slots[*nth as usize]);
                if ring.find(block) == Found::Flash(slot) && ring.index.crc(slot) == crc {
                    if status.is_ok() {
                        // What a power cut took of a segment it took of its neighbours too.
                        ring.drop_segment(slot);
                    } else {
                        ring.index.remove(block);
                    }
                    dropped += 1;
                }
            }
            ring.counts.missed(slots.len() as u64);
            dropped
        });
        let status = if status.is_ok() { Status::Corrupt } else { status };
        if dropped > 0 {
            self.flash_failed(status, "read", |counts| counts.read_errors += 1);
        }
    }

    // --- changing ---------------------------------------------------------------------------------------------------

    async fn change(self: &Rc<Self>, io: Io) -> Done {
        let (lba, nblocks) = (io.lba.0, io.nblocks as u64);
        let (lacking, is_clean) = self.shared.with(|state| {
            state.trust.begin_write(lba, nblocks);
            state.ring.invalidate(lba, nblocks);
            (state.trust.want_marks(lba, nblocks, state.ring.next_seq), state.is_clean)
        });
        let mut writing = Writing { inner: self, lba, nblocks, is_durable: false };
        if is_clean && let Err(status) = self.reopen().await {
            return io.done(status);
        }
        if let Err(status) = self.write_marks(&lacking).await {
            return io.done(status);
        }
        let is_forced = io.flags.has(Flags::FUA) || !self.shared.info.volatile_cache;
        let done = self.pass(io).await;
        writing.is_durable = done.status.is_ok() && is_forced;
        drop(writing);
        done
    }
}

/// A write under way.
struct Writing<'a> {
    inner: &'a Inner,
    lba: u64,
    nblocks: u64,
    is_durable: bool,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.inner.shared.with(|state| state.trust.end_write(self.lba, self.nblocks, self.is_durable));
    }
}

/// The bytes from `at` of a list, which may have to be gathered.
fn block_of<'a>(bufs: &'a [Buf], at: usize, len: usize, scratch: &'a mut Vec<u8>) -> &'a [u8] {
    let mut skip = at;
    for buf in bufs {
        if skip + len <= buf.len() {
            return &buf.as_slice()[skip..skip + len];
        }
        if skip < buf.len() {
            break;
        }
        skip -= buf.len();
    }
    scratch.resize(len, 0);
    steps::sg_read_at(bufs, at, scratch);
    scratch
}
