//! Feature identifiers and values (Base 2.0, section 5.27.1; NVM Command Set 1.0, section 4.1.3).

/// A feature identifier (Base 2.0, figure 316).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Feature {
    /// Arbitration.
    Arbitration = 0x01,
    /// Power management.
    PowerManagement = 0x02,
    /// Temperature threshold.
    TemperatureThreshold = 0x04,
    /// Error recovery.
    ErrorRecovery = 0x05,
    /// Volatile write cache.
    VolatileWriteCache = 0x06,
    /// Number of queues.
    NumberOfQueues = 0x07,
    /// Interrupt coalescing: not on fabrics.
    InterruptCoalescing = 0x08,
    /// Interrupt vector configuration: not on fabrics.
    InterruptVector = 0x09,
    /// Write atomicity normal.
    WriteAtomicity = 0x0a,
    /// Asynchronous event configuration.
    AsyncEventConfiguration = 0x0b,
    /// Timestamp.
    Timestamp = 0x0e,
    /// Keep alive timer.
    KeepAliveTimer = 0x0f,
    /// Host behavior support.
    HostBehaviorSupport = 0x16,
    /// I/O command set profile.
    CommandSetProfile = 0x19,
    /// Host identifier.
    HostIdentifier = 0x81,
    /// Reservation notification mask.
    ReservationMask = 0x82,
    /// Reservation persistence.
    ReservationPersistence = 0x83,
}

impl Feature {
    /// Every feature named here.
    pub const ALL: [Feature; 17] = [
        Feature::Arbitration,
        Feature::PowerManagement,
        Feature::TemperatureThreshold,
        Feature::ErrorRecovery,
        Feature::VolatileWriteCache,
        Feature::NumberOfQueues,
        Feature::InterruptCoalescing,
        Feature::InterruptVector,
        Feature::WriteAtomicity,
        Feature::AsyncEventConfiguration,
        Feature::Timestamp,
        Feature::KeepAliveTimer,
        Feature::HostBehaviorSupport,
        Feature::CommandSetProfile,
        Feature::HostIdentifier,
        Feature::ReservationMask,
        Feature::ReservationPersistence,
    ];

    /// The feature with this identifier, if it is named here.
    pub fn from_u8(value: u8) -> Option<Self> {
        Feature::ALL.into_iter().find(|feature| *feature as u8 == value)
    }
}

/// What Get Features with Select = capabilities answers (Base 2.0, section 5.15).
pub const CAPABILITY_SAVEABLE: u32 = 1;
/// The feature has one value per namespace.
pub const CAPABILITY_NAMESPACE_SPECIFIC: u32 = 1 << 1;
/// The feature can be changed.
pub const CAPABILITY_CHANGEABLE: u32 = 1 << 2;

/// Asynchronous event configuration (Base 2.0, figure 326), also the bits of OAES in Identify Controller.
pub mod event {
    /// SMART critical warnings, one bit each.
    pub const SMART_WARNINGS: u32 = 0x3f;
    /// Namespace attribute notices.
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    /// Firmware activation notices.
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    /// Asymmetric namespace access change notices.
    pub const ANA_CHANGE: u32 = 1 << 11;
    /// Zone descriptor change notices (ZNS 1.1, section 5.1).
    pub const ZONE_DESCRIPTOR_CHANGE: u32 = 1 << 27;
    /// Discovery log page change notices.
    pub const DISCOVERY_CHANGE: u32 = 1 << 31;
}

/// Number of queues: zero-based counts of submission (low) and completion (high) queues (Base 2.0, figures 322 and 323).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    /// I/O submission queues, counted from one.
    pub submission: u32,
    /// I/O completion queues, counted from one.
    pub completion: u32,
}

impl QueueCounts {
    /// From CDW11 or dword 0; `None` for the value FFFFh, which is not allowed.
    pub const fn from_wire(value: u32) -> Option<Self> {
        let (submission, completion) = (value & 0xffff, value >> 16);
        if submission == 0xffff || completion == 0xffff {
            return None;
        }
        Some(QueueCounts { submission: submission + 1, completion: completion + 1 })
    }

    /// To CDW11 or dword 0.
    pub const fn to_wire(self) -> u32 {
        (self.submission - 1) | (self.completion - 1) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_counts_are_zero_based_on_the_wire_and_ffff_is_refused() {
        assert_eq!(QueueCounts::from_wire(0x0003_0001), Some(QueueCounts { submission: 2, completion: 4 }));
        assert_eq!(QueueCounts { submission: 2, completion: 4 }.to_wire(), 0x0003_0001);
        assert_eq!(QueueCounts::from_wire(0x0000_ffff), None);
        assert_eq!(QueueCounts::from_wire(0xffff_0000), None);
    }

    #[test]
    fn features_are_found_by_their_identifier() {
        for feature in Feature::ALL {
            assert_eq!(Feature::from_u8(feature as u8), Some(feature));
        }
        assert_eq!(Feature::from_u8(0), None);
    }
}
