//! What may go wrong, and how often. Swarm testing: each class of fault is on or off by the seed, with its own rate, so
//! that some runs meet one fault many times and others meet rare combinations.

use base::Rng;

/// Once in so many chances on average; 0 is never.
pub type OneIn = u64;

/// Faults of one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskFaults {
    /// Reads that fail once with EIO.
    pub read_error: OneIn,
    /// Writes that fail with EIO after having written any part of their units.
    pub write_error: OneIn,
    /// Flushes that fail with EIO; what they covered stays readable, but may never reach the media (as in Linux).
    pub flush_error: OneIn,
    /// Reads that meet a unit which stays unreadable until it is written again.
    pub latent_error: OneIn,
    /// Reads that meet a unit in which one bit has flipped for good. Silent.
    pub bit_rot: OneIn,
    /// Writes that land somewhere else. Silent.
    pub misdirected_write: OneIn,
    /// Writes that are acknowledged and forgotten. Silent.
    pub lost_write: OneIn,
    /// Reads and writes that transfer only a part of what was asked, as the kernel may.
    pub short_transfer: OneIn,
    /// Writes from which on the disk refuses all writes, until the faults end.
    pub read_only: OneIn,
    /// Operations that do not end until the faults do.
    pub stuck: OneIn,
    /// Operations that take a thousand times as long.
    pub slow: OneIn,
    /// Lasting damage (unreadable units and the silent faults) lies from this byte on; before it may be metadata without a
    /// second copy.
    pub damage_from: u64,
    /// Lasting damage lies before this byte; 0 is the end of the disk.
    pub damage_to: u64,
    /// Faults hit only byte offsets whose `offset / region_bytes % of` is `index`: with a different index on each leg of a
    /// mirror, one leg at most is damaged at any place. `None` hits everywhere.
    pub atlas: Option<FaultAtlas>,
}

/// Where a disk may be damaged; see [`DiskFaults::atlas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultAtlas {
    /// Bytes per region.
    pub region_bytes: u64,
    /// Number of disks that share the regions.
    pub of: u64,
    /// Which of them this is.
    pub index: u64,
}

impl DiskFaults {
    /// Whether a fault may hit `bytes` from `offset` on.
    pub fn reaches(&self, offset: u64, bytes: u64) -> bool {
        let Some(atlas) = self.atlas else { return true };
        let last = offset + bytes.max(1) - 1;
        let (first, last) = (offset / atlas.region_bytes, last / atlas.region_bytes);
        (first..=last).all(|region| region % atlas.of == atlas.index)
    }

    /// Whether lasting damage may hit `bytes` from `offset` on.
    pub fn damages(&self, offset: u64, bytes: u64) -> bool {
        let is_before_end = self.damage_to == 0 || offset + bytes <= self.damage_to;
        offset >= self.damage_from && is_before_end && self.reaches(offset, bytes)
    }

    /// Faults that a device reports: errors, slowness, sticking. Each on with one chance in two.
    pub fn swarm_loud(rng: &mut Rng) -> DiskFaults {
        let mut pick = |low, high| if rng.one_in(2) { rng.between(low, high) } else { 0 };
        DiskFaults {
            read_error: pick(10, 200),
            write_error: pick(10, 200),
            flush_error: pick(4, 40),
            latent_error: pick(20, 200),
            stuck: pick(100, 400),
            slow: pick(10, 100),
            ..DiskFaults::default()
        }
    }

    /// The same, on a disk that may also turn read-only.
    pub fn swarm_refusing(rng: &mut Rng) -> DiskFaults {
        let faults = DiskFaults::swarm_loud(rng);
        DiskFaults { read_only: if rng.one_in(2) { rng.between(20, 400) } else { 0 }, ..faults }
    }

    /// Faults that a device keeps to itself.
    pub fn swarm_silent(rng: &mut Rng) -> DiskFaults {
        let mut pick = |low, high| if rng.one_in(2) { rng.between(low, high) } else { 0 };
        DiskFaults {
            bit_rot: pick(5, 50),
            misdirected_write: pick(10, 100),
            lost_write: pick(10, 100),
            ..DiskFaults::default()
        }
    }
}

/// Faults of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetFaults {
    /// Sends after which both ends find the connection reset.
    pub reset: OneIn,
    /// Sends after which this end finds the connection reset, and the other end nothing until it sends.
    pub half_reset: OneIn,
    /// Sends after which the direction stalls for up to 2 s.
    pub stall: OneIn,
    /// Connection attempts whose packets are lost (retried by TCP, so they take longer).
    pub lost_syn: OneIn,
    /// Segments are as small as a few bytes.
    pub tiny_segments: bool,
    /// Send buffers hold as little as this many bytes; 0 is the usual size.
    pub send_buffer_bytes: usize,
    /// Base one-way latency, ns; 0 is the usual 20 us.
    pub latency_ns: u64,
    /// Most extra latency of a segment, ns.
    pub jitter_ns: u64,
    /// Sends in which one bit flips that TCP's checksum does not catch. Silent, hence not part of the swarm: only what
    /// carries digests of its own may meet it.
    pub bit_flip: OneIn,
}

impl NetFaults {
    /// Each class on with one chance in two.
    pub fn swarm(rng: &mut Rng) -> NetFaults {
        let mut pick = |low, high| if rng.one_in(2) { rng.between(low, high) } else { 0 };
        NetFaults {
            reset: pick(100, 2_000),
            half_reset: pick(100, 2_000),
            stall: pick(50, 1_000),
            lost_syn: pick(2, 10),
            tiny_segments: pick(1, 1) == 1,
            send_buffer_bytes: pick(64, 16_384) as usize,
            latency_ns: pick(1_000, 2_000_000),
            jitter_ns: pick(1_000, 1_000_000),
            bit_flip: 0,
        }
    }
}

/// Liberties of the schedule: never wrong, only unusual.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleFaults {
    /// Turns given to a reactor that has nothing to do.
    pub idle_turn: OneIn,
    /// Polls that hold back a part of the events that have happened.
    pub held_events: OneIn,
    /// Socket events without cause.
    pub spurious_ready: OneIn,
    /// Turns after which the reactor does not run for up to 50 ms (descheduled).
    pub pause: OneIn,
    /// Receives that stop short of what has arrived, with the rest arriving right afterwards.
    pub short_recv: OneIn,
}

impl ScheduleFaults {
    /// Each class on with one chance in two.
    pub fn swarm(rng: &mut Rng) -> ScheduleFaults {
        let mut pick = |low, high| if rng.one_in(2) { rng.between(low, high) } else { 0 };
        ScheduleFaults {
            idle_turn: pick(4, 64),
            held_events: pick(2, 16),
            spurious_ready: pick(8, 128),
            pause: pick(200, 5_000),
            short_recv: pick(2, 32),
        }
    }
}

/// A deliberate lie of the simulated hardware, to show that the checkers notice. For tests only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mutation {
    /// A flush is acknowledged and does nothing.
    FlushDoesNothing,
    /// Forced unit access is acknowledged from the volatile cache.
    FuaIgnored,
    /// The driver lets go of an operation's buffers at submit, as if an orphaned operation did not own them.
    ReuseBufferEarly,
    /// A fence of persistent memory does nothing.
    SkipFence,
    /// A flush makes only the newest writes durable: older ones may still be lost.
    ReorderAcrossFlush,
    /// Writes are torn inside the atomic unit at power loss.
    TearInsideUnit,
    /// Read data is sometimes of another place, where the fault atlas allows no damage.
    WrongRead,
    /// A completion is never delivered.
    LoseCompletion,
    /// A message or event wakes nobody: socket readiness is dropped.
    LoseReadiness,
    /// Received bytes are sometimes delivered twice.
    DuplicateSegment,
    /// Discarded blocks keep their old data although zeroes were promised.
    DiscardDoesNothing,
    /// What a process held is not given back when it ends.
    HoldDead,
    /// A scenario's own defect: a stack skips its verification (scenarios define what that means).
    SkipVerify,
    /// A scenario's own defect: what a mirror copies between its legs before it answers a read is lost.
    SkipCopies,
    /// A scenario's own defect: what a mirror copies to a leg that arrives late is lost.
    SkipResync,
    /// A scenario's own defect: a reply goes to the wrong asker.
    CrossReplies,
    /// A scenario's own defect: timers fire early.
    EarlyTimer,
    /// A scenario's own defect: the two slots of a page are one place.
    SharedSlots,
    /// A scenario's own defect: a flush takes effect after the write that follows it.
    LateFlush,
    /// A scenario's own defect: table pages are copied over their former versions while the root still leads to those.
    CopyTablesEarly,
    /// A scenario's own defect: a log is opened again with the epoch that it had before.
    KeepEpoch,
    /// A scenario's own defect: writes are sent again without waiting until their first copies are out of the world.
    ReplayUnfenced,
    /// A scenario's own defect: operations are sent on paths whatever access state they have.
    IgnoreAccessStates,
    /// A scenario's own defect: a preempted host's commands are not waited for.
    PreemptWithoutAbort,
    /// A scenario's own defect: a change of size is not told.
    StaleSize,
    /// A scenario's own defect: compare and write are two operations.
    SplitCompareAndWrite,
    /// A scenario's own defect: copies are acknowledged and not made.
    DropCopies,
    /// A scenario's own defect: the engine overwrites a block under deltas before it is in the log as a whole.
    OverwriteUnmerged,
    /// A scenario's own defect: the engine frees log space before the checkpoint is durable.
    ReleaseEarly,
    /// A scenario's own defect: the engine's replay passes over trims.
    ForgetTrims,
    /// A scenario's own defect: a checkpoint of the engine begins its replay behind what it does not have.
    TailPastDirty,
    /// A scenario's own defect: the blocks of a damaged map page of the engine become holes.
    HolesForLost,
    /// A scenario's own defect: an extent of the engine counts as moved before its blocks have been.
    MoveEarly,
    /// A scenario's own defect: a log in memory tells of a record in its summary before the record is durable.
    SummaryEarly,
    /// A scenario's own defect: the engine never uses an extent again that was given back.
    LeakExtents,
    /// A scenario's own defect: the engine keeps what the log has of an extent that was given back.
    KeepMappings,
    /// A scenario's own defect: bands by which a pool grows lie over those that there were.
    OverlapBands,
    /// A scenario's own defect: the engine lets user writes take the room in the log that destage needs.
    NoReserve,
    /// A scenario's own defect: the engine does not note which slices are in the log alone.
    SkipJournal,
    /// A scenario's own defect: the engine forgets which slices are in the log alone before a checkpoint has them.
    RetireEarly,
    /// Slices leave the dirty journal of a shaped pool although the shadow of its index does not have them.
    SkipShadow,
    /// A scenario's own defect: the engine does not note where a log ends that is closed.
    ForgetEnd,
    /// A scenario's own defect: an extent of the engine is evacuated before a checkpoint says so.
    EvacuateEarly,
    /// A scenario's own defect: the engine's garbage collection passes over live blocks.
    ForgetLive,
    /// A scenario's own defect: garbage collection gives up blocks that the log has as well.
    DropLogged,
    /// A scenario's own defect: replay of the engine begins behind what a destage has left in the log.
    ForgetYoung,
    /// A scenario's own defect: the engine reinserts into its log what may have been written anew meanwhile.
    ReinsertOld,
    /// A scenario's own defect: the engine uses bands again before a checkpoint does without them.
    FreeEarly,
    /// A scenario's own defect: the engine does not write again what was written before a flush that failed.
    TrustFlushes,
    /// A scenario's own defect: in the engine, who waits for room in the log waits for ever when upkeep fails for good; a
    /// flash cache waits for flash for ever.
    WaitForEver,
    /// A scenario's own defect: the engine looks for what differs between two snapshots in the later one alone.
    ForgetBetween,
    /// A scenario's own defect: in the engine, writes that are under way when a snapshot is made go to it.
    WriteFrozen,
    /// A scenario's own defect: in the engine, only whole extents are kept of what a deleted snapshot leaves to its heir.
    AbsorbExtents,
    /// A scenario's own defect: the engine loses half of what a layer has of its own where it takes over an extent of a deleted snapshot.
    ForgetOwn,
    /// A scenario's own defect: in the engine, the snapshot that an import makes is there before the stream has been read.
    FreezeEarly,
    /// A scenario's own defect: where the engine flattens a volume it leaves out every second block.
    FlattenHalf,
    /// A scenario's own defect: the engine rolls volumes back one after the other that are to go together.
    RollBackApart,
    /// A scenario's own defect: an extent of the engine hides what lies below it before its record is durable.
    HideEarly,
    /// A scenario's own defect: the engine does not use a segment of the log again to which a write has failed.
    RestForGood,
    /// A scenario's own defect: the engine does not try another version of a block that is damaged.
    OneVersion,
    /// A scenario's own defect: the engine takes another version of a damaged block without a look at its checksum.
    TrustVersion,
    /// A scrub does not read the headers of stripes.
    SkipHeaders,
    /// A scrub does not read the shadow of a shaped pool's index.
    SkipShadowScrub,
    /// A scenario's own defect: what a scrub finds damaged of the engine's metadata counts as written anew, and is not.
    RepairUnwritten,
    /// A scenario's own defect: the engine leaves its dirty journals out of what it says that it has written.
    MiscountWrites,
    /// A scenario's own defect: the engine does not count some blocks that die in a band.
    MiscountBand,
    /// A scenario's own defect: the engine says of some blocks that they are where another one is.
    PlaceTwice,
    /// A scenario's own defect: a parity device writes rows without their parity.
    SkipParity,
    /// A scenario's own defect: a parity device does not record that a member has failed.
    SkipRecord,
    /// A scenario's own defect: a parity device reads rows of a member before they have been rebuilt.
    ReadUnbuilt,
    /// A scenario's own defect: a parity device or a mirror grows without its superblocks saying so.
    GrowUnrecorded,
    /// A scenario's own defect: what a mirror grows by counts as equal on all legs.
    GrowUnmarked,
    /// A scenario's own defect: a flash cache brings back blocks that have been written to since it was opened.
    RestoreWritten,
    /// A scenario's own defect: the pointers of a zoned device are not written when it is flushed.
    ForgetPointers,
    /// A scenario's own defect: the engine opens a band without a reset of its zone.
    SkipReset,
    /// A scenario's own defect: the engine does not finish zones that it gives up.
    SkipFinish,
    /// A scenario's own defect: writes of a zone do not wait for those before them.
    WriteAhead,
    /// A scenario's own defect: a flash cache does not mark what is about to be written.
    SkipMarks,
    /// A scenario's own defect: a flash cache opens with a full bucket.
    RefillBucket,
    /// A scenario's own defect: writes through a virtqueue are used before the device has done them.
    UseEarly,
    /// A scenario's own defect: what an earlier daemon had taken from a virtqueue is not carried out.
    ForgetUnderWay,
    /// A scenario's own defect: what was used of a virtqueue stays noted as under way.
    KeepNotes,
    /// A scenario's own defect: a virtqueue is not looked at once more before a sleep.
    SleepBlind,
}

impl Mutation {
    /// Every mutation.
    pub const ALL: [Mutation; 83] = [
        Mutation::FlushDoesNothing,
        Mutation::FuaIgnored,
        Mutation::ReuseBufferEarly,
        Mutation::SkipFence,
        Mutation::ReorderAcrossFlush,
        Mutation::TearInsideUnit,
        Mutation::WrongRead,
        Mutation::LoseCompletion,
        Mutation::LoseReadiness,
        Mutation::DuplicateSegment,
        Mutation::DiscardDoesNothing,
        Mutation::HoldDead,
        Mutation::SkipVerify,
        Mutation::SkipCopies,
        Mutation::SkipResync,
        Mutation::CrossReplies,
        Mutation::EarlyTimer,
        Mutation::SharedSlots,
        Mutation::LateFlush,
        Mutation::CopyTablesEarly,
        Mutation::KeepEpoch,
        Mutation::ReplayUnfenced,
        Mutation::IgnoreAccessStates,
        Mutation::PreemptWithoutAbort,
        Mutation::StaleSize,
        Mutation::SplitCompareAndWrite,
        Mutation::DropCopies,
        Mutation::OverwriteUnmerged,
        Mutation::ReleaseEarly,
        Mutation::ForgetTrims,
        Mutation::TailPastDirty,
        Mutation::HolesForLost,
        Mutation::MoveEarly,
        Mutation::SummaryEarly,
        Mutation::LeakExtents,
        Mutation::KeepMappings,
        Mutation::OverlapBands,
        Mutation::NoReserve,
        Mutation::SkipJournal,
        Mutation::RetireEarly,
        Mutation::SkipShadow,
        Mutation::ForgetEnd,
        Mutation::EvacuateEarly,
        Mutation::ForgetLive,
        Mutation::DropLogged,
        Mutation::ForgetYoung,
        Mutation::ReinsertOld,
        Mutation::FreeEarly,
        Mutation::TrustFlushes,
        Mutation::WaitForEver,
        Mutation::ForgetBetween,
        Mutation::WriteFrozen,
        Mutation::AbsorbExtents,
        Mutation::ForgetOwn,
        Mutation::FreezeEarly,
        Mutation::FlattenHalf,
        Mutation::RollBackApart,
        Mutation::HideEarly,
        Mutation::RestForGood,
        Mutation::OneVersion,
        Mutation::TrustVersion,
        Mutation::SkipHeaders,
        Mutation::SkipShadowScrub,
        Mutation::RepairUnwritten,
        Mutation::MiscountWrites,
        Mutation::MiscountBand,
        Mutation::PlaceTwice,
        Mutation::SkipParity,
        Mutation::SkipRecord,
        Mutation::ReadUnbuilt,
        Mutation::GrowUnrecorded,
        Mutation::GrowUnmarked,
        Mutation::RestoreWritten,
        Mutation::ForgetPointers,
        Mutation::SkipReset,
        Mutation::SkipFinish,
        Mutation::WriteAhead,
        Mutation::SkipMarks,
        Mutation::RefillBucket,
        Mutation::UseEarly,
        Mutation::ForgetUnderWay,
        Mutation::KeepNotes,
        Mutation::SleepBlind,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_has_a_beginning_and_an_end() {
        let faults = DiskFaults { damage_from: 4096, damage_to: 12_288, ..DiskFaults::default() };
        assert!(faults.damages(4096, 8192) && !faults.damages(4095, 1) && !faults.damages(8192, 4097));
        assert!(DiskFaults { damage_from: 4096, ..DiskFaults::default() }.damages(1 << 40, 4096));
    }

    #[test]
    fn an_atlas_never_lets_two_legs_be_damaged_at_one_place() {
        let faults = |index| DiskFaults {
            atlas: Some(FaultAtlas { region_bytes: 4096, of: 2, index }),
            ..DiskFaults::default()
        };
        for offset in (0..32_768).step_by(512) {
            for bytes in [0, 512, 4096, 8192] {
                assert!(!(faults(0).reaches(offset, bytes) && faults(1).reaches(offset, bytes)));
            }
        }
        assert!(DiskFaults::default().reaches(0, 1 << 40));
    }
}
