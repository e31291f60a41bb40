//! Log pages (Base 2.0, section 5.16.1).

use zerocopy::byteorder::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A log page identifier (Base 2.0, figure 202).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LogPage {
    /// Supported log pages.
    Supported = 0x00,
    /// Error information.
    Error = 0x01,
    /// SMART / health information.
    Smart = 0x02,
    /// Firmware slots.
    Firmware = 0x03,
    /// Changed namespaces.
    ChangedNamespaces = 0x04,
    /// Commands supported and effects.
    CommandEffects = 0x05,
    /// Asymmetric namespace access.
    Ana = 0x0c,
    /// Discovery.
    Discovery = 0x70,
    /// Reservation notifications.
    ReservationNotification = 0x80,
    /// Changed zones of a namespace.
    ChangedZones = 0xbf,
}

impl LogPage {
    /// Every page named here.
    pub const ALL: [LogPage; 10] = [
        LogPage::Supported,
        LogPage::Error,
        LogPage::Smart,
        LogPage::Firmware,
        LogPage::ChangedNamespaces,
        LogPage::CommandEffects,
        LogPage::Ana,
        LogPage::Discovery,
        LogPage::ReservationNotification,
        LogPage::ChangedZones,
    ];

    /// The page with this identifier, if it is named here.
    pub fn from_u8(value: u8) -> Option<Self> {
        LogPage::ALL.into_iter().find(|page| *page as u8 == value)
    }
}

/// Supported log pages (Base 2.0, figure 204): bit 0 says that the page is supported.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SupportedLogPages {
    /// One word per identifier.
    pub lids: [U32; 256],
}

const _: () = assert!(size_of::<SupportedLogPages>() == 1024);

/// One entry of the error log (Base 2.0, figure 206).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ErrorEntry {
    /// Running number of errors, from one; zero marks an unused entry.
    pub error_count: U64,
    /// Queue.
    pub sqid: U16,
    /// Command.
    pub cid: U16,
    /// Status as it was answered.
    pub status: U16,
    /// Byte and bit of the offending field, FFFFh if none.
    pub location: U16,
    /// First block.
    pub lba: U64,
    /// Namespace.
    pub nsid: U32,
    /// Vendor specific information available.
    pub vendor: u8,
    /// Transport type.
    pub trtype: u8,
    /// Reserved.
    pub reserved30: [u8; 2],
    /// Command specific information.
    pub command_specific: U64,
    /// Transport specific information.
    pub trtype_specific: U16,
    /// Reserved.
    pub reserved42: [u8; 22],
}

const _: () = assert!(size_of::<ErrorEntry>() == 64);

/// Error location: no field in particular.
pub const LOCATION_NONE: u16 = 0xffff;

/// SMART / health information (Base 2.0, figure 207).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // The names are the figure's.
pub struct SmartLog {
    pub critical_warning: u8,
    pub temperature: U16,
    pub available_spare: u8,
    pub available_spare_threshold: u8,
    pub percentage_used: u8,
    pub endurance_group_warning: u8,
    pub reserved7: [u8; 25],
    pub data_units_read: U128,
    pub data_units_written: U128,
    pub host_read_commands: U128,
    pub host_write_commands: U128,
    pub controller_busy_minutes: U128,
    pub power_cycles: U128,
    pub power_on_hours: U128,
    pub unsafe_shutdowns: U128,
    pub media_errors: U128,
    pub error_log_entries: U128,
    pub warning_temperature_minutes: U32,
    pub critical_temperature_minutes: U32,
    pub temperature_sensors: [U16; 8],
    pub reserved216: [u8; 296],
}

const _: () = {
    assert!(size_of::<SmartLog>() == 512);
    assert!(core::mem::offset_of!(SmartLog, data_units_read) == 32);
    assert!(core::mem::offset_of!(SmartLog, error_log_entries) == 176);
    assert!(core::mem::offset_of!(SmartLog, temperature_sensors) == 200);
};

/// Firmware slot information (Base 2.0, figure 209).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FirmwareLog {
    /// Active slot in bits 2:0.
    pub afi: u8,
    /// Reserved.
    pub reserved1: [u8; 7],
    /// Revision per slot.
    pub revisions: [[u8; 8]; 7],
    /// Reserved.
    pub reserved64: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareLog>() == 512);

/// Entries of the changed namespace list; FFFFFFFFh alone means "too many" (Base 2.0, section 5.16.1.5).
pub const CHANGED_NAMESPACES_MAX: usize = 1024;

/// Commands supported and effects (Base 2.0, figures 210 and 211).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandEffectsLog {
    /// Admin commands.
    pub admin: [U32; 256],
    /// I/O commands.
    pub io: [U32; 256],
    /// Reserved.
    pub reserved2048: [u8; 2048],
}

const _: () = assert!(size_of::<CommandEffectsLog>() == 4096);

/// The command is supported.
pub const EFFECT_SUPPORTED: u32 = 1;
/// It may change the content of logical blocks.
pub const EFFECT_CONTENT: u32 = 1 << 1;
/// CSE 001b: hosts submit it when nothing else is under way in the namespace.
pub const EFFECT_ALONE_IN_NAMESPACE: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_by_their_identifier() {
        for page in LogPage::ALL {
            assert_eq!(LogPage::from_u8(page as u8), Some(page));
        }
        assert_eq!(LogPage::from_u8(0xc0), None);
    }
}
