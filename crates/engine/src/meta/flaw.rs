//! What a review of metadata finds wrong. A review reads each copy of a structure in every version that its device has, from the
//! medium: what an opening takes from whichever is right may rest on one alone.

use super::media::Media;
use bdev::Status;
use serde::{Deserialize, Serialize};

/// A kind of structure that a pool's metadata is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetadataKind {
    /// A superblock.
    #[default]
    Superblock,
    /// The catalog.
    Catalog,
    /// A shard's root.
    Root,
    /// A table page.
    TablePage,
    /// A map page.
    MapPage,
    /// A dirty journal.
    Journal,
}

/// How far a structure is damaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rot {
    /// In some versions of its device, and right in another.
    #[default]
    OneVersion,
    /// In every version, and another copy of it is right.
    OneCopy,
    /// Nothing on the devices has it as it should be.
    All,
}

/// A structure that is not on media as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flaw {
    pub(crate) kind: MetadataKind,
    /// Of superblocks, catalogs, roots and journals the copy, of table pages the page, of map pages the extent.
    pub(crate) number: u32,
    /// Where it is, in blocks of 4 KiB.
    pub(crate) block: u64,
    pub(crate) rot: Rot,
    /// It is written anew, from what is right elsewhere or in memory, when its owner writes next.
    pub(crate) is_due: bool,
}

/// What a review has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Review {
    /// Copies that were right.
    pub(crate) good: u64,
    pub(crate) read_bytes: u64,
    pub(crate) flaws: Vec<Flaw>,
}

impl Review {
    /// Adds what another one has found.
    pub(crate) fn add(&mut self, other: Review) {
        self.good += other.good;
        self.read_bytes += other.read_bytes;
        self.flaws.extend(other.flaws);
    }
}

/// What was found of a copy in all versions; a smaller one is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verdict {
    /// Every version that can be had is right.
    Right,
    /// Some are.
    Partly,
    /// It cannot be told now.
    Unknown,
    /// None is.
    Wrong,
}

impl Verdict {
    /// What is to be told of a copy; `elsewhere` there is one that is right in some version at least.
    pub(super) fn rot(self, elsewhere: bool) -> Option<Rot> {
        match self {
            Verdict::Right | Verdict::Unknown => None,
            Verdict::Partly => Some(Rot::OneVersion),
            Verdict::Wrong if elsewhere => Some(Rot::OneCopy),
            Verdict::Wrong => Some(Rot::All),
        }
    }

    /// Some version is right.
    pub(super) fn is_there(self) -> bool {
        matches!(self, Verdict::Right | Verdict::Partly)
    }
}

/// A copy as it was read.
pub(super) struct Judged {
    pub(super) verdict: Verdict,
    /// The bytes of a right version.
    pub(super) bytes: Option<Vec<u8>>,
    pub(super) read_bytes: u64,
}

/// How reading a version ended.
enum Answer {
    Right(Vec<u8>),
    Wrong,
    /// There is no such version, or it cannot be had now.
    None,
}

impl Media {
    /// Reads blocks in every version. What is wrong is read once more before it counts: it may have been the way.
    pub(super) async fn judge(&self, block: u64, count: usize, is_right: impl Fn(&[u8]) -> bool) -> Judged {
        let (mut bytes, mut read_bytes, mut wrong) = (None, 0, 0);
        for version in 0..self.versions {
            let mut answer = self.ask(version, block, count, &is_right).await;
            if matches!(answer, Answer::Wrong) {
                answer = self.ask(version, block, count, &is_right).await;
            }
            read_bytes += count as u64 * crate::units::BLOCK_BYTES as u64;
            match answer {
                Answer::Right(right) => bytes = bytes.or(Some(right)),
                Answer::Wrong => wrong += 1,
                Answer::None => {}
            }
        }
        let verdict = match (&bytes, wrong) {
            (Some(_), 0) => Verdict::Right,
            (Some(_), _) => Verdict::Partly,
            (None, 0) => Verdict::Unknown,
            // Others that cannot be had now may be right: what is written anew is all the same.
            (None, _) => Verdict::Wrong,
        };
        Judged { verdict, bytes, read_bytes }
    }

    async fn ask(&self, version: u8, block: u64, count: usize, is_right: &impl Fn(&[u8]) -> bool) -> Answer {
        match self.read_medium(version, block, count).await {
            Ok(bytes) if is_right(&bytes) => Answer::Right(bytes),
            Ok(_) | Err(Status::Corrupt | Status::ReadError) => Answer::Wrong,
            Err(_) => Answer::None,
        }
    }
}
