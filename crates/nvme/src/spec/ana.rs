//! Asymmetric namespace access: states of groups of namespaces, and the log page that tells them (Base 2.0, sections 5.16.1.13
//! and 8.1).

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Status;

/// How the namespaces of a group can be reached through one controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum AnaState {
    /// As well as anywhere.
    #[default]
    Optimized = 0x1,
    /// Hosts prefer another controller where the state is optimised.
    NonOptimized = 0x2,
    /// Not now.
    Inaccessible = 0x3,
    /// Never again.
    PersistentLoss = 0x4,
    /// The state is about to become another one.
    Change = 0xf,
}

impl AnaState {
    /// Every state.
    pub const ALL: [AnaState; 5] = [
        AnaState::Optimized,
        AnaState::NonOptimized,
        AnaState::Inaccessible,
        AnaState::PersistentLoss,
        AnaState::Change,
    ];

    /// The state with this number, if it is one.
    pub fn from_u8(value: u8) -> Option<Self> {
        AnaState::ALL.into_iter().find(|state| *state as u8 == value)
    }

    /// Its name, as the node's configuration has it and Linux shows it.
    pub const fn name(self) -> &'static str {
        match self {
            AnaState::Optimized => "optimized",
            AnaState::NonOptimized => "non-optimized",
            AnaState::Inaccessible => "inaccessible",
            AnaState::PersistentLoss => "persistent-loss",
            AnaState::Change => "change",
        }
    }

    /// The state of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        AnaState::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The status of commands that need the namespace's medium; `None` where they are carried out. Never "do not retry": the
    /// host is to try another path.
    #[inline]
    pub const fn refusal(self) -> Option<Status> {
        match self {
            AnaState::Optimized | AnaState::NonOptimized => None,
            AnaState::Inaccessible => Some(Status::ANA_INACCESSIBLE),
            AnaState::PersistentLoss => Some(Status::ANA_PERSISTENT_LOSS),
            AnaState::Change => Some(Status::ANA_TRANSITION),
        }
    }
}

/// Log specific parameter, bit 0: groups without their namespaces (RGO).
pub const GROUPS_ONLY: u8 = 1;

/// Start of the log page (Base 2.0, figure 219).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnaHeader {
    /// Grows with each change of the log.
    pub change_count: U64,
    /// Descriptors that follow.
    pub group_count: U16,
    /// Reserved.
    pub reserved10: [u8; 6],
}

const _: () = assert!(size_of::<AnaHeader>() == 16);

/// One group; the identifiers of its namespaces follow (Base 2.0, figure 220).
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct AnaGroupDescriptor {
    /// The group, from one.
    pub group: U32,
    /// Namespace identifiers that follow.
    pub nsid_count: U32,
    /// Grows with each change of the descriptor.
    pub change_count: U64,
    /// An [`AnaState`] in bits 3:0.
    pub state: u8,
    /// Reserved.
    pub reserved17: [u8; 15],
}

const _: () = assert!(size_of::<AnaGroupDescriptor>() == 32);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::status::StatusType;

    #[test]
    fn states_are_found_by_number_and_name() {
        for state in AnaState::ALL {
            assert_eq!(AnaState::from_u8(state as u8), Some(state));
            assert_eq!(AnaState::from_name(state.name()), Some(state));
        }
        assert_eq!((AnaState::from_u8(0), AnaState::from_name("lost")), (None, None));
    }

    #[test]
    fn refusals_send_hosts_to_another_path() {
        for status in AnaState::ALL.into_iter().filter_map(AnaState::refusal) {
            assert!(status.sct() == StatusType::Path as u8 && !status.do_not_retry());
        }
        assert_eq!(AnaState::NonOptimized.refusal(), None);
    }
}
