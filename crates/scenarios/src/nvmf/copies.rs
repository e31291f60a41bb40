//! Blocks that each host has to itself: it writes them, copies them over each other, makes them unreadable and reads them, one
//! operation after the other, and so knows at every moment what each of them must hold.
//!
//! What this adds to the random workload: a copy takes what its source held when it was sent, and leaves what is written there
//! afterwards alone, however often it was sent again; a block that was made unreadable stays so until it is written.

use bdev::{Channel, Io, Lba, Op, OpSet, Status};
use reactor::{Reactor, SgList};
use sim::oracle::{fill_cell, read_cell};
use sim::{Handle, NodeId};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// What a block must hold: the stamp of a write (0 is zeroes), or nothing that can be read.
type Content = Option<u64>;

/// See the module.
#[derive(Clone)]
pub(super) struct Copies {
    sim: Handle,
    /// The first block of all hosts' together.
    first: u64,
    /// Blocks of each host; 0 when there are none.
    pub(super) each: u64,
    block_bytes: usize,
    contents: Rc<RefCell<Vec<Content>>>,
    last_stamp: Rc<Cell<u64>>,
}

impl Copies {
    /// `each` blocks for each of `hosts`, from block `first` on, all zero.
    pub(super) fn new(sim: Handle, first: u64, (each, hosts): (u64, u64), block_bytes: usize) -> Copies {
        let contents = Rc::new(RefCell::new(vec![Some(0); (each * hosts) as usize]));
        Copies { sim, first, each, block_bytes, contents, last_stamp: Rc::default() }
    }

    /// The work of host number `index`: so many operations.
    pub(super) async fn work(
        self,
        reactor: Rc<Reactor>,
        channel: Rc<dyn Channel>,
        ops: OpSet,
        (node, index): (NodeId, u64),
        count: u64,
    ) {
        let mut rng = self.sim.rng();
        let own = index * self.each;
        for _ in 0..count {
            if !self.sim.alive(node) {
                return;
            }
            let block = own + rng.below(self.each);
            match rng.below(8) {
                0..2 => self.write(&reactor, &channel, block).await,
                2..5 if ops.contains(Op::Copy) => {
                    let nblocks = rng.between(1, self.each);
                    let mut place = || own + rng.below(self.each - nblocks + 1);
                    self.copy(&reactor, &channel, place(), place(), nblocks).await;
                }
                5 if ops.contains(Op::WriteUncorrectable) => self.make_unreadable(&channel, block).await,
                _ => self.read(&reactor, &channel, block).await,
            }
        }
        for block in own..own + self.each {
            self.read(&reactor, &channel, block).await;
        }
    }

    fn expect(&self, holds: bool, text: impl FnOnce() -> String) {
        self.sim.expect(holds, text);
    }

    async fn write(&self, reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, block: u64) {
        let stamp = self.last_stamp.get() + 1;
        self.last_stamp.set(stamp);
        let mut buf = reactor.pool().alloc(self.block_bytes).await;
        // Copies hold what they were made of: nothing in it names the place.
        fill_cell(buf.as_mut_slice(), stamp, 0);
        let done = channel.submit(Io::write(Lba(self.first + block), 1, SgList::from_iter([buf]))).await;
        self.expect(done.status.is_ok(), || format!("the host's own block {block} is not written: {}", done.status));
        self.contents.borrow_mut()[block as usize] = Some(stamp);
    }

    async fn copy(&self, reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, from: u64, to: u64, nblocks: u64) {
        let copied = self.contents.borrow()[from as usize..(from + nblocks) as usize].to_vec();
        let io = Io { arg: self.first + from, ..Io::new(Op::Copy, Lba(self.first + to), nblocks as u32) };
        let status = channel.submit(io).await.status;
        if copied.iter().all(Option::is_some) {
            self.expect(status.is_ok(), || format!("{nblocks} own blocks at {from} are not copied to {to}: {status}"));
            self.contents.borrow_mut()[to as usize..(to + nblocks) as usize].copy_from_slice(&copied);
            return;
        }
        let says_so = status == Status::ReadError;
        self.expect(says_so, || format!("copy of {nblocks} blocks at {from}, not all of them readable: {status}"));
        // How far it got is not said.
        for block in to..to + nblocks {
            self.write(reactor, channel, block).await;
        }
    }

    async fn make_unreadable(&self, channel: &Rc<dyn Channel>, block: u64) {
        let status = channel.submit(Io::new(Op::WriteUncorrectable, Lba(self.first + block), 1)).await.status;
        if status == Status::Unsupported {
            // The controller says that it can, for the sake of another namespace.
            return;
        }
        self.expect(status.is_ok(), || format!("the host's own block {block} is not made unreadable: {status}"));
        self.contents.borrow_mut()[block as usize] = None;
    }

    async fn read(&self, reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, block: u64) {
        let buf = reactor.pool().alloc(self.block_bytes).await;
        let done = channel.submit(Io::read(Lba(self.first + block), 1, SgList::from_iter([buf]))).await;
        let wanted = self.contents.borrow()[block as usize];
        let found = match done.status {
            Status::Ok => {
                let bytes: Vec<u8> = done.io.bufs.iter().flat_map(|buf| buf.as_slice().to_vec()).collect();
                read_cell(&bytes, 0).map(Some)
            }
            Status::ReadError => Ok(None),
            other => Err(format!("is not read: {other}")),
        };
        self.expect(found == Ok(wanted), || {
            format!("block {block} of those that hosts have to themselves: {found:?}, expected {wanted:?}")
        });
    }
}
