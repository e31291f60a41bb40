//! What takes long is said to go on.

use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// What has taken so long is in the log, and again after twice that, and so on.
const TOLD_AFTER: Duration = Duration::from_secs(10);

/// Waits for something, and has the log say that it goes on.
pub async fn told<T>(what: impl Display, work: impl Future<Output = T>) -> T {
    let (begun, mut after) = (Instant::now(), TOLD_AFTER);
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep_until(begun + after) => {
                let seconds = after.as_secs();
                tracing::warn!("{what} has been going on for {seconds} s: it waits for a device that is slow or does not answer");
                after *= 2;
            }
        }
    }
}
