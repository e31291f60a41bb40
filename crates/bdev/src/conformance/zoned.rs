//! What every zoned device must do. The checks use its first zones, which are empty or can be reset.

use super::*;
use crate::zone::{Zone, ZoneState};

checks![
    pub(super)
    describes_itself,
    describes_its_zones,
    refuses_bad_zone_requests,
    writes_at_the_pointer_alone,
    appends_where_it_says,
    appends_side_by_side,
    reads_zeroes_behind_the_pointer,
    changes_states_as_it_should,
    keeps_its_limits,
    finishes_and_resets_all,
    flushes_and_forces_zones,
    survives_dropped_zone_writes,
    matches_a_model_of_zones,
];

/// Zones that the checks look at.
const ZONES: u64 = 6;

impl Subject {
    fn zoned(&self) -> ZonedInfo {
        self.info.zoned.expect("the checks of zones run on zoned devices")
    }

    fn zones(&self) -> u64 {
        (self.info.blocks / self.zoned().zone_blocks).min(ZONES)
    }

    fn start(&self, zone: u64) -> u64 {
        zone * self.zoned().zone_blocks
    }

    fn capacity(&self) -> u64 {
        self.zoned().zone_capacity_blocks
    }

    fn step(&self) -> u32 {
        self.capacity().min(u64::from(self.largest())).min(64) as u32
    }

    async fn manage(&self, op: Op, zone: u64, status: Status) -> Outcome {
        self.expect(Io::new(op, Lba(self.start(zone)), 0), status).await.map(|_| ())
    }

    async fn manage_all(&self, op: Op, status: Status) -> Outcome {
        self.expect(Io { flags: Flags::ALL_ZONES, ..Io::new(op, Lba(0), 0) }, status).await.map(|_| ())
    }

    async fn report(&self) -> Result<Vec<Zone>, String> {
        let count = self.zones() as u32;
        let bufs = self.buffers(count as usize * crate::zone::ZONE_RECORD_BYTES).await;
        let done = self.expect(Io { bufs, ..Io::new(Op::ZoneReport, Lba(0), count) }, Status::Ok).await?;
        Zone::load_report(&done.io.bufs).map_err(|status| format!("a report has records that are none: {status}"))
    }

    async fn expect_zone(&self, zone: u64, state: ZoneState, written: Option<u64>) -> Outcome {
        let found = self.report().await?[zone as usize];
        let right = found.state == state && written.is_none_or(|blocks| found.write_pointer == found.start + blocks);
        ensure(right, || format!("zone {zone} is {found:?}, expected {} with {written:?} blocks", state.name()))
    }

    async fn write_as(&self, lba: u64, nblocks: u32, version: u64, status: Status) -> Outcome {
        let bufs = self.pattern_buffers(lba, nblocks, version).await;
        self.expect(Io::write(Lba(lba), nblocks, bufs), status).await.map(|_| ())
    }

    async fn fill(&self, zone: u64, version: u64) -> Outcome {
        let mut at = 0;
        while at < self.capacity() {
            let count = u64::from(self.step()).min(self.capacity() - at);
            self.write_as(self.start(zone) + at, count as u32, version, Status::Ok).await?;
            at += count;
        }
        Ok(())
    }
}

async fn describes_its_zones(t: &Subject) -> Outcome {
    let zoned = t.zoned();
    ensure(zoned.zone_blocks > 0 && t.info.blocks.is_multiple_of(zoned.zone_blocks), || format!("{:?}", t.info))?;
    ensure((1..=zoned.zone_blocks).contains(&zoned.zone_capacity_blocks), || format!("{zoned:?}"))?;
    let needed = [Op::Read, Op::Write, Op::Flush, Op::ZoneAppend, Op::ZoneReport, Op::ZoneReset, Op::ZoneFinish];
    ensure(t.can(&needed), || format!("a zoned device without some of {needed:?}"))?;
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    for (index, zone) in t.report().await?.into_iter().enumerate() {
        let right = zone.start == t.start(index as u64) && zone.capacity == t.capacity();
        ensure(right && zone.state == ZoneState::Empty, || format!("after a reset of all, zone {index} is {zone:?}"))?;
    }
    Ok(())
}

async fn refuses_bad_zone_requests(t: &Subject) -> Outcome {
    let blocks = t.info.blocks;
    let changes = [Op::ZoneReset, Op::ZoneOpen, Op::ZoneClose, Op::ZoneFinish, Op::ZoneOffline];
    for op in changes.into_iter().filter(|op| t.can(&[*op])) {
        t.expect(Io::new(op, Lba(blocks), 0), Status::OutOfRange).await?;
        t.expect(Io::new(op, Lba(0), 1), Status::Invalid).await?;
        if t.zoned().zone_blocks > 1 {
            t.expect(Io::new(op, Lba(1), 0), Status::Invalid).await?;
        }
    }
    for (lba, nblocks, status) in [(blocks, 1, Status::OutOfRange), (0, 0, Status::Invalid), (0, 1, Status::Invalid)] {
        t.expect(Io::new(Op::ZoneAppend, Lba(lba), nblocks), status).await?;
        t.expect(Io::new(Op::ZoneReport, Lba(lba), nblocks), status).await?;
    }
    t.expect(Io::new(Op::Read, Lba(blocks), 1), Status::OutOfRange).await?;
    for op in Op::ALL.into_iter().filter(|op| !t.can(&[*op])) {
        t.expect(Io::new(op, Lba(0), 1), Status::Unsupported).await?;
    }
    Ok(())
}

async fn writes_at_the_pointer_alone(t: &Subject) -> Outcome {
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    let capacity = t.capacity();
    if capacity > 1 {
        t.write_as(t.start(0) + 1, 1, 1, Status::ZoneInvalidWrite).await?;
    }
    t.write_as(t.start(0), 1, 1, Status::Ok).await?;
    if capacity > 1 {
        t.expect_zone(0, ZoneState::ImplicitlyOpen, Some(1)).await?;
        t.write_as(t.start(0), 1, 2, Status::ZoneInvalidWrite).await?;
    }
    t.expect_version(t.start(0), 1, 1, "refused writes after it").await?;
    t.manage(Op::ZoneReset, 0, Status::Ok).await?;
    t.fill(0, 3).await?;
    t.expect_zone(0, ZoneState::Full, None).await?;
    t.write_as(t.start(0), 1, 4, Status::ZoneFull).await?;
    t.expect_version(t.start(0) + capacity - 1, 1, 3, "in a full zone").await?;
    if capacity < u64::from(t.largest()) {
        t.manage(Op::ZoneReset, 0, Status::Ok).await?;
        t.write_as(t.start(0), capacity as u32 + 1, 5, Status::ZoneBoundary).await?;
        t.expect_zone(0, ZoneState::Empty, Some(0)).await?;
    }
    Ok(())
}

async fn appends_where_it_says(t: &Subject) -> Outcome {
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    for at in 0..t.capacity().min(5) {
        let lba = t.start(0) + at;
        let bufs = t.pattern_buffers(lba, 1, 10).await;
        let io = Io { bufs, tag: 5, ..Io::new(Op::ZoneAppend, Lba(t.start(0)), 1) };
        let done = t.expect(io, Status::Ok).await?;
        ensure(done.io.lba == Lba(lba) && done.io.tag == 5, || format!("the append to {lba} says {:?}", done.io.lba))?;
        t.expect_version(lba, 1, 10, "after an append").await?;
    }
    Ok(())
}

/// Appends under way at the same time have each a place of their own.
async fn appends_side_by_side(t: &Subject) -> Outcome {
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    let count = t.capacity().min(24);
    let mut ios = Vec::new();
    for number in 0..count {
        // The block's content cannot tell its place, which nobody knows yet.
        let bufs = t.pattern_buffers(number, 1, 11).await;
        ios.push(Io { bufs, tag: number, ..Io::new(Op::ZoneAppend, Lba(t.start(1)), 1) });
    }
    let mut taken = vec![false; count as usize];
    for done in all_ok(t, ios).await? {
        let at = done.io.lba.0.wrapping_sub(t.start(1));
        let is_new = taken.get_mut(at as usize).is_some_and(|taken| !std::mem::replace(taken, true));
        ensure(is_new, || format!("an append went to block {at} of its zone, outside or taken"))?;
        ensure(t.read(done.io.lba.0, 1).await? == t.pattern(done.io.tag, 1, 11), || {
            format!("an append is not where it says, at block {at} of its zone")
        })?;
    }
    Ok(())
}

async fn reads_zeroes_behind_the_pointer(t: &Subject) -> Outcome {
    let last = t.zones() - 1;
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    t.fill(last, 20).await?;
    t.manage(Op::ZoneReset, last, Status::Ok).await?;
    t.write_as(t.start(last), 1, 21, Status::Ok).await?;
    let nblocks = t.capacity().min(u64::from(t.largest())) as u32;
    let mut expected = t.pattern(t.start(last), 1, 21);
    expected.resize(nblocks as usize * t.block_size(), 0);
    ensure(t.read(t.start(last), nblocks).await? == expected, || "old data behind a pointer".to_string())?;
    if last > 0 && t.zoned().zone_blocks > 1 {
        // Across a boundary, from what is behind a pointer or a capacity to what is written.
        t.manage(Op::ZoneReset, last - 1, Status::Ok).await?;
        let mut expected = vec![0; t.block_size()];
        expected.extend(t.pattern(t.start(last), 1, 21));
        let found = t.read(t.start(last) - 1, 2).await?;
        ensure(found == expected, || "a read across zones is wrong".to_string())?;
    }
    if t.info.loans {
        let done = t.expect(Io::read_loan(Lba(t.start(last)), nblocks), Status::Ok).await?;
        let bytes = reactor::buf::sg_len(&done.io.bufs);
        ensure(bytes == nblocks as usize * t.block_size(), || format!("{bytes} bytes lent"))?;
    }
    Ok(())
}

async fn changes_states_as_it_should(t: &Subject) -> Outcome {
    use ZoneState::{Closed, Empty, ExplicitlyOpen, Full, ImplicitlyOpen};
    if t.capacity() < 3 {
        return Ok(());
    }
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    t.manage(Op::ZoneClose, 0, Status::ZoneInvalidTransition).await?;
    if t.can(&[Op::ZoneOffline]) {
        t.manage(Op::ZoneOffline, 0, Status::ZoneInvalidTransition).await?;
    }
    t.manage(Op::ZoneReset, 0, Status::Ok).await?;
    t.manage(Op::ZoneOpen, 0, Status::Ok).await?;
    t.expect_zone(0, ExplicitlyOpen, Some(0)).await?;
    t.write_as(t.start(0), 1, 30, Status::Ok).await?;
    t.expect_zone(0, ExplicitlyOpen, Some(1)).await?;
    for _ in 0..2 {
        t.manage(Op::ZoneClose, 0, Status::Ok).await?;
        t.expect_zone(0, Closed, Some(1)).await?;
    }
    t.write_as(t.start(0) + 1, 1, 31, Status::Ok).await?;
    t.expect_zone(0, ImplicitlyOpen, Some(2)).await?;
    for _ in 0..2 {
        t.manage(Op::ZoneFinish, 0, Status::Ok).await?;
        t.expect_zone(0, Full, None).await?;
    }
    t.expect_version(t.start(0) + 1, 1, 31, "in a finished zone").await?;
    t.expect_version(t.start(0) + 2, 1, 0, "never written in a finished zone").await?;
    for op in [Op::ZoneOpen, Op::ZoneClose] {
        t.manage(op, 0, Status::ZoneInvalidTransition).await?;
    }
    t.write_as(t.start(0) + 2, 1, 32, Status::ZoneFull).await?;
    t.manage(Op::ZoneReset, 0, Status::Ok).await?;
    t.expect_zone(0, Empty, Some(0)).await?;
    t.manage(Op::ZoneFinish, 0, Status::Ok).await?;
    t.expect_zone(0, Full, None).await?;
    t.manage(Op::ZoneReset, 0, Status::Ok).await
}

async fn keeps_its_limits(t: &Subject) -> Outcome {
    let (open, active) = (u64::from(t.zoned().open_zones_max), u64::from(t.zoned().active_zones_max));
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    if open > 0 && open < t.zones() {
        for zone in 0..open {
            t.manage(Op::ZoneOpen, zone, Status::Ok).await?;
        }
        let refused = if active == open { Status::ZoneTooManyActive } else { Status::ZoneTooManyOpen };
        t.manage(Op::ZoneOpen, open, refused).await?;
        t.write_as(t.start(open), 1, 40, refused).await?;
        // A zone that a write opened makes room.
        if active == 0 || active > open {
            t.manage(Op::ZoneReset, 0, Status::Ok).await?;
            t.write_as(t.start(0), 1, 41, Status::Ok).await?;
            if t.capacity() > 1 {
                t.manage(Op::ZoneOpen, open, Status::Ok).await?;
                t.expect_zone(0, ZoneState::Closed, Some(1)).await?;
            }
        }
    }
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    if active > 0 && active < t.zones() {
        for zone in 0..active {
            t.manage(Op::ZoneOpen, zone, Status::Ok).await?;
            t.manage(Op::ZoneClose, zone, Status::Ok).await?;
        }
        t.write_as(t.start(active), 1, 42, Status::ZoneTooManyActive).await?;
        t.manage(Op::ZoneFinish, 0, Status::Ok).await?;
        t.write_as(t.start(active), 1, 43, Status::Ok).await?;
    }
    Ok(())
}

async fn finishes_and_resets_all(t: &Subject) -> Outcome {
    if t.zones() < 3 || t.capacity() < 2 || t.zoned().active_zones_max == 1 {
        return Ok(());
    }
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    for zone in 0..2 {
        t.write_as(t.start(zone), 1, 45, Status::Ok).await?;
    }
    t.manage_all(Op::ZoneClose, Status::Ok).await?;
    t.expect_zone(0, ZoneState::Closed, Some(1)).await?;
    t.manage_all(Op::ZoneFinish, Status::Ok).await?;
    for (zone, state) in [(0, ZoneState::Full), (1, ZoneState::Full), (2, ZoneState::Empty)] {
        t.expect_zone(zone, state, None).await?;
    }
    t.manage_all(Op::ZoneOpen, Status::Ok).await?;
    if t.can(&[Op::ZoneOffline]) {
        t.manage_all(Op::ZoneOffline, Status::Ok).await?;
    }
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    t.expect_zone(1, ZoneState::Empty, Some(0)).await
}

async fn flushes_and_forces_zones(t: &Subject) -> Outcome {
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    let bufs = t.pattern_buffers(t.start(0), 1, 50).await;
    t.expect(Io { flags: Flags::FUA, ..Io::write(Lba(t.start(0)), 1, bufs) }, Status::Ok).await?;
    t.expect(Io::flush(), Status::Ok).await?;
    t.expect_version(t.start(0), 1, 50, "forced and flushed").await?;
    if t.capacity() > 1 && t.can(&[Op::WriteZeroes]) {
        t.expect(Io::new(Op::WriteZeroes, Lba(t.start(0)), 1), Status::ZoneInvalidWrite).await?;
        t.expect(Io::new(Op::WriteZeroes, Lba(t.start(0) + 1), 1), Status::Ok).await?;
        t.expect_version(t.start(0) + 1, 1, 0, "zeroes written").await?;
    }
    Ok(())
}

/// A write whose future is dropped goes on, and the zone with it.
async fn survives_dropped_zone_writes(t: &Subject) -> Outcome {
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    let tasks = t.reactor.live_tasks();
    for at in 0..t.capacity().min(16) {
        let bufs = t.pattern_buffers(t.start(0) + at, 1, 60).await;
        let mut future = t.channel.submit(Io::write(Lba(t.start(0) + at), 1, bufs));
        let polls = t.random(0, 3);
        poll_some(&t.reactor, &mut future, polls).await;
    }
    t.settle(tasks).await?;
    for at in 0..t.capacity().min(16) {
        t.expect_version(t.start(0) + at, 1, 60, "after its future was dropped").await?;
    }
    Ok(())
}

/// What a zone must hold: versions of its blocks, and whether it is full.
#[derive(Clone, Default)]
struct Model {
    blocks: Vec<u64>,
    full: bool,
}

async fn matches_a_model_of_zones(t: &Subject) -> Outcome {
    if !t.stores() {
        return Ok(());
    }
    t.manage_all(Op::ZoneReset, Status::Ok).await?;
    let active = t.zoned().active_zones_max;
    let zones = if active > 0 { t.zones().min(u64::from(active)) } else { t.zones() };
    let mut model = vec![Model::default(); zones as usize];
    for round in 0..t.options.random_ops as u64 / 2 {
        let (index, version) = (t.random(0, zones - 1), 2000 + round);
        let zone = &mut model[index as usize];
        let (start, written) = (t.start(index), zone.blocks.len() as u64);
        match t.random(0, 15) {
            0 => {
                t.manage(Op::ZoneReset, index, Status::Ok).await?;
                *zone = Model::default();
            }
            1 => {
                t.manage(Op::ZoneFinish, index, Status::Ok).await?;
                zone.full = true;
            }
            2 => t.expect(Io::flush(), Status::Ok).await.map(|_| ())?,
            3..=10 if !zone.full => {
                let most = (t.capacity() - written).min(u64::from(t.largest())).min(24);
                let count = t.random(1, most);
                let bufs = t.pattern_buffers(start + written, count as u32, version).await;
                let append = t.random(0, 1) == 0;
                let (op, lba) = if append { (Op::ZoneAppend, start) } else { (Op::Write, start + written) };
                let flags = if t.random(0, 7) == 0 { Flags::FUA } else { Flags::NONE };
                let io = Io { bufs: cut(t, bufs, 3), flags, ..Io::new(op, Lba(lba), count as u32) };
                let done = t.expect(io, Status::Ok).await?;
                ensure(done.io.lba.0 == start + written, || format!("a write to {} went elsewhere", start + written))?;
                zone.blocks.extend(std::iter::repeat_n(version, count as usize));
                zone.full = zone.blocks.len() as u64 == t.capacity();
            }
            _ => {
                let at = t.random(0, t.capacity() - 1);
                let count = t.random(1, (t.capacity() - at).min(24));
                let versions = (at..at + count).map(|at| zone.blocks.get(at as usize).copied().unwrap_or(0));
                let expected: Vec<u8> =
                    versions.zip(at..).flat_map(|(version, at)| t.pattern(start + at, 1, version)).collect();
                ensure(t.read(start + at, count as u32).await? == expected, || {
                    format!("blocks {at}+{count} of zone {index} differ from the model")
                })?;
            }
        }
    }
    let found = t.report().await?;
    for (zone, model) in found.iter().zip(&model) {
        let written = model.blocks.len() as u64;
        let right = (zone.state == ZoneState::Full) == model.full;
        ensure(right && (model.full || zone.write_pointer == zone.start + written), || {
            format!("{zone:?} after {written} blocks, full: {}", model.full)
        })?;
    }
    t.manage_all(Op::ZoneReset, Status::Ok).await
}
