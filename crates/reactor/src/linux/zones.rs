//! Zones of block devices by the kernel's interface (`linux/blkzoned.h`), from NVMe drives with zones to disks that are shingled.
//!
//! Reports and changes of state are system calls that wait for the drive, for milliseconds where it resets a zone, and io_uring
//! has nothing for them. So each driver that is asked for one has a thread of its own for them, which ends with it.

use super::{EventFd, check};
use crate::driver::RemoteWake;
use crate::zones::{FILE_ZONE_BYTES, FileZone, FileZoneCondition, FileZones, ZoneAction};
use base::Errno;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

const BLKREPORTZONE: libc::c_ulong = 0xC010_1282;
const BLKRESETZONE: libc::c_ulong = 0x4010_1283;
const BLKGETZONESZ: libc::c_ulong = 0x8004_1284;
const BLKOPENZONE: libc::c_ulong = 0x4010_1286;
const BLKCLOSEZONE: libc::c_ulong = 0x4010_1287;
const BLKFINISHZONE: libc::c_ulong = 0x4010_1288;
const SECTOR: u64 = 512;
/// Bytes in front of the records of a report: the first sector, and how many records there are.
const REPORT_HEAD: usize = 16;
/// Zones looked at in one call while those are counted that have no pointer.
const LOOK_ZONES: usize = 512;

/// What is asked of a zoned block device.
pub(super) enum Ask {
    /// Records of as many zones as so many bytes hold, from the one at a byte on.
    Report { offset: u64, bytes: usize },
    /// A change of state of zones.
    Manage { action: ZoneAction, offset: u64, bytes: u64 },
}

/// What came of it: records, or nothing.
pub(super) type Answer = Result<Vec<u8>, Errno>;

struct Job {
    index: u64,
    fd: RawFd,
    ask: Ask,
}

#[derive(Default)]
struct Answers {
    list: Mutex<Vec<(u64, Answer)>>,
    /// There are some; looked at without the lock.
    any: AtomicBool,
}

/// The thread that waits for drives.
pub(super) struct ZoneThread {
    jobs: Option<Sender<Job>>,
    answers: Arc<Answers>,
    thread: Option<JoinHandle<()>>,
}

impl ZoneThread {
    pub(super) fn start(wake: Arc<EventFd>) -> Result<ZoneThread, Errno> {
        let (jobs, receiver) = channel();
        let answers = Arc::<Answers>::default();
        let theirs = answers.clone();
        let thread = std::thread::Builder::new().name("remuda-zones".into()).spawn(move || {
            leave_core();
            serve(&receiver, &theirs, &wake);
        });
        let thread = thread.map_err(|error| Errno::from_io(&error))?;
        Ok(ZoneThread { jobs: Some(jobs), answers, thread: Some(thread) })
    }

    /// Asks; whoever takes the answers finds it under `index`. The descriptor stays open until then.
    pub(super) fn ask(&self, index: u64, fd: RawFd, ask: Ask) {
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(Job { index, fd, ask }).is_ok());
        if !sent {
            self.answers.push(index, Err(Errno::EIO));
        }
    }

    /// Answers that have come.
    pub(super) fn take(&self) -> Vec<(u64, Answer)> {
        if !self.answers.any.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.answers.list.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for ZoneThread {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It has nothing to panic on; and if it did, there is nobody to tell.
            let _ = thread.join();
        }
    }
}

impl Answers {
    fn push(&self, index: u64, answer: Answer) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push((index, answer));
        self.any.store(true, Ordering::Release);
    }
}

fn serve(jobs: &Receiver<Job>, answers: &Answers, wake: &EventFd) {
    while let Ok(Job { index, fd, ask }) = jobs.recv() {
        let answer = match ask {
            Ask::Report { offset, bytes } => report(fd, offset, bytes / FILE_ZONE_BYTES),
            Ask::Manage { action, offset, bytes } => manage(fd, action, offset, bytes).map(|()| Vec::new()),
        };
        answers.push(index, answer);
        wake.wake();
    }
}

/// The thread that starts this one may be bound to a core, which it does not give away: this one may run on all others.
fn leave_core() {
    // SAFETY: an empty set is a valid value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    (0..libc::CPU_SETSIZE as usize).for_each(|core| {
        // SAFETY: the core is below the size of the set.
        unsafe { libc::CPU_SET(core, &mut set) }
    });
    // SAFETY: reads a local. The kernel takes those cores of it that there are; where it refuses, the thread is slower.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}

/// Records of up to `count` zones from the one at a byte on, fewer behind the last one.
fn report(fd: RawFd, offset: u64, count: usize) -> Result<Vec<u8>, Errno> {
    let mut records = Vec::with_capacity(count * FILE_ZONE_BYTES);
    let mut sector = offset / SECTOR;
    while records.len() < count * FILE_ZONE_BYTES {
        let wanted = count - records.len() / FILE_ZONE_BYTES;
        let mut request = vec![0u8; REPORT_HEAD + wanted * FILE_ZONE_BYTES];
        request[..8].copy_from_slice(&sector.to_le_bytes());
        request[8..12].copy_from_slice(&(wanted as u32).to_le_bytes());
        // SAFETY: the kernel writes the head and as many records as the head asks for, which is what the buffer holds.
        check(unsafe { libc::ioctl(fd, BLKREPORTZONE, request.as_mut_ptr()) }.into())?;
        let found = u32::from_le_bytes(request[8..12].try_into().expect("four bytes")) as usize;
        let found = &request[REPORT_HEAD..REPORT_HEAD + found.min(wanted) * FILE_ZONE_BYTES];
        let Some(last) = found.chunks_exact(FILE_ZONE_BYTES).next_back() else { break };
        let word = |at: usize| u64::from_le_bytes(last[at..at + 8].try_into().expect("eight bytes"));
        let next = word(0).wrapping_add(word(8));
        records.extend_from_slice(found);
        if next <= sector {
            break;
        }
        sector = next;
    }
    Ok(records)
}

fn manage(fd: RawFd, action: ZoneAction, offset: u64, bytes: u64) -> Result<(), Errno> {
    let request = match action {
        ZoneAction::Reset => BLKRESETZONE,
        ZoneAction::Open => BLKOPENZONE,
        ZoneAction::Close => BLKCLOSEZONE,
        ZoneAction::Finish => BLKFINISHZONE,
    };
    let range = [offset / SECTOR, bytes / SECTOR];
    // SAFETY: reads a local of the size that the request names.
    check(unsafe { libc::ioctl(fd, request, range.as_ptr()) }.into()).map(|_| ())
}

/// The zones of a block device with sectors of so many bytes; none where it has none. `queue` is the directory of its queue in
/// sysfs.
pub(super) fn describe(fd: RawFd, queue: &str, sector: u32) -> Result<Option<FileZones>, Errno> {
    let mut sectors = 0u32;
    // SAFETY: fills a local of the size that the request names. Kernels without zones do not know the request.
    let told = unsafe { libc::ioctl(fd, BLKGETZONESZ, &mut sectors) };
    if told < 0 || sectors == 0 {
        return Ok(None);
    }
    let model = std::fs::read_to_string(format!("{queue}/zoned")).unwrap_or_default();
    if model.trim() != "host-managed" {
        // Host-aware disks are written anywhere, and later kernels call them plain ones.
        return Ok(None);
    }
    let limit = |name: &str| {
        let text = std::fs::read_to_string(format!("{queue}/{name}")).unwrap_or_default();
        text.trim().parse::<u32>().unwrap_or(0)
    };
    let bytes = u64::from(sectors) * SECTOR;
    let (open_max, active_max) = (limit("max_open_zones"), limit("max_active_zones"));
    // Disks with sectors of 512 bytes may have to be written in larger units (kernel 5.12 and later tell).
    let write_bytes = limit("zone_write_granularity").max(sector);
    let mut zones = FileZones { bytes, capacity_bytes: bytes, write_bytes, conventional: 0, open_max, active_max };
    loop {
        let records = report(fd, zones.conventional * bytes, LOOK_ZONES)?;
        if records.is_empty() {
            return Ok(Some(zones));
        }
        for record in records.chunks_exact(FILE_ZONE_BYTES) {
            let zone = FileZone::from_record(record.try_into().expect("chunks of that size")).ok_or(Errno::EIO)?;
            if zone.condition != FileZoneCondition::Conventional {
                return Ok(Some(FileZones { capacity_bytes: zone.capacity, ..zones }));
            }
            zones.conventional += 1;
        }
    }
}
