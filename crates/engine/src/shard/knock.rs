//! A log device that refuses all writes, and takes them again: the pool finds out by itself, though nobody writes. A host that has gone
//! read-only makes no write that would.
//!
//! ```text
//! a write was refused, or housekeeping looks --> knocking: a record, a pause, ... --the device takes one, or the shard closes--> over
//! ```
//! A task of its own: the record may have to wait for room, which housekeeping makes. It changes nothing: an extent that nobody has stays
//! one. Where every extent is somebody's there is no such record, and the next write finds out.

use super::Shard;
use crate::log::{Class, Record};
use reactor::SgList;
use std::rc::Rc;

/// From one record to the next; the log tries no more than one in that time either.
const PAUSE_NS: u64 = 1_000_000_000;

impl Shard {
    /// Begins to knock when the log device refuses all writes, unless that is under way.
    pub(super) fn knock_if_refused(self: &Rc<Self>) {
        let is_called = self.log.refusal().is_some() && self.writes && !self.is_stopping();
        if !is_called || self.house.knocking.replace(true) {
            return;
        }
        let shard = self.clone();
        self.reactor.spawn(async move {
            while shard.log.refusal().is_some() && !shard.is_stopping() {
                shard.house.pause(&shard.reactor, PAUSE_NS).await;
                shard.knock().await;
            }
            shard.house.knocking.set(false);
            shard.settled.notify_all();
        });
    }

    async fn knock(self: &Rc<Self>) {
        if self.is_stopping() || !self.log.may_knock() {
            return;
        }
        let Some(extent) = self.index.reserve() else { return };
        let record = Record::Free { extent, unusable: false };
        match self.log.append(record, SgList::new(), Class::Internal).await.result {
            Ok(_) => self.house.wrote(self),
            Err(_) => self.index.unreserve(extent),
        }
    }
}
