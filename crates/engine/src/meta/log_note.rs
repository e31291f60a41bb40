//! What roots say of the log: how far it was durable when they were written, and where it ends when it was closed. So what
//! rots at the end of a log is not taken for what a crash has torn, and a log that was closed is not searched for more.

use super::Meta;
use crate::format::root::{LogNote, Root};
use crate::log::Known;
use crate::units::LogTail;
use bdev::Status;
use std::cell::Cell;
use std::rc::Rc;

pub(super) struct LogNotes {
    /// The root that was found at opening, without its tables.
    found: Root,
    /// The tail in the durable root.
    tail: Cell<LogTail>,
    /// Every record before this one is durable.
    durable_lsn: Cell<u64>,
}

/// What a root says of the log; `epoch` is that of the superblocks on the media.
pub(crate) fn log_known(root: &Root, epoch: u32) -> Known {
    let closed_epoch = root.log.is_closed.then_some(root.epoch);
    let durable_lsn = root.log.durable_lsn;
    Known { tail: root.tail, durable_lsn, closed_epoch, is_final: closed_epoch == Some(epoch) }
}

impl LogNotes {
    pub(super) fn new(root: &Root) -> LogNotes {
        let (tail, durable_lsn) = (Cell::new(root.tail), Cell::new(root.log.durable_lsn));
        LogNotes { found: Root { tables: Vec::new(), bands: Vec::new(), ..root.clone() }, tail, durable_lsn }
    }

    /// For a root that leaves the log open.
    pub(super) fn open(&self) -> LogNote {
        LogNote { durable_lsn: self.durable_lsn.get(), is_closed: false }
    }

    /// A root with this tail is durable.
    pub(super) fn written(&self, tail: LogTail) {
        self.tail.set(tail);
    }
}

impl Meta {
    /// What the root that was found at opening says of the log; `epoch` is that of the superblocks on the media.
    pub(crate) fn log_known(&self, epoch: u32) -> Known {
        log_known(&self.log_notes.found, epoch)
    }

    /// Where the durable root begins its replay.
    pub(crate) fn durable_tail(&self) -> LogTail {
        self.log_notes.tail.get()
    }

    /// Every record before this one is durable: roots say so from now on.
    pub(crate) fn log_reached(&self, lsn: u64) {
        self.log_notes.durable_lsn.set(lsn);
    }

    /// Notes that the log ends before `lsn`: everything before is durable, and nobody appends to it until the next opening.
    /// Changes nothing else of what is durable.
    pub async fn close_log(self: &Rc<Self>, lsn: u64) -> Result<(), Status> {
        self.log_reached(lsn);
        self.exclusively(move |meta| async move {
            meta.settle().await?;
            meta.repeat_root().await?;
            // Copies of table pages: they have nothing to wait for. Without them what is durable is as good.
            let _ = meta.media.flush().await;
            let log = LogNote { durable_lsn: lsn, is_closed: true };
            let tables = meta.tables.borrow().iter().map(|table| table.durable).collect();
            let tail = meta.log_notes.tail.get();
            let token = meta.progress.token.get();
            meta.write_root(meta.next_root(tail, log, tables, token), Vec::new(), token).await
        })
        .await
    }
}
