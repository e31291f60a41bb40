//! Waiting for what a node does in the background: asked again until it is over.

use super::exit::Failure;
use super::{Context, understood};
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks, and asks again, until what is told is over; the first one that is.
pub fn until<T>(mut ask: impl FnMut() -> Result<T, Failure>, is_over: impl Fn(&T) -> bool) -> Result<T, Failure> {
    loop {
        let told = ask()?;
        if is_over(&told) {
            return Ok(told);
        }
        std::thread::sleep(PAUSE);
    }
}

/// The same of a method that changes nothing: as the node tells it, and understood. `first` is what is known already.
pub fn until_told<T: DeserializeOwned>(
    context: &Context,
    first: Value,
    (method, params): (&str, Value),
    is_over: impl Fn(&T) -> bool,
) -> Result<(Value, T), Failure> {
    let mut known = Some(first);
    let ask = || {
        let raw = match known.take() {
            Some(raw) => raw,
            None => context.call(method, params.clone())?,
        };
        Ok((raw.clone(), understood(raw)?))
    };
    until(ask, |(_, view)| is_over(view))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::Exit;

    #[test]
    fn it_is_asked_until_it_is_over_or_fails() {
        let mut told = 0;
        let found = until(
            || {
                told += 1;
                Ok(told)
            },
            |told| *told == 3,
        );
        assert_eq!(found.ok(), Some(3));
        let failed = until(|| Err::<u32, _>(Failure::quiet(Exit::Unreachable)), |_| false);
        assert_eq!(failed.err().map(|failure| failure.exit), Some(Exit::Unreachable));
    }
}
