//! The target's outstanding R2Ts (TCP Transport 1.0, section 3.3.2.2).
//!
//! Fixed capacity: when it is full, commands wait. A tag holds a slot and a generation, so that data for an R2T that is gone
//! does not pass for data of the slot's next owner.

use super::fault::{Fault, field};
use super::pdu::{DataHeader, R2t};

#[derive(Clone, Copy, Debug)]
struct Slot {
    generation: u16,
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    cid: u16,
    offset: u32,
    len: u32,
    received: u32,
}

/// Outstanding R2Ts of one connection.
#[derive(Clone, Debug)]
pub struct R2tTable {
    slots: Box<[Slot]>,
    free: Vec<u16>,
    slot_bits: u32,
}

/// Where the data of an H2CData goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Command.
    pub cid: u16,
    /// Offset in the command's data.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// With this PDU the R2T is satisfied; its tag is free again.
    pub complete: bool,
}

/// Most R2Ts that one connection may have outstanding.
pub const R2T_MAX: usize = 4096;

impl R2tTable {
    /// A table for `capacity` R2Ts, 1 to [`R2T_MAX`].
    pub fn new(capacity: usize) -> Self {
        assert!((1..=R2T_MAX).contains(&capacity));
        R2tTable {
            slots: vec![Slot { generation: 0, open: None }; capacity].into_boxed_slice(),
            free: (0..capacity as u16).rev().collect(),
            slot_bits: capacity.next_power_of_two().trailing_zeros(),
        }
    }

    /// R2Ts that are outstanding.
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Opens an R2T for `len` bytes at `offset` of a command's data; `None` if the table is full.
    pub fn open(&mut self, cid: u16, offset: u32, len: u32) -> Option<R2t> {
        assert!(len > 0 && offset.checked_add(len).is_some(), "a command's data has less than 4 GiB");
        let index = self.free.pop()?;
        let slot = &mut self.slots[usize::from(index)];
        assert!(slot.open.is_none(), "a free slot is not open");
        slot.open = Some(Open { cid, offset, len, received: 0 });
        // Fifteen bits at most: R2T_MAX leaves room for generations, and FFFFh is never a tag.
        let ttag = index | slot.generation.wrapping_shl(self.slot_bits) & 0x7fff;
        Some(R2t { cccid: cid, ttag, offset, len })
    }

    /// Checks an H2CData against the R2T that it names. Data must come in order (TCP Transport 1.0, section 3.3.2.2).
    pub fn accept(&mut self, data: &DataHeader) -> Result<Accepted, Fault> {
        let index = data.ttag & ((1 << self.slot_bits) - 1);
        let bad_tag = Fault::HeaderField { offset: field::TTAG };
        let slot = self.slots.get_mut(usize::from(index)).ok_or(bad_tag)?;
        let open = slot.open.as_mut().ok_or(bad_tag)?;
        if data.ttag != index | slot.generation.wrapping_shl(self.slot_bits) & 0x7fff {
            return Err(bad_tag);
        }
        if data.cccid != open.cid {
            return Err(Fault::HeaderField { offset: field::CCCID });
        }
        let end = data.offset.checked_add(data.len).filter(|end| *end <= open.offset + open.len);
        if data.offset < open.offset || end.is_none() {
            return Err(Fault::DataOutOfRange);
        }
        if data.offset != open.offset + open.received {
            return Err(Fault::Sequence);
        }
        let complete = data.len == open.len - open.received;
        if data.last != complete {
            return Err(Fault::HeaderField { offset: field::FLAGS });
        }
        open.received += data.len;
        let accepted = Accepted { cid: data.cccid, offset: data.offset, len: data.len, complete };
        if complete {
            self.close(index);
        }
        Ok(accepted)
    }

    fn close(&mut self, index: u16) {
        let slot = &mut self.slots[usize::from(index)];
        slot.open = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
        assert!(self.free.len() <= self.slots.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(r2t: &R2t, offset: u32, len: u32, last: bool) -> DataHeader {
        DataHeader { cccid: r2t.cccid, ttag: r2t.ttag, offset, len, last, success: false }
    }

    #[test]
    fn data_in_order_completes_its_r2t_and_frees_the_tag() {
        let mut table = R2tTable::new(1);
        let r2t = table.open(5, 100, 50).expect("room");
        assert_eq!(table.open(6, 0, 1), None, "full");
        let first = table.accept(&data(&r2t, 100, 20, false)).expect("in range");
        assert_eq!(first, Accepted { cid: 5, offset: 100, len: 20, complete: false });
        assert!(table.accept(&data(&r2t, 120, 30, true)).expect("in range").complete);
        assert_eq!(table.outstanding(), 0);
        assert_ne!(table.open(6, 0, 1).expect("room").ttag, r2t.ttag, "a tag is not reused at once");
    }

    #[test]
    fn data_outside_of_its_r2t_is_out_of_range() {
        let mut table = R2tTable::new(4);
        let r2t = table.open(5, 100, 50).expect("room");
        for (offset, len) in [(99, 10), (0, 50), (u32::MAX, 1), (100, 51), (149, 2), (100, u32::MAX)] {
            assert_eq!(table.accept(&data(&r2t, offset, len, false)), Err(Fault::DataOutOfRange), "{offset} {len}");
        }
    }

    #[test]
    fn data_out_of_order_is_out_of_sequence() {
        let mut table = R2tTable::new(4);
        let r2t = table.open(5, 100, 50).expect("room");
        assert_eq!(table.accept(&data(&r2t, 101, 10, false)), Err(Fault::Sequence));
        table.accept(&data(&r2t, 100, 20, false)).expect("in order");
        for (offset, len) in [(100, 20), (110, 40), (121, 29)] {
            assert_eq!(table.accept(&data(&r2t, offset, len, false)), Err(Fault::Sequence), "{offset} {len}");
        }
    }

    #[test]
    fn what_was_received_counts_against_the_rest() {
        let mut table = R2tTable::new(1);
        let r2t = table.open(5, 100, 50).expect("room");
        table.accept(&data(&r2t, 100, 20, false)).expect("in range");
        for (offset, len) in [(120, 31), (120, 50)] {
            assert_eq!(table.accept(&data(&r2t, offset, len, false)), Err(Fault::DataOutOfRange), "{offset} {len}");
        }
        assert!(table.accept(&data(&r2t, 120, 30, true)).is_ok());
    }

    #[test]
    fn unknown_stale_and_foreign_tags_are_named() {
        let mut table = R2tTable::new(3);
        let bad_tag = Err(Fault::HeaderField { offset: field::TTAG });
        let r2t = table.open(5, 0, 8).expect("room");
        for ttag in (0..=u16::MAX).filter(|ttag| *ttag != r2t.ttag) {
            assert_eq!(table.accept(&DataHeader { ttag, ..data(&r2t, 0, 8, true) }), bad_tag);
        }
        let foreign = DataHeader { cccid: 6, ..data(&r2t, 0, 8, true) };
        assert_eq!(table.accept(&foreign), Err(Fault::HeaderField { offset: field::CCCID }));
        table.accept(&data(&r2t, 0, 8, true)).expect("in range");
        let next = table.open(5, 0, 8).expect("room");
        assert_eq!(table.accept(&data(&r2t, 0, 8, true)), bad_tag, "stale");
        assert!(table.accept(&data(&next, 0, 8, true)).is_ok());
    }

    #[test]
    fn the_last_flag_must_tell_the_truth() {
        let mut table = R2tTable::new(1);
        let r2t = table.open(5, 0, 8).expect("room");
        let bad_flags = Err(Fault::HeaderField { offset: field::FLAGS });
        assert_eq!(table.accept(&data(&r2t, 0, 4, true)), bad_flags);
        assert_eq!(table.accept(&data(&r2t, 0, 8, false)), bad_flags);
    }

    #[test]
    fn tags_stay_valid_through_every_generation_at_full_capacity() {
        let mut table = R2tTable::new(R2T_MAX);
        for round in 0..20u16 {
            let r2ts: Vec<R2t> = (0..R2T_MAX).map(|_| table.open(round, 0, 1).expect("room")).collect();
            for r2t in r2ts {
                assert!(table.accept(&data(&r2t, 0, 1, true)).expect("open").complete);
            }
        }
    }
}
