//! What a check found.

use std::fmt;

/// Most findings that are listed; further ones are counted.
pub const FINDINGS_MAX: usize = 1000;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is wrong: what a crash leaves behind, for instance.
    Note,
    /// Nothing is lost yet, but a second fault would lose something.
    Warning,
    /// Something cannot be read any more, or cannot be trusted.
    Error,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is about: a structure, an extent, a volume.
    pub object: String,
    /// Where that is.
    pub place: String,
    /// What is wrong, and what follows from it.
    pub meaning: String,
    /// What to do about it.
    pub advice: String,
    /// It has been put right.
    pub repaired: bool,
    /// It is about blocks that were lost before, and are known to be: structures are as they should be.
    pub is_known_loss: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{severity}: {} ({}): {}", self.object, self.place, self.meaning)?;
        match self.repaired {
            true => write!(f, "; repaired"),
            false => write!(f, "; {}", self.advice),
        }
    }
}

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckCounts {
    /// Valid copies of superblocks.
    pub superblocks: u64,
    /// Valid copies of the catalog.
    pub catalogs: u64,
    /// Volumes in the catalog.
    pub volumes: u64,
    /// Valid copies of roots.
    pub roots: u64,
    /// Table pages that their roots confirm.
    pub table_pages: u64,
    /// Extents that belong to a volume.
    pub extents: u64,
    /// Map pages that their descriptors confirm.
    pub map_pages: u64,
    /// Slices in the dirty journals.
    pub dirty_slices: u64,
    /// Segments of the log in use.
    pub segments: u64,
    /// Log records that recovery would replay.
    pub records: u64,
    /// Of those, blocks of payload that matched their checksums.
    pub payload_blocks: u64,
    /// Blocks of volumes that matched their checksums.
    pub data_blocks: u64,
    /// Blocks of volumes that did not, or could not be read.
    pub corrupt_blocks: u64,
    /// Blocks of volumes that are known to be lost.
    pub lost_blocks: u64,
    /// Blocks of volumes that are damaged in one version of the capacity device, and right in another.
    pub healable_blocks: u64,
    /// Stripes of bands whose headers were good.
    pub stripes: u64,
    /// Damaged headers of stripes that have blocks in use.
    pub damaged_headers: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// The pool's name, if a superblock could be read.
    pub pool: Option<String>,
    /// What was found, in the order of the structures.
    pub findings: Vec<Finding>,
    /// Findings beyond [`FINDINGS_MAX`].
    pub findings_left_off: u64,
    /// What was looked at.
    pub counts: CheckCounts,
}

impl CheckReport {
    /// The worst of what is still wrong.
    pub fn worst(&self) -> Option<Severity> {
        let open = self.findings.iter().filter(|finding| !finding.repaired);
        let left_off = (self.findings_left_off > 0).then_some(Severity::Error);
        open.map(|finding| finding.severity).chain(left_off).max()
    }

    /// Nothing worse than a note is left.
    pub fn is_sound(&self) -> bool {
        self.worst().is_none_or(|worst| worst == Severity::Note)
    }

    /// As [`is_sound`](Self::is_sound), but for blocks that were lost before.
    pub fn is_sound_but_for_losses(&self) -> bool {
        let is_right =
            |finding: &Finding| finding.severity == Severity::Note || finding.repaired || finding.is_known_loss;
        self.findings_left_off == 0 && self.findings.iter().all(is_right)
    }

    pub(super) fn add(&mut self, finding: Finding) {
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.findings_left_off += 1;
        }
    }

    pub(super) fn error(&mut self, object: impl fmt::Display, place: impl fmt::Display, meaning: String, advice: &str) {
        self.add(Finding::new(Severity::Error, object, place, meaning, advice));
    }

    pub(super) fn warning(
        &mut self,
        object: impl fmt::Display,
        place: impl fmt::Display,
        meaning: String,
        advice: &str,
    ) {
        self.add(Finding::new(Severity::Warning, object, place, meaning, advice));
    }
}

impl Finding {
    pub(super) fn new(
        severity: Severity,
        object: impl fmt::Display,
        place: impl fmt::Display,
        meaning: String,
        advice: &str,
    ) -> Finding {
        let (object, place, advice) = (object.to_string(), place.to_string(), advice.to_string());
        Finding { severity, object, place, meaning, advice, repaired: false, is_known_loss: false }
    }

    /// Notes how a repair ended.
    pub(super) fn after(mut self, repair: Result<(), bdev::Status>) -> Finding {
        match repair {
            Ok(()) => self.repaired = true,
            Err(status) => self.advice = format!("it could not be repaired ({status}): replace the device"),
        }
        self
    }
}
