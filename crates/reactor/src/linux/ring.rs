//! The io_uring of one driver.

use base::Errno;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Submission and completion entries to try in turn. A turn that needs more submissions enters the kernel in between;
/// completions have room for multishot polls beside file operations, and overflow is kept by the kernel. A ring is charged
/// to RLIMIT_MEMLOCK of its user: the first takes 100 KiB, the second 20 KiB, so that a limit of 64 KiB has room for three.
const SIZES: [(u32, u32); 4] = [(512, 4096), (128, 512), (64, 128), (32, 64)];
/// How long is waited for rings that other processes of this user have left behind: the kernel takes them apart in the
/// background, and until then they are charged.
const LEFT_BEHIND_MAX: Duration = Duration::from_secs(1);
/// Most registered buffer arenas.
const ARENAS_MAX: u32 = 1024;

/// What a completion belongs to: a kind in the top byte, an index below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct UserData(u64);

impl UserData {
    pub(super) const KIND_IGNORE: u8 = 0;
    pub(super) const KIND_FILE: u8 = 1;
    pub(super) const KIND_READ: u8 = 2;
    pub(super) const KIND_WRITE: u8 = 3;
    pub(super) const KIND_WAKE: u8 = 4;
    pub(super) const WAKE: UserData = UserData::new(Self::KIND_WAKE, 0);
    const IGNORE: UserData = UserData::new(Self::KIND_IGNORE, 0);

    pub(super) const fn new(kind: u8, index: u64) -> UserData {
        UserData((kind as u64) << 56 | index & ((1 << 56) - 1))
    }

    pub(super) fn raw(self) -> u64 {
        self.0
    }

    pub(super) fn kind(self) -> u8 {
        (self.0 >> 56) as u8
    }

    pub(super) fn index(self) -> u64 {
        self.0 & ((1 << 56) - 1)
    }
}

pub(super) struct Ring {
    uring: IoUring,
    /// Registered arenas: start, length, buffer index; sorted by start.
    arenas: Vec<(usize, usize, u16)>,
    arenas_allowed: bool,
    prepared: Vec<(UserData, i32, bool)>,
    taken: usize,
}

impl Ring {
    pub(super) fn new() -> Result<Ring, Errno> {
        let build = |modern: bool, (entries, completions): (u32, u32)| {
            let mut builder = IoUring::<squeue::Entry, cqueue::Entry>::builder();
            builder.setup_cqsize(completions).setup_clamp();
            if modern {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            }
            builder.build(entries).map_err(|error| Errno::from_io(&error))
        };
        let smaller = |modern: bool| {
            let mut outcome = build(modern, SIZES[0]);
            for size in &SIZES[1..] {
                if matches!(outcome, Err(Errno::ENOMEM)) {
                    outcome = build(modern, *size);
                }
            }
            outcome
        };
        let begun = Instant::now();
        let uring = loop {
            // Kernels before 6.1 lack DEFER_TASKRUN; they work without, with interrupts into user space.
            match smaller(true).or_else(|_| smaller(false)) {
                Err(Errno::ENOMEM) if begun.elapsed() < LEFT_BEHIND_MAX => std::thread::sleep(Duration::from_millis(5)),
                outcome => break outcome?,
            }
        };
        let arenas_allowed = uring.submitter().register_buffers_sparse(ARENAS_MAX).is_ok();
        Ok(Ring { uring, arenas: Vec::new(), arenas_allowed, prepared: Vec::new(), taken: 0 })
    }

    /// Registers buffer memory, when limits allow; otherwise those buffers are used unregistered.
    pub(super) fn register_memory(&mut self, start: *const u8, bytes: usize) {
        if !self.arenas_allowed || self.arenas.len() >= ARENAS_MAX as usize {
            return;
        }
        let index = self.arenas.len() as u32;
        let iovec = libc::iovec { iov_base: start as *mut _, iov_len: bytes };
        // SAFETY: the pool keeps arenas mapped as long as it is there; after that a registration pins pages that are merely unused.
        match unsafe { self.uring.submitter().register_buffers_update(index, &[iovec], None) } {
            Ok(_) => {
                self.arenas.push((start as usize, bytes, index as u16));
                self.arenas.sort_unstable();
            }
            Err(_) => self.arenas_allowed = false,
        }
    }

    /// The registered-buffer index for memory that lies in one arena.
    pub(super) fn fixed_index(&self, start: *const u8, bytes: usize) -> Option<u16> {
        let at = start as usize;
        let position = self.arenas.partition_point(|arena| arena.0 <= at).checked_sub(1)?;
        let (begin, len, index) = self.arenas[position];
        (at + bytes <= begin + len).then_some(index)
    }

    /// Queues an entry; the queue is handed to the kernel when it is full.
    ///
    /// # Safety
    /// Everything the entry points to stays valid until its completion.
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        loop {
            // SAFETY: by the caller.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
            self.enter(0);
        }
    }

    /// Watches a descriptor for input until cancelled, edge-triggered.
    pub(super) fn poll_multishot(&mut self, fd: RawFd, data: UserData) {
        let events = (libc::POLLIN | libc::POLLRDHUP) as u32;
        let entry = opcode::PollAdd::new(types::Fd(fd), events).multi(true).build().user_data(data.0);
        // SAFETY: a poll points to no memory.
        unsafe { self.push(entry) };
    }

    /// Watches a descriptor for send space, once.
    pub(super) fn poll_writable(&mut self, fd: RawFd, data: UserData) {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLOUT as u32).build().user_data(data.0);
        // SAFETY: a poll points to no memory.
        unsafe { self.push(entry) };
    }

    /// Stops a watch.
    pub(super) fn cancel_poll(&mut self, data: UserData) {
        let entry = opcode::PollRemove::new(data.0).build().user_data(UserData::IGNORE.0);
        // SAFETY: points to no memory.
        unsafe { self.push(entry) };
    }

    fn enter(&mut self, want: u32) {
        let to_submit = self.uring.submission().len() as u32;
        const GETEVENTS: u32 = 1;
        // SAFETY: no argument is passed; entries in the queue were pushed under `push`'s contract. Errors such as EINTR or
        // EBUSY leave the entries queued for the next turn.
        let _ = unsafe { self.uring.submitter().enter::<libc::sigset_t>(to_submit, want, GETEVENTS, None) };
    }

    /// Enters the kernel when there is something to submit or something for it to finish.
    pub(super) fn enter_if_needed(&mut self) {
        let submission = self.uring.submission();
        let needed = !submission.is_empty() || submission.taskrun() || submission.cq_overflow();
        drop(submission);
        if needed {
            self.enter(0);
        }
    }

    /// Whether the kernel has completions to finish that it has not told of yet.
    #[inline]
    pub(super) fn has_task_work(&mut self) -> bool {
        self.uring.submission().taskrun()
    }

    /// Submits, and sleeps until a completion arrives or `pause_ns` has passed.
    pub(super) fn enter_and_wait(&mut self, pause_ns: Option<u64>) {
        if pause_ns == Some(0) {
            return self.enter(0);
        }
        let timespec =
            pause_ns.map(|ns| types::Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32));
        let mut args = types::SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        // Time-outs and signals end the wait early, which the caller expects.
        let _ = self.uring.submitter().submit_with_args(1, &args);
    }

    /// The next completion: what it belongs to, its result, and whether more will follow from the same request.
    pub(super) fn next_completion(&mut self) -> Option<(UserData, i32, bool)> {
        if self.taken == self.prepared.len() {
            self.prepared.clear();
            self.taken = 0;
            let entries = self
                .uring
                .completion()
                .map(|entry| (UserData(entry.user_data()), entry.result(), cqueue::more(entry.flags())));
            self.prepared.extend(entries);
        }
        let next = self.prepared.get(self.taken).copied();
        self.taken += next.is_some() as usize;
        next
    }
}

/// An error number from a completion's result.
pub(super) fn completion_result(result: i32) -> Result<usize, Errno> {
    if result < 0 { Err(Errno(-result)) } else { Ok(result as usize) }
}
