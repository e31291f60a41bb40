//! Why a host is not let in: what the log says and counters tell apart.

use core::fmt;

use crate::spec::fabrics::InvalidParameter;
use crate::spec::{Cqe, Nqn};

/// Why a connection did not become a queue, or its host was not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyRefused {
    /// No subsystem of this name.
    UnknownSubsystem,
    /// The host may not use the subsystem.
    NotAllowed,
    /// The host did not prove who it is.
    Authentication,
    /// No TLS where it has to be, or with a key that is not this host's.
    Tls,
    /// The host identifier is another host's.
    Identifier,
    /// There are too many connections or controllers.
    Limit,
    /// A field of Connect has a value that cannot be; its name.
    Parameter(&'static str),
}

impl WhyRefused {
    /// The reasons that counters tell apart.
    pub const LABELS: [&str; 7] =
        ["unknown_subsystem", "not_allowed", "authentication", "tls", "identifier", "limit", "parameter"];

    /// Its place in [`Self::LABELS`].
    pub const fn index(self) -> usize {
        match self {
            WhyRefused::UnknownSubsystem => 0,
            WhyRefused::NotAllowed => 1,
            WhyRefused::Authentication => 2,
            WhyRefused::Tls => 3,
            WhyRefused::Identifier => 4,
            WhyRefused::Limit => 5,
            WhyRefused::Parameter(_) => 6,
        }
    }
}

impl fmt::Display for WhyRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WhyRefused::UnknownSubsystem => "there is no such subsystem here",
            WhyRefused::NotAllowed => "the host may not connect to it; 'host allow' lets it in",
            WhyRefused::Authentication => "the host did not authenticate itself",
            WhyRefused::Tls => "the host has a TLS key for it, and this connection is not encrypted with that key",
            WhyRefused::Identifier => "its host identifier belongs to another host; give each host one of its own",
            WhyRefused::Limit => "there are as many controllers as there can be",
            WhyRefused::Parameter(name) => return write!(f, "the {name} cannot be what it is"),
        })
    }
}

/// A Connect command that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedConnect {
    /// The completion that says so.
    pub cqe: Cqe,
    /// Why.
    pub why: WhyRefused,
    /// The host, if it named itself.
    pub host: Option<Nqn>,
    /// The subsystem, if one was named.
    pub subsystem: Option<Nqn>,
}

/// Fields of Connect and of its data, by offset.
pub(super) const SQSIZE: InvalidParameter = InvalidParameter { offset: 44, in_data: false };
pub(super) const QID: InvalidParameter = InvalidParameter { offset: 42, in_data: false };
pub(super) const HOSTID: InvalidParameter = InvalidParameter { offset: 0, in_data: true };
pub(super) const CNTLID: InvalidParameter = InvalidParameter { offset: 16, in_data: true };
pub(super) const SUBNQN: InvalidParameter = InvalidParameter { offset: 256, in_data: true };
pub(super) const HOSTNQN: InvalidParameter = InvalidParameter { offset: 512, in_data: true };

/// What a field is called in a log.
pub(super) fn name_of(parameter: InvalidParameter) -> &'static str {
    match parameter {
        SQSIZE => "queue size",
        QID => "queue number",
        HOSTID => "host identifier",
        CNTLID => "controller identifier",
        SUBNQN => "subsystem name",
        HOSTNQN => "host name",
        _ => "connect data",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_label_of_its_own() {
        let reasons = [
            WhyRefused::UnknownSubsystem,
            WhyRefused::NotAllowed,
            WhyRefused::Authentication,
            WhyRefused::Tls,
            WhyRefused::Identifier,
            WhyRefused::Limit,
            WhyRefused::Parameter("queue size"),
        ];
        let indices: Vec<usize> = reasons.iter().map(|why| why.index()).collect();
        assert_eq!(indices, (0..WhyRefused::LABELS.len()).collect::<Vec<_>>());
    }
}
