//! What the paths of a device have in common, and which they are.

use bdev::{DeviceInfo, Status};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use tracing::{info, warn};

use crate::initiator::controller::NamespaceIds;
use crate::initiator::device::Known;
use crate::initiator::error::Seen;
use crate::initiator::fence::Board;
use crate::initiator::options::Options;
use crate::initiator::shared::{Phase, Shared};

/// Most paths of a device.
pub const PATHS_MAX: usize = 8;

/// The namespace behind all paths.
pub(in crate::initiator) struct Namespace {
    /// The device's name.
    pub(in crate::initiator) name: String,
    pub(in crate::initiator) nsid: u32,
    info: DeviceInfo,
    /// What tells it from others; for the control path.
    ids: Mutex<NamespaceIds>,
    /// What lost connections of any path may still do.
    pub(in crate::initiator) board: Arc<Board>,
    blocks: AtomicU64,
    /// Associations of any path that were built again after a loss.
    pub(in crate::initiator) reconnects: AtomicU64,
    /// When the first association of any path began, reactor time in ns.
    first_up_ns: OnceLock<u64>,
    /// Until when some path was of use, reactor time in ns; told when that ends.
    useful_until_ns: AtomicU64,
    lanes: AtomicU32,
    /// Nobody wants the device any more.
    closing: AtomicBool,
    /// It was told that caches of different targets are not flushed by each other.
    told_of_caches: AtomicBool,
    /// Who is told of changes.
    paths: Mutex<Vec<Weak<Shared>>>,
}

impl Namespace {
    fn new(name: &str, nsid: u32, known: Known) -> Namespace {
        let Known { info, ids } = known;
        Namespace {
            name: name.to_string(),
            nsid,
            info,
            ids: Mutex::new(ids),
            board: Arc::default(),
            blocks: AtomicU64::new(info.blocks),
            reconnects: AtomicU64::new(0),
            first_up_ns: OnceLock::new(),
            useful_until_ns: AtomicU64::new(0),
            lanes: AtomicU32::new(1),
            closing: AtomicBool::new(false),
            told_of_caches: AtomicBool::new(false),
            paths: Mutex::default(),
        }
    }

    /// What tells it from others.
    pub(in crate::initiator) fn ids(&self) -> NamespaceIds {
        *self.ids.lock().expect("nothing panics while it holds this lock")
    }

    /// What its paths have to show.
    pub(in crate::initiator) fn seen(&self) -> Seen {
        Known { info: self.info(), ids: self.ids() }.seen()
    }

    /// Has another namespace be this one from now on. Of a device without an association.
    pub(in crate::initiator) fn replace(&self, found: &Seen) {
        *self.ids.lock().expect("nothing panics while it holds this lock") = found.ids;
        self.blocks.store(found.blocks, Ordering::Relaxed);
    }

    /// Says once, where the paths that are connected lead to different targets with caches, what a flush does not do then. One
    /// target has one serial number (Base 2.0, figure 275), and a cache that any of its controllers flushes.
    pub(in crate::initiator) fn look_at_caches(&self) {
        let of = |path: &Arc<Shared>| match path.phase() {
            Phase::Up(association) if !path.is_closing() => Some((path.options.address, association)),
            _ => None,
        };
        let up: Vec<_> = self.members().iter().filter_map(of).collect();
        let has_cache = up.iter().any(|(_, association)| association.volatile_cache);
        let Some((first, ours)) = up.first().filter(|_| has_cache) else { return };
        let other = up.iter().find(|(_, association)| association.serial != ours.serial);
        if let Some((second, theirs)) = other
            && !self.told_of_caches.swap(true, Ordering::Relaxed)
        {
            warn!(
                device = self.name, %first, serial = ours.serial, %second, other_serial = theirs.serial,
                "paths lead to different targets that have volatile write caches: when one is lost, what its target had not made \
                 durable is lost with it, and no flush tells; turn the caches off, or use paths of one target"
            );
        }
    }

    /// What the device is now.
    #[inline]
    pub(in crate::initiator) fn info(&self) -> DeviceInfo {
        DeviceInfo { blocks: self.blocks.load(Ordering::Relaxed), ..self.info }
    }

    /// Takes the smallest size that a controller has told of which there is an association; none where no path has the
    /// namespace. Which of two targets is the first to be resized does not matter then, nor that one of them has no namespace.
    pub(in crate::initiator) fn settle_size(&self) {
        // Locked throughout, so that the last one to look has the last word.
        let paths = self.lock();
        let members = paths.iter().filter_map(Weak::upgrade).filter(|path| !path.is_closing());
        let told: Vec<Option<(u64, bool)>> = members.map(|path| path.blocks()).collect();
        let now =
            told.iter().flatten().filter(|(blocks, is_up)| *is_up && *blocks > 0).map(|(blocks, _)| *blocks).min();
        let has_gone = !told.is_empty() && told.iter().all(|told| matches!(told, Some((0, _))));
        let Some(blocks) = now.or(has_gone.then_some(0)) else { return };
        if self.blocks.swap(blocks, Ordering::Relaxed) != blocks {
            info!(device = self.name, blocks, "namespace resized");
        }
    }

    /// An association has begun.
    pub(in crate::initiator) fn note_up(&self, now_ns: u64) {
        let _ = self.first_up_ns.set(now_ns);
    }

    /// Whether there has ever been an association.
    pub(in crate::initiator) fn was_up(&self) -> bool {
        self.first_up_ns.get().is_some()
    }

    /// A path was of use until now.
    pub(in crate::initiator) fn note_useful(&self, now_ns: u64) {
        self.useful_until_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.paths.lock().expect("nothing panics while it holds this lock")
    }

    /// Whether the device is being closed.
    pub(in crate::initiator) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// A number for a lane.
    pub(in crate::initiator) fn number_lane(&self) -> u32 {
        self.lanes.fetch_add(1, Ordering::Relaxed)
    }

    /// The last connection of an association has ended: replays that waited for that go on.
    pub(in crate::initiator) fn end_association(&self, association: u64) {
        self.board.end(association);
        self.members().iter().for_each(|path| path.touch());
    }

    /// An association has been fenced: what waited for that goes on, on all paths.
    pub(in crate::initiator) fn lift_fence(&self, association: u64) {
        self.board.lift(association);
        self.members().iter().for_each(|path| path.touch());
    }

    /// All paths, those that were removed and are not done yet included.
    pub(in crate::initiator) fn members(&self) -> Vec<Arc<Shared>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// The paths of a device. Which they are changes by command alone.
pub(in crate::initiator) struct Group {
    pub(in crate::initiator) namespace: Arc<Namespace>,
    /// As the device was opened; paths have other addresses.
    pub(in crate::initiator) options: Options,
    paths: Mutex<Vec<Arc<Shared>>>,
    /// Changes with the paths.
    generation: AtomicU64,
}

impl Group {
    pub(in crate::initiator) fn new(name: &str, options: &Options, nsid: u32, known: Known) -> Group {
        Group {
            namespace: Arc::new(Namespace::new(name, nsid, known)),
            options: options.clone(),
            paths: Mutex::default(),
            generation: AtomicU64::new(1),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Shared>>> {
        self.paths.lock().expect("nothing panics while it holds this lock")
    }

    fn changed(&self, paths: &[Arc<Shared>]) {
        let mut known = self.namespace.lock();
        // One that was removed goes on until its last association is fenced.
        known.retain(|path| path.strong_count() > 0);
        for path in paths {
            if !known.iter().any(|other| std::ptr::eq(other.as_ptr(), Arc::as_ptr(path))) {
                known.push(Arc::downgrade(path));
            }
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Changes with the paths.
    #[inline]
    pub(in crate::initiator) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The paths, in the order in which they were named.
    pub(in crate::initiator) fn paths(&self) -> Vec<Arc<Shared>> {
        self.lock().clone()
    }

    /// Adds a path without an association; `None` when there is one to this address, or no room.
    pub(in crate::initiator) fn add(&self, address: SocketAddr) -> Option<Arc<Shared>> {
        let mut paths = self.lock();
        if paths.len() == PATHS_MAX || paths.iter().any(|path| path.options.address == address) {
            return None;
        }
        let options = Options { address, ..self.options.clone() };
        let path = Arc::new(Shared::new(self.namespace.clone(), options));
        paths.push(path.clone());
        self.changed(&paths);
        Some(path)
    }

    /// Puts the paths in this order.
    pub(in crate::initiator) fn arrange(&self, addresses: &[SocketAddr]) {
        let mut paths = self.lock();
        paths.sort_by_key(|path| addresses.iter().position(|address| *address == path.options.address));
        self.changed(&paths);
    }

    /// Takes a path out; the last one stays.
    pub(in crate::initiator) fn remove(&self, address: SocketAddr) -> Option<Arc<Shared>> {
        let mut paths = self.lock();
        let place = paths.iter().position(|path| path.options.address == address)?;
        if paths.len() == 1 {
            return None;
        }
        let path = paths.remove(place);
        self.changed(&paths);
        drop(paths);
        path.request_close();
        self.namespace.settle_size();
        Some(path)
    }

    /// Ends all associations in order.
    pub(in crate::initiator) fn request_close(&self) {
        self.namespace.closing.store(true, Ordering::Relaxed);
        self.paths().iter().for_each(|path| path.request_close());
    }

    /// Whether there has ever been an association.
    pub(in crate::initiator) fn was_up(&self) -> bool {
        self.namespace.was_up()
    }

    /// Since when no path is of use, reactor time in ns; `None` when one is. One that was taken out and has not ended counts.
    pub(in crate::initiator) fn useless_since(&self) -> Option<u64> {
        let namespace = &self.namespace;
        if namespace.members().iter().any(|path| path.is_useful()) {
            return None;
        }
        // Where none ever was, since there could have been one.
        let first_ns = namespace.first_up_ns.get().copied().unwrap_or(0);
        Some(first_ns.max(namespace.useful_until_ns.load(Ordering::Relaxed)))
    }

    /// What to say of an operation for which no path was of use: where targets are there, it is they who refuse.
    pub(in crate::initiator) fn why_useless(&self) -> Status {
        let paths = self.paths();
        let mut connected = paths.iter().filter(|path| matches!(path.phase(), Phase::Up(_))).peekable();
        // (One that no target has any more is gone, whatever is known of its access.)
        let is_there = self.namespace.info().blocks > 0 && connected.peek().is_some();
        if is_there && connected.all(|path| path.ana().refusal().is_some()) {
            Status::Inaccessible
        } else {
            Status::Gone
        }
    }
}
