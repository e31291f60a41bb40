//! The discovery log: which subsystems a host may connect to, and where (Base 2.0, section 5.16.1.23).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromZeros, IntoBytes};

use super::controller::Controller;
use super::log::Window;
use super::model::Subsystem;
use super::{DISCOVERY, SubsystemId};
use crate::spec::Nqn;
use crate::spec::discovery::*;
use crate::spec::fabrics::CNTLID_DYNAMIC;
use crate::spec::identify::store_ascii;

/// A port on which the node listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) address: SocketAddr,
    /// Its connections are encrypted.
    pub(super) tls: bool,
}

/// What the log is made from.
pub(super) struct View<'a> {
    pub(super) subsystems: &'a BTreeMap<SubsystemId, Subsystem>,
    pub(super) ports: &'a BTreeMap<u16, Port>,
    pub(super) referrals: &'a BTreeSet<SocketAddr>,
    pub(super) generation: u64,
    pub(super) admin_entries_max: u16,
}

impl View<'_> {
    fn visible<'a>(&'a self, reader: &'a Controller) -> impl Iterator<Item = (SubsystemId, &'a Subsystem)> {
        let visible = |subsystem: &Subsystem| subsystem.is_allowed(reader.host_nqn());
        self.subsystems.iter().filter(move |(_, subsystem)| visible(subsystem)).map(|(id, subsystem)| (*id, subsystem))
    }

    /// Bytes of the log that this controller's host sees.
    pub(super) fn len(&self, reader: &Controller) -> u64 {
        let entries = self.visible(reader).count() * self.ports.len() + self.referrals.len();
        ((1 + entries) * size_of::<DiscoveryEntry>()) as u64
    }

    /// Writes the log.
    pub(super) fn store(&self, reader: &Controller, window: &mut Window) {
        let mut at = size_of::<DiscoveryHeader>() as u64;
        let mut records = 0;
        let mut add = |make: &dyn Fn() -> DiscoveryEntry| {
            if window.wants(at, size_of::<DiscoveryEntry>() as u64) {
                window.put(at, make().as_bytes());
            }
            at += size_of::<DiscoveryEntry>() as u64;
            records += 1;
        };
        for (id, subsystem) in self.visible(reader) {
            for (number, port) in self.ports {
                add(&|| self.entry(id, subsystem, *number, *port, reader));
            }
        }
        for address in self.referrals {
            add(&|| self.referral(*address));
        }
        let mut header = DiscoveryHeader::new_zeroed();
        header.generation = U64::new(self.generation);
        header.record_count = U64::new(records);
        window.put(0, header.as_bytes());
    }

    fn entry(
        &self,
        id: SubsystemId,
        subsystem: &Subsystem,
        number: u16,
        Port { address, tls }: Port,
        reader: &Controller,
    ) -> DiscoveryEntry {
        let ip = if address.ip().is_unspecified() { reader.via().ip() } else { address.ip() };
        let subtype = if id == DISCOVERY { SUBTYPE_CURRENT } else { SUBTYPE_NVM };
        let mut entry = self.service(subtype, SocketAddr::new(ip, address.port()), subsystem.nqn());
        entry.portid = U16::new(number);
        if tls {
            entry.treq = TREQ_REQUIRED | TREQ_DISABLE_SQ_FLOW_CONTROL;
            entry.tsas[0] = SECTYPE_TLS_1_3;
        }
        entry
    }

    /// Another discovery service.
    fn referral(&self, address: SocketAddr) -> DiscoveryEntry {
        self.service(SUBTYPE_REFERRAL, address, &Nqn::discovery())
    }

    fn service(&self, subtype: u8, address: SocketAddr, nqn: &Nqn) -> DiscoveryEntry {
        let ip = address.ip();
        let mut entry = DiscoveryEntry::new_zeroed();
        entry.trtype = TRTYPE_TCP;
        entry.adrfam = if ip.is_ipv4() { ADRFAM_IPV4 } else { ADRFAM_IPV6 };
        entry.subtype = subtype;
        entry.treq = TREQ_NOT_REQUIRED | TREQ_DISABLE_SQ_FLOW_CONTROL;
        entry.cntlid = U16::new(CNTLID_DYNAMIC);
        entry.asqsz = U16::new(self.admin_entries_max);
        store_ascii(&mut entry.trsvcid, &address.port().to_string());
        store_ascii(&mut entry.traddr, &ip.to_string());
        entry.subnqn = nqn.to_field();
        entry
    }
}
