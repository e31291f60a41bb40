//! Log pages of one controller (Base 2.0, section 5.16.1).

use std::collections::{BTreeSet, VecDeque};

use zerocopy::byteorder::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromZeros, IntoBytes};

use super::controller::Controller;
use super::identify::sees_any;
use super::model::{Health, Subsystem};
use crate::spec::log::*;
use crate::spec::opcode::{AdminOpcode, NvmOpcode};
use crate::spec::reservation::NoticeLog;
use crate::spec::zns::{CSI_ZNS, ChangedZoneList};
use crate::spec::{Cqe, NSID_ALL, Sqe, Status};

/// Entries of the error log (ELPE is one less).
pub(super) const ERROR_ENTRIES_MAX: usize = 16;

/// A window onto a log page: what the host asked for of it. Bytes behind the page's end are zero.
pub(super) struct Window<'a> {
    out: &'a mut [u8],
    offset: u64,
}

impl<'a> Window<'a> {
    pub(super) fn new(out: &'a mut [u8], offset: u64) -> Self {
        out.fill(0);
        Window { out, offset }
    }

    /// Whether any of these bytes of the page are wanted.
    pub(super) fn wants(&self, at: u64, len: u64) -> bool {
        at < self.offset.saturating_add(self.out.len() as u64) && at.saturating_add(len) > self.offset
    }

    /// Puts `bytes` at `at` of the page, as far as they are wanted.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) {
        if !self.wants(at, bytes.len() as u64) {
            return;
        }
        let skip = self.offset.saturating_sub(at) as usize;
        let start = at.saturating_sub(self.offset) as usize;
        let len = (bytes.len() - skip).min(self.out.len() - start);
        self.out[start..start + len].copy_from_slice(&bytes[skip..skip + len]);
    }
}

/// Commands that failed, newest first.
#[derive(Debug, Default)]
pub(super) struct ErrorLog {
    count: u64,
    entries: VecDeque<ErrorEntry>,
}

impl ErrorLog {
    pub(super) fn record(&mut self, sqid: u16, sqe: &Sqe, cqe: &Cqe) {
        self.count += 1;
        if self.entries.len() == ERROR_ENTRIES_MAX {
            self.entries.pop_back();
        }
        self.entries.push_front(ErrorEntry {
            error_count: U64::new(self.count),
            sqid: U16::new(sqid),
            cid: sqe.cid,
            status: cqe.status,
            location: U16::new(LOCATION_NONE),
            nsid: sqe.nsid,
            trtype: crate::spec::discovery::TRTYPE_TCP,
            ..ErrorEntry::default()
        });
    }
}

/// Namespaces that changed since the host last asked.
#[derive(Debug, Default)]
pub(super) struct ChangedNamespaces {
    nsids: BTreeSet<u32>,
    overflow: bool,
}

impl ChangedNamespaces {
    pub(super) fn add(&mut self, nsid: u32) {
        if self.overflow || self.nsids.contains(&nsid) {
            return;
        }
        if self.nsids.len() == CHANGED_NAMESPACES_MAX {
            self.nsids.clear();
            self.overflow = true;
            return;
        }
        self.nsids.insert(nsid);
    }

    fn store(&self, window: &mut Window) {
        if self.overflow {
            window.put(0, &NSID_ALL.to_le_bytes());
        }
        for (index, nsid) in self.nsids.iter().enumerate() {
            window.put(index as u64 * 4, &nsid.to_le_bytes());
        }
    }

    fn clear(&mut self) {
        *self = ChangedNamespaces::default();
    }
}

/// Pages that a controller has; the discovery log is in [`super::discovery`].
pub(super) fn is_supported(page: LogPage, is_discovery: bool) -> bool {
    match page {
        LogPage::Supported | LogPage::Error => true,
        LogPage::ChangedZones => !is_discovery,
        LogPage::Discovery => is_discovery,
        LogPage::Ana
        | LogPage::Smart
        | LogPage::Firmware
        | LogPage::ChangedNamespaces
        | LogPage::CommandEffects
        | LogPage::ReservationNotification => !is_discovery,
    }
}

/// Bytes of a page of fixed size.
pub(super) fn page_len(page: LogPage) -> u64 {
    match page {
        LogPage::Supported => size_of::<SupportedLogPages>() as u64,
        LogPage::Error => (ERROR_ENTRIES_MAX * size_of::<ErrorEntry>()) as u64,
        LogPage::Smart => size_of::<SmartLog>() as u64,
        LogPage::Firmware => size_of::<FirmwareLog>() as u64,
        LogPage::ChangedNamespaces => (CHANGED_NAMESPACES_MAX * 4) as u64,
        LogPage::CommandEffects => size_of::<CommandEffectsLog>() as u64,
        LogPage::ReservationNotification => size_of::<NoticeLog>() as u64,
        LogPage::ChangedZones => size_of::<ChangedZoneList>() as u64,
        LogPage::Ana | LogPage::Discovery => unreachable!("not a page of fixed size"),
    }
}

/// Writes a page of fixed size, as it is for a command set.
pub(super) fn store(controller: &Controller, subsystem: &Subsystem, page: LogPage, csi: u8, window: &mut Window) {
    match page {
        LogPage::Supported => {
            let mut log = SupportedLogPages::new_zeroed();
            for page in LogPage::ALL.into_iter().filter(|page| is_supported(*page, controller.is_discovery())) {
                log.lids[usize::from(page as u8)] = U32::new(1);
            }
            window.put(0, log.as_bytes());
        }
        LogPage::Error => {
            for (index, entry) in controller.errors.entries.iter().enumerate() {
                window.put((index * size_of::<ErrorEntry>()) as u64, entry.as_bytes());
            }
        }
        LogPage::Smart => window.put(0, smart(&subsystem.health, controller.errors.count).as_bytes()),
        LogPage::Firmware => {
            let mut log = FirmwareLog::new_zeroed();
            log.afi = 1;
            crate::spec::identify::store_ascii(&mut log.revisions[0], env!("CARGO_PKG_VERSION"));
            window.put(0, log.as_bytes());
        }
        LogPage::ChangedNamespaces => controller.changed.store(window),
        LogPage::CommandEffects => {
            let formats = sees_any(controller, subsystem, |found| found.crypto_erase);
            let spoils = sees_any(controller, subsystem, |found| found.write_uncorrectable);
            window.put(0, effects(csi, formats, spoils).as_bytes());
        }
        LogPage::ReservationNotification => window.put(0, controller.notices.page().as_bytes()),
        LogPage::ChangedZones => unreachable!("a page of one namespace"),
        LogPage::Ana | LogPage::Discovery => unreachable!("not a page of fixed size"),
    }
}

/// The host has read a page and does not ask to retain its event.
pub(super) fn acknowledge(controller: &mut Controller, page: LogPage) {
    controller.events.clear(page as u8);
    if page == LogPage::ChangedNamespaces {
        controller.changed.clear();
    }
}

/// A page is for the whole controller: which namespace identifiers may come with it (Base 2.0, section 5.16).
pub(super) fn check_nsid(page: LogPage, nsid: u32) -> Result<(), Status> {
    match page {
        LogPage::Smart if nsid != 0 && nsid != NSID_ALL => Err(Status::INVALID_FIELD),
        _ => Ok(()),
    }
}

fn smart(health: &Health, errors: u64) -> SmartLog {
    // Data units are thousands of 512 bytes, rounded up (Base 2.0, figure 207).
    let units = |bytes: u128| U128::new(bytes.div_ceil(512_000));
    let mut log = SmartLog::new_zeroed();
    log.critical_warning = health.critical_warning;
    log.temperature = U16::new(health.temperature_kelvin);
    log.available_spare = 100;
    log.percentage_used = health.percentage_used;
    log.data_units_read = units(health.bytes_read);
    log.data_units_written = units(health.bytes_written);
    log.host_read_commands = U128::new(health.reads);
    log.host_write_commands = U128::new(health.writes);
    log.power_cycles = U128::new(health.power_cycles);
    log.power_on_hours = U128::new(health.power_on_hours);
    log.unsafe_shutdowns = U128::new(health.unsafe_shutdowns);
    log.media_errors = U128::new(health.media_errors);
    log.error_log_entries = U128::new(u128::from(errors));
    log
}

fn effects(csi: u8, formats: bool, spoils: bool) -> CommandEffectsLog {
    use AdminOpcode as Admin;
    use NvmOpcode as Nvm;
    let mut log = CommandEffectsLog::new_zeroed();
    for opcode in [
        Admin::GetLogPage,
        Admin::Identify,
        Admin::Abort,
        Admin::SetFeatures,
        Admin::GetFeatures,
        Admin::AsyncEventRequest,
        Admin::KeepAlive,
        Admin::CrossControllerReset,
    ] {
        log.admin[usize::from(opcode as u8)] = U32::new(EFFECT_SUPPORTED);
    }
    for opcode in [
        Nvm::Flush,
        Nvm::Read,
        Nvm::Compare,
        Nvm::Verify,
        Nvm::ReservationRegister,
        Nvm::ReservationReport,
        Nvm::ReservationAcquire,
        Nvm::ReservationRelease,
    ] {
        log.io[usize::from(opcode as u8)] = U32::new(EFFECT_SUPPORTED);
    }
    for opcode in [Nvm::Write, Nvm::WriteZeroes, Nvm::DatasetManagement, Nvm::Copy] {
        log.io[usize::from(opcode as u8)] = U32::new(EFFECT_SUPPORTED | EFFECT_CONTENT);
    }
    if spoils {
        log.io[usize::from(Nvm::WriteUncorrectable as u8)] = U32::new(EFFECT_SUPPORTED | EFFECT_CONTENT);
    }
    if formats {
        log.admin[usize::from(Admin::FormatNvm as u8)] =
            U32::new(EFFECT_SUPPORTED | EFFECT_CONTENT | EFFECT_ALONE_IN_NAMESPACE);
    }
    if csi == CSI_ZNS {
        log.io[usize::from(Nvm::ZoneManagementReceive as u8)] = U32::new(EFFECT_SUPPORTED);
        for opcode in [Nvm::ZoneManagementSend, Nvm::ZoneAppend] {
            log.io[usize::from(opcode as u8)] = U32::new(EFFECT_SUPPORTED | EFFECT_CONTENT);
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_window_shows_exactly_its_part_of_the_page(
            pieces in proptest::collection::vec((0usize..300, proptest::collection::vec(1u8.., 0..40)), 0..8),
            offset in 0usize..350, len in 0usize..100,
        ) {
            let mut page = vec![0u8; 600];
            let mut out = vec![0xee; len];
            let mut window = Window::new(&mut out, offset as u64);
            for (at, bytes) in &pieces {
                page[*at..*at + bytes.len()].copy_from_slice(bytes);
                window.put(*at as u64, bytes);
            }
            prop_assert_eq!(&out[..], &page[offset..offset + len]);
        }
    }

    #[test]
    fn a_window_far_behind_the_page_is_empty_and_does_not_overflow() {
        let mut out = [1; 16];
        let mut window = Window::new(&mut out, u64::MAX - 3);
        window.put(0, &[7; 64]);
        window.put(u64::MAX, &[]);
        assert_eq!(out, [0; 16]);
    }

    #[test]
    fn more_changes_than_fit_become_one_entry_for_all() {
        let mut changed = ChangedNamespaces::default();
        for nsid in 1..=CHANGED_NAMESPACES_MAX as u32 {
            changed.add(nsid);
            changed.add(nsid);
        }
        let mut out = [0; 4096];
        changed.store(&mut Window::new(&mut out, 0));
        assert_eq!(out[4092..], 1024u32.to_le_bytes());
        changed.add(2000);
        changed.store(&mut Window::new(&mut out, 0));
        assert_eq!(out[..8], [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    }

    #[test]
    fn the_error_log_keeps_the_newest_first_and_counts_all() {
        let mut log = ErrorLog::default();
        for cid in 0..20u16 {
            let sqe = Sqe::new(0xff, cid, 1);
            log.record(0, &sqe, &Cqe::new(cid, Status::INVALID_OPCODE));
        }
        assert_eq!(log.entries.len(), ERROR_ENTRIES_MAX);
        assert_eq!((log.entries[0].cid.get(), log.entries[0].error_count.get()), (19, 20));
    }
}
