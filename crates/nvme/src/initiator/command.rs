//! Commands under way on one connection: identifiers, and how much of each one's data has moved.
//!
//! A command identifier holds a slot and a generation, so that an answer to a command that is gone does not pass for an
//! answer to the slot's next owner.

use crate::spec::Cqe;
use crate::tcp::Fault;
use crate::tcp::fault::field;
use crate::tcp::pdu::{DataHeader, R2t};

/// Bits of a command identifier that name the slot.
const SLOT_BITS: u32 = 12;
/// Most commands on one connection; FFFFh is never an identifier (Base 2.0, Command Dword 0).
pub(super) const COMMANDS_MAX: usize = (1 << SLOT_BITS) - 1;
/// Disjoint pieces of a read's data that may have arrived: a controller sends them in order, some interleave two.
const PIECES_MAX: usize = 4;

/// Which way a command's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// No data.
    None,
    /// To the controller, inside the capsule.
    InCapsule,
    /// To the controller, as it asks for it.
    ToController,
    /// To this host.
    ToHost,
}

/// Which bytes of a transfer have been seen, as disjoint sorted ranges.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    pieces: [(u32, u32); PIECES_MAX],
    count: u8,
}

impl Seen {
    /// Adds `start..end`; false when it overlaps what was seen, or leaves too many holes.
    #[inline]
    fn add(&mut self, start: u32, end: u32) -> bool {
        if self.count <= 1 && start == self.pieces[0].1 {
            // In order, the usual case; an empty list holds the piece 0..0.
            self.pieces[0].1 = end;
            self.count = 1;
            return true;
        }
        self.add_out_of_order(start, end)
    }

    fn add_out_of_order(&mut self, start: u32, end: u32) -> bool {
        let count = usize::from(self.count);
        let at = self.pieces[..count].iter().position(|piece| piece.0 >= start).unwrap_or(count);
        let overlaps_before = at > 0 && self.pieces[at - 1].1 > start;
        let overlaps_after = at < count && self.pieces[at].0 < end;
        if overlaps_before || overlaps_after {
            return false;
        }
        let joins_before = at > 0 && self.pieces[at - 1].1 == start;
        let joins_after = at < count && self.pieces[at].0 == end;
        match (joins_before, joins_after) {
            (true, true) => {
                self.pieces[at - 1].1 = self.pieces[at].1;
                self.pieces.copy_within(at + 1..count, at);
                self.count -= 1;
            }
            (true, false) => self.pieces[at - 1].1 = end,
            (false, true) => self.pieces[at].0 = start,
            (false, false) => {
                if count == PIECES_MAX {
                    return false;
                }
                self.pieces.copy_within(at..count, at + 1);
                self.pieces[at] = (start, end);
                self.count += 1;
            }
        }
        true
    }

    fn is_all_of(&self, len: u32) -> bool {
        len == 0 || (self.count == 1 && self.pieces[0] == (0, len))
    }
}

/// One command under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command {
    /// The request that it belongs to.
    pub(super) request: u32,
    /// Which way its data goes.
    pub(super) direction: Direction,
    /// Where its data begins in the request's buffers.
    pub(super) data_offset: u32,
    /// Bytes of data.
    pub(super) data_len: u32,
    /// Data segments of it that have not left yet: until then its buffers stay with us, whatever was answered.
    pub(super) sending: u32,
    /// R2Ts whose data has not left yet.
    pub(super) r2ts_open: u32,
    /// The answer, when it came before all data had left.
    pub(super) answer: Option<Cqe>,
    /// A data digest did not match.
    pub(super) digest_failed: bool,
    /// When it was issued.
    pub(super) issued_ns: u64,
    /// An abort was asked for.
    pub(super) abort_asked: bool,
    /// It waits for an event and has no time limit.
    pub(super) unlimited: bool,
    generation: u8,
    active: bool,
    seen: Seen,
}

/// The commands of one connection.
pub(super) struct Commands {
    slots: Vec<Command>,
    free: Vec<u16>,
}

fn identifier(slot: u16, generation: u8) -> u16 {
    slot | u16::from(generation) << SLOT_BITS
}

impl Commands {
    /// Room for `depth` commands.
    pub(super) fn new(depth: usize) -> Self {
        assert!((1..=COMMANDS_MAX).contains(&depth));
        let empty = Command {
            request: 0,
            direction: Direction::None,
            data_offset: 0,
            data_len: 0,
            sending: 0,
            r2ts_open: 0,
            answer: None,
            digest_failed: false,
            issued_ns: 0,
            abort_asked: false,
            unlimited: false,
            generation: 0,
            active: false,
            seen: Seen::default(),
        };
        Commands { slots: vec![empty; depth], free: (0..depth as u16).rev().collect() }
    }

    /// Commands that may still be issued.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.free.len()
    }

    /// Takes a slot; the caller has looked for [`room`](Self::room). Returns the slot and the command identifier.
    #[inline]
    pub(super) fn begin(&mut self, request: u32, direction: Direction, data: (u32, u32), now_ns: u64) -> (u16, u16) {
        let slot = self.free.pop().expect("the caller has looked for room");
        let command = &mut self.slots[usize::from(slot)];
        assert!(!command.active, "a free slot is not in use");
        command.request = request;
        command.direction = direction;
        (command.data_offset, command.data_len) = data;
        command.sending = 0;
        command.r2ts_open = 0;
        command.answer = None;
        command.digest_failed = false;
        command.issued_ns = now_ns;
        command.abort_asked = false;
        command.unlimited = false;
        command.active = true;
        command.seen = Seen::default();
        (slot, identifier(slot, command.generation))
    }

    /// Frees a slot; its identifier will not come again before 15 others of the slot.
    #[inline]
    pub(super) fn end(&mut self, slot: u16) {
        let command = &mut self.slots[usize::from(slot)];
        assert!(command.active, "a command ends once");
        command.active = false;
        command.generation = (command.generation + 1) & 0xf;
        self.free.push(slot);
    }

    /// The slot of a command identifier, if such a command is under way.
    #[inline]
    pub(super) fn find(&self, cid: u16) -> Option<u16> {
        let slot = cid & COMMANDS_MAX as u16;
        let command = self.slots.get(usize::from(slot))?;
        (command.active && cid >> SLOT_BITS == u16::from(command.generation)).then_some(slot)
    }

    /// The identifier of the command in `slot`.
    pub(super) fn cid(&self, slot: u16) -> u16 {
        identifier(slot, self.slots[usize::from(slot)].generation)
    }

    #[inline]
    pub(super) fn get(&self, slot: u16) -> &Command {
        &self.slots[usize::from(slot)]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u16) -> &mut Command {
        &mut self.slots[usize::from(slot)]
    }

    /// The slots of all commands under way.
    pub(super) fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..self.slots.len() as u16).filter(|slot| self.slots[usize::from(*slot)].active)
    }

    /// Checks C2HData against its command; on success its bytes count as received. Returns the slot.
    #[inline]
    pub(super) fn accept_data(&mut self, header: &DataHeader) -> Result<u16, Fault> {
        let slot = self.find(header.cccid).ok_or(Fault::HeaderField { offset: field::CCCID })?;
        let command = &mut self.slots[usize::from(slot)];
        if command.direction != Direction::ToHost || command.answer.is_some() {
            return Err(Fault::Sequence);
        }
        if header.success && !header.last {
            return Err(Fault::HeaderField { offset: field::FLAGS });
        }
        let end = header.offset.checked_add(header.len).filter(|end| *end <= command.data_len);
        let end = end.ok_or(Fault::DataOutOfRange)?;
        if !command.seen.add(header.offset, end) {
            return Err(Fault::Sequence);
        }
        if header.success && !command.seen.is_all_of(command.data_len) {
            // Success without all the data would hand out bytes that nobody sent.
            return Err(Fault::Sequence);
        }
        Ok(slot)
    }

    /// Checks an R2T against its command and notes that its data was asked for. Returns the slot.
    pub(super) fn accept_r2t(&mut self, r2t: &R2t, r2ts_max: u32) -> Result<u16, Fault> {
        let slot = self.find(r2t.cccid).ok_or(Fault::HeaderField { offset: field::CCCID })?;
        let command = &mut self.slots[usize::from(slot)];
        if command.direction != Direction::ToController || command.answer.is_some() {
            return Err(Fault::HeaderField { offset: field::CCCID });
        }
        let end = r2t.offset.checked_add(r2t.len).filter(|end| r2t.len > 0 && *end <= command.data_len);
        let end = end.ok_or(Fault::DataOutOfRange)?;
        if command.r2ts_open >= r2ts_max {
            return Err(Fault::LimitExceeded);
        }
        // Each byte is asked for once, which bounds what a controller can make us send.
        if !command.seen.add(r2t.offset, end) {
            return Err(Fault::Sequence);
        }
        command.r2ts_open += 1;
        Ok(slot)
    }

    /// Whether a command to which success was answered has had all its data moved.
    #[inline]
    pub(super) fn is_complete(&self, slot: u16) -> bool {
        let command = self.get(slot);
        match command.direction {
            Direction::ToHost | Direction::ToController => command.seen.is_all_of(command.data_len),
            Direction::None | Direction::InCapsule => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(cccid: u16, offset: u32, len: u32, success: bool) -> DataHeader {
        DataHeader { cccid, ttag: 0, offset, len, last: success, success }
    }

    #[test]
    fn an_identifier_is_not_valid_for_the_next_owner_of_its_slot() {
        let mut commands = Commands::new(1);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..16 {
            let (slot, cid) = commands.begin(0, Direction::None, (0, 0), 0);
            assert!(seen.insert(cid), "identifiers of 16 commands in a row differ");
            assert_eq!(commands.find(cid), Some(slot));
            commands.end(slot);
            assert_eq!(commands.find(cid), None);
        }
        for cid in 1..COMMANDS_MAX as u16 {
            assert_eq!(commands.find(cid), None, "beyond the queue");
        }
    }

    #[test]
    fn ffff_is_never_an_identifier() {
        let mut commands = Commands::new(COMMANDS_MAX);
        for _ in 0..16 {
            for _ in 0..COMMANDS_MAX {
                assert_ne!(commands.begin(0, Direction::None, (0, 0), 0).1, 0xffff);
            }
            (0..COMMANDS_MAX as u16).for_each(|slot| commands.end(slot));
        }
    }

    #[test]
    fn data_outside_of_the_read_or_twice_is_refused() {
        let mut commands = Commands::new(4);
        let (_, cid) = commands.begin(0, Direction::ToHost, (0, 8192), 0);
        assert_eq!(commands.accept_data(&data(cid, 8192, 1, false)), Err(Fault::DataOutOfRange));
        assert_eq!(commands.accept_data(&data(cid, u32::MAX, 2, false)), Err(Fault::DataOutOfRange));
        assert_eq!(commands.accept_data(&data(cid, 4096, 4096, true)), Err(Fault::Sequence), "a hole");
        let (_, cid) = commands.begin(0, Direction::ToHost, (0, 8192), 0);
        assert!(commands.accept_data(&data(cid, 0, 4096, false)).is_ok());
        assert_eq!(commands.accept_data(&data(cid, 4095, 1, false)), Err(Fault::Sequence));
        assert!(commands.accept_data(&data(cid, 4096, 4096, true)).is_ok());
        let (_, write) = commands.begin(0, Direction::ToController, (0, 8192), 0);
        assert!(commands.accept_data(&data(write, 0, 1, false)).is_err(), "a write receives nothing");
        assert!(commands.accept_data(&data(0x0ffe, 0, 1, false)).is_err());
        let (_, cid) = commands.begin(0, Direction::ToHost, (0, 4096), 0);
        let more_follows = DataHeader { last: false, ..data(cid, 0, 4096, true) };
        assert_eq!(commands.accept_data(&more_follows), Err(Fault::HeaderField { offset: field::FLAGS }));
    }

    #[test]
    fn no_byte_is_asked_for_twice_and_r2ts_are_limited() {
        let r2t = |cccid, offset, len| R2t { cccid, ttag: 1, offset, len };
        let mut commands = Commands::new(4);
        let (slot, cid) = commands.begin(0, Direction::ToController, (0, 8192), 0);
        assert!(commands.accept_r2t(&r2t(cid, 0, 4096), 1).is_ok());
        assert_eq!(commands.accept_r2t(&r2t(cid, 4096, 4096), 1), Err(Fault::LimitExceeded));
        commands.get_mut(slot).r2ts_open = 0;
        assert_eq!(commands.accept_r2t(&r2t(cid, 0, 4096), 1), Err(Fault::Sequence));
        assert_eq!(commands.accept_r2t(&r2t(cid, 4096, 4097), 1), Err(Fault::DataOutOfRange));
        assert_eq!(commands.accept_r2t(&r2t(cid, 4096, 0), 1), Err(Fault::DataOutOfRange));
        assert!(!commands.is_complete(slot));
        assert!(commands.accept_r2t(&r2t(cid, 4096, 4096), 1).is_ok());
        assert!(commands.is_complete(slot));
    }

    proptest! {
        /// Against a byte map: pieces are taken exactly when they are new, unless they leave too many holes.
        #[test]
        fn pieces_are_counted_once(pieces in proptest::collection::vec((0u32..64, 1u32..16), 1..40)) {
            let mut seen = Seen::default();
            let mut map = [false; 80];
            for (start, len) in pieces {
                let range = start as usize..(start + len) as usize;
                let is_new = !map[range.clone()].contains(&true);
                if seen.add(start, start + len) {
                    prop_assert!(is_new);
                    map[range].fill(true);
                } else {
                    prop_assert!(!is_new || usize::from(seen.count) == PIECES_MAX);
                }
                let whole = map.iter().rposition(|byte| *byte).is_some_and(|last| map[..=last].iter().all(|byte| *byte));
                let end = map.iter().rposition(|byte| *byte).map_or(0, |last| last as u32 + 1);
                prop_assert_eq!(seen.is_all_of(end), whole);
            }
        }
    }
}
