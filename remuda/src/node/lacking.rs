//! What the devices below a pool lack, as findings of a check: a part of a mirror or of a parity device that does not have all
//! data, and a flash cache without its flash. A pool above them may be in perfect order, and one more fault away from a loss.

use super::build::{Opened, flash_cache_view};
use super::redundant::{Redundant, behind};
use crate::config::DeviceDef;
use bdev::{LegState, MemberState};
use engine::{Finding, Severity};

/// How a part is that does not have all data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// The device goes on without it.
    Absent,
    /// It was called failed.
    Failed,
    /// It is being filled.
    Behind,
}

/// What a device lacks.
#[derive(Clone, Debug)]
pub struct Lacking {
    /// In words.
    pub finding: Finding,
    /// The part is not there, so that a node which is started now gives it up.
    pub is_absent: bool,
}

/// What a device lacks, as it is open now. `closed` says of a child why it is not open; `None` where it is.
pub fn lacking(def: &DeviceDef, opened: &Opened, closed: impl Fn(&str) -> Option<String>) -> Vec<Lacking> {
    let (device, parts) = (&def.name, def.children());
    let place = format!("{} '{device}'", def.kind());
    let warning = |is_absent: bool, object: String, meaning: String, advice: String| {
        let (place, severity) = (place.clone(), Severity::Warning);
        Lacking {
            finding: Finding { severity, object, place, meaning, advice, repaired: false, is_known_loss: false },
            is_absent,
        }
    };
    if let Some(cache) = flash_cache_view(opened) {
        let Some(flash) = parts.get(1).filter(|_| !cache.is_in_order()) else { return Vec::new() };
        let is_absent = cache.mode == "absent";
        let why = closed(flash).map_or_else(|| cannot_be_used(is_absent), |why| absent(&why));
        let meaning = format!("{why}; everything is read from the disks behind it");
        let advice = "bring it back before the node is started: once that has run without it, what the flash has is void, and the cache \
                      begins empty";
        return vec![warning(is_absent, format!("flash device '{flash}'"), meaning, advice.to_string())];
    }
    let Some(redundant) = Redundant::of(opened) else { return Vec::new() };
    let (noun, lacks, older) = match &redundant {
        Redundant::Mirror(mirror) => {
            let legs = mirror.legs();
            let lacks: Vec<_> = legs.iter().map(|leg| lack_of_leg(leg.state, leg.name.is_none())).collect();
            ("leg", lacks, Vec::new())
        }
        Redundant::Parity(parity) => {
            let members = parity.members();
            let lacks = members.iter().map(|member| lack_of_member(member.state, member.name.is_none())).collect();
            let older = members.iter().zip(parts).map(|(member, part)| behind(device, member, part)).collect();
            ("member", lacks, older)
        }
    };
    let in_sync = lacks.iter().filter(|lack| lack.is_none()).count();
    let lost = match (&redundant, in_sync) {
        (Redundant::Mirror(_), 2..) => format!("{in_sync} others have all data"),
        (Redundant::Mirror(_), _) => "the loss of the other one would be a loss of data".to_string(),
        (Redundant::Parity(_), _) => "the loss of another one would be a loss of data".to_string(),
    };
    let found = parts.iter().enumerate().filter_map(|(index, part)| {
        let lack = (*lacks.get(index)?)?;
        let rejoin = format!("remuda device rejoin {device} {part}");
        let (why, advice) = match (lack, closed(part)) {
            (_, Some(why)) => (absent(&why), come_back(&rejoin)),
            (Lack::Absent, None) => (cannot_be_used(true), come_back(&rejoin)),
            (Lack::Failed, None) => {
                let why = "it was called failed and lacks data".to_string();
                (why, format!("see to it, start the node, then: {rejoin}"))
            }
            (Lack::Behind, None) => {
                let why = "it lacks data and is being filled from the others".to_string();
                (why, "start the node, which goes on with that".to_string())
            }
        };
        let why = older.get(index).cloned().flatten().unwrap_or(why);
        Some(warning(lack == Lack::Absent, format!("{noun} '{part}'"), format!("{why}; {lost}"), advice))
    });
    found.collect()
}

fn absent(why: &str) -> String {
    format!("it is absent: {}", why.trim_end_matches(';'))
}

fn cannot_be_used(is_other: bool) -> String {
    match is_other {
        true => "it does not hold what belongs there, or is too small, and is not used".to_string(),
        false => "it fails, and is not used".to_string(),
    }
}

fn come_back(rejoin: &str) -> String {
    format!(
        "bring it back before the node is started, or it has to be filled anew once that has run without it; where it is gone for good, put \
         a new one in its place: {rejoin}"
    )
}

fn lack_of_leg(state: LegState, is_absent: bool) -> Option<Lack> {
    match state {
        LegState::InSync => None,
        LegState::Failed if is_absent => Some(Lack::Absent),
        LegState::Failed => Some(Lack::Failed),
        LegState::RecoveringDirty | LegState::RecoveringFull => Some(Lack::Behind),
    }
}

fn lack_of_member(state: MemberState, is_absent: bool) -> Option<Lack> {
    match state {
        MemberState::InSync => None,
        MemberState::Failed if is_absent => Some(Lack::Absent),
        MemberState::Failed => Some(Lack::Failed),
        MemberState::Rebuilding => Some(Lack::Behind),
    }
}
