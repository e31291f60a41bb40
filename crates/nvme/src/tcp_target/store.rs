//! Where reservations are kept that last over a loss of power: the target's side of a door that the node stands behind.

use crate::target::reservation::Table;
use std::fmt;
use uuid::Uuid;

/// Keeps reservations over a loss of power.
pub trait ReservationStore: fmt::Debug + Send + Sync {
    /// Makes durable that a namespace has these reservations, or none any more, then says so through `saved`. Called on
    /// the target's home reactor, which it must not block.
    fn save(&self, of: ReservedNamespace, table: Option<Table>, saved: Saved);
}

/// Which namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedNamespace {
    /// Its subsystem.
    pub subsystem: String,
    /// Its number there.
    pub nsid: u32,
    /// Its identity: another namespace of the same number has none of its reservations.
    pub uuid: Uuid,
}

/// Tells the target what became of a [`ReservationStore::save`], from any thread. Dropped, it says that nothing was saved.
pub struct Saved(Option<Box<dyn FnOnce(bool) + Send>>);

impl Saved {
    pub(super) fn new(tell: impl FnOnce(bool) + Send + 'static) -> Saved {
        Saved(Some(Box::new(tell)))
    }

    /// It is durable, or not: then the host's command fails.
    pub fn done(mut self, durable: bool) {
        if let Some(tell) = self.0.take() {
            tell(durable);
        }
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(false);
        }
    }
}

impl fmt::Debug for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Saved")
    }
}
