//! What a controller may say about the commands of a connection, for the fuzzer.

use std::collections::BTreeMap;

use super::command::{Commands, Direction};
use crate::fuzz::{Program, count_pdu};
use crate::tcp::{DataHeader, R2t};

const DEPTH: usize = 4;
const R2TS_MAX: u32 = 2;

/// One command as the rules have it: which of its bytes have moved.
struct Model {
    slot: u16,
    direction: Direction,
    len: u32,
    ranges: Vec<(u32, u32)>,
    r2ts_open: u32,
}

impl Model {
    fn moved(&self) -> u64 {
        self.ranges.iter().map(|(start, end)| u64::from(end - start)).sum()
    }

    fn take(&mut self, offset: u32, len: u32) {
        let end = u64::from(offset) + u64::from(len);
        assert!(end <= u64::from(self.len), "nothing moves outside of a command's memory");
        let end = end as u32;
        assert!(self.ranges.iter().all(|(from, to)| end <= *from || *to <= offset || len == 0), "a byte moves once");
        self.ranges.push((offset, end));
    }
}

/// A controller says what it likes to a host with a few commands under way, which come and go: nothing is placed or sent
/// outside of a command's memory or twice, and a transfer that keeps the rules is taken.
pub fn fuzz_host(input: &[u8]) {
    let mut program = Program(input);
    let mut commands = Commands::new(DEPTH);
    let mut model: BTreeMap<u16, Model> = BTreeMap::new();
    while !program.is_empty() {
        let kind = program.u8();
        let picked = usize::from(program.u8());
        let known = model.keys().nth(picked % DEPTH).copied();
        match kind % 16 {
            0..4 if commands.room() > 0 => {
                let direction = [Direction::ToHost, Direction::ToController][usize::from(kind >> 4 & 1)];
                let len = program.u32();
                let (slot, cid) = commands.begin(0, direction, (0, len), 0);
                let fresh = Model { slot, direction, len, ranges: Vec::new(), r2ts_open: 0 };
                assert!(model.insert(cid, fresh).is_none(), "identifiers of commands under way differ");
            }
            4 => {
                let Some(ended) = known.and_then(|cid| model.remove(&cid)) else { continue };
                assert_eq!(commands.is_complete(ended.slot), ended.moved() == u64::from(ended.len));
                commands.end(ended.slot);
            }
            5 => {
                let Some(sent) = known.and_then(|cid| model.get_mut(&cid)).filter(|sent| sent.r2ts_open > 0) else {
                    continue;
                };
                sent.r2ts_open -= 1;
                commands.get_mut(sent.slot).r2ts_open -= 1;
            }
            _ => {
                if !hear(&mut program, kind, known, &mut commands, &mut model) {
                    // The connection ends with a fault; the next one begins empty.
                    commands = Commands::new(DEPTH);
                    model.clear();
                }
            }
        }
    }
}

/// One PDU from the controller; false when it is a fault.
fn hear(
    program: &mut Program,
    kind: u8,
    known: Option<u16>,
    commands: &mut Commands,
    model: &mut BTreeMap<u16, Model>,
) -> bool {
    count_pdu();
    let cid = known.filter(|_| kind < 240).unwrap_or_else(|| program.u16());
    let mut command = model.get_mut(&cid);
    let flags = program.u8();
    let (mut offset, len) = (program.u32(), program.u32());
    if let Some(command) = command.as_ref().filter(|_| flags & 1 != 0) {
        // In order, which is what most controllers do.
        offset = command.moved() as u32;
    }
    let len = command.as_ref().filter(|_| flags & 2 != 0).map_or(len, |command| command.len.wrapping_sub(offset));
    let end = offset.checked_add(len);
    let is_next = command.as_ref().is_some_and(|command| {
        let is_prefix =
            command.ranges.iter().try_fold(0, |at, (from, to)| (*from == at).then_some(*to)) == Some(offset);
        is_prefix && end.is_some_and(|end| end <= command.len)
    });
    let is_read = command.as_ref().map_or(flags & 4 != 0, |command| {
        let as_it_should_be = command.direction == Direction::ToHost;
        if kind < 224 { as_it_should_be } else { !as_it_should_be }
    });
    if is_read {
        let (last, success) = (flags & 8 != 0, flags & 16 != 0);
        let header = DataHeader { cccid: cid, ttag: 0, offset, len, last, success };
        let accepted = commands.accept_data(&header);
        if let Ok(slot) = accepted {
            let command = command.as_mut().expect("data is for a command under way");
            assert_eq!((slot, command.direction), (command.slot, Direction::ToHost));
            command.take(offset, len);
            assert!(!success || (last && command.moved() == u64::from(command.len)), "success is for all of the data");
        } else if let Some(command) = command {
            assert!(command.direction != Direction::ToHost || !is_next || success, "the next data is taken");
        }
        return accepted.is_ok();
    }
    let accepted = commands.accept_r2t(&R2t { cccid: cid, ttag: program.u16(), offset, len }, R2TS_MAX);
    if let Ok(slot) = accepted {
        let command = command.as_mut().expect("an R2T is for a command under way");
        assert_eq!((slot, command.direction), (command.slot, Direction::ToController));
        command.take(offset, len);
        command.r2ts_open += 1;
        assert!(len > 0 && command.r2ts_open <= R2TS_MAX);
    } else if let Some(command) = command {
        let is_allowed = command.direction == Direction::ToController && len > 0 && command.r2ts_open < R2TS_MAX;
        assert!(!is_allowed || !is_next, "the next R2T is taken");
    }
    accepted.is_ok()
}
