//! What a device holds that is to become part of a pool: for whoever is about to lose it.

use crate::format::superblock::{Role, SuperblockError};
use crate::meta::{self, MetaError};
use crate::remains::remains;
use bdev::{Channel, DeviceInfo, Status};
use reactor::Reactor;
use std::fmt;
use std::rc::Rc;
use uuid::Uuid;

/// See the module; displayed with its article, as in "it holds ...".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing but zeroes where formats begin.
    Nothing,
    /// A part of a pool.
    Pool {
        /// The pool's name.
        name: String,
        /// The pool.
        pool: Uuid,
        /// Which part.
        role: Role,
        /// The pool's other device.
        other: Uuid,
    },
    /// A part of a pool that this program cannot use, and why.
    UnusablePool(MetaError),
    /// This part of a pool, without superblocks.
    Remains(Role),
    /// What the table of [`bdev::what_is_on`] knows.
    Known(&'static str),
    /// Something else.
    Unknown,
}

impl Holds {
    /// Looks at the start of a device.
    pub async fn look(reactor: &Rc<Reactor>, channel: &Rc<dyn Channel>, info: DeviceInfo) -> Result<Holds, Status> {
        let start = crate::pool::read_start(reactor, channel, &info).await?;
        if start.iter().all(|byte| *byte == 0) {
            return Ok(Holds::Nothing);
        }
        Ok(match meta::read_superblocks(reactor, channel.clone(), info).await {
            Ok(found) => Holds::Pool { name: found.name, pool: found.pool, role: found.role, other: found.other },
            Err(MetaError::Io { status, .. }) => return Err(status),
            Err(MetaError::Superblock(SuperblockError::NotAPool { .. }) | MetaError::BlockSize(_)) => {
                let known = bdev::what_is_on(&start).map(Holds::Known);
                known.or_else(|| remains(&start).map(Holds::Remains)).unwrap_or(Holds::Unknown)
            }
            Err(error) => Holds::UnusablePool(error),
        })
    }

    /// Why a device that holds this is refused for `pool`, and what it would cost to take it all the same.
    pub fn in_use(&self, device: &str, pool: &str) -> String {
        let loss = self.loss();
        match self {
            // Nobody wants to lose the log of a pool because its other device was mixed up.
            Holds::Pool { name, role: Role::Log, .. } if name == pool => format!(
                "'{device}' is in use: it holds {self}. If that is this pool, its capacity device is the wrong one, or was written over: \
                 bring that back, and leave '{device}' as it is. Otherwise wipe it, or use force: {loss}"
            ),
            _ => format!("'{device}' is in use: it holds {self}. Wipe it, or use force: {loss}"),
        }
    }

    /// What it costs to write over it.
    fn loss(&self) -> String {
        match self {
            Holds::Nothing => "nothing is lost".to_string(),
            Holds::Pool { name, role: Role::Capacity, .. } => {
                format!("that destroys pool '{name}' with all of its volumes")
            }
            Holds::Pool { name, role: Role::Log, .. } => format!(
                "that loses what was last written to pool '{name}', which does not open then until its log is given up"
            ),
            Holds::UnusablePool(error) => match error {
                MetaError::Superblock(SuperblockError::Damaged(_)) => {
                    "that destroys for good what 'remuda pool check NAME --repair' may restore from the pool's other device"
                }
                MetaError::Superblock(SuperblockError::NewerVersion(_) | SuperblockError::UnknownFeature(_)) => {
                    "that destroys a pool, with all of its volumes, that a newer program can use"
                }
                MetaError::DeviceTooSmall { .. } => "that destroys a pool that can be used once the device has its size again",
                _ => "that destroys this pool",
            }
            .to_string(),
            Holds::Remains(_) => "that destroys for good what 'remuda pool check NAME --repair' may find again by the pool's other \
                 device, or a backup of the first two blocks"
                .to_string(),
            Holds::Known(what) => format!("that destroys {what} with all that is in it"),
            Holds::Unknown => "that destroys what is there".to_string(),
        }
    }
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holds::Nothing => write!(f, "nothing: its first 128 KiB are zero"),
            Holds::Pool { name, pool, role: Role::Log, .. } => write!(f, "the log of pool '{name}' ({pool})"),
            Holds::Pool { name, pool, role: Role::Capacity, .. } => {
                write!(f, "the volumes of pool '{name}' ({pool}), whose capacity device it is")
            }
            Holds::UnusablePool(reason) => write!(f, "a part of a pool that cannot be used ({reason})"),
            Holds::Remains(role) => {
                write!(f, "what was the {} device of a pool, whose superblocks are gone", role.name())
            }
            Holds::Known(what) => write!(f, "{what}"),
            Holds::Unknown => write!(f, "something unknown: its first 128 KiB are not zero"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_pool_that_cannot_be_used_it_is_said_how_it_could_be() {
        let said = |error| Holds::UnusablePool(error).in_use("d", "p");
        let damaged = said(MetaError::Superblock(SuperblockError::Damaged("checksum")));
        assert!(damaged.contains("(checksum)") && damaged.contains("pool check NAME --repair"), "{damaged}");
        for later in [SuperblockError::NewerVersion(9), SuperblockError::UnknownFeature(1)] {
            let said = said(MetaError::Superblock(later));
            assert!(said.contains(&later.to_string()) && said.contains("a newer program can use"), "{said}");
        }
        let small = said(MetaError::DeviceTooSmall { blocks: 1, needed: 2 });
        assert!(small.contains("the pool on it uses 2") && small.contains("its size again"), "{small}");
    }

    #[test]
    fn the_log_of_the_pool_itself_is_not_to_be_wiped_at_once() {
        let said = |name: &str, role| {
            let (pool, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
            Holds::Pool { name: name.to_string(), pool, role, other }.in_use("d", "p")
        };
        assert!(said("p", Role::Log).contains("its capacity device is the wrong one"));
        assert!(said("q", Role::Log).contains(". Wipe it, or use force: that loses what was last written to pool 'q'"));
        assert!(said("p", Role::Capacity).contains(". Wipe it, or use force: that destroys pool 'p'"));
    }
}
