//! A door: a socket that front ends connect to, one after the other, and the thread that talks to them.
//!
//! The thread waits in system calls and never touches a request. While one front end is connected the next one waits in
//! the socket's queue: two would write to one disk, each with a cache of its own.

use super::session::Session;
use super::socket;
use crate::disk::{Disk, QUEUES_MAX};
use crate::message::{Header, code};
use crate::stats::{Counters, Totals};
use bdev::BlockDevice;
use reactor::ReactorHandle;
use rustix::io::Errno;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// Only the owner connects.
const MODE: u32 = 0o600;
/// Between two attempts to accept when the system refuses one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a door is set up.
pub struct DoorOptions {
    /// Its name, for messages.
    pub name: String,
    /// Where its socket is made.
    pub socket: PathBuf,
    /// What is behind it.
    pub device: Arc<dyn BlockDevice>,
    /// Who serves its queues, in turn.
    pub reactors: Vec<ReactorHandle>,
    /// Which of them has the first queue.
    pub first_reactor: usize,
    /// Most queues of a front end.
    pub queues: u16,
    /// Refuse writes.
    pub read_only: bool,
    /// What a guest reads as the disk's serial number.
    pub serial: String,
}

/// Why a door cannot be opened.
#[derive(Debug, Error)]
pub enum DoorError {
    /// Somebody listens there.
    #[error("{0} is in use: another process listens on it")]
    InUse(PathBuf),
    /// There is something else.
    #[error("{0} is there already and is no socket")]
    NoSocket(PathBuf),
    /// The system refuses.
    #[error("cannot listen on {path}: {error}")]
    Os {
        /// Where.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The device cannot be shown.
    #[error("device '{device}' cannot be shown: {reason}")]
    Device {
        /// Which.
        device: String,
        /// Why not.
        reason: String,
    },
}

impl DoorError {
    /// Somebody else has what is needed.
    pub fn is_conflict(&self) -> bool {
        matches!(self, DoorError::InUse(_) | DoorError::NoSocket(_))
    }
}

/// What a door is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DoorStatus {
    /// Process id of the front end that is connected.
    pub peer: Option<u32>,
    /// Queues at work.
    pub queues: usize,
    /// What it has done since it was opened.
    pub totals: Totals,
}

/// What the door's thread shares with its owner.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) disk: Arc<Disk>,
    reactors: Vec<ReactorHandle>,
    first_reactor: usize,
    pub(super) closing: Arc<AtomicBool>,
    /// The connection that is served, to be ended by a closing door.
    current: Mutex<Option<UnixStream>>,
    /// For messages to the front end.
    backend: Mutex<Option<UnixStream>>,
    peer: AtomicU32,
    running: AtomicUsize,
    /// Counters of running queues, and the sum of those that have ended.
    counters: Mutex<(Vec<Arc<Counters>>, Totals)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics while holding this lock")
}

impl Shared {
    pub(super) fn reactor_of(&self, queue: usize) -> &ReactorHandle {
        &self.reactors[(self.first_reactor + queue) % self.reactors.len()]
    }

    pub(super) fn lock_backend(&self) -> MutexGuard<'_, Option<UnixStream>> {
        lock(&self.backend)
    }

    /// Counters for a new queue.
    pub(super) fn counters(&self) -> Arc<Counters> {
        let counters = Arc::<Counters>::default();
        lock(&self.counters).0.push(counters.clone());
        counters
    }

    /// A queue has ended.
    pub(super) fn counted(&self, counters: &Arc<Counters>) {
        let (running, ended) = &mut *lock(&self.counters);
        running.retain(|other| !Arc::ptr_eq(other, counters));
        ended.add(counters);
    }

    pub(super) fn queue_started(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn queue_stopped(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    fn accept_all(self: &Arc<Self>, listener: &UnixListener) {
        loop {
            let accepted = listener.accept();
            if self.closing.load(Ordering::Acquire) {
                return;
            }
            match accepted {
                Ok((stream, _)) => self.serve(stream),
                Err(error) => {
                    tracing::warn!(door = %self.name, "vhost-user socket: {error}");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }

    fn serve(self: &Arc<Self>, stream: UnixStream) {
        let Ok(copy) = stream.try_clone() else { return };
        *lock(&self.current) = Some(copy);
        // A door that began to close before this has not seen the connection.
        if self.closing.load(Ordering::Acquire) {
            return;
        }
        let peer = rustix::net::sockopt::socket_peercred(&stream).map_or(0, |peer| peer.pid.as_raw_nonzero().get());
        self.peer.store(peer as u32, Ordering::Relaxed);
        tracing::debug!(door = %self.name, peer, "front end connected");
        match Session::new(self.clone(), stream).run() {
            Ok(()) => tracing::debug!(door = %self.name, peer, "front end gone"),
            Err(reason) => tracing::warn!(door = %self.name, peer, "front end disconnected: {reason}"),
        }
        *lock(&self.current) = None;
        self.peer.store(0, Ordering::Relaxed);
    }
}

/// See the module. Dropping it ends it too, without waiting for requests under way.
pub struct Door {
    shared: Arc<Shared>,
    listener: UnixListener,
    path: PathBuf,
    /// Which file it made there.
    made: FileId,
    thread: Option<JoinHandle<()>>,
}

impl Door {
    /// Opens a door: from now on front ends can connect.
    pub fn open(options: DoorOptions) -> Result<Door, DoorError> {
        let DoorOptions { name, socket, device, reactors, first_reactor, queues, read_only, serial } = options;
        assert!(!reactors.is_empty() && (1..=QUEUES_MAX).contains(&queues), "the caller has checked");
        let info = device.info();
        let refuse = |reason: &str| DoorError::Device { device: device.name().to_string(), reason: reason.to_string() };
        if info.zoned.is_some() {
            return Err(refuse("guests would write to its zones in any order"));
        }
        if info.blocks == 0 {
            return Err(refuse("it has no blocks"));
        }
        let (listener, made) = listen(&socket)?;
        let shared = Arc::new(Shared {
            name,
            disk: Arc::new(Disk::new(device, queues, read_only, serial)),
            reactors,
            first_reactor,
            closing: Arc::default(),
            current: Mutex::default(),
            backend: Mutex::default(),
            peer: AtomicU32::new(0),
            running: AtomicUsize::new(0),
            counters: Mutex::default(),
        });
        let os = |error| DoorError::Os { path: socket.clone(), error };
        let accepting = listener.try_clone().map_err(os)?;
        let served = shared.clone();
        let thread = std::thread::Builder::new().name(format!("vhost-{}", shared.name));
        let thread = thread.spawn(move || served.accept_all(&accepting)).map_err(os)?;
        Ok(Door { shared, listener, path: socket, made, thread: Some(thread) })
    }

    /// What it is doing.
    pub fn status(&self) -> DoorStatus {
        let (running, ended) = &*lock(&self.shared.counters);
        let mut totals = *ended;
        running.iter().for_each(|counters| totals.add(counters));
        let peer = self.shared.peer.load(Ordering::Relaxed);
        let queues = self.shared.running.load(Ordering::Relaxed);
        DoorStatus { peer: (peer != 0).then_some(peer), queues, totals }
    }

    /// The device has another size: the front end is told to look.
    pub fn device_changed(&self) {
        let backend = self.shared.lock_backend();
        let Some(stream) = &*backend else { return };
        if let Err(reason) = socket::send_now(stream, Header::new(code::BACKEND_CONFIG_CHANGE, 0)) {
            tracing::warn!(door = %self.shared.name, "the front end was not told of the new size: {reason}");
        }
    }

    /// Ends the connection and the door. Waits until requests under way have ended.
    pub fn close(mut self) {
        let thread = self.thread.take();
        self.end();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    fn end(&self) {
        if self.shared.closing.swap(true, Ordering::AcqRel) {
            return;
        }
        // Somebody else may listen there by now. (The number is not given away while the listener is open.)
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| FileId::of(&found) == self.made) {
            let _ = std::fs::remove_file(&self.path);
        }
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        if let Some(stream) = &*lock(&self.shared.current) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.end();
    }
}

/// A file, whatever its name is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn of(found: &Metadata) -> FileId {
        FileId(found.dev(), found.ino())
    }
}

/// Whether nobody listens on a socket any more. Anything else than a refused connection is no proof of that: somebody may
/// be slow to accept, or this process may not connect.
fn is_stale(path: &Path) -> Result<bool, Errno> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(true),
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Listens on `path`, replacing a socket that nobody listens on any more. The socket is made under another name and
/// renamed when its mode is right.
fn listen(path: &Path) -> Result<(UnixListener, FileId), DoorError> {
    let os = |error| DoorError::Os { path: path.to_path_buf(), error };
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => return Err(DoorError::NoSocket(path.to_path_buf())),
        Ok(_) if !is_stale(path).map_err(|error| os(error.into()))? => {
            return Err(DoorError::InUse(path.to_path_buf()));
        }
        _ => {}
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let _ = std::fs::remove_file(&temporary);
    let listener = UnixListener::bind(&temporary).map_err(os)?;
    let ready = std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(MODE))
        .and_then(|()| std::fs::symlink_metadata(&temporary))
        .and_then(|made| std::fs::rename(&temporary, path).map(|()| FileId::of(&made)));
    match ready {
        Ok(made) => Ok((listener, made)),
        Err(error) => {
            let _ = std::fs::remove_file(&temporary);
            Err(os(error))
        }
    }
}
