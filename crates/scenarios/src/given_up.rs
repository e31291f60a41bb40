//! How giving up a log ends, by the words of its refusal.

/// See the module.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GivenUp {
    Done,
    /// The capacity device has to become so many MiB larger.
    TooSmall(u64),
    /// Anything else.
    Failed(String),
}

impl GivenUp {
    /// What a refusal says.
    pub(crate) fn refused(error: String) -> GivenUp {
        // An attempt that was cut off has gone further than its process could see.
        if error.contains("is its log, and can be read") {
            return GivenUp::Done;
        }
        let words: Vec<&str> = error.split(' ').collect();
        let mib = words.windows(2).find(|pair| pair[1] == "MiB").and_then(|pair| pair[0].parse().ok());
        mib.map_or(GivenUp::Failed(error), GivenUp::TooSmall)
    }
}
