//! How to reach a subsystem and how to behave towards it.

use std::net::SocketAddr;
use std::sync::Arc;
use thiserror::Error;
use uuid::Uuid;

use crate::auth::HostKeys;
use crate::spec::Nqn;
use crate::tls::Psk;

use super::command::COMMANDS_MAX;
use super::multipath::PATHS_MAX;

/// Who this host is. Reservations and access lists go by it, so it should be the same after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostIdentity {
    /// Host NQN.
    pub nqn: Nqn,
    /// Host identifier.
    pub id: Uuid,
}

impl HostIdentity {
    /// The identity built from one UUID, as `nvme gen-hostnqn` does.
    pub fn from_uuid(id: Uuid) -> Self {
        HostIdentity { nqn: Nqn::from_uuid(id), id }
    }
}

/// When a write is sent again after its connection was lost (the rules are argued for in the `fence` module).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// When it is certain that the lost connection's commands will not be done any more. Right whoever else writes.
    AfterFence,
    /// At once, because no other host writes to the namespace; with several paths, when none of them has the association any more
    /// that it had. Other writes to the same blocks still wait.
    Exclusive,
}

/// How to reach a subsystem and how to behave towards it.
#[derive(Clone, Debug)]
pub struct Options {
    /// The controller's TCP address.
    pub address: SocketAddr,
    /// The subsystem.
    pub subsystem: Nqn,
    /// This host.
    pub host: HostIdentity,
    /// What this host authenticates itself with, if it can.
    pub keys: Option<HostKeys>,
    /// The key of this host for encrypted connections; `None` is without TLS.
    pub tls: Option<Arc<Psk>>,
    /// Ask for header digests; a controller that refuses is not used.
    pub header_digest: bool,
    /// Ask for data digests; a controller that refuses is not used.
    pub data_digest: bool,
    /// Entries of each I/O queue, less one the commands under way on it. The controller may have fewer.
    pub queue_entries: u16,
    /// I/O queues of each reactor.
    pub queues_per_channel: u16,
    /// Most I/O queues in all; what the controller grants may be less.
    pub queues_max: u16,
    /// R2Ts that a controller may have outstanding for one write.
    pub r2ts_max: u16,
    /// Keep alive timeout, milliseconds. It cannot be zero: it is what fences lost associations.
    pub keep_alive_ms: u32,
    /// Longest time to connect a queue, ns.
    pub connect_timeout_ns: u64,
    /// A command that takes longer is aborted, and if that does not help, the controller is reset; ns.
    pub command_timeout_ns: u64,
    /// As `command_timeout_ns` for admin commands; they are not aborted.
    pub admin_timeout_ns: u64,
    /// First pause before a lost association is built up again, ns; doubled with each failure.
    pub reconnect_first_ns: u64,
    /// Longest such pause, ns.
    pub reconnect_max_ns: u64,
    /// Give a path up, and with the last one the device, when no association could be built for so long, ns; `None` is never.
    pub loss_timeout_ns: Option<u64>,
    /// End waiting operations with an error when no path has been of use for so long, ns; `None` is never.
    pub fail_fast_ns: Option<u64>,
    /// When writes are sent again after a lost connection.
    pub replay: Replay,
    /// Go by the access states that controllers report (ANA). Without it every path that is connected is as good as any.
    pub ana: bool,
    /// What to assume for the time in which a controller that lost its host ends its commands, if it does not say, ns.
    pub quiesce_ns: u64,
    /// Times a command is sent again after a status that allows it.
    pub retries_max: u8,
    /// Times a command is sent again after its connection was lost.
    pub replays_max: u8,
}

/// Why options cannot work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum OptionsError {
    /// Queue size.
    #[error("queue_entries is {0}: expected 2 to 4096")]
    QueueEntries(u16),
    /// Number of queues.
    #[error("queues_per_channel is {per_channel} and queues_max is {max}: expected 1 to 65534")]
    Queues {
        /// Per channel.
        per_channel: u16,
        /// In all.
        max: u16,
    },
    /// Paths.
    #[error("that makes {0} paths, or names one twice: expected 1 to {PATHS_MAX} different ones")]
    Paths(usize),
    /// R2Ts.
    #[error("r2ts_max is 0: a controller needs one to take a write")]
    R2ts,
    /// Keep alive.
    #[error("keep_alive_ms is {0}: expected 100 to 3600000; without keep alive a lost association is never over")]
    KeepAlive(u32),
    /// A time limit.
    #[error("{0} is 0: expected nanoseconds, at least one")]
    Zero(&'static str),
}

impl Options {
    /// The defaults: queues of 128 entries, one per reactor, no digests, 5 s keep alive, 30 s command timeout, ten minutes
    /// until a lost controller is given up.
    pub fn new(address: SocketAddr, subsystem: Nqn, host: HostIdentity) -> Self {
        const SECOND_NS: u64 = 1_000_000_000;
        Options {
            address,
            subsystem,
            host,
            keys: None,
            tls: None,
            header_digest: false,
            data_digest: false,
            queue_entries: 129,
            queues_per_channel: 1,
            queues_max: 128,
            r2ts_max: 4,
            keep_alive_ms: 5000,
            connect_timeout_ns: 5 * SECOND_NS,
            command_timeout_ns: 30 * SECOND_NS,
            admin_timeout_ns: 15 * SECOND_NS,
            reconnect_first_ns: SECOND_NS / 20,
            reconnect_max_ns: 5 * SECOND_NS,
            loss_timeout_ns: Some(600 * SECOND_NS),
            fail_fast_ns: None,
            replay: Replay::AfterFence,
            ana: true,
            quiesce_ns: SECOND_NS,
            retries_max: 5,
            replays_max: 16,
        }
    }

    /// Checks what can be checked without a connection.
    pub fn check(&self) -> Result<(), OptionsError> {
        if !(2..=COMMANDS_MAX as u16 + 1).contains(&self.queue_entries) {
            return Err(OptionsError::QueueEntries(self.queue_entries));
        }
        if self.queues_per_channel == 0 || self.queues_max == 0 || self.queues_max == u16::MAX {
            return Err(OptionsError::Queues { per_channel: self.queues_per_channel, max: self.queues_max });
        }
        if self.r2ts_max == 0 {
            return Err(OptionsError::R2ts);
        }
        if !(100..=3_600_000).contains(&self.keep_alive_ms) {
            return Err(OptionsError::KeepAlive(self.keep_alive_ms));
        }
        for (name, value) in [
            ("connect_timeout_ns", self.connect_timeout_ns),
            ("command_timeout_ns", self.command_timeout_ns),
            ("admin_timeout_ns", self.admin_timeout_ns),
            ("reconnect_first_ns", self.reconnect_first_ns),
            ("reconnect_max_ns", self.reconnect_max_ns),
        ] {
            if value == 0 {
                return Err(OptionsError::Zero(name));
            }
        }
        Ok(())
    }
}
