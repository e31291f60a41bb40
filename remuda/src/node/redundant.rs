//! What a mirror and a parity device have in common for a node: parts of which one can be away, and be taken in again.

use super::build::{Handle, Opened};
use super::view::{LegView, ParityView, RebuildView};
use crate::config::{DeviceDef, DeviceParams};
use bdev::{
    BlockDevice, Built, DeviceError, LegState, MemberState, MemberStatus, MirrorDevice, OlderCopy, ParityDevice,
    ParityStatus,
};
use reactor::Reactor;
use std::rc::Rc;
use std::sync::Arc;

/// A device that goes on without a part.
#[derive(Clone)]
pub(super) enum Redundant {
    Mirror(Arc<MirrorDevice>),
    Parity(Arc<ParityDevice>),
}

/// Where a part stands that is out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Out {
    /// The device was opened without it.
    Absent,
    /// It has failed since.
    Failed,
}

/// Whether a device of this definition has everything more than once.
pub fn is_redundant(def: &DeviceDef) -> bool {
    matches!(def.params, DeviceParams::Mirror { .. } | DeviceParams::Parity { .. })
}

impl Redundant {
    pub(super) fn of(opened: &Opened) -> Option<Redundant> {
        match &opened.handle {
            Handle::Local(Built::Mirror(mirror)) => Some(Redundant::Mirror(mirror.clone())),
            Handle::Local(Built::Parity(parity)) => Some(Redundant::Parity(parity.clone())),
            _ => None,
        }
    }

    /// Its parts, in order; `None` for those that are in use.
    pub(super) fn outs(&self) -> Vec<Option<Out>> {
        let out = |is_out: bool, name: &Option<String>| {
            is_out.then_some(if name.is_none() { Out::Absent } else { Out::Failed })
        };
        match self {
            Redundant::Mirror(mirror) => {
                mirror.legs().iter().map(|leg| out(leg.state == LegState::Failed, &leg.name)).collect()
            }
            Redundant::Parity(parity) => {
                parity.members().iter().map(|member| out(member.state == MemberState::Failed, &member.name)).collect()
            }
        }
    }

    /// Takes a part in and starts to write what it lacks; a rebuild that has come to a halt goes on.
    pub(super) async fn join(
        &self,
        reactor: &Rc<Reactor>,
        part: usize,
        device: Arc<dyn BlockDevice>,
        overwrite: bool,
    ) -> Result<(), DeviceError> {
        // It may have become larger since it was found too small.
        device.refresh(reactor).await?;
        match self {
            Redundant::Mirror(mirror) => {
                mirror.join(reactor, part, Some(device), overwrite).await?;
                mirror.resync_in_background(reactor);
            }
            Redundant::Parity(parity) => {
                if parity.status().rebuild.is_none_or(|rebuild| rebuild.member != part) {
                    parity.join(reactor, part, Some(device), overwrite).await?;
                }
                parity.rebuild_in_background(reactor);
            }
        }
        Ok(())
    }
}

/// Why a member lacks data, and what puts that right, if it holds an older copy.
pub(super) fn behind(device: &str, member: &MemberStatus, name: &str) -> Option<String> {
    let OlderCopy { generation, newest } = member.older?;
    let then = match member.state {
        MemberState::Failed => format!("'remuda device rejoin {device} {name}' fills it anew"),
        _ => "it is being filled anew".to_string(),
    };
    Some(format!(
        "member '{name}' holds an older copy of the data (generation {generation}, the others are at {newest}): {then}"
    ))
}

/// What a parity device tells about itself, and its state in a few words.
pub(super) fn parity_view(device: &str, status: &ParityStatus, names: &[String]) -> (ParityView, String) {
    let members = status.members.iter().zip(names).map(|(member, name)| LegView {
        device: name.clone(),
        state: match (member.state, &member.name) {
            (MemberState::Failed, None) => "absent",
            (state, _) => state.words(),
        }
        .to_string(),
        read_errors: member.read_errors,
        repairs: member.repairs,
        why: behind(device, member, name),
    });
    let rebuild = status.rebuild.map(|rebuild| {
        let left = rebuild.bytes.saturating_sub(rebuild.done_bytes);
        RebuildView {
            device: names.get(rebuild.member).cloned().unwrap_or_default(),
            done_bytes: rebuild.done_bytes,
            left_bytes: left,
            bytes_per_s: rebuild.bytes_per_s,
            left_s: left.checked_div(rebuild.bytes_per_s),
            halted: rebuild.halted.map(|why| why.to_string()),
        }
    });
    let state = match &rebuild {
        Some(rebuild) => {
            let all = (rebuild.done_bytes + rebuild.left_bytes).max(1);
            let percent = (rebuild.done_bytes as u128 * 100 / all as u128) as u64;
            let left = rebuild.left_s.map_or(String::new(), |left| format!(", {} left", duration(left)));
            match &rebuild.halted {
                Some(why) => format!("open, degraded, rebuild halted: {why} ('{}', {percent} %)", rebuild.device),
                None => format!("open, degraded, rebuilding '{}' ({percent} %{left})", rebuild.device),
            }
        }
        None if status.degraded => "open, degraded".to_string(),
        None => "open".to_string(),
    };
    let view = ParityView {
        members: members.collect(),
        degraded: status.degraded,
        rebuild,
        reconstructed_reads: status.reconstructed_reads,
        lost_blocks: status.lost_blocks,
        head_bytes: status.head_bytes,
        head_uncompared_bytes: status.head_uncompared_bytes,
        row_bytes: status.row_bytes,
    };
    (view, state)
}

fn duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3_600),
    }
}

/// What lacks data, if anything does.
pub(super) fn degraded(name: &str, opened: &Opened, parts: &[String]) -> Option<String> {
    let mut why = Vec::new();
    let (kind, part, in_sync, all) = match Redundant::of(opened)? {
        Redundant::Mirror(mirror) => {
            let legs = mirror.legs();
            ("mirror", "legs", legs.iter().filter(|leg| leg.state == LegState::InSync).count(), legs.len())
        }
        Redundant::Parity(parity) => {
            let members = parity.members();
            why.extend(members.iter().zip(parts).filter_map(|(member, part)| behind(name, member, part)));
            let in_sync = members.iter().filter(|member| member.state == MemberState::InSync).count();
            ("parity device", "members", in_sync, members.len())
        }
    };
    let more = if kind == "mirror" { "" } else { "; the loss of another one would be a loss of data" };
    let why: String = why.into_iter().map(|why| format!("; {why}")).collect();
    (in_sync < all).then(|| format!("{kind} '{name}': {in_sync} of {all} {part} have all data{more}{why}"))
}
