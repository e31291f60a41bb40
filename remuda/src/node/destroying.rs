//! Pools that are being destroyed: what has begun is ended.
//!
//! One change of the node's state takes the pool from it and notes that its devices are to be wiped; when they are, the note goes. A
//! node that ends in between (a kill, a power cut) goes on at its next start, so a pool is whole and known, or gone. What somebody
//! else has put on a device by then is left alone.

use super::Node;
use super::pools::{OpenPool, object};
use super::reactors::on_reactor_async;
use super::refusal::{Refusal, RefusalKind};
use crate::config::PoolDef;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A pool that is being destroyed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Destroying {
    /// What it was made of.
    pub pool: PoolDef,
    /// By which its devices are known.
    pub pool_id: Uuid,
}

impl Node {
    /// The id of a pool, if it is open or one of its devices says so.
    pub(super) async fn pool_id(&self, def: &PoolDef, open: Option<&OpenPool>) -> Option<Uuid> {
        if let Some(open) = open {
            return Some(open.pool.uuid());
        }
        let (capacity, name) = (self.open_device(&def.capacity).ok(), def.name.clone());
        let log = self.log_device(def, false).ok();
        let found = on_reactor_async(self.reactors.first(), move |reactor| async move {
            if let Some(device) = capacity
                && let Ok(channel) = device.open_channel(&reactor)
                && let Ok(found) = engine::read_superblocks(&reactor, channel, device.info()).await
                && found.name == name
            {
                return Some(found.pool);
            }
            let (log, _lock) = log?;
            engine::pool_of_log(&reactor, &log, &name).await
        });
        found.await.ok().flatten()
    }

    /// Wipes what the devices of a pool that is being destroyed have of it, each whatever becomes of the other.
    pub(super) async fn wipe_destroyed(&self, destroying: &Destroying) -> Result<(), Refusal> {
        let (def, pool) = (&destroying.pool, destroying.pool_id);
        let ours = move |start: &[u8]| engine::is_of_pool(start, pool);
        let capacity = match self.open_device(&def.capacity) {
            Ok(device) => self.take_back(&device, ours).await.map(|is_foreign| (is_foreign, def.capacity.clone())),
            Err(refusal) => Err(refusal),
        };
        let log = self.take_back_log(def, pool).await;
        for (is_foreign, device) in [&capacity, &log].into_iter().flatten() {
            if *is_foreign {
                tracing::warn!(
                    "what is on '{device}' is not of pool '{}', which is destroyed: it stays as it is",
                    def.name
                );
            }
        }
        capacity.and(log).map(drop)
    }

    /// It is over with a pool that was being destroyed.
    pub(super) fn was_destroyed(&mut self, pool_id: Uuid) -> Result<(), Refusal> {
        let mut state = self.state.clone();
        state.destroying.retain(|other| other.pool_id != pool_id);
        self.remember(state)
    }

    /// Goes on with what the node's end has interrupted. What cannot be done now is tried again at the next start, and when a pool is
    /// made.
    pub(super) async fn go_on_destroying(&mut self) {
        for destroying in self.state.destroying.clone() {
            let name = &destroying.pool.name;
            let wiped = self.wipe_destroyed(&destroying).await;
            match &wiped {
                Ok(()) => tracing::warn!(
                    "{} was being destroyed when the node ended: its devices are wiped now, and can be used",
                    object(name)
                ),
                // Nobody will bring it back under that name.
                Err(refusal) if refusal.kind == RefusalKind::NotFound => {
                    tracing::warn!("{} was being destroyed when the node ended: {refusal}", object(name));
                }
                Err(refusal) => {
                    self.warn_now(format!(
                        "{} was being destroyed when the node ended, and what its devices have of it cannot be wiped yet: {refusal}; put \
                         that right and restart the node, or create the next pool on them with --force",
                        object(name)
                    ));
                    continue;
                }
            }
            if let Err(refusal) = self.was_destroyed(destroying.pool_id) {
                tracing::error!("{refusal}");
            }
        }
    }
}
