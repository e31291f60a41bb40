//! Format NVM (Base 2.0, section 5.14; NVM Command Set 1.0, section 4.1.2).

use super::Sqe;
use zerocopy::byteorder::little_endian::U32;

/// OACS bit 1: Format NVM.
pub const OACS_FORMAT: u16 = 1 << 1;
/// FNA bit 2: cryptographic erase is supported as part of secure erase.
pub const FNA_CRYPTO_ERASE: u8 = 1 << 2;
/// FNA bit 3: a format of all namespaces at once (NSID FFFFFFFFh) is not supported.
pub const FNA_NO_BROADCAST: u8 = 1 << 3;

/// Secure Erase Settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SecureErase {
    /// None asked for.
    None = 0,
    /// User data erase.
    UserData = 1,
    /// Cryptographic erase.
    Crypto = 2,
}

impl SecureErase {
    /// The setting with this value.
    pub const fn from_u8(value: u8) -> Option<Self> {
        match value {
            0 => Some(SecureErase::None),
            1 => Some(SecureErase::UserData),
            2 => Some(SecureErase::Crypto),
            _ => None,
        }
    }
}

/// Format NVM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatCommand {
    /// LBA format (LBAFU and LBAFL), 6 bits.
    pub lba_format: u8,
    /// Metadata is part of extended blocks (MSET).
    pub extended_metadata: bool,
    /// Protection information type (PI, 3 bits).
    pub protection: u8,
    /// Protection information comes first (PIL).
    pub protection_first: bool,
    /// Secure Erase Settings (SES, 3 bits), as they came.
    pub erase: u8,
    /// Bits 31:14, which are reserved.
    pub reserved: u32,
}

impl FormatCommand {
    /// To the format in force, with this setting.
    pub const fn same(erase: SecureErase) -> Self {
        FormatCommand {
            lba_format: 0,
            extended_metadata: false,
            protection: 0,
            protection_first: false,
            erase: erase as u8,
            reserved: 0,
        }
    }

    /// Reads the view.
    pub const fn of(sqe: &Sqe) -> Self {
        let cdw10 = sqe.cdw10.get();
        FormatCommand {
            lba_format: (cdw10 & 0xf | cdw10 >> 8 & 0x30) as u8,
            extended_metadata: cdw10 & 1 << 4 != 0,
            protection: (cdw10 >> 5 & 7) as u8,
            protection_first: cdw10 & 1 << 8 != 0,
            erase: (cdw10 >> 9 & 7) as u8,
            reserved: cdw10 >> 14,
        }
    }

    /// Writes the view.
    pub fn store(&self, sqe: &mut Sqe) {
        sqe.cdw10 = U32::new(
            u32::from(self.lba_format & 0xf)
                | u32::from(self.extended_metadata) << 4
                | u32::from(self.protection & 7) << 5
                | u32::from(self.protection_first) << 8
                | u32::from(self.erase & 7) << 9
                | u32::from(self.lba_format & 0x30) << 8
                | self.reserved << 14,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_bit_of_a_format_has_its_place(cdw10: u32) {
            let sqe = Sqe { cdw10: U32::new(cdw10), ..Sqe::default() };
            let mut again = Sqe::default();
            FormatCommand::of(&sqe).store(&mut again);
            prop_assert_eq!(again.cdw10.get(), cdw10);
        }
    }

    #[test]
    fn settings_are_found_by_their_value() {
        let mut sqe = Sqe::default();
        FormatCommand::same(SecureErase::Crypto).store(&mut sqe);
        assert_eq!(sqe.cdw10.get(), 0x400);
        assert_eq!(SecureErase::from_u8(2), Some(SecureErase::Crypto));
        assert_eq!(SecureErase::from_u8(3), None);
    }
}
