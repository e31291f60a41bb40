//! Reservations: commands, their data, and what Reservation Report answers (Base 2.0, sections 7.2 to 7.5 and 8.19).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Sqe;
use super::opcode::NvmOpcode;
use super::sgl::SglDescriptor;

/// RESCAP bit 0: reservations may persist through power loss.
pub const RESCAP_PERSISTENCE: u8 = 1;
/// RESCAP bits 6:1: all six types.
pub const RESCAP_TYPES: u8 = 0x7e;
/// RESCAP bit 7: Ignore Existing Key is meant as from version 1.3 on.
pub const RESCAP_IGNORE_KEY: u8 = 1 << 7;

/// What a reservation keeps other hosts from (Base 2.0, figure 441).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ReservationType {
    /// The holder writes, everybody reads.
    WriteExclusive = 1,
    /// The holder writes and reads.
    ExclusiveAccess = 2,
    /// Registrants write, everybody reads.
    WriteExclusiveRegistrantsOnly = 3,
    /// Registrants write and read.
    ExclusiveAccessRegistrantsOnly = 4,
    /// As `WriteExclusiveRegistrantsOnly`, and every registrant is a holder.
    WriteExclusiveAllRegistrants = 5,
    /// As `ExclusiveAccessRegistrantsOnly`, and every registrant is a holder.
    ExclusiveAccessAllRegistrants = 6,
}

impl ReservationType {
    /// Every type.
    pub const ALL: [ReservationType; 6] = [
        ReservationType::WriteExclusive,
        ReservationType::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrantsOnly,
        ReservationType::ExclusiveAccessRegistrantsOnly,
        ReservationType::WriteExclusiveAllRegistrants,
        ReservationType::ExclusiveAccessAllRegistrants,
    ];

    /// The type with this value.
    pub fn from_u8(value: u8) -> Option<Self> {
        ReservationType::ALL.into_iter().find(|kind| *kind as u8 == value)
    }

    /// Whether every registrant is a holder.
    pub const fn is_all_registrants(self) -> bool {
        matches!(self, Self::WriteExclusiveAllRegistrants | Self::ExclusiveAccessAllRegistrants)
    }

    /// Whether only the holder has the access that the reservation is about.
    pub const fn is_of_holder_alone(self) -> bool {
        matches!(self, Self::WriteExclusive | Self::ExclusiveAccess)
    }

    /// Whether those who may not write may not read either.
    pub const fn is_exclusive_access(self) -> bool {
        matches!(
            self,
            Self::ExclusiveAccess | Self::ExclusiveAccessRegistrantsOnly | Self::ExclusiveAccessAllRegistrants
        )
    }

    /// Its name in the specification, in small letters.
    pub const fn text(self) -> &'static str {
        match self {
            Self::WriteExclusive => "write exclusive",
            Self::ExclusiveAccess => "exclusive access",
            Self::WriteExclusiveRegistrantsOnly => "write exclusive - registrants only",
            Self::ExclusiveAccessRegistrantsOnly => "exclusive access - registrants only",
            Self::WriteExclusiveAllRegistrants => "write exclusive - all registrants",
            Self::ExclusiveAccessAllRegistrants => "exclusive access - all registrants",
        }
    }
}

/// What Reservation Register does (RREGA; Base 2.0, figure 434).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RegisterAction {
    /// Registers a key.
    Register = 0,
    /// Takes the registration back.
    Unregister = 1,
    /// Puts another key in place of the one registered.
    Replace = 2,
}

impl RegisterAction {
    /// Every action.
    pub const ALL: [RegisterAction; 3] =
        [RegisterAction::Register, RegisterAction::Unregister, RegisterAction::Replace];
}

/// What becomes of the persistence through power loss with Reservation Register (CPTPL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PersistenceChange {
    /// It stays.
    Keep = 0,
    /// Registrations and reservation end with the next loss of power.
    Off = 2,
    /// They last.
    On = 3,
}

/// What Reservation Acquire does (RACQA; Base 2.0, figure 430).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AcquireAction {
    /// Takes the reservation if there is none.
    Acquire = 0,
    /// Takes registrations, and perhaps the reservation, from others.
    Preempt = 1,
    /// The same, and ends the commands of those hosts.
    PreemptAndAbort = 2,
}

impl AcquireAction {
    /// Every action.
    pub const ALL: [AcquireAction; 3] =
        [AcquireAction::Acquire, AcquireAction::Preempt, AcquireAction::PreemptAndAbort];
}

/// What Reservation Release does (RRELA; Base 2.0, figure 437).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReleaseAction {
    /// Gives the reservation back.
    Release = 0,
    /// Ends the reservation and all registrations.
    Clear = 1,
}

impl ReleaseAction {
    /// Every action.
    pub const ALL: [ReleaseAction; 2] = [ReleaseAction::Release, ReleaseAction::Clear];
}

/// A command that changes reservations, without the keys, which are in its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReservationCommand {
    /// Reservation Register.
    Register {
        /// What to do.
        action: RegisterAction,
        /// The current key is not compared.
        ignore_key: bool,
        /// Persistence through power loss.
        persistence: PersistenceChange,
    },
    /// Reservation Acquire.
    Acquire {
        /// What to do.
        action: AcquireAction,
        /// The type of the reservation to take.
        kind: ReservationType,
    },
    /// Reservation Release.
    Release {
        /// What to do.
        action: ReleaseAction,
        /// The type of the reservation to give back; `Clear` has no use for it.
        kind: Option<ReservationType>,
    },
}

const IGNORE_KEY: u32 = 1 << 3;

impl ReservationCommand {
    /// Reads a command; `None` if it is of another opcode or has a reserved value in a field.
    pub fn of(sqe: &Sqe) -> Option<Self> {
        let cdw10 = sqe.cdw10.get();
        let action = (cdw10 & 7) as u8;
        let ignore_key = cdw10 & IGNORE_KEY != 0;
        let kind = ReservationType::from_u8((cdw10 >> 8) as u8);
        match NvmOpcode::from_u8(sqe.opcode)? {
            NvmOpcode::ReservationRegister => {
                let action = RegisterAction::ALL.into_iter().find(|one| *one as u8 == action)?;
                let changes = [PersistenceChange::Keep, PersistenceChange::Off, PersistenceChange::On];
                let persistence = changes.into_iter().find(|one| *one as u32 == cdw10 >> 30)?;
                Some(ReservationCommand::Register { action, ignore_key, persistence })
            }
            // Ignoring the key is for Register alone (Base 2.0, figures 430 and 437).
            _ if ignore_key => None,
            NvmOpcode::ReservationAcquire => {
                let action = AcquireAction::ALL.into_iter().find(|one| *one as u8 == action)?;
                Some(ReservationCommand::Acquire { action, kind: kind? })
            }
            NvmOpcode::ReservationRelease => {
                let action = ReleaseAction::ALL.into_iter().find(|one| *one as u8 == action)?;
                Some(ReservationCommand::Release { action, kind })
            }
            _ => None,
        }
    }

    /// The command, for data of [`data_len`](Self::data_len) bytes.
    pub fn to_sqe(self, nsid: u32) -> Sqe {
        let (opcode, cdw10) = match self {
            ReservationCommand::Register { action, ignore_key, persistence } => {
                let ignore = if ignore_key { IGNORE_KEY } else { 0 };
                (NvmOpcode::ReservationRegister, action as u32 | ignore | (persistence as u32) << 30)
            }
            ReservationCommand::Acquire { action, kind } => {
                (NvmOpcode::ReservationAcquire, action as u32 | (kind as u32) << 8)
            }
            ReservationCommand::Release { action, kind } => {
                (NvmOpcode::ReservationRelease, action as u32 | kind.map_or(0, |kind| kind as u32) << 8)
            }
        };
        let sqe = Sqe::nvm(opcode, 0, nsid).with_sgl(SglDescriptor::transport(self.data_len()));
        Sqe { cdw10: U32::new(cdw10), ..sqe }
    }

    /// Bytes of data that come with it: one key or two.
    pub const fn data_len(self) -> u32 {
        match self {
            ReservationCommand::Release { .. } => 8,
            _ => 16,
        }
    }
}

/// The keys of a command: the host's own, and the new one of Register or the one that Acquire preempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Keys {
    /// CRKEY.
    pub current: U64,
    /// NRKEY or PRKEY. Reservation Release has none.
    pub other: U64,
}

impl Keys {
    /// Keys from their values.
    pub const fn new(current: u64, other: u64) -> Keys {
        Keys { current: U64::new(current), other: U64::new(other) }
    }

    /// From a command's data, which may lack the second key.
    pub fn from_data(data: &[u8]) -> Option<Keys> {
        let (current, rest) = U64::read_from_prefix(data).ok()?;
        let other = U64::read_from_prefix(rest).map_or(U64::new(0), |(other, _)| other);
        Some(Keys { current, other })
    }
}

/// Reservation Report (Base 2.0, section 7.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportCommand {
    /// Bytes wanted: (NUMD + 1) dwords.
    pub len: u64,
    /// The data structures with host identifiers of 128 bits are wanted (EDS).
    pub extended: bool,
}

impl ReportCommand {
    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        ReportCommand { len: (sqe.cdw10.get() as u64 + 1) * 4, extended: sqe.cdw11.get() & 1 != 0 }
    }

    /// The command. `len` must be a positive multiple of 4.
    pub fn to_sqe(self, nsid: u32) -> Sqe {
        assert!(self.len >= 4 && self.len.is_multiple_of(4), "a report is read in dwords");
        let sqe = Sqe::nvm(NvmOpcode::ReservationReport, 0, nsid).with_sgl(SglDescriptor::transport(self.len as u32));
        Sqe { cdw10: U32::new((self.len / 4 - 1) as u32), cdw11: U32::new(u32::from(self.extended)), ..sqe }
    }
}

/// The head of a report with host identifiers of 128 bits (Base 2.0, figure 442).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReportHeader {
    /// Counts changes of registrations.
    pub generation: U32,
    /// Type of the reservation, zero for none.
    pub rtype: u8,
    /// Entries that there are, whether they fit or not (REGCTL).
    pub registered: U16,
    /// Reserved.
    pub reserved7: [u8; 2],
    /// Persist through power loss state.
    pub ptpls: u8,
    /// Reserved.
    pub reserved10: [u8; 54],
}

/// One registrant in such a report (Base 2.0, figure 444).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ReportEntry {
    /// Controller: FFFFh where controllers come and go with their hosts.
    pub cntlid: U16,
    /// Bit 0: its host holds the reservation.
    pub rcsts: u8,
    /// Reserved.
    pub reserved3: [u8; 5],
    /// Key.
    pub key: U64,
    /// Host identifier.
    pub host_id: [u8; 16],
    /// Reserved.
    pub reserved32: [u8; 32],
}

/// RCSTS bit 0: the host holds the reservation.
pub const RCSTS_HOLDER: u8 = 1;
/// CNTLID of a controller made by Connect (dynamic controller model).
pub const CNTLID_OF_DYNAMIC: u16 = 0xffff;

const _: () = {
    assert!(size_of::<Keys>() == 16);
    assert!(size_of::<ReportHeader>() == 64);
    assert!(core::mem::offset_of!(ReportHeader, ptpls) == 9);
    assert!(size_of::<ReportEntry>() == 64);
    assert!(core::mem::offset_of!(ReportEntry, host_id) == 16);
};

/// What a host is told about a reservation (Base 2.0, figure 238): the type of a Reservation Notification log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum ReservationNotice {
    /// Another host took its registration away.
    RegistrationPreempted = 1,
    /// The reservation ended, or was replaced by one of another type.
    ReservationReleased = 2,
    /// Another host cleared all registrations.
    ReservationPreempted = 3,
}

impl ReservationNotice {
    /// Every kind.
    pub const ALL: [ReservationNotice; 3] = [
        ReservationNotice::RegistrationPreempted,
        ReservationNotice::ReservationReleased,
        ReservationNotice::ReservationPreempted,
    ];

    /// Its bit in the Reservation Notification Mask feature (Base 2.0, section 5.27.1.26).
    pub const fn mask(self) -> u32 {
        1 << self as u32
    }
}

/// The bits that the Reservation Notification Mask feature has.
pub const NOTICE_MASK: u32 = 0b1110;

/// Reservation Notification log page (Base 2.0, section 5.16.1.22).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct NoticeLog {
    /// Number of this notice, from one; zero for an empty page.
    pub count: U64,
    /// [`ReservationNotice`], zero for an empty page.
    pub kind: u8,
    /// Further pages, 255 if there are more.
    pub available: u8,
    /// Reserved.
    pub reserved10: [u8; 2],
    /// Namespace.
    pub nsid: U32,
    /// Reserved.
    pub reserved16: [u8; 48],
}

const _: () = assert!(size_of::<NoticeLog>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<ReservationCommand> {
        let mut all = Vec::new();
        for action in RegisterAction::ALL {
            for ignore_key in [false, true] {
                for persistence in [PersistenceChange::Keep, PersistenceChange::Off, PersistenceChange::On] {
                    all.push(ReservationCommand::Register { action, ignore_key, persistence });
                }
            }
        }
        for kind in ReservationType::ALL {
            all.extend(AcquireAction::ALL.map(|action| ReservationCommand::Acquire { action, kind }));
            all.extend(ReleaseAction::ALL.map(|action| ReservationCommand::Release { action, kind: Some(kind) }));
        }
        all
    }

    #[test]
    fn commands_round_trip() {
        for command in all() {
            let sqe = command.to_sqe(3);
            assert_eq!(ReservationCommand::of(&sqe), Some(command));
            assert_eq!((sqe.nsid.get(), sqe.sgl.length.get()), (3, command.data_len()));
        }
        let report = ReportCommand { len: 4096, extended: true };
        assert_eq!(ReportCommand::of(&report.to_sqe(1)), report);
        let most = Sqe { cdw10: U32::new(u32::MAX), ..Sqe::default() };
        assert_eq!(ReportCommand::of(&most).len, 1 << 34);
    }

    #[test]
    fn reserved_values_are_no_commands() {
        for (opcode, cdw10) in [
            (NvmOpcode::ReservationRegister, 3),
            (NvmOpcode::ReservationRegister, 1 << 30),
            (NvmOpcode::ReservationAcquire, 3 | 1 << 8),
            (NvmOpcode::ReservationAcquire, 0),
            (NvmOpcode::ReservationAcquire, 7 << 8),
            (NvmOpcode::ReservationAcquire, 1 << 3 | 1 << 8),
            (NvmOpcode::ReservationRelease, 2 | 1 << 8),
            (NvmOpcode::ReservationRelease, 1 << 3 | 1 << 8),
            (NvmOpcode::Write, 0),
        ] {
            let sqe = Sqe { cdw10: U32::new(cdw10), ..Sqe::nvm(opcode, 1, 1) };
            assert_eq!(ReservationCommand::of(&sqe), None, "{opcode:?} {cdw10:x}");
        }
    }

    #[test]
    fn a_release_has_one_key() {
        assert_eq!(Keys::from_data(&7u64.to_le_bytes()), Some(Keys::new(7, 0)));
        assert_eq!(Keys::from_data(Keys::new(1, 2).as_bytes()), Some(Keys::new(1, 2)));
        assert_eq!(Keys::from_data(&[0; 7]), None);
    }
}
