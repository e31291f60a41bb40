//! File operations under way: submit, effect, completion. The effect of a write may come in portions, at seeded times
//! between submit and completion; overlapping operations take effect in any order.

use crate::disk::{CacheLoss, Disk};
use crate::faults::{DiskFaults, Mutation};
use crate::state::{Action, Crash, OpenFile, State};
use base::{Errno, Rng, crc32c};
use reactor::driver::{FileId, FileOp, Token};
use reactor::{Buf, Event, FileInfo, FileOptions, SgList, ZoneAction};
use std::collections::BTreeSet;

/// What memory holds where a read has not put data yet.
const POISON: u8 = 0xA5;

pub(crate) struct InFlight {
    driver: usize,
    token: Token,
    disk: usize,
    op: FileOp,
    outcome: Result<usize, Errno>,
    /// Bytes of a write that have taken effect.
    applied: usize,
    /// No further effect; only the completion is missing.
    finished: bool,
    /// The disk's sequence number at submit: what a flush must cover.
    sequence: u64,
    /// Checksum of the data at submit, when nothing else may write it.
    checksum: Option<u32>,
    /// Memory that the device may touch until completion: start, length, whether it writes there.
    memory: Vec<(usize, usize, bool)>,
}

fn checksum(bufs: &[Buf]) -> u32 {
    bufs.iter().fold(0, |hash: u32, buf| hash.rotate_left(7) ^ crc32c(buf.as_slice()))
}

fn bufs_of(op: &mut FileOp) -> Option<&mut SgList> {
    match op {
        FileOp::Read { bufs, .. } | FileOp::Write { bufs, .. } | FileOp::ReportZones { bufs, .. } => Some(bufs),
        _ => None,
    }
}

/// Offset and length of an operation.
fn extent(op: &FileOp) -> (u64, u64) {
    match op {
        FileOp::Read { offset, bufs } | FileOp::Write { offset, bufs, .. } => {
            (*offset, reactor::buf::sg_len(bufs) as u64)
        }
        FileOp::Discard { offset, bytes }
        | FileOp::WriteZeroes { offset, bytes }
        | FileOp::ManageZones { offset, bytes, .. } => (*offset, *bytes),
        FileOp::ReportZones { offset, .. } => (*offset, 0),
        FileOp::Flush => (0, 0),
    }
}

/// The trace's words for an operation: its number, disk, length and offset.
fn template(op: &FileOp) -> &'static str {
    match op {
        FileOp::Read { .. } => "op {} on disk {} reads {} bytes at {}",
        FileOp::Write { durable: false, .. } => "op {} on disk {} writes {} bytes at {}",
        FileOp::Write { durable: true, .. } => "op {} on disk {} writes durably {} bytes at {}",
        FileOp::Flush => "op {} on disk {} flushes",
        FileOp::Discard { .. } => "op {} on disk {} discards {} bytes at {}",
        FileOp::WriteZeroes { .. } => "op {} on disk {} zeroes {} bytes at {}",
        FileOp::ReportZones { .. } => "op {} on disk {} reports zones, {} bytes, from {} on",
        FileOp::ManageZones { action, .. } => match action {
            ZoneAction::Reset => "op {} on disk {} resets the zones of {} bytes at {}",
            ZoneAction::Open => "op {} on disk {} opens the zones of {} bytes at {}",
            ZoneAction::Close => "op {} on disk {} closes the zones of {} bytes at {}",
            ZoneAction::Finish => "op {} on disk {} finishes the zones of {} bytes at {}",
        },
    }
}

impl State {
    // --- opening ----------------------------------------------------------------------------------------------------

    pub(crate) fn file_open(
        &mut self,
        driver: usize,
        path: &str,
        options: &FileOptions,
    ) -> Result<(FileId, FileInfo), Errno> {
        if !self.alive(driver) {
            return Err(Errno::EIO);
        }
        let node = self.drivers[driver].node;
        let disk = match (self.nodes[node.0].disks.get(path), options.create_bytes) {
            (Some(disk), _) => *disk,
            (None, Some(bytes)) if options.write => {
                let options = crate::disk::DiskOptions { bytes, ..Default::default() };
                self.add_disk(node, path, options, DiskFaults::default())
            }
            (None, _) => return Err(Errno::ENOENT),
        };
        let id = FileId(self.fresh_id() as u32);
        let state = &mut self.disks[disk].0;
        if options.lock {
            if state.locked_by.is_some() {
                return Err(Errno::EBUSY);
            }
            state.locked_by = Some(id.0 as u64);
        }
        let file = OpenFile { disk, write: options.write, direct: options.direct, lock: options.lock };
        let info = file_info(state, &file);
        self.drivers[driver].files.insert(id, file);
        self.event("driver {} opens disk {} as file {}", [driver as u64, disk as u64, id.0 as u64, 0]);
        Ok((id, info))
    }

    pub(crate) fn add_disk(
        &mut self,
        node: crate::state::NodeId,
        path: &str,
        options: crate::disk::DiskOptions,
        faults: DiskFaults,
    ) -> usize {
        self.disks.push((Disk::new(options), faults));
        let disk = self.disks.len() - 1;
        let old = self.nodes[node.0].disks.insert(path.to_string(), disk);
        assert!(old.is_none(), "{path} exists on node {}", node.0);
        disk
    }

    fn open_file(&self, driver: usize, file: FileId) -> Result<&OpenFile, Errno> {
        if !self.alive(driver) {
            return Err(Errno::EIO);
        }
        self.drivers[driver].files.get(&file).ok_or(Errno::EBADF)
    }

    pub(crate) fn file_info(&self, driver: usize, file: FileId) -> Result<FileInfo, Errno> {
        let file = self.open_file(driver, file)?;
        Ok(file_info(&self.disks[file.disk].0, file))
    }

    pub(crate) fn file_resize(&mut self, driver: usize, file: FileId, bytes: u64) -> Result<(), Errno> {
        let file = self.open_file(driver, file)?;
        let disk = file.disk;
        if !file.write || self.disks[disk].0.options.block_device {
            return Err(Errno::EINVAL);
        }
        self.event("driver {} resizes disk {} to {} bytes", [driver as u64, disk as u64, bytes, 0]);
        self.disks[disk].0.resize(bytes);
        Ok(())
    }

    pub(crate) fn file_close(&mut self, driver: usize, file: FileId) {
        if let Some(open) = self.drivers[driver].files.remove(&file)
            && open.lock
        {
            self.disks[open.disk].0.locked_by = None;
        }
    }

    // --- submitting -------------------------------------------------------------------------------------------------

    pub(crate) fn file_submit(&mut self, driver: usize, file: FileId, mut op: FileOp, token: Token) {
        if !self.alive(driver) {
            return;
        }
        let checked = self.check(driver, file, &op);
        let disk = self.drivers[driver].files.get(&file).map_or(usize::MAX, |file| file.disk);
        let memory = self.claim_memory(&mut op);
        let mut sum = None;
        if let FileOp::Write { bufs, .. } = &op
            && bufs.iter().all(|buf| !buf.is_shared())
        {
            sum = Some(checksum(bufs));
        }
        if self.mutated(Mutation::ReuseBufferEarly)
            && let Some(bufs) = bufs_of(&mut op)
        {
            bufs.clear();
            sum = None;
        }
        let sequence = if disk == usize::MAX { 0 } else { self.disks[disk].0.sequence() };
        let id = self.fresh_id();
        let (offset, bytes) = extent(&op);
        self.event(template(&op), [id, disk as u64, bytes, offset]);
        self.drivers[driver].in_flight += 1;
        let outcome = checked.as_ref().map_or_else(|error| Err(*error), |()| Ok(0));
        let finished = checked.is_err();
        let delay = if finished { self.rng.below(2_000) } else { self.latency(disk, &op) };
        let op = InFlight { driver, token, disk, op, outcome, applied: 0, finished, sequence, checksum: sum, memory };
        self.ops.insert(id, op);
        if finished {
            self.after(delay, Action::FileComplete(id));
        } else if self.sticks(disk, offset, bytes) {
            self.event("op {} is stuck", [id, 0, 0, 0]);
            self.stuck.insert(id);
        } else {
            self.after(delay, Action::FileApply(id));
        }
    }

    fn check(&self, driver: usize, file: FileId, op: &FileOp) -> Result<(), Errno> {
        let open = self.open_file(driver, file)?;
        let disk = &self.disks[open.disk].0;
        let (offset, bytes) = extent(op);
        let writes = !matches!(op, FileOp::Read { .. } | FileOp::Flush | FileOp::ReportZones { .. });
        let info = file_info(disk, open);
        let align = info.align as u64;
        if writes && !open.write {
            return Err(Errno::EBADF);
        }
        if writes && disk.read_only {
            return Err(Errno::EROFS);
        }
        if let FileOp::Read { bufs, .. } | FileOp::Write { bufs, .. } = op {
            let aligned = |buf: &Buf| (buf.len() | buf.as_ptr() as usize).is_multiple_of(align as usize);
            if !offset.is_multiple_of(align) || !bufs.iter().all(aligned) {
                return Err(Errno::EINVAL);
            }
        }
        if matches!(op, FileOp::Write { stream, .. } if *stream > info.write_streams) {
            return Err(Errno::EINVAL);
        }
        if matches!(op, FileOp::Discard { .. }) && !info.can_discard {
            return Err(Errno::EOPNOTSUPP);
        }
        if writes && disk.options.block_device && offset + bytes > disk.bytes() {
            return Err(Errno::ENOSPC);
        }
        Ok(())
    }

    /// Notes the memory of an operation and checks that nothing else under way may touch it.
    fn claim_memory(&mut self, op: &mut FileOp) -> Vec<(usize, usize, bool)> {
        let reads = !matches!(op, FileOp::Write { .. });
        let Some(bufs) = bufs_of(op) else { return Vec::new() };
        if reads {
            bufs.iter_mut().for_each(|buf| buf.as_mut_slice().fill(POISON));
        }
        let memory: Vec<_> = bufs.iter().map(|buf| (buf.as_ptr() as usize, buf.len(), reads)).collect();
        let overlaps =
            |a: &(usize, usize, bool), b: &(usize, usize, bool)| (a.2 || b.2) && a.0 < b.0 + b.1 && b.0 < a.0 + a.1;
        let clash = self
            .ops
            .iter()
            .find(|(_, other)| other.memory.iter().any(|theirs| memory.iter().any(|ours| overlaps(ours, theirs))));
        if let Some((id, _)) = clash {
            let text = format!("a buffer was reused although operation {id} under way still owns its memory");
            self.violation(text);
        }
        memory
    }

    fn latency(&mut self, disk: usize, op: &FileOp) -> u64 {
        if self.disks[disk].0.options.synchronous {
            return 0;
        }
        let (low, high) = match op {
            FileOp::Read { .. } => (10_000, 120_000),
            FileOp::Flush => (50_000, 2_000_000),
            _ => (5_000, 80_000),
        };
        let base = self.rng.between(low, high);
        let slow = self.disks[disk].1.slow;
        if self.chance(slow) {
            base * 1000
        } else if self.rng.one_in(64) {
            base * 20
        } else {
            base
        }
    }

    fn sticks(&mut self, disk: usize, offset: u64, bytes: u64) -> bool {
        let n = self.disks[disk].1.stuck;
        self.disks[disk].1.reaches(offset, bytes) && self.chance(n)
    }

    // --- taking effect ----------------------------------------------------------------------------------------------

    pub(crate) fn file_apply(&mut self, id: u64) {
        // Gone when its node crashed meanwhile.
        let Some(mut op) = self.ops.remove(&id) else { return };
        let node = self.drivers[op.driver].node;
        let wrote = self.apply(id, &mut op, false);
        let delay = match (op.finished, self.rng.one_in(2)) {
            (true, true) => 0,
            (true, false) => self.rng.between(100, 50_000),
            (false, _) => self.rng.between(100, 20_000),
        };
        let next = if op.finished { Action::FileComplete(id) } else { Action::FileApply(id) };
        self.after(delay, next);
        self.ops.insert(id, op);
        if wrote {
            self.count_write(node);
        }
    }

    /// One portion of an operation's effect; with `whole` all the rest. True when it changed the disk.
    fn apply(&mut self, id: u64, op: &mut InFlight, whole: bool) -> bool {
        match &mut op.op {
            FileOp::Read { offset, bufs } => {
                op.finished = true;
                op.outcome = self.apply_read(id, op.disk, *offset, bufs);
                false
            }
            FileOp::Write { .. } => self.apply_write(id, op, whole),
            FileOp::Flush => {
                op.finished = true;
                op.outcome = self.apply_flush(op.disk, op.sequence);
                true
            }
            FileOp::Discard { offset, bytes } | FileOp::WriteZeroes { offset, bytes } => {
                let (offset, bytes) = (*offset, *bytes);
                let discard = matches!(op.op, FileOp::Discard { .. });
                op.finished = true;
                op.outcome = self.apply_zero(op.disk, offset, bytes, discard);
                op.outcome.is_ok()
            }
            FileOp::ReportZones { offset, bufs } => {
                op.finished = true;
                op.outcome = self.apply_report(op.disk, *offset, bufs);
                false
            }
            FileOp::ManageZones { action, offset, bytes } => {
                let (action, offset, bytes) = (*action, *offset, *bytes);
                op.finished = true;
                op.outcome = self.apply_manage(op.disk, action, offset, bytes);
                true
            }
        }
    }

    fn fault(&mut self, disk: usize, offset: u64, bytes: u64, rate: impl Fn(&DiskFaults) -> u64) -> bool {
        let faults = &self.disks[disk].1;
        let n = rate(faults);
        n != 0 && bytes != 0 && faults.reaches(offset, bytes) && self.chance(n)
    }

    fn damage(&mut self, disk: usize, offset: u64, bytes: u64, rate: impl Fn(&DiskFaults) -> u64) -> bool {
        self.disks[disk].1.damages(offset, bytes) && self.fault(disk, offset, bytes, rate)
    }

    fn apply_read(&mut self, id: u64, disk: usize, offset: u64, bufs: &mut SgList) -> Result<usize, Errno> {
        let wanted = reactor::buf::sg_len(bufs) as u64;
        let mut bytes = self.disks[disk].0.readable(offset, wanted);
        if self.fault(disk, offset, bytes, |f| f.read_error) {
            self.event("op {} read error", [id, 0, 0, 0]);
            return Err(Errno::EIO);
        }
        if self.damage(disk, offset, bytes, |f| f.latent_error) {
            self.event("op {} finds an unreadable unit", [id, 0, 0, 0]);
            self.disks[disk].0.damage(offset, bytes, &mut self.rng);
        }
        if self.damage(disk, offset, bytes, |f| f.bit_rot) {
            self.event("op {} finds a flipped bit", [id, 0, 0, 0]);
            self.disks[disk].0.rot(offset, bytes, &mut self.rng);
        }
        if self.disks[disk].0.is_damaged(offset, bytes) || self.disks[disk].0.is_offline(offset, bytes) {
            return Err(Errno::EIO);
        }
        let unit = self.disks[disk].0.options.unit as u64;
        if bytes >= 2 * unit && self.fault(disk, offset, bytes, |f| f.short_transfer) {
            bytes = self.rng.between(1, bytes / unit - 1) * unit;
            self.event("op {} transfers {} bytes only", [id, bytes, 0, 0]);
        }
        let mut from = offset;
        if self.mutated(Mutation::WrongRead) && self.rng.one_in(8) {
            from = (offset + 4096) % (self.disks[disk].0.bytes() - bytes + 1);
        }
        let mut left = bytes as usize;
        let source = &self.disks[disk].0;
        for buf in bufs.iter_mut() {
            let part = left.min(buf.len());
            source.read(from, &mut buf.as_mut_slice()[..part]);
            from += part as u64;
            left -= part;
        }
        Ok(bytes as usize)
    }

    fn apply_report(&mut self, disk: usize, offset: u64, bufs: &mut SgList) -> Result<usize, Errno> {
        if self.fault(disk, offset, 1, |f| f.read_error) {
            return Err(Errno::EIO);
        }
        let records = self.disks[disk].0.report_zones(offset, reactor::buf::sg_len(bufs))?;
        let mut rest = &records[..];
        for buf in bufs.iter_mut() {
            let (now, later) = rest.split_at(rest.len().min(buf.len()));
            buf.as_mut_slice()[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(records.len())
    }

    /// A change that fails has happened or not.
    fn apply_manage(&mut self, disk: usize, action: ZoneAction, offset: u64, bytes: u64) -> Result<usize, Errno> {
        let fails = self.fault(disk, offset, bytes, |f| f.write_error);
        if fails && self.rng.one_in(2) {
            return Err(Errno::EIO);
        }
        self.disks[disk].0.manage_zones(action, offset, bytes)?;
        self.event("disk {} has changed the zones of {} bytes at {}", [disk as u64, bytes, offset, 0]);
        if fails { Err(Errno::EIO) } else { Ok(0) }
    }

    fn apply_write(&mut self, id: u64, op: &mut InFlight, whole: bool) -> bool {
        let FileOp::Write { offset, bufs, durable, .. } = &op.op else { unreachable!("called for writes") };
        let (mut offset, disk) = (*offset, op.disk);
        let durable = *durable && !self.mutated(Mutation::FuaIgnored);
        if let Some(sum) = op.checksum
            && checksum(bufs) != sum
        {
            self.violation(format!("the data of operation {id} changed while it was under way"));
        }
        let mut data = Vec::with_capacity(reactor::buf::sg_len(bufs));
        bufs.iter().for_each(|buf| data.extend_from_slice(buf.as_slice()));
        let bytes = data.len() as u64;
        let unit = self.disks[disk].0.options.unit as usize;
        if op.applied == 0
            && let Err(errno) = self.disks[disk].0.check_zone(offset, bytes)
        {
            self.event("op {} is not a write that its zone takes", [id, 0, 0, 0]);
            (op.finished, op.outcome) = (true, Err(errno));
            return false;
        }
        if op.applied == 0 && !whole {
            if self.disks[disk].0.lacks_space(offset, bytes) {
                self.event("op {} finds no space", [id, 0, 0, 0]);
                (op.finished, op.outcome) = (true, Err(Errno::ENOSPC));
                return false;
            }
            if self.turns_read_only(disk, offset, bytes) {
                (op.finished, op.outcome) = (true, Err(Errno::EROFS));
                return false;
            }
            if self.damage(disk, offset, bytes, |f| f.lost_write) {
                self.event("op {} is a lost write", [id, 0, 0, 0]);
                self.disks[disk].0.lose(offset, bytes);
                (op.finished, op.outcome) = (true, Ok(data.len()));
                return false;
            }
            if self.fault(disk, offset, bytes, |f| f.write_error) {
                self.event("op {} write error", [id, 0, 0, 0]);
                self.write_some_units(disk, offset, &data);
                (op.finished, op.outcome) = (true, Err(Errno::EIO));
                return true;
            }
            if data.len() >= 2 * unit && self.fault(disk, offset, bytes, |f| f.short_transfer) {
                let part = self.rng.between(1, (data.len() / unit) as u64 - 1) as usize * unit;
                self.event("op {} transfers {} bytes only", [id, part as u64, 0, 0]);
                self.disks[disk].0.write(offset, &data[..part], durable);
                *self.disks[disk].0.written.entry(op.driver).or_default() += part as u64;
                (op.finished, op.outcome) = (true, Ok(part));
                return true;
            }
            if let Some(elsewhere) = self.misdirect(disk, offset, bytes) {
                self.event("op {} lands at {}", [id, elsewhere, 0, 0]);
                offset = elsewhere;
            }
        }
        let rest = data.len() - op.applied;
        let misdirected = offset != extent(&op.op).0;
        let part = if !whole && !misdirected && rest > unit && self.rng.one_in(4) {
            // Up to a unit border, so that the media stays atomic.
            let at = offset as usize + op.applied;
            let units = self.rng.between(1, (rest / unit) as u64) as usize;
            ((at / unit + units) * unit - at).min(rest)
        } else {
            rest
        };
        self.disks[disk].0.write(offset + op.applied as u64, &data[op.applied..op.applied + part], durable);
        self.disks[disk].0.writes_applied += 1;
        *self.disks[disk].0.written.entry(op.driver).or_default() += part as u64;
        self.event("op {} has written {} bytes from {}", [id, part as u64, op.applied as u64, 0]);
        op.applied += part;
        if op.applied == data.len() {
            (op.finished, op.outcome) = (true, Ok(data.len()));
        }
        true
    }

    /// What was accepted before it turned is still done.
    fn turns_read_only(&mut self, disk: usize, offset: u64, bytes: u64) -> bool {
        let turns = self.fault(disk, offset, bytes, |f| f.read_only);
        if turns {
            self.event("disk {} turns read-only", [disk as u64, 0, 0, 0]);
            self.disks[disk].0.read_only = true;
        }
        turns
    }

    fn misdirect(&mut self, disk: usize, offset: u64, bytes: u64) -> Option<u64> {
        if !self.damage(disk, offset, bytes, |f| f.misdirected_write) {
            return None;
        }
        let (state, faults) = &self.disks[disk];
        if state.zones.is_some() {
            // Where it would land nothing is expected, and its zone would not go on.
            return None;
        }
        let unit = state.options.unit as u64;
        let places = state.bytes().checked_sub(bytes)? / unit + 1;
        let elsewhere = self.rng.below(places) * unit;
        faults.damages(elsewhere, bytes).then_some(elsewhere)
    }

    /// A failed write: each unit is written or not; of a zone its first ones, up to some.
    fn write_some_units(&mut self, disk: usize, offset: u64, data: &[u8]) {
        let unit = self.disks[disk].0.options.unit as usize;
        if self.disks[disk].0.has_pointer(offset) {
            let part = self.rng.below((data.len() / unit) as u64 + 1) as usize * unit;
            if part > 0 {
                self.disks[disk].0.write(offset, &data[..part], false);
            }
            return;
        }
        for unit in units_of(offset, data.len(), unit) {
            if self.rng.one_in(2) {
                self.disks[disk].0.write(offset + unit.start as u64, &data[unit], false);
            }
        }
    }

    fn apply_flush(&mut self, disk: usize, sequence: u64) -> Result<usize, Errno> {
        let covered = self.rng.between(sequence, self.disks[disk].0.sequence().max(sequence));
        self.event("disk {} flushes up to {}", [disk as u64, covered, 0, 0]);
        let rate = self.disks[disk].1.flush_error;
        if self.chance(rate) {
            self.event("disk {} fails its flush", [disk as u64, 0, 0, 0]);
            self.disks[disk].0.flush_failed(covered, &mut self.rng);
            return Err(Errno::EIO);
        }
        match self.mutation {
            Some(Mutation::FlushDoesNothing) => {}
            Some(Mutation::ReorderAcrossFlush) => self.disks[disk].0.flush_newest_only(),
            _ => self.disks[disk].0.flush(covered),
        }
        Ok(0)
    }

    fn apply_zero(&mut self, disk: usize, offset: u64, bytes: u64, discard: bool) -> Result<usize, Errno> {
        if self.fault(disk, offset, bytes, |f| f.write_error) {
            return Err(Errno::EIO);
        }
        if self.turns_read_only(disk, offset, bytes) {
            return Err(Errno::EROFS);
        }
        if !discard && self.disks[disk].0.lacks_space(offset, bytes) {
            return Err(Errno::ENOSPC);
        }
        if !(discard && self.mutated(Mutation::DiscardDoesNothing)) {
            self.disks[disk].0.zero(offset, bytes, discard);
        }
        self.event("disk {} zeroes {} bytes at {}", [disk as u64, bytes, offset, 0]);
        Ok(0)
    }

    // --- ending -----------------------------------------------------------------------------------------------------

    pub(crate) fn file_complete(&mut self, id: u64) {
        let Some(mut op) = self.ops.remove(&id) else { return };
        let code = op.outcome.map_or_else(|error| error.0 as u64, |_| 0);
        self.event("op {} completes with error {}", [id, code, 0, 0]);
        let bufs = bufs_of(&mut op.op).map(std::mem::take).unwrap_or_default();
        if self.mutated(Mutation::LoseCompletion) && self.rng.one_in(64) {
            return;
        }
        self.drivers[op.driver].events.push(Event::File { token: op.token, result: op.outcome, bufs });
    }

    /// The operations of dead drivers happen, in part or not at all.
    pub(crate) fn files_crash(&mut self, drivers: &BTreeSet<usize>) {
        let ids: Vec<u64> = self.ops.iter().filter(|(_, op)| drivers.contains(&op.driver)).map(|(id, _)| *id).collect();
        for id in ids {
            let mut op = self.ops.remove(&id).expect("listed a moment ago");
            self.stuck.remove(&id);
            if op.finished {
                continue;
            }
            match self.rng.below(3) {
                0 => {}
                1 => {
                    self.apply(id, &mut op, false);
                }
                _ => {
                    self.apply(id, &mut op, true);
                }
            }
        }
    }

    /// What would be left of the operations of dead drivers on a copy of a disk: each in full, in part or not at all.
    pub(crate) fn finish_on_copy(&self, disk: usize, copy: &mut Disk, loss: CacheLoss, rng: &mut Rng) {
        for op in self.ops.values().filter(|op| op.disk == disk && !op.finished) {
            let share = match loss {
                CacheLoss::All => 0,
                CacheLoss::Nothing => 3,
                CacheLoss::Any | CacheLoss::Suffix => rng.below(4),
            };
            match &op.op {
                _ if share == 0 => {}
                FileOp::Read { .. } => {}
                FileOp::Write { offset, bufs, durable, .. } => {
                    let data: Vec<u8> = bufs.iter().flat_map(|buf| buf.as_slice()).copied().collect();
                    let durable = *durable && !self.mutated(Mutation::FuaIgnored);
                    let units = units_of(*offset, data.len(), copy.options.unit as usize);
                    let last = op.applied + rng.below((data.len() - op.applied) as u64) as usize;
                    if op.applied == 0 && copy.check_zone(*offset, data.len() as u64).is_err() {
                        continue;
                    }
                    let in_order = copy.has_pointer(*offset);
                    for unit in units.filter(|unit| unit.start >= op.applied) {
                        // In full, up to some unit, or any of its units.
                        let up_to = share == 2 || in_order;
                        let written = share == 3 || if up_to { unit.end <= last } else { rng.one_in(2) };
                        if written {
                            copy.write(offset + unit.start as u64, &data[unit], durable);
                        }
                    }
                }
                FileOp::Flush if self.mutated(Mutation::FlushDoesNothing) => {}
                FileOp::Flush => copy.flush(op.sequence),
                FileOp::Discard { offset, bytes } => copy.zero(*offset, *bytes, true),
                FileOp::WriteZeroes { offset, bytes } => copy.zero(*offset, *bytes, false),
                FileOp::ReportZones { .. } => {}
                FileOp::ManageZones { action, offset, bytes } => {
                    // It was refused, then.
                    let _ = copy.manage_zones(*action, *offset, *bytes);
                }
            }
        }
    }

    /// Whether the process of this driver still runs, and how its node last went down.
    pub(crate) fn crash_wanted(&self) -> Option<(crate::state::NodeId, Crash)> {
        let mut nodes = self.nodes.iter().enumerate();
        nodes.find_map(|(index, node)| node.crash_now.map(|crash| (crate::state::NodeId(index), crash)))
    }
}

/// The parts of `bytes` bytes from `offset` on that the media writes atomically, as ranges of the bytes.
fn units_of(offset: u64, bytes: usize, unit: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        at = (((offset as usize + at) / unit + 1) * unit - offset as usize).min(bytes);
        (start < bytes).then_some(start..at)
    })
}

fn file_info(disk: &Disk, file: &OpenFile) -> FileInfo {
    FileInfo {
        bytes: disk.bytes(),
        align: if file.direct { disk.options.unit } else { 1 },
        atomic_bytes: disk.options.unit,
        direct: file.direct,
        is_block_device: disk.options.block_device,
        synchronous: disk.options.synchronous,
        can_discard: disk.options.can_discard,
        rotates: disk.options.rotates,
        zones: disk.options.zones,
        write_streams: disk.options.write_streams,
    }
}
