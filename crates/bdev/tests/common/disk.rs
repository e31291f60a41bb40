//! A disk in memory that can be copied, damaged, and made to fail from some write on.

use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, Io, Op, Status};
use reactor::{IoFuture, Reactor};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// Blocks are shared between an image and its copies until one of them changes.
pub type Image = BTreeMap<u64, Arc<Vec<u8>>>;

fn zeroes() -> Arc<Vec<u8>> {
    Arc::new(vec![0; 4096])
}

/// See the module. Blocks of 4 KiB; those that were never written are zero.
pub struct Disk {
    name: String,
    state: Arc<State>,
}

struct State {
    blocks: AtomicU64,
    content: Mutex<Image>,
    writes_left: AtomicU64,
    /// Blocks that cannot be read, and how often not.
    unreadable: Mutex<BTreeMap<u64, u64>>,
}

impl Disk {
    pub fn new(name: &str, blocks: u64) -> Arc<Disk> {
        Disk::with(name, blocks, Image::new())
    }

    /// A disk with these bytes.
    pub fn with(name: &str, blocks: u64, content: Image) -> Arc<Disk> {
        let (blocks, writes_left) = (AtomicU64::new(blocks), AtomicU64::new(u64::MAX));
        Arc::new(Disk {
            name: name.into(),
            state: Arc::new(State { blocks, content: Mutex::new(content), writes_left, unreadable: Mutex::default() }),
        })
    }

    /// A disk with the same bytes, that does not fail.
    pub fn fork(&self) -> Arc<Disk> {
        Disk::with(&self.name, self.state.blocks.load(Relaxed), self.image())
    }

    pub fn image(&self) -> Image {
        self.state.content.lock().unwrap().clone()
    }

    pub fn poke(&self, block: u64, bytes: &[u8]) {
        self.state.content.lock().unwrap().insert(block, Arc::new(bytes.to_vec()));
    }

    pub fn flip(&self, block: u64, bit: usize) {
        let mut content = self.state.content.lock().unwrap();
        Arc::make_mut(content.entry(block).or_insert_with(zeroes))[bit / 8] ^= 1 << (bit % 8);
    }

    pub fn enlarge(&self, blocks: u64) {
        self.state.blocks.store(blocks, Relaxed);
    }

    /// So many reads of a block fail.
    pub fn refuse_reads(&self, block: u64, reads: u64) {
        self.state.unreadable.lock().unwrap().insert(block, reads);
    }

    /// All writes after so many fail.
    pub fn fail_after(&self, writes: u64) {
        self.state.writes_left.store(writes, Relaxed);
    }
}

impl State {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::basic(4096, self.blocks.load(Relaxed))
    }

    fn serve(&self, io: &mut Io) -> Status {
        if let Err(status) = self.info().check(io) {
            return status;
        }
        let refused = |(_, left): (&u64, &mut u64)| std::mem::replace(left, left.saturating_sub(1)) > 0;
        if io.op == Op::Read && self.unreadable.lock().unwrap().range_mut(io.lba.0..io.end()).any(refused) {
            return Status::ReadError;
        }
        let mut content = self.content.lock().unwrap();
        let mut at = io.lba.0 * 4096;
        if io.op == Op::Write {
            match self.writes_left.load(Relaxed) {
                0 => return Status::WriteError,
                u64::MAX => {}
                left => self.writes_left.store(left - 1, Relaxed),
            }
        }
        for buf in &mut io.bufs {
            let mut done = 0;
            while done < buf.len() {
                let within = (at % 4096) as usize;
                let len = (4096 - within).min(buf.len() - done);
                match io.op {
                    Op::Read => {
                        let target = &mut buf.as_mut_slice()[done..done + len];
                        match content.get(&(at / 4096)) {
                            Some(bytes) => target.copy_from_slice(&bytes[within..within + len]),
                            None => target.fill(0),
                        }
                    }
                    Op::Write => {
                        let block = Arc::make_mut(content.entry(at / 4096).or_insert_with(zeroes));
                        block[within..within + len].copy_from_slice(&buf.as_slice()[done..done + len]);
                    }
                    _ => return Status::Unsupported,
                }
                (at, done) = (at + len as u64, done + len);
            }
        }
        Status::Ok
    }
}

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static str {
        "disk"
    }

    fn info(&self) -> DeviceInfo {
        self.state.info()
    }

    fn open_channel(&self, _: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(Open(self.state.clone())))
    }
}

struct Open(Arc<State>);

impl Channel for Open {
    fn submit<'a>(&'a self, mut io: Io) -> IoFuture<'a, Done> {
        let status = self.0.serve(&mut io);
        IoFuture::ready(io.done(status))
    }
}
