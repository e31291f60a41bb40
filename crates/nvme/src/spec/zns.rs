//! The Zoned Namespace Command Set (revision 1.1): commands on zones, zone descriptors, and its Identify structures.

use super::IDENTIFY_LEN;
use super::sqe::Sqe;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Command set identifier of the Zoned Namespace command set (Base 2.0, section 5.17).
pub const CSI_ZNS: u8 = 2;

/// Zone Send Action: what Zone Management Send does (figure 29).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SendAction {
    /// Close Zone.
    Close = 0x01,
    /// Finish Zone.
    Finish = 0x02,
    /// Open Zone.
    Open = 0x03,
    /// Reset Zone.
    Reset = 0x04,
    /// Offline Zone.
    Offline = 0x05,
    /// Set Zone Descriptor Extension.
    SetExtension = 0x10,
}

impl SendAction {
    /// Every action.
    pub const ALL: [SendAction; 6] = [
        SendAction::Close,
        SendAction::Finish,
        SendAction::Open,
        SendAction::Reset,
        SendAction::Offline,
        SendAction::SetExtension,
    ];

    /// The action with this value.
    pub fn from_u8(value: u8) -> Option<Self> {
        SendAction::ALL.into_iter().find(|action| *action as u8 == value)
    }
}

/// Zone Management Send (figures 28 and 29).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneSendCommand {
    /// First block of the zone.
    pub slba: u64,
    /// Zone Send Action, as it came.
    pub action: u8,
    /// All zones in a state that the action is about; `slba` is ignored.
    pub select_all: bool,
}

impl ZoneSendCommand {
    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        let cdw13 = sqe.cdw13.get();
        ZoneSendCommand { slba: sqe.cdw10_11(), action: cdw13 as u8, select_all: cdw13 & 1 << 8 != 0 }
    }

    /// Writes the view.
    pub fn store(&self, sqe: &mut Sqe) {
        sqe.set_cdw10_11(self.slba);
        sqe.cdw13 = U32::new(u32::from(self.action) | u32::from(self.select_all) << 8);
    }
}

/// Zone Receive Action: Report Zones (figure 23).
pub const RECEIVE_REPORT: u8 = 0x00;
/// Zone Receive Action: Extended Report Zones, in which a descriptor extension follows each descriptor.
pub const RECEIVE_EXTENDED_REPORT: u8 = 0x01;

/// Zone Management Receive (figures 22 to 24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneReceiveCommand {
    /// A block of the first zone to report.
    pub slba: u64,
    /// Bytes wanted: (NUMD + 1) dwords.
    pub len: u64,
    /// Zone Receive Action, as it came.
    pub action: u8,
    /// Zones in which state: see [`ReportFilter`].
    pub filter: u8,
    /// Count the zones that are in the data, not all that match.
    pub partial: bool,
}

impl ZoneReceiveCommand {
    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        let cdw13 = sqe.cdw13.get();
        ZoneReceiveCommand {
            slba: sqe.cdw10_11(),
            len: (sqe.cdw12.get() as u64 + 1) * 4,
            action: cdw13 as u8,
            filter: (cdw13 >> 8) as u8,
            partial: cdw13 & 1 << 16 != 0,
        }
    }

    /// Writes the view. `len` must be a positive multiple of 4, up to 16 GiB.
    pub fn store(&self, sqe: &mut Sqe) {
        assert!(self.len >= 4 && self.len.is_multiple_of(4), "reports are read in dwords");
        sqe.set_cdw10_11(self.slba);
        sqe.cdw12 = U32::new((self.len / 4 - 1) as u32);
        sqe.cdw13 = U32::new(u32::from(self.action) | u32::from(self.filter) << 8 | u32::from(self.partial) << 16);
    }
}

/// Which zones a report lists (figure 24): all, or those in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportFilter(Option<u8>);

impl ReportFilter {
    /// Every zone.
    pub const ALL: ReportFilter = ReportFilter(None);

    /// The filter with this value of the command.
    pub const fn from_u8(value: u8) -> Option<Self> {
        // Zone states, in the order of the filter's values: empty, implicitly and explicitly opened, closed, full, read only,
        // offline.
        const STATES: [u8; 7] = [0x1, 0x2, 0x3, 0x4, 0xe, 0xd, 0xf];
        match value {
            0 => Some(ReportFilter::ALL),
            1..=7 => Some(ReportFilter(Some(STATES[value as usize - 1]))),
            _ => None,
        }
    }

    /// Whether a zone in this state is listed.
    pub fn lists(self, state: u8) -> bool {
        self.0.is_none_or(|wanted| wanted == state)
    }
}

/// Head of the data of Report Zones (figure 25).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReportHeader {
    /// Zones: those that match, or those in the data of a partial report.
    pub zone_count: U64,
    /// Zero.
    pub reserved8: [U64; 7],
}

/// Sequential Write Required, the one zone type there is (figure 26).
pub const ZONE_TYPE_SEQUENTIAL: u8 = 2;

/// Zone descriptor (figure 26).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ZoneDescriptor {
    /// Type, bits 3:0.
    pub kind: u8,
    /// State, bits 7:4.
    pub state: u8,
    /// Attributes.
    pub attributes: u8,
    /// Attributes information.
    pub information: u8,
    /// Zero.
    pub reserved4: U32,
    /// Writable blocks.
    pub capacity: U64,
    /// First block.
    pub start: U64,
    /// Write pointer.
    pub write_pointer: U64,
    /// Zero.
    pub reserved32: [U64; 4],
}

const _: () = assert!(size_of::<ReportHeader>() == 64 && size_of::<ZoneDescriptor>() == 64);

/// Zone attributes bit 7: the zone has a descriptor extension (ZDEV).
pub const ZONE_ATTRIBUTE_EXTENSION: u8 = 1 << 7;
/// ZDES counts descriptor extensions in units of so many bytes.
pub const ZONE_EXTENSION_UNIT: u32 = 64;

/// Zones that the Changed Zone List holds.
pub const CHANGED_ZONES_MAX: usize = 511;
/// In place of their number: there were more.
pub const CHANGED_ZONES_MANY: u16 = 0xffff;

/// The log page Changed Zone List (ZNS 1.1, section 5.2).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChangedZoneList {
    /// Zones that are listed, or [`CHANGED_ZONES_MANY`].
    pub count: U16,
    /// Zero.
    pub reserved2: [u8; 6],
    /// First blocks of the zones, increasing; zero behind the last.
    pub zones: [U64; CHANGED_ZONES_MAX],
}

const _: () = assert!(size_of::<ChangedZoneList>() == 4096);

/// OZCS bit 0: reads may cross zone boundaries.
pub const OZCS_READ_ACROSS: u16 = 1;

/// Extension of an LBA format (figure 49).
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // The names are the specification's; the figure explains each.
pub struct LbaFormatExtension {
    pub zsze: U64,
    pub zdes: u8,
    pub reserved9: [u8; 7],
}

/// Identify Namespace of this command set (figure 48).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct IdentifyZonedNamespace {
    pub zoc: U16,
    pub ozcs: U16,
    pub mar: U32,
    pub mor: U32,
    pub rrl: U32,
    pub frl: U32,
    pub reserved20: [u8; 2796],
    pub lbafe: [LbaFormatExtension; 64],
    pub vendor: [u8; 256],
}

const _: () = {
    assert!(size_of::<IdentifyZonedNamespace>() == IDENTIFY_LEN);
    assert!(core::mem::offset_of!(IdentifyZonedNamespace, lbafe) == 2816);
};

/// A limit as it is told: less one, and all ones for none.
pub const fn limit(zones_max: u32) -> u32 {
    zones_max.wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::opcode::NvmOpcode;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn commands_round_trip(slba: u64, action: u8, filter: u8, flag: bool, dwords in 1u64..=1 << 32) {
            let mut sqe = Sqe::nvm(NvmOpcode::ZoneManagementSend, 1, 1);
            let send = ZoneSendCommand { slba, action, select_all: flag };
            send.store(&mut sqe);
            prop_assert_eq!(ZoneSendCommand::of(&sqe), send);
            let receive = ZoneReceiveCommand { slba, len: dwords * 4, action, filter, partial: flag };
            receive.store(&mut sqe);
            prop_assert_eq!(ZoneReceiveCommand::of(&sqe), receive);
        }
    }

    #[test]
    fn filters_list_their_states_and_no_limit_is_all_ones() {
        for state in [0x1, 0x2, 0x3, 0x4, 0xd, 0xe, 0xf] {
            assert!(ReportFilter::ALL.lists(state));
            let of = (1..=7).filter(|value| ReportFilter::from_u8(*value).is_some_and(|filter| filter.lists(state)));
            assert_eq!(of.count(), 1, "{state:x}");
        }
        assert_eq!(ReportFilter::from_u8(8), None);
        assert_eq!((limit(0), limit(1), limit(14)), (u32::MAX, 0, 13));
    }
}
