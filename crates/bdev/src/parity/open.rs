//! Opening a parity device, and making one.

use super::format::{
    Base, FEATURES_KNOWN, KIND, MemberRecord, MemberState, PARITY_MEMBERS_MAX, PARITY_MEMBERS_MIN, Superblock,
};
use super::head::Unequal;
use super::lost::LostRows;
use super::meta::{self, Decided, Disagreement};
use super::rows::Rows;
use super::{Member, OlderCopy, ParityDevice, ROW_BYTES_MAX, Shared};
use crate::blank::{EDGE_BYTES, is_blank};
use crate::device::{BlockDevice, Channel, DeviceError, DeviceInfo, RowInfo};
use crate::io::{Op, OpSet};
use crate::openings::Openings;
use crate::pace::Rate;
use crate::part_name::part_name;
use crate::range_lock::RangeLock;
use crate::signs;
use crate::slots::{self, Slots, UNIT_BYTES};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex};

const CHUNK_BYTES_DEFAULT: u64 = 64 << 10;
/// Of a head, unless the members are small.
const HEAD_BYTES_MIN: u64 = 16 << 20;
/// The head is this part of the device: a shaped pool keeps the shadow of its index there, 1/508 of its capacity, and its journals,
/// 1/8192 at most, beside a catalog of a few megabytes.
const HEAD_SHARE: u64 = 384;
const OPS: OpSet = OpSet::of(&[Op::Read, Op::Write, Op::Flush, Op::Verify]);

/// How a parity device is opened.
#[derive(Clone, Debug)]
pub struct ParityOptions {
    /// Make a new one of members that are zero at their start and end.
    pub create: bool,
    /// With `create`: make one even where something else is.
    pub force: bool,
    /// With `create`: bytes that a row has on each member; 0 chooses 64 KiB. A row has at most 1 MiB of data.
    pub chunk_bytes: u64,
    /// With `create`: bytes of the head; 0 chooses.
    pub head_bytes: u64,
    /// Bytes per second that a rebuild writes at most; 0 is a short pause after each step.
    pub rebuild_rate: u64,
    /// Bytes between two records of how far a rebuild has got.
    pub rebuild_note_bytes: u64,
    /// What members are called that are absent; by number otherwise.
    pub member_names: Vec<String>,
    /// Breaks a rule; for tests of what watches over it.
    pub defect: Option<ParityDefect>,
}

/// A rule of parity devices that can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParityDefect {
    /// Rows are written without their parity.
    SkipParity,
    /// That a member has failed is not recorded.
    SkipRecord,
    /// A member that is being rebuilt is read everywhere.
    ReadUnbuilt,
    /// It grows without its superblocks saying so.
    GrowUnrecorded,
}

impl Default for ParityOptions {
    fn default() -> ParityOptions {
        let (create, force, chunk_bytes, head_bytes, rebuild_rate) = (false, false, 0, 0, 0);
        let (rebuild_note_bytes, member_names, defect) = (256 << 20, Vec::new(), None);
        ParityOptions { create, force, chunk_bytes, head_bytes, rebuild_rate, rebuild_note_bytes, member_names, defect }
    }
}

/// What was found at the start of a member.
pub(super) struct Seen {
    pub(super) superblock: Option<Superblock>,
    /// Nothing but zeroes, at the start and at the end.
    pub(super) blank: bool,
    pub(super) slot_first: u64,
    /// Slots that hold no valid superblock.
    damaged: u64,
    /// Why it cannot be a member as it is.
    pub(super) unfit: Option<String>,
}

/// What may be given up on a device.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Overwrite {
    /// Zeroes alone.
    Nothing,
    /// Whatever it holds.
    All,
}

impl Seen {
    fn absent() -> Seen {
        Seen { superblock: None, blank: false, slot_first: 0, damaged: 0, unfit: None }
    }

    /// Of its superblock; 0 without one.
    pub(super) fn generation(&self) -> u64 {
        self.superblock.as_ref().map_or(0, |own| own.generation)
    }
}

impl ParityDevice {
    /// What a new device of these members would be; otherwise why there cannot be one.
    pub fn plan(members: &[(&str, DeviceInfo)], options: &ParityOptions) -> Result<DeviceInfo, String> {
        refuse_count(members.len())?;
        members.iter().try_for_each(|(name, info)| suits(name, info))?;
        let infos: Vec<DeviceInfo> = members.iter().map(|(_, info)| *info).collect();
        let geometry = plan_rows(&infos, options)?;
        Ok(combine(&infos, infos[0].block_size, &geometry))
    }

    /// Opens (or with [`ParityOptions::create`] makes) the device of `members`; `None` stands for an absent one, of which
    /// there may be one. When [`status`](Self::status) says that something is to be rebuilt, [`rebuild`](Self::rebuild)
    /// does that; the device can be used meanwhile.
    pub async fn open(
        reactor: &Rc<Reactor>,
        name: &str,
        members: Vec<Option<Arc<dyn BlockDevice>>>,
        options: &ParityOptions,
    ) -> Result<ParityDevice, DeviceError> {
        let config = |reason: String| DeviceError::Config { device: name.to_string(), reason };
        let refuse = |reason: String| Err(config(reason));
        let present: Vec<DeviceInfo> = members.iter().flatten().map(|member| member.info()).collect();
        refuse_count(members.len()).map_err(config)?;
        let creates = if options.create && options.force { Overwrite::All } else { Overwrite::Nothing };
        let (mut members, mut seen) = (members, Vec::new());
        for member in &members {
            seen.push(match member {
                Some(member) => look(reactor, name, member, creates).await?,
                None => Seen::absent(),
            });
        }
        let found: Vec<Option<Superblock>> = seen.iter().map(|seen| seen.superblock.clone()).collect();
        let fresh = options.create && (options.force || found.iter().all(Option::is_none));
        let mut put_back = None;
        let mut superblock = if fresh {
            if let Some(index) = members.iter().position(Option::is_none) {
                let name = part_name("member", index, None, &options.member_names);
                return refuse(format!("a new parity device needs all its members, and {name} is absent"));
            }
            if let Some(why) = seen.iter().find_map(|seen| seen.unfit.clone()) {
                let kib = EDGE_BYTES / 1024;
                let way = format!("; wipe {kib} KiB at its start and at its end, or create the device with force");
                return refuse(if options.force { why } else { why + &way });
            }
            if let Some(index) = seen.iter().position(|seen| !seen.blank && !options.force) {
                let name = part_name("member", index, members[index].as_ref(), &options.member_names);
                return refuse(format!("{name} cannot be read; replace it, or create the device with force"));
            }
            let superblock = plan(reactor, name, &present, options)?;
            for member in members.iter().flatten() {
                fits(&superblock, &**member).map_err(config)?;
            }
            superblock
        } else {
            let blank: Vec<bool> = seen.iter().map(|seen| seen.blank).collect();
            let mut decided = meta::decide(&found, &blank).map_err(|why| {
                let unfit: Vec<&str> = seen.iter().filter_map(|seen| seen.unfit.as_deref()).collect();
                config(
                    [explain(&why, &members, &options.member_names)]
                        .iter()
                        .map(String::as_str)
                        .chain(unfit)
                        .collect::<Vec<_>>()
                        .join("; "),
                )
            })?;
            leave_out(name, &mut members, &options.member_names, &mut seen, &mut decided)?;
            put_back = decided.put_back;
            decided.superblock
        };
        let present: Vec<DeviceInfo> = members.iter().flatten().map(|member| member.info()).collect();
        let was_clean = superblock.clean && !fresh;
        superblock.clean = false;
        for (index, record) in superblock.members.iter_mut().enumerate() {
            if record.state == MemberState::Rebuilding && (found[index].is_none() || put_back == Some(index)) {
                (record.id, record.rebuilt_rows) = (random_id(reactor), 0);
            }
        }
        let newest = superblock.generation;
        superblock.openings.begin(newest + 1, reactor.driver().random_u64());
        let device = ParityDevice { shared: Arc::new(assemble(name, members, &present, superblock, options)) };
        for (index, (member, seen)) in device.shared.members.iter().zip(&seen).enumerate() {
            member.slot_first.store(seen.slot_first, Release);
            member.generation.store(seen.generation(), Release);
            let generation = seen.superblock.as_ref().map_or(newest, |own| own.generation);
            let is_in_sync = device.shared.state(index) == MemberState::InSync;
            member.set_older((!is_in_sync && generation < newest).then_some(OlderCopy { generation, newest }));
        }
        device.begin(reactor, fresh, was_clean).await?;
        device.tell(&seen);
        Ok(device)
    }

    /// Makes the decisions of `open` durable: a new generation on all members in use. And one more, so that a
    /// member that is put back from a copy made before is told from one that a crash has left behind.
    async fn begin(&self, reactor: &Rc<Reactor>, fresh: bool, was_clean: bool) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let failed = |action| move |status| DeviceError::Io { device: shared.name.clone(), action, status };
        let inner = self.inner(reactor);
        if fresh {
            // An older device's superblock must not outlive this one's first.
            for (member, slot) in shared.active().into_iter().flat_map(|member| [(member, 0), (member, 1)]) {
                inner.slots(member).write_unit(slot, &[0; UNIT_BYTES]).await.map_err(failed("write its metadata"))?;
            }
        }
        for _ in 0..2 {
            inner.write_superblocks().await.map_err(failed("write its metadata"))?;
        }
        if !was_clean {
            shared.unequal.mark(0, shared.geometry().head);
        }
        Ok(())
    }

    /// What an operator should know.
    fn tell(&self, seen: &[Seen]) {
        let shared = &self.shared;
        for (index, (member, seen)) in shared.members.iter().zip(seen).enumerate() {
            let (state, name) = (shared.state(index), shared.member_name(index));
            if seen.superblock.is_some() && seen.damaged > 0 && state != MemberState::Failed {
                member.repairs.fetch_add(1, Relaxed);
                tracing::info!(parity = shared.name, slots = seen.damaged, "rewrote superblock slots of {name}");
            }
            if let Some(OlderCopy { generation, newest }) = member.older() {
                let then = match state {
                    MemberState::Rebuilding => "it is filled anew from the others",
                    _ => "it is filled anew when it is rejoined",
                };
                tracing::warn!(
                    parity = shared.name,
                    "{name} holds an older copy of the data (generation {generation}, the device is at {newest}): {then}"
                );
            }
            if state != MemberState::InSync {
                tracing::warn!(
                    parity = shared.name,
                    "{name} is {}: no other member can be done without",
                    state.words()
                );
            }
        }
    }
}

/// Takes out members that hold something else, or are too small: the others suffice, and what is in a bay must not keep
/// them from being used. It is taken in when its place is given to it.
fn leave_out(
    name: &str,
    members: &mut [Option<Arc<dyn BlockDevice>>],
    names: &[String],
    seen: &mut [Seen],
    decided: &mut Decided,
) -> Result<(), DeviceError> {
    let unfit = |index: usize| decided.unfit.iter().find(|unfit| unfit.index() == Some(index));
    for index in 0..members.len() {
        let Some(member) = &members[index] else { continue };
        let is_used = decided.superblock.members[index].state != MemberState::Failed;
        let too_small = fits(&decided.superblock, &**member).err();
        let lacks_room = too_small.is_some();
        let why = match (unfit(index), seen[index].unfit.take()) {
            (Some(unfit), _) => Some(explain(unfit, members, names)),
            (None, Some(why)) => Some(why),
            (None, None) => too_small,
        };
        // A blank one is done without as well, and one that was put back.
        let holds_data = is_used && seen[index].superblock.is_some() && decided.put_back != Some(index);
        match why {
            Some(reason) if holds_data => {
                let device = name.to_string();
                return Err(match lacks_room {
                    true => DeviceError::TooSmall { device, reason },
                    false => DeviceError::Config { device, reason },
                });
            }
            Some(why) => {
                tracing::warn!(parity = name, "{why}; the device goes on without it");
                (members[index], seen[index]) = (None, Seen::absent());
                decided.superblock.members[index].state = MemberState::Failed;
            }
            None => {}
        }
    }
    Ok(())
}

fn refuse_count(members: usize) -> Result<(), String> {
    let (least, most) = (PARITY_MEMBERS_MIN, PARITY_MEMBERS_MAX);
    match (least..=most).contains(&members) {
        true => Ok(()),
        false => Err(format!("it has {members} members: expected {least} to {most}")),
    }
}

/// Why a device can be no member, whatever it holds.
fn suits(name: &str, info: &DeviceInfo) -> Result<(), String> {
    let known_size = (512..=65_536).contains(&info.block_size) && info.block_size.is_power_of_two();
    if !known_size || info.blocks < 4 * Slots::unit_blocks(info.block_size) {
        return Err(format!("member '{name}' is too small"));
    }
    if info.zoned.is_some() || info.rows.is_some() || !info.ops.contains(Op::Read) || !info.ops.contains(Op::Write) {
        return Err(format!("member '{name}' cannot be read and overwritten anywhere"));
    }
    Ok(())
}

/// Reads the superblock slots of a member. One valid slot suffices; a member without any that can be read is as good as absent.
pub(super) async fn look(
    reactor: &Rc<Reactor>,
    name: &str,
    member: &Arc<dyn BlockDevice>,
    overwrite: Overwrite,
) -> Result<Seen, DeviceError> {
    let refuse = |reason: String| Err(DeviceError::Config { device: name.to_string(), reason });
    let (info, child) = (member.info(), member.name());
    let overwrites = overwrite == Overwrite::All;
    let unfit = |why: String| Ok(Seen { unfit: Some(why), ..Seen::absent() });
    if let Err(why) = suits(child, &info) {
        return unfit(why);
    }
    let channel: Rc<dyn Channel> = member.open_channel(reactor)?;
    let slots = Slots { reactor, channel: &*channel, block_size: info.block_size, kind: KIND };
    let mut found = slots.read(Superblock::decode).await;
    if found.newest.is_none() && found.blank {
        match is_blank(reactor, &*channel, &info).await {
            Ok(blank) => found.blank = blank,
            Err(status) => (found.blank, found.unreadable) = (false, Some(status)),
        }
    }
    if let Some(status) = found.unreadable {
        tracing::warn!(parity = name, %status, "a superblock slot of member '{child}' cannot be read");
    }
    if let Some(version) = found.newer_version.filter(|_| !overwrites) {
        return refuse(slots::refuse_newer(&format!("superblock of member '{child}'"), version));
    }
    let unknown = found.newest.as_ref().map_or(0, |own| own.features & !FEATURES_KNOWN);
    if unknown != 0 && !overwrites {
        return refuse(format!("member '{child}' uses features that this release does not know (bits {unknown:#x})"));
    }
    let foreign = found.newest.is_none() && !found.blank && found.unreadable.is_none();
    if foreign && !overwrites {
        let holds = signs::in_place_of(signs::PARITY_MEMBER, reactor, &*channel, &info).await;
        return unfit(format!("member '{child}' holds {holds}"));
    }
    let newest = found.newest.filter(|_| unknown == 0);
    Ok(Seen { superblock: newest, blank: found.blank, slot_first: found.first, damaged: found.damaged, unfit: None })
}

/// Why a device cannot be a member.
pub(super) fn fits(superblock: &Superblock, member: &dyn BlockDevice) -> Result<(), String> {
    let (info, needed) = (member.info(), superblock.geometry.member_blocks());
    if info.block_size != superblock.block_size || info.blocks < needed {
        let (name, blocks, size) = (member.name(), info.blocks, info.block_size);
        let wanted = superblock.block_size;
        return Err(format!("member '{name}' has {blocks} blocks of {size} bytes, {needed} of {wanted} are needed"));
    }
    Ok(())
}

pub(super) fn random_id(reactor: &Rc<Reactor>) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
    id[8..].copy_from_slice(&reactor.driver().random_u64().to_le_bytes());
    id
}

/// The geometry and identity of a new device.
fn plan(
    reactor: &Rc<Reactor>,
    name: &str,
    members: &[DeviceInfo],
    options: &ParityOptions,
) -> Result<Superblock, DeviceError> {
    let geometry =
        plan_rows(members, options).map_err(|reason| DeviceError::Config { device: name.to_string(), reason })?;
    let member = |_| MemberRecord { id: random_id(reactor), state: MemberState::InSync, rebuilt_rows: 0 };
    Ok(Superblock {
        array_id: random_id(reactor),
        generation: 0,
        base: Base::default(),
        features: 0,
        block_size: members[0].block_size,
        member_index: 0,
        clean: false,
        geometry,
        members: (0..members.len()).map(member).collect(),
        openings: Openings::default(),
    })
}

fn plan_rows(members: &[DeviceInfo], options: &ParityOptions) -> Result<Rows, String> {
    let (block_size, count) = (members[0].block_size as u64, members.len());
    if members.iter().any(|info| info.block_size as u64 != block_size) {
        return Err("its members differ in block size".to_string());
    }
    let least = members.iter().map(|info| info.blocks).min().unwrap_or(0);
    let row_bytes = |chunk: u64| (count as u64 - 1).saturating_mul(chunk);
    let chunk_bytes = if options.chunk_bytes == 0 { CHUNK_BYTES_DEFAULT } else { options.chunk_bytes };
    // Blocks of 4 KiB, which pools have, must not cross a chunk.
    let unit = block_size.max(4096);
    if !chunk_bytes.is_multiple_of(unit) || row_bytes(chunk_bytes) > ROW_BYTES_MAX {
        let most = ROW_BYTES_MAX / (count as u64 - 1) / unit * unit / 1024;
        return Err(format!(
            "chunks of {chunk_bytes} bytes: expected a multiple of {unit} bytes, of {most} KiB at most with {count} members"
        ));
    }
    // The head begins on a megabyte where that wastes nothing to speak of.
    let is_large = least * block_size >= 64 << 20;
    let front = KIND.copies * Slots::unit_blocks(block_size as u32);
    let align = if is_large { (1 << 20) / block_size } else { unit / block_size };
    let data_start = front.next_multiple_of(align);
    let share = least * block_size * (count as u64 - 1) / HEAD_SHARE;
    let head_bytes = match options.head_bytes {
        0 => share.max(HEAD_BYTES_MIN.min(least * block_size / 8)).next_multiple_of(if is_large {
            1 << 20
        } else {
            unit
        }),
        bytes => bytes.next_multiple_of(unit),
    };
    let (head, chunk) = (head_bytes / block_size, chunk_bytes / block_size);
    let rows = least.saturating_sub(data_start).saturating_sub(head) / chunk;
    if rows == 0 {
        return Err(format!(
            "members of {} KiB leave no room behind a head of {} KiB; give it larger ones, or a smaller head",
            least * block_size / 1024,
            head_bytes / 1024
        ));
    }
    Ok(Rows { members: count, chunk, data_start, head, rows })
}

pub(super) fn explain(why: &Disagreement, members: &[Option<Arc<dyn BlockDevice>>], names: &[String]) -> String {
    let name = |index: &usize| {
        let device = members[*index].as_ref();
        let absent = if device.is_none() { " (absent)" } else { "" };
        part_name("member", *index, device, names) + absent
    };
    match why {
        Disagreement::Nothing => {
            "none of its members holds anything of it; name the right ones, or open it in a node, which makes one of blank members".to_string()
        }
        Disagreement::Foreign(index) => {
            format!("{} belongs to another parity device; name the right device", name(index))
        }
        Disagreement::Swapped(index, other) => format!(
            "{} is member {other} of this device; give its members in the order in which it was made",
            name(index)
        ),
        Disagreement::Apart(index, other) => format!(
            "{} and {} were used without each other, as parts of copies of the device, and differ; give it members that were used together",
            name(other),
            name(index)
        ),
        Disagreement::Differs(index) => format!("{} has another geometry than the others; replace it", name(index)),
        Disagreement::Count(count) => format!("it has {count} members, {} are given", members.len()),
        Disagreement::Lost(lost) => format!(
            "{} lack data, and one member can be done without; bring back one that was not failed",
            lost.iter().map(name).collect::<Vec<_>>().join(" and ")
        ),
    }
}

fn assemble(
    name: &str,
    members: Vec<Option<Arc<dyn BlockDevice>>>,
    infos: &[DeviceInfo],
    superblock: Superblock,
    options: &ParityOptions,
) -> Shared {
    let (geometry, block_size) = (superblock.geometry, superblock.block_size as u64);
    let rebuilt = superblock.members.iter().find(|record| record.state == MemberState::Rebuilding);
    let member = |(device, record): (Option<Arc<dyn BlockDevice>>, &MemberRecord)| Member {
        device: Mutex::new(device),
        joins: AtomicU32::new(0),
        slot_first: AtomicU64::new(0),
        generation: AtomicU64::new(0),
        older: Mutex::new(None),
        state: AtomicU8::new(record.state.code()),
        read_errors: AtomicU64::new(0),
        repairs: AtomicU64::new(0),
    };
    Shared {
        name: name.to_string(),
        opened: combine(infos, superblock.block_size, &geometry),
        layout: geometry,
        rows: AtomicU64::new(geometry.rows),
        members: members.into_iter().zip(&superblock.members).map(member).collect(),
        ranges: RangeLock::new(geometry.row_blocks()),
        flushes: Arc::default(),
        meta_turn: RangeLock::new(1),
        rebuilt_rows: AtomicU64::new(rebuilt.map_or(0, |record| record.rebuilt_rows)),
        superblock: Mutex::new(superblock),
        unrecorded: AtomicBool::new(false),
        clean: AtomicBool::new(false),
        unequal: Unequal::none(geometry.head, block_size),
        rebuild_turn: RangeLock::new(1),
        join_turn: RangeLock::new(1),
        rebuild_bytes_per_s: AtomicU64::new(0),
        halted: Mutex::new(None),
        closing: AtomicBool::new(false),
        lost_rows: LostRows::default(),
        reconstructed_reads: AtomicU64::new(0),
        lost_blocks: AtomicU64::new(0),
        note_bytes: options.rebuild_note_bytes,
        rebuild_rate: Rate::new(options.rebuild_rate),
        member_names: options.member_names.clone(),
        defect: options.defect,
    }
}

fn combine(infos: &[DeviceInfo], block_size: u32, geometry: &Rows) -> DeviceInfo {
    let common = infos.iter().fold(OpSet::of(&Op::ALL), |ops, info| ops.intersection(info.ops));
    let least = |value: fn(&DeviceInfo) -> u32| infos.iter().map(value).min().unwrap_or(1);
    let ops = if common.contains(Op::Unmap) { OPS.union(OpSet::of(&[Op::Unmap])) } else { OPS };
    let row_blocks = geometry.row_blocks();
    let row_bytes = row_blocks * block_size as u64;
    // As many rows as members take at once, in buffers of one size.
    let rows_at_once = (least(|info| info.max_io_blocks) as u64 / geometry.chunk).min(ROW_BYTES_MAX / row_bytes).max(1);
    DeviceInfo {
        ops,
        optimal_io_blocks: row_blocks as u32,
        max_io_blocks: (rows_at_once * row_blocks) as u32,
        atomic_write_blocks: least(|info| info.atomic_write_blocks).min(1),
        compare_and_write_blocks: 0,
        volatile_cache: infos.iter().any(|info| info.volatile_cache),
        loans: infos.iter().all(|info| info.loans),
        streams: infos.iter().map(|info| info.streams).min().unwrap_or(0),
        rows: Some(RowInfo { start: geometry.head, blocks: row_blocks as u32, zones: None }),
        versions: geometry.members as u8,
        ..DeviceInfo::basic(block_size, geometry.blocks())
    }
}
