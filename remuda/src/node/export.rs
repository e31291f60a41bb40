//! The door through which subsystems are seen: what the node asks of a target.

use super::refusal::Refusal;
use bdev::BlockDevice;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use uuid::Uuid;

/// An answer that may take a visit to the reactors.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// A namespace to be shown.
#[derive(Clone)]
pub struct NamespaceSpec {
    /// Namespace id.
    pub nsid: u32,
    /// What stores its blocks.
    pub device: Arc<dyn BlockDevice>,
    /// Identity; NGUID is the same 16 bytes.
    pub uuid: Uuid,
}

/// A subsystem as it should be.
#[derive(Clone)]
pub struct SubsystemSpec {
    /// Name.
    pub nqn: String,
    /// Serial number.
    pub serial: String,
    /// Model number.
    pub model: String,
    /// Every host may connect.
    pub allow_any_host: bool,
    /// Hosts that may connect.
    pub hosts: Vec<String>,
    /// By id.
    pub namespaces: Vec<NamespaceSpec>,
}

/// What the door has seen.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExportCounters {
    /// TCP connections now.
    pub connections: u64,
    /// TCP connections ever.
    pub connections_total: u64,
    /// Controllers now.
    pub controllers: u64,
    /// Connections ended for breaking the protocol.
    pub protocol_errors: u64,
}

/// A target. Every call describes the wished-for state; the target tells its hosts what changed.
pub trait Exporter {
    /// Where it listens.
    fn addresses(&self) -> Vec<SocketAddr>;
    /// Creates a subsystem, or changes it to this: namespaces come, go or change size, hosts lose their permission.
    fn put(&self, subsystem: SubsystemSpec) -> Answer<'_, Result<(), Refusal>>;
    /// Removes a subsystem; its hosts are disconnected.
    fn remove<'a>(&'a self, nqn: &'a str) -> Answer<'a, Result<(), Refusal>>;
    /// Counts.
    fn counters(&self) -> ExportCounters;
    /// Takes no more connections, lets commands under way end, and closes. Returns when done; the caller has a deadline.
    fn drain(&self) -> Answer<'_, ()>;
}

/// The target of a node that listens nowhere.
pub struct NoExporter;

impl Exporter for NoExporter {
    fn addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    fn put(&self, _: SubsystemSpec) -> Answer<'_, Result<(), Refusal>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn remove<'a>(&'a self, _: &'a str) -> Answer<'a, Result<(), Refusal>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn counters(&self) -> ExportCounters {
        ExportCounters::default()
    }

    fn drain(&self) -> Answer<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}
