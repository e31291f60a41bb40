//! The door through which subsystems are seen: what the node asks of a target.

use super::refusal::Refusal;
use super::state::AnaRecord;
use super::view::ConnectedHost;
use bdev::{BlockDevice, Limits};
use nvme::auth::Policy;
use nvme::target::reservation::{HostId, Table};
use nvme::tcp_target::HostTraffic;
use nvme::tls::Psk;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::oneshot;
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
    /// Reservations that have lasted since it was shown before, for when it is not shown now.
    pub reservations: Option<Table>,
    /// The hosts that see it; `None` is every host.
    pub hosts: Option<Vec<String>>,
    /// Its group for asymmetric access.
    pub ana_group: u32,
}

/// How a host authenticates.
#[derive(Clone, Debug, PartialEq)]
pub struct HostKeySpec {
    /// The host.
    pub host: String,
    /// Its keys, the former ones behind the present ones.
    pub policy: Policy,
    /// Until when the former ones are good.
    pub former_until: SystemTime,
}

/// With which keys a host connects by TLS.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsKeySpec {
    /// The host.
    pub host: String,
    /// Its keys, the former one behind the present one.
    pub keys: Vec<Arc<Psk>>,
    /// Until when the former one is good.
    pub former_until: SystemTime,
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
    /// How hosts authenticate that have to.
    pub keys: Vec<HostKeySpec>,
    /// With which keys hosts connect that have to by TLS.
    pub tls_keys: Vec<TlsKeySpec>,
    /// By id.
    pub namespaces: Vec<NamespaceSpec>,
    /// Asymmetric access.
    pub ana: Vec<AnaRecord>,
    /// First and last controller id.
    pub controller_ids: Option<(u16, u16)>,
}

/// What the door sees.
#[derive(Clone, Debug, Default)]
pub struct ExportCounters {
    /// TCP connections.
    pub connections: u64,
    /// Hosts with a controller.
    pub hosts: Vec<ConnectedHost>,
    /// How often hosts were turned away since the node started, by reason.
    pub refusals: Vec<(&'static str, u64)>,
}

/// A target. Every call describes the wished-for state; the target tells its hosts what changed.
pub trait Exporter {
    /// Starts listening, once everything is there to be seen: without TLS and with it.
    fn listen(&self, plain: Vec<SocketAddr>, tls: Vec<SocketAddr>) -> Answer<'_, Result<(), Refusal>>;
    /// Tells hosts of these other discovery services, and of no others.
    fn refer(&self, addresses: Vec<SocketAddr>) -> Answer<'_, Result<(), Refusal>>;
    /// Where it listens without TLS.
    fn addresses(&self) -> Vec<SocketAddr>;
    /// Where it listens with TLS.
    fn tls_addresses(&self) -> Vec<SocketAddr>;
    /// Creates a subsystem, or changes it to this: namespaces come, go or change size, hosts lose their permission.
    fn put(&self, subsystem: SubsystemSpec) -> Answer<'_, Result<(), Refusal>>;
    /// Removes a subsystem; its hosts are disconnected.
    fn remove<'a>(&'a self, nqn: &'a str) -> Answer<'a, Result<(), Refusal>>;
    /// Limits what a host may do.
    fn limit<'a>(&'a self, host: &'a str, limits: Limits) -> Answer<'a, Result<(), Refusal>>;
    /// What hosts have done.
    fn traffic(&self) -> Answer<'_, Vec<HostTraffic>>;
    /// Who is there.
    fn counters(&self) -> Answer<'_, ExportCounters>;
    /// The reservations of a subsystem's namespaces.
    fn reservations<'a>(&'a self, nqn: &'a str) -> Answer<'a, Vec<(u32, Table)>>;
    /// The same of several subsystems, in their order and in one visit.
    fn reservations_of(&self, nqns: Vec<String>) -> Answer<'_, Vec<Vec<(u32, Table)>>>;
    /// Ends the registration of one host with a namespace, or all of them with its reservation. The answer comes when that is in
    /// force; the door for reservations is asked to keep it before.
    fn clear_reservations(&self, nqn: &str, nsid: u32, host: Option<HostId>) -> oneshot::Receiver<Result<(), String>>;
    /// Takes no more connections, lets commands under way end, and closes. Returns when done; the caller has a deadline.
    fn drain(&self) -> Answer<'_, ()>;
}
