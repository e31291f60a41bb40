//! The time of day, in seconds since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Now.
pub fn seconds_now() -> u64 {
    since_1970(SystemTime::now())
}

/// Of a time; of those before 1970 none.
pub fn since_1970(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A time as answers show it, in UTC.
pub fn timestamp(seconds: u64) -> String {
    // Ten thousand years are as far as the notation goes.
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds.min(253_402_300_799))).to_string()
}
