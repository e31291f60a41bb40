//! The bays that the disks of a redundant device are in: which disk is in each, whether it is dead, and when it will be. They
//! outlive processes and power cuts, and never take more than one disk from the device at a time.

use crate::redundant::Redundant;
use base::Rng;
use bdev::{BlockDevice, Channel, DeviceError, DeviceInfo, Done, FileDevice, FileDeviceOptions, Io, Status};
use reactor::{IoFuture, Reactor};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Disks for each bay, one after the other.
pub(crate) const DISKS_PER_BAY: u32 = 6;
const NEVER: u64 = u64::MAX;

/// Operations that a disk still does; none when it is dead.
type Fate = Arc<AtomicU64>;

struct Bay {
    disk: u32,
    fate: Fate,
}

/// See the module.
pub(crate) struct Bays {
    block_size: u32,
    bays: RefCell<Vec<Bay>>,
    /// Blocks that every disk shows of itself.
    shown: Arc<AtomicU64>,
    /// Every disk had everything, durably, when it was last looked, and no disk has been doomed since.
    whole: Cell<bool>,
    /// No disk dies any more.
    pub(crate) calm: Cell<bool>,
    rng: RefCell<Rng>,
}

pub(crate) fn path(bay: usize, disk: u32) -> String {
    format!("/bay{bay}.{disk}")
}

impl Bays {
    /// So many bays of disks that show `bytes` of themselves.
    pub(crate) fn new(count: usize, block_size: u32, bytes: u64, rng: Rng) -> Bays {
        let bay = |_| Bay { disk: 0, fate: Arc::new(AtomicU64::new(NEVER)) };
        let bays = RefCell::new((0..count).map(bay).collect());
        let shown = Arc::new(AtomicU64::new(bytes / block_size as u64));
        Bays { block_size, bays, shown, whole: Cell::new(false), calm: Cell::new(false), rng: RefCell::new(rng) }
    }

    /// Every disk shows so much of itself from now on: as if it had grown.
    pub(crate) fn grow(&self, bytes: u64) {
        self.shown.fetch_max(bytes / self.block_size as u64, Relaxed);
    }

    /// The disk of a bay. A dead one is not even found, now and then.
    pub(crate) fn device(&self, reactor: &Rc<Reactor>, bay: usize) -> Result<Option<Arc<dyn BlockDevice>>, String> {
        let (disk, fate) = {
            let bay = &self.bays.borrow()[bay];
            (bay.disk, bay.fate.clone())
        };
        if fate.load(Relaxed) == 0 && self.rng.borrow_mut().one_in(2) {
            return Ok(None);
        }
        let path = path(bay, disk);
        let options = FileDeviceOptions { block_size: self.block_size, ..FileDeviceOptions::new(&path) };
        let file = FileDevice::open(reactor, &path, options).map_err(|error| error.to_string())?;
        Ok(Some(Arc::new(Mortal { child: Arc::new(file), fate, shown: self.shown.clone() })))
    }

    /// The disks of all bays when a process starts: one that was dead may answer again, with what it had then.
    pub(crate) fn devices(&self, reactor: &Rc<Reactor>) -> Result<Vec<Option<Arc<dyn BlockDevice>>>, String> {
        for bay in self.bays.borrow().iter().filter(|bay| bay.fate.load(Relaxed) == 0) {
            if self.rng.borrow_mut().one_in(2) {
                bay.fate.store(NEVER, Relaxed);
            }
        }
        (0..self.bays.borrow().len()).map(|bay| self.device(reactor, bay)).collect()
    }

    /// Looks at a device that has been opened, or that a rebuild has ended on.
    pub(crate) fn look(&self, array: &Redundant) {
        let bays = self.bays.borrow();
        let doomed = bays.iter().any(|bay| bay.fate.load(Relaxed) != NEVER);
        self.whole.set(!doomed && array.is_whole());
    }

    /// While every disk has everything, one may get an end.
    pub(crate) fn doom(&self) {
        let mut rng = self.rng.borrow_mut();
        if !self.whole.get() || self.calm.get() || rng.one_in(3) {
            return;
        }
        let bays = self.bays.borrow();
        let bay = &bays[rng.below(bays.len() as u64) as usize];
        if bay.disk + 1 < DISKS_PER_BAY {
            self.whole.set(false);
            let most = [1, 20, 200, 1_000][rng.below(4) as usize];
            bay.fate.store(rng.below(most), Relaxed);
        }
    }

    /// Whether the disk of a bay does nothing any more.
    pub(crate) fn is_dead(&self, bay: usize) -> bool {
        self.bays.borrow()[bay].fate.load(Relaxed) == 0
    }

    /// Takes the disk of a bay out and puts a new one in, which may die early itself.
    pub(crate) fn replace(&self, bay: usize) {
        let (bays, rng) = (&mut *self.bays.borrow_mut(), &mut *self.rng.borrow_mut());
        let bay = &mut bays[bay];
        bay.disk += 1;
        let dies = !self.calm.get() && bay.disk + 1 < DISKS_PER_BAY && rng.one_in(3);
        bay.fate = Arc::new(AtomicU64::new(if dies { rng.below(400) } else { NEVER }));
    }

    /// Between two processes: what is dead is replaced now and then, and always when nothing dies any more.
    pub(crate) fn replace_dead(&self) {
        let count = self.bays.borrow().len();
        for bay in 0..count {
            if self.is_dead(bay) && (self.calm.get() || self.rng.borrow_mut().one_in(2)) {
                self.replace(bay);
            }
        }
    }

    /// From now on no disk dies that has not.
    pub(crate) fn calm_down(&self) {
        self.calm.set(true);
        for bay in self.bays.borrow().iter().filter(|bay| bay.fate.load(Relaxed) > 0) {
            bay.fate.store(NEVER, Relaxed);
        }
    }

    /// A disk dies at once.
    pub(crate) fn kill(&self, bay: usize) {
        self.bays.borrow()[bay].fate.store(0, Relaxed);
    }
}

/// A disk that does so many more operations.
struct Mortal {
    child: Arc<dyn BlockDevice>,
    fate: Fate,
    shown: Arc<AtomicU64>,
}

impl BlockDevice for Mortal {
    fn name(&self) -> &str {
        self.child.name()
    }

    fn kind(&self) -> &'static str {
        "mortal"
    }

    fn info(&self) -> DeviceInfo {
        let info = self.child.info();
        DeviceInfo { blocks: info.blocks.min(self.shown.load(Relaxed)), ..info }
    }

    fn open_channel(&self, reactor: &Rc<Reactor>) -> Result<Rc<dyn Channel>, DeviceError> {
        Ok(Rc::new(MortalChannel { child: self.child.open_channel(reactor)?, fate: self.fate.clone() }))
    }

    fn refresh<'a>(&'a self, _: &'a Rc<Reactor>) -> IoFuture<'a, Result<DeviceInfo, DeviceError>> {
        let dead = || DeviceError::Io { device: self.name().to_string(), action: "look at", status: Status::Gone };
        IoFuture::ready(if self.fate.load(Relaxed) == 0 { Err(dead()) } else { Ok(self.info()) })
    }
}

struct MortalChannel {
    child: Rc<dyn Channel>,
    fate: Fate,
}

impl Channel for MortalChannel {
    fn submit<'a>(&'a self, io: Io) -> IoFuture<'a, Done> {
        match self.fate.load(Relaxed) {
            0 => return IoFuture::ready(io.done(Status::Gone)),
            NEVER => {}
            left => self.fate.store(left - 1, Relaxed),
        }
        self.child.submit(io)
    }
}
