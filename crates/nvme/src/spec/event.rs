//! Asynchronous events (Base 2.0, section 5.2).

/// What an asynchronous event answers in dword 0 (Base 2.0, section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventResult {
    /// Type, 3 bits.
    pub kind: u8,
    /// Information.
    pub info: u8,
    /// The log page whose reading clears the event.
    pub log_page: u8,
}

impl EventResult {
    /// A namespace's attributes, or the list of namespaces, changed.
    pub const NAMESPACE_CHANGED: EventResult = EventResult { kind: 2, info: 0x00, log_page: 0x04 };
    /// The discovery log changed.
    pub const DISCOVERY_CHANGED: EventResult = EventResult { kind: 2, info: 0xf0, log_page: 0x70 };

    /// An asymmetric namespace access state changed.
    pub const ANA_CHANGED: EventResult = EventResult { kind: 2, info: 0x03, log_page: 0x0c };

    /// Zones of a namespace changed by themselves; dword 1 says of which (ZNS 1.1, section 5.1).
    pub const ZONES_CHANGED: EventResult = EventResult { kind: 2, info: 0xef, log_page: 0xbf };

    /// There are reservation notifications to be read: an event of the I/O command set.
    pub const RESERVATION_NOTIFICATION: EventResult = EventResult { kind: 6, info: 0x00, log_page: 0x80 };

    /// As dword 0.
    pub const fn to_dw0(self) -> u32 {
        self.kind as u32 | (self.info as u32) << 8 | (self.log_page as u32) << 16
    }

    /// From dword 0.
    pub const fn from_dw0(dw0: u32) -> Self {
        EventResult { kind: (dw0 & 7) as u8, info: (dw0 >> 8) as u8, log_page: (dw0 >> 16) as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_results_round_trip() {
        for event in
            [EventResult::NAMESPACE_CHANGED, EventResult::DISCOVERY_CHANGED, EventResult::RESERVATION_NOTIFICATION]
        {
            assert_eq!(EventResult::from_dw0(event.to_dw0()), event);
        }
        assert_eq!(EventResult::NAMESPACE_CHANGED.to_dw0(), 0x0004_0002);
        assert_eq!(EventResult::ANA_CHANGED.to_dw0(), 0x000c_0302);
        assert_eq!(EventResult::ZONES_CHANGED.to_dw0(), 0x00bf_ef02);
        assert_eq!(EventResult::DISCOVERY_CHANGED.to_dw0(), 0x0070_f002);
        assert_eq!(EventResult::RESERVATION_NOTIFICATION.to_dw0(), 0x0080_0006);
    }
}
