//! A shard makes one checkpoint at a time: each has a tail not before the last one's, since what is before that is no longer in
//! the log, and what goes on beside it must not be before the tail of the one under way.

use super::Shard;
use std::rc::Rc;

/// For as long as it lives, nobody else makes a checkpoint of the shard.
pub(super) struct Alone(Rc<Shard>);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.house.checkpointing.set(false);
        self.0.settled.notify_all();
    }
}

impl Shard {
    /// Waits until nobody makes a checkpoint, and keeps others from it.
    pub(super) async fn alone(self: &Rc<Self>) -> Alone {
        self.settled.wait_until(|| !self.is_checkpointing()).await;
        self.alone_now()
    }

    /// The same where nobody makes one.
    pub(super) fn alone_now(self: &Rc<Self>) -> Alone {
        let before = self.house.checkpointing.replace(true);
        assert!(!before, "two checkpoints of a shard at once");
        Alone(self.clone())
    }

    pub(super) fn is_checkpointing(&self) -> bool {
        self.house.checkpointing.get()
    }
}
