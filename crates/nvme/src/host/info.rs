//! What a controller says, reduced to what a host acts upon. Everything here was written by somebody else and is checked.

use zerocopy::FromBytes;

use crate::spec::ana::{AnaGroupDescriptor, AnaHeader, AnaState};
use crate::spec::discovery::{
    DiscoveryEntry, DiscoveryHeader, SECTYPE_TLS_1_3, SUBTYPE_NVM, SUBTYPE_REFERRAL, TREQ_REQUIRED,
    TREQ_SECURE_CHANNEL, TRTYPE_TCP,
};
use crate::spec::identify::{
    self, CNTRLTYPE_DISCOVERY, FUSES_COMPARE_AND_WRITE, IdentifyController, IdentifyNamespace, ONCS_COMPARE, ONCS_COPY,
    ONCS_DSM, ONCS_VERIFY, ONCS_WRITE_UNCORRECTABLE, ONCS_WRITE_ZEROES, SGLS_OFFSET, VWC_PRESENT, load_ascii,
};
use crate::spec::property::Capabilities;
use crate::spec::zns::{IdentifyZonedNamespace, ReportHeader, ZONE_ATTRIBUTE_EXTENSION, ZoneDescriptor};
use crate::spec::{IDENTIFY_LEN, Nqn};
use bdev::{Zone, ZoneState};

/// Why a controller or namespace cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InfoError {
    /// Fewer bytes than the structure has.
    #[error("the structure is cut short: {have} of {want} bytes")]
    Short {
        /// Bytes that came.
        have: usize,
        /// Bytes that the structure has.
        want: usize,
    },
    /// The namespace is not active.
    #[error("namespace {0} is not active")]
    Inactive(u32),
    /// A field has a value with which this host cannot work.
    #[error("the controller reports {field} = {value}, which this host cannot work with")]
    Unusable {
        /// The specification's name of the field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// Identify Controller, as far as a host needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Firmware revision.
    pub firmware: String,
    /// Controller identifier.
    pub cntlid: u16,
    /// Whether it serves discovery.
    pub is_discovery: bool,
    /// Largest transfer of one command in bytes.
    pub transfer_len_max: u32,
    /// Data that fits into the capsule of an I/O command, zero for none.
    pub capsule_data_max: u32,
    /// Commands that an I/O queue holds.
    pub commands_max: u16,
    /// Keep alive granularity in milliseconds.
    pub keep_alive_granularity_ms: u32,
    /// Optional events: OAES.
    pub events: u32,
    /// Asynchronous event requests that may be outstanding.
    pub event_requests_max: u16,
    /// Highest namespace identifier.
    pub nsid_max: u32,
    /// Writes may be volatile until flushed.
    pub volatile_cache: bool,
    /// Compare is supported.
    pub compare: bool,
    /// Write Zeroes is supported.
    pub write_zeroes: bool,
    /// Dataset Management is supported.
    pub deallocate: bool,
    /// Verify is supported.
    pub verify: bool,
    /// Copy is supported.
    pub copy: bool,
    /// Write Uncorrectable is supported.
    pub write_uncorrectable: bool,
    /// Fused Compare and Write is supported.
    pub compare_and_write: bool,
}

/// What a host takes as the largest transfer where a controller has no limit or a larger one.
pub const TRANSFER_LEN_MAX: u32 = 16 << 20;

impl ControllerInfo {
    /// Reads Identify Controller; `cap` gives the unit of MDTS.
    pub fn parse(bytes: &[u8], cap: Capabilities) -> Result<Self, InfoError> {
        let id: &IdentifyController = view(bytes)?;
        let is_discovery = id.cntrltype == CNTRLTYPE_DISCOVERY;
        let capsule_len = u64::from(id.ioccsz.get()) * 16;
        if !is_discovery && capsule_len < 64 {
            return Err(InfoError::Unusable { field: "IOCCSZ", value: u64::from(id.ioccsz.get()) });
        }
        if !is_discovery && id.icdoff.get() != 0 {
            return Err(InfoError::Unusable { field: "ICDOFF", value: u64::from(id.icdoff.get()) });
        }
        let has_capsule_data = id.sgls.get() & SGLS_OFFSET != 0;
        let capsule_data_max =
            if has_capsule_data { capsule_len.saturating_sub(64).min(u64::from(TRANSFER_LEN_MAX)) } else { 0 };
        let limit = match id.mdts {
            0 => u64::from(TRANSFER_LEN_MAX),
            mdts => u64::from(cap.page_size_min()).checked_shl(u32::from(mdts)).unwrap_or(u64::MAX),
        };
        // A shift that loses the page's bit also means "more than we use".
        let transfer_len_max =
            if limit == 0 { TRANSFER_LEN_MAX } else { limit.min(u64::from(TRANSFER_LEN_MAX)) as u32 };
        let oncs = id.oncs.get();
        Ok(ControllerInfo {
            serial: load_ascii(&id.sn),
            model: load_ascii(&id.mn),
            firmware: load_ascii(&id.fr),
            cntlid: id.cntlid.get(),
            is_discovery,
            transfer_len_max,
            capsule_data_max: capsule_data_max as u32,
            commands_max: id.maxcmd.get(),
            keep_alive_granularity_ms: u32::from(id.kas.get()) * 100,
            events: id.oaes.get(),
            event_requests_max: u16::from(id.aerl) + 1,
            nsid_max: id.nn.get(),
            volatile_cache: id.vwc & VWC_PRESENT != 0,
            compare: oncs & ONCS_COMPARE != 0,
            write_zeroes: oncs & ONCS_WRITE_ZEROES != 0,
            deallocate: oncs & ONCS_DSM != 0,
            verify: oncs & ONCS_VERIFY != 0,
            copy: oncs & ONCS_COPY != 0,
            write_uncorrectable: oncs & ONCS_WRITE_UNCORRECTABLE != 0,
            compare_and_write: id.fuses.get() & FUSES_COMPARE_AND_WRITE != 0,
        })
    }
}

/// Identify Namespace, as far as a host needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Block size as a power of two.
    pub block_shift: u8,
    /// Blocks.
    pub block_count: u64,
    /// Write protected.
    pub read_only: bool,
    /// Deallocated blocks read as zero.
    pub deallocated_reads_zero: bool,
    /// Blocks that are written all or nothing over a power failure, at least one.
    pub atomic_write_blocks: u32,
    /// Blocks between boundaries that an atomic write may not cross, zero for none.
    pub atomic_boundary_blocks: u32,
    /// Preferred write size in blocks, zero if not stated.
    pub optimal_write_blocks: u32,
    /// Blocks that one source range of Copy may have: zero where there is no Copy.
    pub copy_blocks_max: u32,
    /// Number of its LBA format.
    pub format: u8,
}

impl NamespaceInfo {
    /// Reads Identify Namespace.
    pub fn parse(nsid: u32, bytes: &[u8]) -> Result<Self, InfoError> {
        let id: &IdentifyNamespace = view(bytes)?;
        let block_count = id.nsze.get();
        if block_count == 0 {
            return Err(InfoError::Inactive(nsid));
        }
        let format = usize::from(id.flbas & 0xf | id.flbas >> 1 & 0x30);
        let format = if id.nlbaf < 16 { format & 0xf } else { format };
        let lbaf = id.lbaf[format];
        let unusable = |field, value: u64| Err(InfoError::Unusable { field, value });
        if !(9..=16).contains(&lbaf.lbads) {
            return unusable("LBADS", u64::from(lbaf.lbads));
        }
        if lbaf.ms.get() != 0 {
            return unusable("MS", u64::from(lbaf.ms.get()));
        }
        if block_count.leading_zeros() < u32::from(lbaf.lbads) {
            return unusable("NSZE", block_count);
        }
        let has_atomics = id.nsfeat & identify::NSFEAT_ATOMIC != 0;
        let has_optimum = id.nsfeat & identify::NSFEAT_OPTIMAL != 0;
        let boundary = u32::from(id.nabspf.get());
        Ok(NamespaceInfo {
            block_shift: lbaf.lbads,
            block_count,
            read_only: id.nsattr & 1 != 0,
            deallocated_reads_zero: id.dlfeat & 7 == 1,
            atomic_write_blocks: if has_atomics { u32::from(id.nawupf.get()) + 1 } else { 1 },
            atomic_boundary_blocks: if has_atomics && boundary > 0 { boundary + 1 } else { 0 },
            optimal_write_blocks: if has_optimum { u32::from(id.npwg.get()) + 1 } else { 0 },
            copy_blocks_max: u32::from(id.mssrl.get()).min(id.mcl.get()),
            format: format as u8,
        })
    }
}

/// Identify Namespace of the Zoned Namespace command set, as far as a host needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZonedNamespaceInfo {
    /// Blocks of a zone, those that cannot be written included.
    pub zone_blocks: u64,
    /// Most zones open at once; 0 is no limit.
    pub open_max: u32,
    /// Most zones open or closed at once; 0 is no limit.
    pub active_max: u32,
}

impl ZonedNamespaceInfo {
    /// Reads Identify Namespace of the command set, of a namespace that is this besides.
    pub fn parse(bytes: &[u8], namespace: &NamespaceInfo) -> Result<Self, InfoError> {
        let id: &IdentifyZonedNamespace = view(bytes)?;
        let zone_blocks = id.lbafe.get(usize::from(namespace.format)).map_or(0, |format| format.zsze.get());
        if zone_blocks == 0 || !namespace.block_count.is_multiple_of(zone_blocks) {
            return Err(InfoError::Unusable { field: "ZSZE", value: zone_blocks });
        }
        // Less one, and all ones for no limit.
        let limit = |told: u32| told.wrapping_add(1);
        Ok(ZonedNamespaceInfo { zone_blocks, open_max: limit(id.mor.get()), active_max: limit(id.mar.get()) })
    }
}

/// Zones of a report, as many as it has and not more than `count`, the first of which is to begin at `start`.
pub fn zones(bytes: &[u8], start: u64, count: u64, zone_blocks: u64) -> Result<Vec<Zone>, InfoError> {
    let header: &ReportHeader = view(bytes)?;
    let unusable = |field, value: u64| InfoError::Unusable { field, value };
    let told = header.zone_count.get().min(count);
    let descriptors = bytes[size_of::<ReportHeader>()..].chunks_exact(size_of::<ZoneDescriptor>());
    let zones = descriptors.take(told as usize).zip(0..).map(|(bytes, index)| {
        let descriptor = ZoneDescriptor::ref_from_bytes(bytes).expect("the chunk has its size");
        let (at, capacity) = (start.saturating_add(zone_blocks.saturating_mul(index)), descriptor.capacity.get());
        let state = ZoneState::from_u8(descriptor.state >> 4).ok_or(unusable("ZS", u64::from(descriptor.state)))?;
        if descriptor.start.get() != at {
            return Err(unusable("ZSLBA", descriptor.start.get()));
        }
        if capacity > zone_blocks {
            return Err(unusable("ZCAP", capacity));
        }
        // In other states the pointer means nothing.
        let has_pointer = state.is_active() || state == ZoneState::Empty;
        let end = at.saturating_add(capacity);
        let write_pointer = if has_pointer { descriptor.write_pointer.get() } else { end };
        if !(at..=end).contains(&write_pointer) {
            return Err(unusable("WP", write_pointer));
        }
        let has_extension = descriptor.attributes & ZONE_ATTRIBUTE_EXTENSION != 0;
        Ok(Zone { start: at, capacity, write_pointer, state, has_extension })
    });
    zones.collect()
}

/// Identifiers in an active namespace list: those before the first zero, as long as they increase.
pub fn active_namespaces(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let mut previous = 0;
    bytes.chunks_exact(4).map_while(move |slot| {
        let nsid = u32::from_le_bytes(slot.try_into().expect("four bytes"));
        let increases = nsid > previous;
        previous = nsid;
        increases.then_some(nsid)
    })
}

/// How often a log of access states has changed.
pub fn ana_changes(bytes: &[u8]) -> Result<u64, InfoError> {
    view(bytes).map(|header: &AnaHeader| header.change_count.get())
}

/// The state of `group` in a log of access states, or in its beginning: `None` where more of it has to be read. A group that is not
/// there has nothing for this host, which is "inaccessible"; so is a state that nobody knows.
pub fn ana_state(bytes: &[u8], group: u32) -> Result<Option<AnaState>, InfoError> {
    let header: &AnaHeader = view(bytes)?;
    let mut rest = &bytes[size_of::<AnaHeader>()..];
    for _ in 0..header.group_count.get() {
        let Ok((descriptor, behind)) = AnaGroupDescriptor::ref_from_prefix(rest) else { return Ok(None) };
        if descriptor.group.get() == group {
            return Ok(Some(AnaState::from_u8(descriptor.state & 0xf).unwrap_or(AnaState::Inaccessible)));
        }
        // Some send the namespaces although they were not asked for.
        let nsids = (descriptor.nsid_count.get() as usize).saturating_mul(4);
        rest = behind.get(nsids..).unwrap_or_default();
    }
    Ok(Some(AnaState::Inaccessible))
}

/// A subsystem that discovery offers over TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveredSubsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Address as text.
    pub address: String,
    /// Port as text.
    pub service: String,
    /// Number that its target gives to the port.
    pub port_id: u16,
    /// An NVM subsystem rather than a discovery service.
    pub is_nvm: bool,
    /// A discovery service elsewhere.
    pub is_referral: bool,
    /// It is reached with TLS alone.
    pub needs_tls: bool,
}

/// Generation and number of records of a discovery log.
pub fn discovery_header(bytes: &[u8]) -> Result<(u64, u64), InfoError> {
    let header: &DiscoveryHeader = view(bytes)?;
    Ok((header.generation.get(), header.record_count.get()))
}

/// The entries behind the header, those for TCP with valid names.
pub fn discovery_entries(bytes: &[u8]) -> impl Iterator<Item = DiscoveredSubsystem> + '_ {
    bytes.chunks_exact(size_of::<DiscoveryEntry>()).filter_map(|chunk| {
        let entry = DiscoveryEntry::ref_from_bytes(chunk).expect("the chunk has its size");
        if entry.trtype != TRTYPE_TCP {
            return None;
        }
        Some(DiscoveredSubsystem {
            nqn: Nqn::from_field(&entry.subnqn).ok()?,
            address: text(&entry.traddr),
            service: text(&entry.trsvcid),
            port_id: entry.portid.get(),
            is_nvm: entry.subtype == SUBTYPE_NVM,
            is_referral: entry.subtype == SUBTYPE_REFERRAL,
            needs_tls: entry.treq & TREQ_SECURE_CHANNEL == TREQ_REQUIRED && entry.tsas[0] == SECTYPE_TLS_1_3,
        })
    })
}

/// Padded with spaces by the specification, with zeroes by some.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    load_ascii(&field[..end])
}

fn view<T: FromBytes + zerocopy::KnownLayout + zerocopy::Immutable + zerocopy::Unaligned>(
    bytes: &[u8],
) -> Result<&T, InfoError> {
    let short = InfoError::Short { have: bytes.len(), want: size_of::<T>() };
    T::ref_from_prefix(bytes).map(|(view, _)| view).map_err(|_| short)
}

const _: () = assert!(size_of::<IdentifyController>() == IDENTIFY_LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::byteorder::little_endian::{U16, U32, U64};
    use zerocopy::{FromZeros, IntoBytes};

    const CAP: Capabilities = Capabilities::new(128, 1000);

    fn usable() -> IdentifyController {
        let mut id = IdentifyController::new_zeroed();
        id.ioccsz = U32::new(4);
        id
    }

    #[test]
    fn transfer_limits_of_any_size_are_understood() {
        for (mdts, expected) in [(0, TRANSFER_LEN_MAX), (5, 128 << 10), (8, 1 << 20), (52, TRANSFER_LEN_MAX)] {
            let id = IdentifyController { mdts, ..usable() };
            let info = ControllerInfo::parse(id.as_bytes(), CAP).expect("usable");
            assert_eq!(info.transfer_len_max, expected, "{mdts}");
        }
        let id = IdentifyController { mdts: 255, ..usable() };
        assert_eq!(ControllerInfo::parse(id.as_bytes(), CAP).map(|info| info.transfer_len_max), Ok(TRANSFER_LEN_MAX));
    }

    #[test]
    fn controllers_this_host_cannot_work_with_are_named() {
        let id = IdentifyController { ioccsz: U32::new(3), ..usable() };
        let refused = ControllerInfo::parse(id.as_bytes(), CAP);
        assert_eq!(refused, Err(InfoError::Unusable { field: "IOCCSZ", value: 3 }));
        let id = IdentifyController { icdoff: U16::new(1), ..usable() };
        assert_eq!(ControllerInfo::parse(id.as_bytes(), CAP), Err(InfoError::Unusable { field: "ICDOFF", value: 1 }));
        assert_eq!(ControllerInfo::parse(&[0; 100], CAP), Err(InfoError::Short { have: 100, want: 4096 }));
    }

    #[test]
    fn namespaces_with_metadata_or_odd_sizes_are_refused() {
        let mut id = IdentifyNamespace::new_zeroed();
        assert_eq!(NamespaceInfo::parse(5, id.as_bytes()), Err(InfoError::Inactive(5)));
        id.nsze = U64::new(1000);
        assert_eq!(NamespaceInfo::parse(5, id.as_bytes()), Err(InfoError::Unusable { field: "LBADS", value: 0 }));
        id.lbaf[0].lbads = 12;
        assert_eq!(NamespaceInfo::parse(5, id.as_bytes()).map(|info| info.block_count), Ok(1000));
        id.lbaf[0].ms = U16::new(8);
        assert_eq!(NamespaceInfo::parse(5, id.as_bytes()), Err(InfoError::Unusable { field: "MS", value: 8 }));
        id.lbaf[0].ms = U16::new(0);
        id.nsze = U64::new(1 << 53);
        let refused = NamespaceInfo::parse(5, id.as_bytes());
        assert_eq!(refused, Err(InfoError::Unusable { field: "NSZE", value: 1 << 53 }));
    }

    #[test]
    fn the_state_of_a_group_is_found_with_and_without_namespaces() {
        let mut log =
            AnaHeader { change_count: U64::new(9), group_count: U16::new(3), reserved10: [0; 6] }.as_bytes().to_vec();
        for (group, nsids, state) in [(1, 0, 1), (5, 2, 3), (7, 0, 0xe)] {
            let mut descriptor = AnaGroupDescriptor::new_zeroed();
            (descriptor.group, descriptor.nsid_count, descriptor.state) = (U32::new(group), U32::new(nsids), state);
            log.extend_from_slice(descriptor.as_bytes());
            log.extend(std::iter::repeat_n(7, nsids as usize * 4));
        }
        let states = [1, 5, 7, 8].map(|group| ana_state(&log, group).unwrap());
        let (yes, no) = (Some(AnaState::Optimized), Some(AnaState::Inaccessible));
        assert_eq!(states, [yes, no, no, no], "unknown states and groups are of no use");
        for cut in 16..log.len() {
            let known = |end: usize, state| if cut >= end { state } else { None };
            assert_eq!(ana_state(&log[..cut], 1), Ok(known(48, yes)));
            assert_eq!(ana_state(&log[..cut], 5), Ok(known(80, no)));
            assert_eq!(ana_state(&log[..cut], 8), Ok(None), "the end of the log is not known to have been read");
        }
        assert_eq!(ana_changes(&log), Ok(9));
    }

    #[test]
    fn a_namespace_list_ends_at_zero_or_where_it_stops_increasing() {
        let list = |ids: &[u32]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        assert_eq!(active_namespaces(&list(&[1, 5, 9, 0, 11])).collect::<Vec<_>>(), [1, 5, 9]);
        assert_eq!(active_namespaces(&list(&[3, 3, 4])).collect::<Vec<_>>(), [3]);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let _ = ControllerInfo::parse(&bytes, CAP);
            let _ = ControllerInfo::parse(&bytes, Capabilities(u64::MAX));
            let _ = NamespaceInfo::parse(1, &bytes);
            let _ = discovery_header(&bytes);
            let _ = ana_state(&bytes, 1);
            let _ = active_namespaces(&bytes).count();
            let _ = discovery_entries(&bytes).count();
            let _ = zones(&bytes, 1 << 40, 99, 1 << 16);
        }
    }
}
