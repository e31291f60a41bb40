//! Growing with the members, while the device is used. The head stays as it is.

use super::format::MemberState;
use super::rows::Rows;
use super::{ParityDefect, ParityDevice};
use crate::device::{DeviceError, DeviceInfo};
use crate::part_size;
use reactor::Reactor;
use std::rc::Rc;
use std::sync::atomic::Ordering::*;

impl ParityDevice {
    /// Grows it, to whole rows of at most `blocks`, and its members where they are too small for that.
    pub(super) async fn grow(&self, reactor: &Rc<Reactor>, blocks: u64) -> Result<(), DeviceError> {
        let now = self.shared.geometry();
        let rows = blocks.saturating_sub(now.head) / now.row_blocks();
        if rows < now.rows {
            let least = now.blocks();
            return Err(self.refused(format!("it does not shrink: expected {least} blocks or more, not {blocks}")));
        }
        if rows == now.rows {
            return Ok(());
        }
        self.check_whole()?;
        let grown = Rows { rows, ..now };
        if !grown.is_addressable() {
            return Err(self.refused(format!("{blocks} blocks are more than a parity device can have")));
        }
        part_size::enlarge(reactor, &self.shared.devices(), grown.member_blocks()).await?;
        self.adopt(reactor, grown).await
    }

    /// Takes into use by what all members have become larger; what it is now. While a member is not in sync it stays as it is.
    pub(super) async fn grow_with_members(&self, reactor: &Rc<Reactor>) -> Result<DeviceInfo, DeviceError> {
        let shared = &self.shared;
        if let Err(error) = self.check_whole() {
            tracing::info!(parity = shared.name, %error, "not looked whether its members have become larger");
            return Ok(shared.info());
        }
        let least = match part_size::least(reactor, &shared.devices()).await {
            Ok(least) => least,
            Err(error) => {
                tracing::warn!(parity = shared.name, %error, "cannot see whether a member has become larger");
                return Ok(shared.info());
            }
        };
        let now = shared.geometry();
        let rows = least.saturating_sub(now.chunk_at(0)) / now.chunk;
        let grown = Rows { rows, ..now };
        if rows > now.rows && grown.is_addressable() {
            self.adopt(reactor, grown).await?;
        }
        Ok(shared.info())
    }

    /// Makes more rows durable in a new generation, and then shows them. Nothing is written to them: they read as anything, as
    /// rows do that were being written when the power failed.
    async fn adopt(&self, reactor: &Rc<Reactor>, grown: Rows) -> Result<(), DeviceError> {
        let shared = &self.shared;
        let failed = |status| DeviceError::Io { device: shared.name.clone(), action: "grow", status };
        let inner = self.inner(reactor);
        // The members' own new sizes first.
        inner.flush().await.map_err(failed)?;
        // No device is taken in meanwhile. Before, one may have been that fits the former size alone.
        let _join = shared.join_turn.lock(0, 1, true).await;
        let _turn = shared.meta_turn.lock(0, 1, true).await;
        self.check_whole()?;
        part_size::refuse_small(&shared.name, "member", &shared.devices(), grown.member_blocks())?;
        let set = |rows: u64| {
            let mut superblock = shared.superblock.lock().expect("nothing panics while holding the superblock");
            superblock.geometry.rows = rows;
        };
        let before = shared.geometry().rows;
        if grown.rows <= before {
            return Ok(());
        }
        if shared.defect != Some(ParityDefect::GrowUnrecorded) {
            set(grown.rows);
            if let Err(status) = inner.write_superblocks().await {
                set(before);
                return Err(failed(status));
            }
        }
        shared.rows.store(grown.rows, Release);
        tracing::info!(parity = shared.name, rows = grown.rows, before, "the device has grown");
        Ok(())
    }

    fn check_whole(&self) -> Result<(), DeviceError> {
        let lacking = (0..self.shared.members.len()).find(|member| self.shared.state(*member) != MemberState::InSync);
        let Some(member) = lacking else { return Ok(()) };
        let state = match self.shared.state(member) {
            MemberState::Rebuilding => "is being rebuilt: wait for that, and grow the device then",
            _ => "has failed: replace it, and grow the device when it has been rebuilt",
        };
        let name = self.shared.member_name(member);
        let reason = format!("it grows only with all its members in sync, and {name} {state}");
        Err(DeviceError::State { device: self.shared.name.clone(), reason })
    }

    fn refused(&self, reason: String) -> DeviceError {
        DeviceError::Config { device: self.shared.name.clone(), reason }
    }
}
