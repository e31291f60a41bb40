//! Opcodes of the admin, NVM and Fabrics command sets (Base 2.0, sections 5 and 6; NVM Command Set 1.0, figure 18).

/// Which way a command moves data: the low two bits of every opcode (Base 2.0, Command Dword 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// No data.
    None,
    /// Host to controller.
    HostToController,
    /// Controller to host.
    ControllerToHost,
    /// Both: no command of these command sets.
    Both,
}

impl Direction {
    /// The direction that `opcode` (or a Fabrics command type) declares.
    pub const fn of(opcode: u8) -> Self {
        match opcode & 3 {
            0 => Direction::None,
            1 => Direction::HostToController,
            2 => Direction::ControllerToHost,
            _ => Direction::Both,
        }
    }
}

macro_rules! opcodes {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $value:literal: $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $name {
            $(#[doc = $text] $variant = $value,)*
        }

        impl $name {
            /// Every opcode listed here.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The opcode with this value, if it is listed.
            pub const fn from_u8(value: u8) -> Option<Self> {
                match value {
                    $($value => Some($name::$variant),)*
                    _ => None,
                }
            }

            /// Its name in the specification.
            pub const fn text(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }
    };
}

opcodes! {
    /// Admin commands, those that a Fabrics controller never has included: they are recognised to be refused by name.
    /// Cross-Controller Reset is of Base 2.3 (section 5.4.3).
    AdminOpcode {
        DeleteIoSubmissionQueue = 0x00: "Delete I/O Submission Queue";
        CreateIoSubmissionQueue = 0x01: "Create I/O Submission Queue";
        GetLogPage = 0x02: "Get Log Page";
        DeleteIoCompletionQueue = 0x04: "Delete I/O Completion Queue";
        CreateIoCompletionQueue = 0x05: "Create I/O Completion Queue";
        Identify = 0x06: "Identify";
        Abort = 0x08: "Abort";
        SetFeatures = 0x09: "Set Features";
        GetFeatures = 0x0a: "Get Features";
        AsyncEventRequest = 0x0c: "Asynchronous Event Request";
        NamespaceManagement = 0x0d: "Namespace Management";
        FirmwareCommit = 0x10: "Firmware Commit";
        FirmwareImageDownload = 0x11: "Firmware Image Download";
        DeviceSelfTest = 0x14: "Device Self-test";
        NamespaceAttachment = 0x15: "Namespace Attachment";
        KeepAlive = 0x18: "Keep Alive";
        DirectiveSend = 0x19: "Directive Send";
        DirectiveReceive = 0x1a: "Directive Receive";
        CrossControllerReset = 0x38: "Cross-Controller Reset";
        Fabrics = 0x7f: "Fabrics";
        FormatNvm = 0x80: "Format NVM";
        SecuritySend = 0x81: "Security Send";
        SecurityReceive = 0x82: "Security Receive";
        Sanitize = 0x84: "Sanitize";
    }
}

opcodes! {
    /// I/O commands of the NVM command set, and those of zoned namespaces (Zoned Namespace Command Set 1.1, figure 17).
    NvmOpcode {
        Flush = 0x00: "Flush";
        Write = 0x01: "Write";
        Read = 0x02: "Read";
        WriteUncorrectable = 0x04: "Write Uncorrectable";
        Compare = 0x05: "Compare";
        WriteZeroes = 0x08: "Write Zeroes";
        DatasetManagement = 0x09: "Dataset Management";
        Verify = 0x0c: "Verify";
        ReservationRegister = 0x0d: "Reservation Register";
        ReservationReport = 0x0e: "Reservation Report";
        ReservationAcquire = 0x11: "Reservation Acquire";
        ReservationRelease = 0x15: "Reservation Release";
        Copy = 0x19: "Copy";
        ZoneManagementSend = 0x79: "Zone Management Send";
        ZoneManagementReceive = 0x7a: "Zone Management Receive";
        ZoneAppend = 0x7d: "Zone Append";
        Fabrics = 0x7f: "Fabrics";
    }
}

opcodes! {
    /// Fabrics command types, byte 4 of a command whose opcode is 7Fh.
    FabricsType {
        PropertySet = 0x00: "Property Set";
        Connect = 0x01: "Connect";
        PropertyGet = 0x04: "Property Get";
        AuthenticationSend = 0x05: "Authentication Send";
        AuthenticationReceive = 0x06: "Authentication Receive";
        Disconnect = 0x08: "Disconnect";
    }
}

/// The opcode of every Fabrics command.
pub const FABRICS: u8 = 0x7f;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_opcode_is_found_by_its_value_and_no_other_is() {
        for value in 0..=255u8 {
            assert_eq!(AdminOpcode::from_u8(value).is_some(), AdminOpcode::ALL.iter().any(|op| *op as u8 == value));
            assert_eq!(NvmOpcode::from_u8(value).is_some(), NvmOpcode::ALL.iter().any(|op| *op as u8 == value));
            assert_eq!(FabricsType::from_u8(value).is_some(), FabricsType::ALL.iter().any(|op| *op as u8 == value));
        }
    }

    #[test]
    fn opcodes_declare_their_data_direction() {
        assert_eq!(Direction::of(NvmOpcode::Flush as u8), Direction::None);
        assert_eq!(Direction::of(NvmOpcode::Write as u8), Direction::HostToController);
        assert_eq!(Direction::of(NvmOpcode::Read as u8), Direction::ControllerToHost);
        assert_eq!(Direction::of(FabricsType::Connect as u8), Direction::HostToController);
        assert_eq!(Direction::of(FabricsType::PropertyGet as u8), Direction::None);
        assert_eq!(Direction::of(AdminOpcode::Identify as u8), Direction::ControllerToHost);
    }
}
