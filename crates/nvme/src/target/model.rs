//! What exists on a node: limits, subsystems, namespaces, who may see them. Plain data; hosts are told by [`super::Target`].

use std::collections::{BTreeMap, BTreeSet};

use super::ana::{Groups, check_group};
use super::auth::HostPolicy;
use super::mask::Mask;
use crate::spec::Nqn;
use crate::spec::fabrics::CNTLID_MAX;
use crate::spec::identify::CSI_NVM;
use crate::spec::reservation::{RESCAP_IGNORE_KEY, RESCAP_PERSISTENCE, RESCAP_TYPES};
use crate::spec::zns::CSI_ZNS;
use crate::tcp::ADMIN_CAPSULE_DATA_MAX;
use crate::tcp::r2t::R2T_MAX;

/// Limits of a target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// I/O queues per controller.
    pub io_queues_max: u16,
    /// Entries of an I/O queue: commands that a host may have outstanding on it, at most [`R2T_MAX`].
    pub queue_entries_max: u16,
    /// Entries of the admin queue.
    pub admin_entries_max: u16,
    /// Largest transfer of one command in bytes: a power of two, at least 8 KiB. (An MDTS of one page of 4 KiB would be 0,
    /// which says "no limit".)
    pub transfer_len_max: u32,
    /// Data that an I/O command may carry in its capsule, in bytes: a multiple of 16, at most 8 KiB.
    pub capsule_data_max: u32,
    /// Controllers of all hosts together.
    pub controllers_max: usize,
    /// Milliseconds after which an idle discovery controller without keep alive ends (Base 2.0, section 3.1.2.3.3).
    pub discovery_timeout_ms: u32,
    /// Milliseconds within which the commands of a controller that lost its host are expected to have ended (CQT). A host
    /// that cannot have a lost controller reset waits so much longer before it writes to the same blocks again.
    pub command_quiesce_ms: u16,
    /// Reservations whose hosts want it are kept over a loss of power.
    pub persists_reservations: bool,
}

impl Default for TargetConfig {
    fn default() -> Self {
        TargetConfig {
            io_queues_max: 128,
            queue_entries_max: 1024,
            admin_entries_max: 128,
            transfer_len_max: 1 << 20,
            capsule_data_max: ADMIN_CAPSULE_DATA_MAX,
            controllers_max: 1024,
            discovery_timeout_ms: 120_000,
            // Devices retry and recover sectors for some seconds.
            command_quiesce_ms: 10_000,
            persists_reservations: false,
        }
    }
}

impl TargetConfig {
    pub(super) fn assert_valid(&self) {
        assert!((1..=0xfffe).contains(&self.io_queues_max));
        assert!(self.queue_entries_max >= 2 && self.admin_entries_max >= 32);
        assert!(self.queue_entries_max.max(self.admin_entries_max) as usize <= R2T_MAX, "one R2T per command");
        assert!(self.transfer_len_max.is_power_of_two() && self.transfer_len_max >= 8192);
        assert!(self.capsule_data_max.is_multiple_of(16) && self.capsule_data_max <= ADMIN_CAPSULE_DATA_MAX);
        assert!(self.controllers_max >= 1);
    }

    /// RESCAP: what reservations there are.
    pub(super) fn reservation_capabilities(&self) -> u8 {
        RESCAP_TYPES | RESCAP_IGNORE_KEY | if self.persists_reservations { RESCAP_PERSISTENCE } else { 0 }
    }

    /// MDTS: the limit as a power of two of 4 KiB pages.
    pub(super) fn mdts(&self) -> u8 {
        (self.transfer_len_max / 4096).trailing_zeros() as u8
    }
}

/// What a namespace tells its hosts. The device behind it is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Block size as a power of two: 9 (512 bytes) to 16.
    pub block_shift: u8,
    /// Blocks.
    pub block_count: u64,
    /// UUID; it also serves as NGUID.
    pub uuid: uuid::Uuid,
    /// EUI-64, all zero for none.
    pub eui64: [u8; 8],
    /// Writes are refused.
    pub read_only: bool,
    /// Completed writes may be lost with power unless flushed.
    pub volatile_cache: bool,
    /// Deallocate frees space, and deallocated blocks read as zero.
    pub deallocate: bool,
    /// It is encrypted with a key of its own, which can be replaced.
    pub crypto_erase: bool,
    /// Blocks can be declared unreadable.
    pub write_uncorrectable: bool,
    /// Preferred size and alignment of writes in blocks, zero if there is none.
    pub optimal_write_blocks: u16,
    /// Blocks that are written all or nothing over a power failure, at least one.
    pub atomic_write_blocks: u32,
    /// Blocks between boundaries that an atomic write may not cross, zero for none.
    pub atomic_boundary_blocks: u16,
    /// Blocks that a source range of a copy may have, at least one.
    pub copy_range_blocks_max: u16,
    /// It is of the Zoned Namespace Command Set.
    pub zoned: Option<Zoned>,
    /// Its group for asymmetric namespace access, from one to [`ANA_GROUPS_MAX`](super::ANA_GROUPS_MAX).
    pub ana_group: u32,
}

/// Zones of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zoned {
    /// Blocks from one zone to the next.
    pub zone_blocks: u64,
    /// Zones that may be open at once, zero for no limit.
    pub open_zones_max: u32,
    /// Zones that may be active at once, zero for no limit.
    pub active_zones_max: u32,
    /// Bytes of a zone's descriptor extension: a multiple of 64 up to 16,320, zero where there are none.
    pub extension_bytes: u32,
}

/// Source ranges of one copy.
pub const COPY_RANGES_MAX: u16 = 128;

impl Namespace {
    /// A plain namespace.
    pub fn new(block_shift: u8, block_count: u64, uuid: uuid::Uuid) -> Self {
        Namespace {
            block_shift,
            block_count,
            uuid,
            eui64: [0; 8],
            read_only: false,
            volatile_cache: false,
            deallocate: true,
            crypto_erase: false,
            write_uncorrectable: false,
            optimal_write_blocks: 0,
            atomic_write_blocks: 1,
            atomic_boundary_blocks: 0,
            copy_range_blocks_max: ((1u32 << 20) >> block_shift) as u16,
            zoned: None,
            ana_group: 1,
        }
    }

    /// Its command set.
    pub(super) fn csi(&self) -> u8 {
        if self.zoned.is_some() { CSI_ZNS } else { CSI_NVM }
    }

    fn check(&self) -> Result<(), ModelError> {
        check_group(self.ana_group)?;
        let fits = |blocks: u64| blocks > 0 && blocks.leading_zeros() >= u32::from(self.block_shift);
        if !(9..=16).contains(&self.block_shift) || !fits(self.block_count) || self.atomic_write_blocks == 0 {
            return Err(ModelError::BadGeometry);
        }
        let is_whole = |zoned: &Zoned| {
            let extension_fits = zoned.extension_bytes.is_multiple_of(64) && zoned.extension_bytes <= 255 * 64;
            extension_fits && zoned.zone_blocks > 0 && self.block_count.is_multiple_of(zoned.zone_blocks)
        };
        if self.copy_range_blocks_max == 0 || !self.zoned.as_ref().is_none_or(is_whole) {
            return Err(ModelError::BadGeometry);
        }
        Ok(())
    }
}

/// What the SMART log says (Base 2.0, figure 207). Counters since the node was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Critical warnings, as the log has them.
    pub critical_warning: u8,
    /// Kelvin; zero if not known.
    pub temperature_kelvin: u16,
    /// Endurance used, in percent; may exceed 100.
    pub percentage_used: u8,
    /// Bytes that hosts read.
    pub bytes_read: u128,
    /// Bytes that hosts wrote.
    pub bytes_written: u128,
    /// Read commands.
    pub reads: u128,
    /// Write commands.
    pub writes: u128,
    /// Starts of the node.
    pub power_cycles: u128,
    /// Hours in service.
    pub power_on_hours: u128,
    /// Ends without shutdown.
    pub unsafe_shutdowns: u128,
    /// Reads whose data could not be recovered.
    pub media_errors: u128,
}

/// What a subsystem is made from.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number, 20 characters at most are shown.
    pub serial: String,
    /// Model number, 40 characters at most are shown.
    pub model: String,
    /// Every host may connect.
    pub allow_any_host: bool,
    /// Highest namespace identifier (NN).
    pub nsid_max: u32,
    /// Namespaces may have a volatile cache: hosts send flushes.
    pub volatile_cache: bool,
    /// First and last identifier that its controllers get. Nodes that show the same subsystem have ranges apart.
    pub controller_ids: (u16, u16),
}

impl SubsystemConfig {
    /// A subsystem that any host may use, with room for 1024 namespaces.
    pub fn new(nqn: Nqn) -> Self {
        SubsystemConfig {
            nqn,
            serial: "remuda".into(),
            model: "Remuda".into(),
            allow_any_host: true,
            nsid_max: 1024,
            volatile_cache: true,
            controller_ids: (1, CNTLID_MAX),
        }
    }
}

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The name is taken.
    #[error("subsystem {0} exists already")]
    SubsystemExists(Nqn),
    /// No subsystem with this id that could be changed.
    #[error("no such subsystem")]
    NoSuchSubsystem,
    /// No namespace with this id.
    #[error("no namespace {0}")]
    NoSuchNamespace(u32),
    /// The id is taken.
    #[error("namespace {0} exists already")]
    NamespaceExists(u32),
    /// The id is zero or above the subsystem's limit.
    #[error("namespace id {nsid} is not within 1..={max}")]
    BadNamespaceId {
        /// The id.
        nsid: u32,
        /// The limit.
        max: u32,
    },
    /// No free id.
    #[error("all {0} namespace ids are taken")]
    NamespacesFull(u32),
    /// No such group.
    #[error("ANA group {0} is not within 1..={max}", max = super::ANA_GROUPS_MAX)]
    BadAnaGroup(u32),
    /// The range of controller identifiers is empty or reaches beyond the possible ones.
    #[error("controller ids {first} to {last} are not within 1..={CNTLID_MAX}")]
    BadControllerIds {
        /// The first.
        first: u16,
        /// The last.
        last: u16,
    },
    /// Block size, count or atomic unit that cannot be.
    #[error("block size must be 512 bytes to 64 KiB, and the size positive and below 2^64 bytes")]
    BadGeometry,
    /// The list of hosts is full.
    #[error("a subsystem lists at most {HOSTS_MAX} hosts")]
    HostsFull,
}

/// Hosts that a subsystem lists at most.
pub const HOSTS_MAX: usize = 4096;

/// A subsystem: namespaces and those who may see them.
#[derive(Clone, Debug)]
pub struct Subsystem {
    config: SubsystemConfig,
    namespaces: BTreeMap<u32, Namespace>,
    /// Who sees those namespaces that not every host sees.
    pub(super) masks: BTreeMap<u32, Mask>,
    pub(super) groups: Groups,
    hosts: BTreeSet<Nqn>,
    /// How those of them authenticate that have to.
    policies: BTreeMap<Nqn, HostPolicy>,
    /// The SMART log's content.
    pub(super) health: Health,
    /// Where the search for a free controller identifier starts: identifiers are not reused at once.
    pub(super) next_cntlid: u16,
}

impl Subsystem {
    pub(super) fn new(config: SubsystemConfig) -> Result<Self, ModelError> {
        if config.nsid_max == 0 || config.nsid_max > 0xffff_fffd {
            return Err(ModelError::BadNamespaceId { nsid: config.nsid_max, max: 0xffff_fffd });
        }
        let (first, last) = config.controller_ids;
        if first == 0 || first > last || last > CNTLID_MAX {
            return Err(ModelError::BadControllerIds { first, last });
        }
        Ok(Subsystem {
            next_cntlid: first,
            config,
            namespaces: BTreeMap::new(),
            masks: BTreeMap::new(),
            groups: Groups::new(),
            hosts: BTreeSet::new(),
            policies: BTreeMap::new(),
            health: Health::default(),
        })
    }

    pub(super) fn discovery() -> Self {
        Subsystem::new(SubsystemConfig::new(Nqn::discovery())).expect("the default limits are valid")
    }

    /// Its name.
    pub fn nqn(&self) -> &Nqn {
        &self.config.nqn
    }

    /// What it was made from.
    pub fn config(&self) -> &SubsystemConfig {
        &self.config
    }

    /// A namespace.
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.get(&nsid)
    }

    /// Namespaces, by increasing id.
    pub fn namespaces(&self) -> impl Iterator<Item = (u32, &Namespace)> {
        self.namespaces.iter().map(|(nsid, namespace)| (*nsid, namespace))
    }

    /// Ids of namespaces above `after`, increasing.
    pub fn active_above(&self, after: u32) -> impl Iterator<Item = u32> + '_ {
        let start = after.saturating_add(1);
        self.namespaces.range(start..).map(|(nsid, _)| *nsid)
    }

    /// Whether a host may see this subsystem.
    pub fn is_allowed(&self, host: &Nqn) -> bool {
        self.config.allow_any_host || self.hosts.contains(host)
    }

    /// Hosts that are listed.
    pub fn hosts(&self) -> impl Iterator<Item = &Nqn> {
        self.hosts.iter()
    }

    pub(super) fn add_namespace(&mut self, nsid: Option<u32>, namespace: Namespace) -> Result<u32, ModelError> {
        namespace.check()?;
        let max = self.config.nsid_max;
        let nsid = match nsid {
            Some(nsid) if nsid == 0 || nsid > max => return Err(ModelError::BadNamespaceId { nsid, max }),
            Some(nsid) if self.namespaces.contains_key(&nsid) => return Err(ModelError::NamespaceExists(nsid)),
            Some(nsid) => nsid,
            None => self.lowest_free_nsid().ok_or(ModelError::NamespacesFull(max))?,
        };
        self.namespaces.insert(nsid, namespace);
        Ok(nsid)
    }

    fn lowest_free_nsid(&self) -> Option<u32> {
        let mut candidate = 1;
        for nsid in self.namespaces.keys() {
            if *nsid != candidate {
                break;
            }
            candidate += 1;
        }
        (candidate <= self.config.nsid_max).then_some(candidate)
    }

    pub(super) fn remove_namespace(&mut self, nsid: u32) -> Result<(), ModelError> {
        self.namespaces.remove(&nsid).map(drop).ok_or(ModelError::NoSuchNamespace(nsid))
    }

    pub(super) fn resize_namespace(
        &mut self,
        nsid: u32,
        block_count: u64,
        crypto_erase: bool,
    ) -> Result<(), ModelError> {
        let namespace = self.namespaces.get_mut(&nsid).ok_or(ModelError::NoSuchNamespace(nsid))?;
        let resized = Namespace { block_count, crypto_erase, ..*namespace };
        resized.check()?;
        *namespace = resized;
        Ok(())
    }

    pub(super) fn allow_host(&mut self, host: Nqn) -> Result<(), ModelError> {
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains(&host) {
            return Err(ModelError::HostsFull);
        }
        self.hosts.insert(host);
        Ok(())
    }

    /// How a host authenticates; `None` if it need not.
    pub fn policy(&self, host: &Nqn) -> Option<&HostPolicy> {
        self.policies.get(host)
    }

    pub(super) fn set_policy(&mut self, host: &Nqn, policy: Option<HostPolicy>) -> Result<(), ModelError> {
        match policy {
            None => drop(self.policies.remove(host)),
            Some(_) if self.policies.len() >= HOSTS_MAX && !self.policies.contains_key(host) => {
                return Err(ModelError::HostsFull);
            }
            Some(policy) => drop(self.policies.insert(host.clone(), policy)),
        }
        Ok(())
    }

    pub(super) fn disallow_host(&mut self, host: &Nqn) {
        self.hosts.remove(host);
    }

    pub(super) fn set_allow_any_host(&mut self, allow: bool) {
        self.config.allow_any_host = allow;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subsystem(nsid_max: u32) -> Subsystem {
        let nqn = Nqn::new("nqn.2014-08.org.example:a").expect("valid");
        Subsystem::new(SubsystemConfig { nsid_max, ..SubsystemConfig::new(nqn) }).expect("valid")
    }

    fn namespace() -> Namespace {
        Namespace::new(12, 100, uuid::Uuid::nil())
    }

    #[test]
    fn namespaces_take_the_lowest_free_id_until_there_is_none() {
        let mut subsystem = subsystem(3);
        assert_eq!(subsystem.add_namespace(Some(2), namespace()), Ok(2));
        assert_eq!(subsystem.add_namespace(None, namespace()), Ok(1));
        assert_eq!(subsystem.add_namespace(None, namespace()), Ok(3));
        assert_eq!(subsystem.add_namespace(None, namespace()), Err(ModelError::NamespacesFull(3)));
        assert_eq!(subsystem.add_namespace(Some(2), namespace()), Err(ModelError::NamespaceExists(2)));
        assert_eq!(subsystem.active_above(1).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(subsystem.active_above(u32::MAX).count(), 0);
    }

    #[test]
    fn sizes_that_overflow_bytes_are_refused() {
        let mut subsystem = subsystem(3);
        for (shift, blocks) in [(8, 1), (17, 1), (12, 0), (9, 1 << 55), (9, u64::MAX)] {
            let odd = Namespace::new(shift, blocks, uuid::Uuid::nil());
            assert_eq!(subsystem.add_namespace(None, odd), Err(ModelError::BadGeometry), "{shift} {blocks}");
        }
        assert!(subsystem.add_namespace(None, Namespace::new(9, (1 << 55) - 1, uuid::Uuid::nil())).is_ok());
        assert_eq!(subsystem.resize_namespace(1, 0, false), Err(ModelError::BadGeometry));
    }
}
