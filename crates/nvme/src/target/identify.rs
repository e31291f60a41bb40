//! Identify: what a controller says about itself and its namespaces (Base 2.0, section 5.17).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::ana::{ANA_GROUPS_MAX, TRANSITION_SECONDS};
use super::controller::{Controller, KAS_UNITS, VERSION};
use super::event::AER_MAX;
use super::feature::{CRITICAL_TEMPERATURE, WARNING_TEMPERATURE};
use super::log::ERROR_ENTRIES_MAX;
use super::model::{COPY_RANGES_MAX, Namespace, Subsystem, TargetConfig, Zoned};
use crate::spec::erase::{FNA_CRYPTO_ERASE, FNA_NO_BROADCAST, OACS_FORMAT};
use crate::spec::feature::event;
use crate::spec::identify::*;
use crate::spec::sqe::IdentifyCommand;
use crate::spec::zns::{CSI_ZNS, IdentifyZonedNamespace, OZCS_READ_ACROSS, ZONE_EXTENSION_UNIT, limit};
use crate::spec::{IDENTIFY_LEN, NSID_ALL, Sqe, Status};

/// Abort commands that may be outstanding (ACL is one less).
pub(super) const ABORTS_MAX: u8 = 4;

/// Cross-controller resets that hosts should have outstanding (CCRL). More cost nothing but their places in the admin queue.
const CROSS_RESETS_MAX: u8 = 4;

type Page = [u8; IDENTIFY_LEN];

/// Answers Identify into `page`, which is zero.
pub(super) fn identify(
    controller: &Controller,
    subsystem: &Subsystem,
    config: &TargetConfig,
    sqe: &Sqe,
    page: &mut Page,
) -> Result<(), Status> {
    let command = IdentifyCommand::of(sqe);
    let nsid = sqe.nsid.get();
    let cns = Cns::from_u8(command.cns).ok_or(Status::INVALID_FIELD)?;
    if controller.is_discovery() && cns != Cns::Controller {
        return Err(Status::INVALID_FIELD);
    }
    let of_command_set = [Cns::CommandSetNamespace, Cns::CommandSetController, Cns::CommandSetActiveNamespaces];
    let csi = command.csi;
    let is_known = csi == CSI_NVM || (csi == CSI_ZNS && controller.has_all_command_sets());
    if of_command_set.contains(&cns) && !is_known {
        return Err(Status::INVALID_FIELD);
    }
    let seen = |nsid| controller.namespace(subsystem, nsid);
    // `None` is a valid identifier that is inactive, which Identify answers with zeroes.
    let lookup = |nsid| match nsid {
        0 => Err(Status::INVALID_NAMESPACE),
        _ if nsid > subsystem.config().nsid_max => Err(Status::INVALID_NAMESPACE),
        _ => Ok(seen(nsid)),
    };
    match cns {
        Cns::Controller => store_controller(controller, subsystem, config, page),
        // No limits but MDTS, for appends to zones neither: all zero (NVM Command Set 1.0, figure 102; ZNS 1.1, figure 51).
        Cns::CommandSetController => {}
        Cns::Namespace => {
            if let Some(namespace) = lookup(nsid)? {
                let is_reached = subsystem.ana_state(namespace, controller.via()).refusal().is_none();
                store_namespace(namespace, is_reached, config, page);
            }
        }
        Cns::CommandSetNamespace => match lookup(nsid)? {
            Some(namespace) if csi == CSI_ZNS => {
                store_zoned(namespace.zoned.as_ref().ok_or(Status::INVALID_FIELD)?, page);
            }
            _ => {} // No protection information: all zero.
        },
        Cns::IndependentNamespace => {
            if let Some(namespace) = lookup(nsid)? {
                store_independent(namespace, config, page);
            }
        }
        Cns::ActiveNamespaces | Cns::CommandSetActiveNamespaces => {
            if nsid >= NSID_ALL - 1 {
                return Err(Status::INVALID_NAMESPACE);
            }
            let is_listed =
                |nsid: &u32| seen(*nsid).is_some_and(|found| cns == Cns::ActiveNamespaces || found.csi() == csi);
            let listed = subsystem.active_above(nsid).filter(is_listed);
            for (slot, active) in page.chunks_exact_mut(4).zip(listed) {
                slot.copy_from_slice(&active.to_le_bytes());
            }
        }
        Cns::NamespaceDescriptors => {
            let namespace = lookup(nsid)?.ok_or(Status::INVALID_NAMESPACE)?;
            store_descriptors(namespace, page);
        }
        Cns::CommandSets => {
            if command.cntid != 0xffff && command.cntid != controller.cntlid() {
                return Err(Status::INVALID_FIELD);
            }
            page[0] = 1 << CSI_NVM | 1 << CSI_ZNS;
        }
    }
    Ok(())
}

/// Whether a controller's host sees a namespace of some kind: a controller offers what one of them can do.
pub(super) fn sees_any(controller: &Controller, subsystem: &Subsystem, is_such: impl Fn(&Namespace) -> bool) -> bool {
    let mut such = subsystem.namespaces().filter(|(_, found)| is_such(found));
    such.any(|(nsid, _)| controller.namespace(subsystem, nsid).is_some())
}

/// Events that a controller may report: OAES.
pub(super) fn events_supported(controller: &Controller) -> u32 {
    if controller.is_discovery() {
        return event::DISCOVERY_CHANGE;
    }
    let zones = if controller.has_all_command_sets() { event::ZONE_DESCRIPTOR_CHANGE } else { 0 };
    event::NAMESPACE_ATTRIBUTE | event::ANA_CHANGE | zones
}

fn store_controller(controller: &Controller, subsystem: &Subsystem, config: &TargetConfig, page: &mut Page) {
    let mut id = IdentifyController::new_zeroed();
    store_ascii(&mut id.sn, &subsystem.config().serial);
    store_ascii(&mut id.mn, &subsystem.config().model);
    store_ascii(&mut id.fr, env!("CARGO_PKG_VERSION"));
    id.mdts = config.mdts();
    id.cntlid = U16::new(controller.cntlid());
    id.ver = U32::new(VERSION.0);
    id.oaes = U32::new(events_supported(controller));
    id.aerl = AER_MAX as u8 - 1;
    id.elpe = ERROR_ENTRIES_MAX as u8 - 1;
    id.lpa = LPA_EXTENDED | LPA_MISCELLANEOUS;
    id.kas = U16::new(KAS_UNITS as u16);
    id.maxcmd = U16::new(config.queue_entries_max);
    id.sgls = U32::new(SGLS_SUPPORTED | SGLS_OFFSET | SGLS_TRANSPORT);
    id.subnqn = subsystem.nqn().to_field();
    id.ioccsz = U32::new((64 + config.capsule_data_max) / 16);
    id.iorcsz = U32::new(1);
    id.msdbd = 1;
    if controller.is_discovery() {
        id.cntrltype = CNTRLTYPE_DISCOVERY;
    } else {
        store_io_controller(&mut id, controller, subsystem, config);
    }
    page.copy_from_slice(id.as_bytes());
}

fn store_io_controller(
    id: &mut IdentifyController,
    controller: &Controller,
    subsystem: &Subsystem,
    config: &TargetConfig,
) {
    id.cntrltype = CNTRLTYPE_IO;
    id.rab = 6;
    id.cmic = CMIC_MULTIPLE_PORTS | CMIC_MULTIPLE_CONTROLLERS | CMIC_ANA;
    (id.anatt, id.anacap) = (TRANSITION_SECONDS, ANACAP_ALL_STATES_FIXED_GROUP);
    (id.anagrpmax, id.nanagrpid) = (U32::new(ANA_GROUPS_MAX), U32::new(ANA_GROUPS_MAX));
    id.ctratt = U32::new(CTRATT_HOST_ID_128);
    id.acl = ABORTS_MAX - 1;
    id.frmw = 1 | 1 << 1; // One slot, read only.
    id.lpa |= LPA_COMMAND_EFFECTS;
    id.wctemp = U16::new(WARNING_TEMPERATURE);
    id.cctemp = U16::new(CRITICAL_TEMPERATURE);
    id.sqes = 6 | 6 << 4;
    id.cqes = 4 | 4 << 4;
    id.nn = U32::new(subsystem.config().nsid_max);
    id.mnan = U32::new(subsystem.config().nsid_max);
    if sees_any(controller, subsystem, |found| found.crypto_erase) {
        id.oacs = U16::new(OACS_FORMAT);
        id.fna = FNA_CRYPTO_ERASE | FNA_NO_BROADCAST;
    }
    let io = ONCS_COMPARE | ONCS_DSM | ONCS_WRITE_ZEROES | ONCS_VERIFY | ONCS_COPY;
    let spoils = sees_any(controller, subsystem, |found| found.write_uncorrectable);
    let io = io | if spoils { ONCS_WRITE_UNCORRECTABLE } else { 0 };
    id.oncs = U16::new(io | ONCS_FEATURE_SELECT | ONCS_RESERVATIONS | ONCS_TIMESTAMP);
    id.cdfs = U16::new(CDFS_FORMAT_0);
    id.fuses = U16::new(FUSES_COMPARE_AND_WRITE);
    id.vwc = VWC_FLUSH_ALL | if subsystem.config().volatile_cache { VWC_PRESENT } else { 0 };
    id.ofcs = U16::new(OFCS_DISCONNECT);
    let instance = controller.instance();
    (id.ciu, id.cirn) = (instance.uniquifier, U64::new(instance.random));
    id.ccrl = CROSS_RESETS_MAX;
    id.cqt = U16::new(config.command_quiesce_ms);
}

fn store_namespace(namespace: &Namespace, is_reached: bool, config: &TargetConfig, page: &mut Page) {
    let mut id = IdentifyNamespace::new_zeroed();
    let blocks = U64::new(namespace.block_count);
    (id.nsze, id.ncap) = (blocks, blocks);
    id.anagrpid = U32::new(namespace.ana_group);
    id.lbaf[0].lbads = namespace.block_shift;
    id.nmic = NMIC_SHARED;
    id.rescap = config.reservation_capabilities();
    id.nsattr = u8::from(namespace.read_only);
    id.dlfeat = if namespace.deallocate { DLFEAT_ZERO } else { 0 };
    // What is in use is not known where the namespace cannot be reached (Base 2.0, section 8.1.3).
    if is_reached {
        id.nuse = blocks;
        id.nvmcap.set(u128::from(namespace.block_count) << namespace.block_shift);
    }
    id.nguid = *namespace.uuid.as_bytes();
    id.eui64 = namespace.eui64;
    if namespace.atomic_write_blocks > 1 || namespace.atomic_boundary_blocks > 0 {
        id.nsfeat |= NSFEAT_ATOMIC;
        let unit = U16::new((namespace.atomic_write_blocks - 1).min(0xffff) as u16);
        (id.nawun, id.nawupf) = (unit, unit);
        if namespace.atomic_boundary_blocks > 0 {
            let boundary = U16::new(namespace.atomic_boundary_blocks - 1);
            (id.nabsn, id.nabspf) = (boundary, boundary);
        }
    }
    if namespace.optimal_write_blocks > 0 {
        id.nsfeat |= NSFEAT_OPTIMAL;
        let unit = U16::new(namespace.optimal_write_blocks - 1);
        (id.npwg, id.npwa, id.npdg, id.npda, id.nows) = (unit, unit, unit, unit, unit);
    }
    id.mssrl = U16::new(namespace.copy_range_blocks_max);
    id.mcl = U32::new(u32::from(namespace.copy_range_blocks_max) * u32::from(COPY_RANGES_MAX));
    id.msrc = (COPY_RANGES_MAX - 1) as u8;
    page.copy_from_slice(id.as_bytes());
}

fn store_zoned(zoned: &Zoned, page: &mut Page) {
    let mut id = IdentifyZonedNamespace::new_zeroed();
    id.ozcs = U16::new(OZCS_READ_ACROSS);
    id.mar = U32::new(limit(zoned.active_zones_max));
    id.mor = U32::new(limit(zoned.open_zones_max));
    id.lbafe[0].zsze = U64::new(zoned.zone_blocks);
    id.lbafe[0].zdes = (zoned.extension_bytes / ZONE_EXTENSION_UNIT) as u8;
    page.copy_from_slice(id.as_bytes());
}

fn store_independent(namespace: &Namespace, config: &TargetConfig, page: &mut Page) {
    let mut id = IdentifyIndependentNamespace::new_zeroed();
    id.nsfeat = if namespace.volatile_cache { 0 } else { INDEPENDENT_NSFEAT_NO_VWC };
    id.nmic = NMIC_SHARED;
    id.rescap = config.reservation_capabilities();
    id.anagrpid = U32::new(namespace.ana_group);
    id.nsattr = u8::from(namespace.read_only);
    id.nstat = NSTAT_READY;
    page.copy_from_slice(id.as_bytes());
}

fn store_descriptors(namespace: &Namespace, page: &mut Page) {
    let mut at = 0;
    if namespace.eui64 != [0; 8] {
        at = store_descriptor(page, at, NIDT_EUI64, &namespace.eui64);
    }
    at = store_descriptor(page, at, NIDT_NGUID, namespace.uuid.as_bytes());
    at = store_descriptor(page, at, NIDT_UUID, namespace.uuid.as_bytes());
    store_descriptor(page, at, NIDT_CSI, &[namespace.csi()]);
}
