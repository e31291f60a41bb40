//! Controller properties (Base 2.0, section 3.1.3): CAP, VS, CC and CSTS, all that a Fabrics controller needs.

/// Offset of CAP, 8 bytes.
pub const CAP: u32 = 0x00;
/// Offset of VS, 4 bytes.
pub const VS: u32 = 0x08;
/// Offset of CC, 4 bytes.
pub const CC: u32 = 0x14;
/// Offset of CSTS, 4 bytes.
pub const CSTS: u32 = 0x1c;
/// Offset of NSSR, 4 bytes.
pub const NSSR: u32 = 0x20;
/// Offset of CRTO, 4 bytes.
pub const CRTO: u32 = 0x68;

/// A version, as VS and Identify Controller hold it (Base 2.0, figure 37).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32);

impl Version {
    /// Version 1.4.
    pub const V1_4: Version = Version(0x0001_0400);
    /// Version 2.0.
    pub const V2_0: Version = Version(0x0002_0000);
}

/// Controller capabilities (Base 2.0, figure 36).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// CAP of a Fabrics controller: `queue_entries_max` entries per queue, `ready_timeout_ms` until CSTS.RDY follows CC.EN,
    /// contiguous queues, the NVM command set and "one or more I/O command sets", 4 KiB pages.
    pub const fn new(queue_entries_max: u32, ready_timeout_ms: u32) -> Self {
        assert!(queue_entries_max >= 2 && queue_entries_max <= 0x1_0000);
        let timeout = ready_timeout_ms.div_ceil(500);
        assert!(timeout <= 0xff);
        let command_sets = 1u64 << 0 | 1 << 6;
        Capabilities((queue_entries_max as u64 - 1) | 1 << 16 | (timeout as u64) << 24 | command_sets << 37)
    }

    /// Entries that a queue may have.
    pub const fn queue_entries_max(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }

    /// Milliseconds within which CSTS.RDY follows CC.EN.
    pub const fn ready_timeout_ms(self) -> u32 {
        (self.0 >> 24 & 0xff) as u32 * 500
    }

    /// Smallest memory page, in bytes: the unit of MDTS.
    pub const fn page_size_min(self) -> u32 {
        4096 << (self.0 >> 48 & 0xf)
    }

    /// Bit `css` of the command sets supported.
    pub const fn supports_css(self, css: u8) -> bool {
        self.0 >> (37 + css as u32) & 1 != 0
    }
}

/// CC.CSS: all command sets that the controller has.
pub const CSS_ALL: u8 = 6;

/// Controller configuration (Base 2.0, figure 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Configuration(pub u32);

impl Configuration {
    /// What a host writes to enable a Fabrics controller: enable, 64-byte SQEs, 16-byte CQEs, 4 KiB pages.
    pub const ENABLE: Configuration = Configuration(1 | 6 << 16 | 4 << 20);

    /// The same for a host that knows several command sets.
    pub const ENABLE_ALL_SETS: Configuration = Configuration(Configuration::ENABLE.0 | (CSS_ALL as u32) << 4);

    /// Enable.
    pub const fn enable(self) -> bool {
        self.0 & 1 != 0
    }

    /// I/O command set selected.
    pub const fn css(self) -> u8 {
        (self.0 >> 4 & 7) as u8
    }

    /// Memory page size, as the power of two over 4 KiB.
    pub const fn mps(self) -> u8 {
        (self.0 >> 7 & 0xf) as u8
    }

    /// Arbitration mechanism.
    pub const fn ams(self) -> u8 {
        (self.0 >> 11 & 7) as u8
    }

    /// Shutdown notification: 0 none, 1 normal, 2 abrupt.
    pub const fn shn(self) -> u8 {
        (self.0 >> 14 & 3) as u8
    }

    /// I/O submission queue entry size, power of two.
    pub const fn iosqes(self) -> u8 {
        (self.0 >> 16 & 0xf) as u8
    }

    /// I/O completion queue entry size, power of two.
    pub const fn iocqes(self) -> u8 {
        (self.0 >> 20 & 0xf) as u8
    }

    /// The same with a shutdown notification.
    #[must_use]
    pub const fn with_shutdown(self, shn: u8) -> Self {
        Configuration(self.0 & !(3 << 14) | (shn as u32 & 3) << 14)
    }
}

/// Controller status (Base 2.0, figure 47).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ControllerStatus(pub u32);

impl ControllerStatus {
    /// Ready.
    pub const READY: u32 = 1;
    /// Fatal status.
    pub const FATAL: u32 = 1 << 1;
    /// Shutdown processing occurring.
    pub const SHUTDOWN_OCCURRING: u32 = 1 << 2;
    /// Shutdown processing complete.
    pub const SHUTDOWN_COMPLETE: u32 = 2 << 2;

    /// Ready.
    pub const fn ready(self) -> bool {
        self.0 & Self::READY != 0
    }

    /// Fatal.
    pub const fn fatal(self) -> bool {
        self.0 & Self::FATAL != 0
    }

    /// Shutdown status: 0 normal operation, 1 occurring, 2 complete.
    pub const fn shst(self) -> u8 {
        (self.0 >> 2 & 3) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_say_what_they_were_built_from() {
        let cap = Capabilities::new(1024, 7500);
        assert_eq!(cap.queue_entries_max(), 1024);
        assert_eq!(cap.ready_timeout_ms(), 7500);
        assert_eq!(cap.page_size_min(), 4096);
        assert!(cap.supports_css(0) && cap.supports_css(6) && !cap.supports_css(7));
        assert_eq!(cap.0 & 0xffff, 1023);
    }

    #[test]
    fn the_enable_value_is_what_linux_writes() {
        assert_eq!(Configuration::ENABLE.0, 0x0046_0001);
        let cc = Configuration::ENABLE.with_shutdown(1);
        assert_eq!((cc.shn(), cc.iosqes(), cc.iocqes(), cc.enable()), (1, 6, 4, true));
    }
}
