//! Asymmetric namespace access: each namespace belongs to a group of its subsystem, and each group has a state at each port
//! (Base 2.0, section 8.1). Hosts with several paths go by it: they use optimised ports, fall back to others, and take what
//! an inaccessible one refuses elsewhere.
//!
//! A port is the address on which the node listens. A group that nobody has said anything about is optimised everywhere.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::controller::Controller;
use super::log::Window;
use super::model::{ModelError, Namespace, Subsystem};
use super::{SubsystemId, Target, TargetEvent};
use crate::spec::ana::{AnaGroupDescriptor, AnaHeader, AnaState};

/// Groups of a subsystem are numbered from one to this (ANAGRPMAX). With it the log of 1024 namespaces stays below 8 KiB, the
/// smallest transfer limit: Linux does without ANA where the whole log does not fit into one transfer.
pub const ANA_GROUPS_MAX: u32 = 64;

/// How long a state may be "change" (ANATT). Hosts that see it for twice as long reset their controllers.
pub(super) const TRANSITION_SECONDS: u8 = 30;

/// The states of a group at the ports of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnaStates {
    /// At ports that have none of their own.
    pub everywhere: AnaState,
    /// At single ports.
    pub ports: BTreeMap<SocketAddr, AnaState>,
}

impl AnaStates {
    /// The state at a port.
    #[inline]
    pub fn at(&self, port: SocketAddr) -> AnaState {
        self.ports.get(&port).copied().unwrap_or(self.everywhere)
    }

    /// Whether some port refuses commands.
    pub fn is_refused_anywhere(&self) -> bool {
        self.ports.values().chain([&self.everywhere]).any(|state| state.refusal().is_some())
    }
}

/// The groups of a subsystem.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    /// Those that are not optimised everywhere.
    states: BTreeMap<u32, Arc<AnaStates>>,
    /// Of the log page, and of all descriptors.
    change_count: u64,
}

impl Groups {
    pub(super) const fn new() -> Groups {
        Groups { states: BTreeMap::new(), change_count: 1 }
    }

    /// What the log says of some group, or which namespaces are in it, has changed.
    pub(super) fn note_change(&mut self) {
        self.change_count += 1;
    }
}

pub(super) fn check_group(group: u32) -> Result<(), ModelError> {
    if (1..=ANA_GROUPS_MAX).contains(&group) { Ok(()) } else { Err(ModelError::BadAnaGroup(group)) }
}

impl Subsystem {
    /// The states of a group; `None` is optimised everywhere.
    pub fn ana(&self, group: u32) -> Option<&Arc<AnaStates>> {
        self.groups.states.get(&group)
    }

    /// The state of a namespace at a port.
    pub fn ana_state(&self, namespace: &Namespace, port: SocketAddr) -> AnaState {
        self.ana(namespace.ana_group).map_or(AnaState::Optimized, |states| states.at(port))
    }
}

impl Target {
    /// Gives a group other states. Queues go by them at once, and hosts at ports where the state changes are told.
    pub fn set_ana(&mut self, id: SubsystemId, group: u32, states: AnaStates) -> Result<(), ModelError> {
        check_group(group)?;
        let subsystem = self.nvm_subsystem_mut(id)?;
        let before = subsystem.groups.states.remove(&group).unwrap_or_default();
        let now = Arc::new(states);
        if *now != AnaStates::default() {
            subsystem.groups.states.insert(group, now.clone());
        }
        if before == now {
            return Ok(());
        }
        subsystem.groups.note_change();
        let subsystem = &self.subsystems[&id];
        let is_member = |(_, namespace): &(u32, &Namespace)| namespace.ana_group == group;
        let members: Vec<u32> = subsystem.namespaces().filter(is_member).map(|(nsid, _)| nsid).collect();
        self.events.extend(members.iter().map(|nsid| TargetEvent::NamespaceChanged { subsystem: id, nsid: *nsid }));
        for (handle, controller) in self.controllers.iter_mut().filter(|(_, one)| one.subsystem() == id) {
            // Whether the host sees members of the group or not: it may keep what it has read of it until it does.
            if before.at(controller.via()) != now.at(controller.via()) {
                controller.ana_changed(*handle, &mut self.events);
            }
        }
        Ok(())
    }
}

/// The namespaces that a controller's host sees, by group.
fn members(controller: &Controller, subsystem: &Subsystem) -> BTreeMap<u32, Vec<u32>> {
    let mut groups: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for nsid in subsystem.active_above(0) {
        if let Some(namespace) = controller.namespace(subsystem, nsid) {
            groups.entry(namespace.ana_group).or_default().push(nsid);
        }
    }
    groups
}

/// Bytes of a controller's log.
pub(super) fn log_len(controller: &Controller, subsystem: &Subsystem, groups_only: bool) -> u64 {
    let groups = members(controller, subsystem);
    let nsids: usize = if groups_only { 0 } else { groups.values().map(Vec::len).sum() };
    (size_of::<AnaHeader>() + groups.len() * size_of::<AnaGroupDescriptor>() + nsids * 4) as u64
}

/// Writes a controller's log: the groups in which there is anything for its host, with their states at its port.
pub(super) fn store_log(controller: &Controller, subsystem: &Subsystem, groups_only: bool, window: &mut Window) {
    let groups = members(controller, subsystem);
    let change_count = U64::new(subsystem.groups.change_count);
    let mut header = AnaHeader::new_zeroed();
    header.change_count = change_count;
    header.group_count = U16::new(groups.len() as u16);
    window.put(0, header.as_bytes());
    let mut at = size_of::<AnaHeader>() as u64;
    for (group, nsids) in groups {
        let state = subsystem.ana(group).map_or(AnaState::Optimized, |states| states.at(controller.via()));
        let nsids = if groups_only { Vec::new() } else { nsids };
        let mut descriptor = AnaGroupDescriptor::new_zeroed();
        descriptor.group = U32::new(group);
        descriptor.nsid_count = U32::new(nsids.len() as u32);
        descriptor.change_count = change_count;
        descriptor.state = state as u8;
        window.put(at, descriptor.as_bytes());
        at += size_of::<AnaGroupDescriptor>() as u64;
        for nsid in nsids {
            window.put(at, &nsid.to_le_bytes());
            at += 4;
        }
    }
}
