//! Assertions of the code under test, caught as failures of the run, with their place.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// `Some` while this thread catches; then the last panic's text.
    static CAUGHT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `action`; a panic becomes its message and place instead of a line on stderr.
pub(crate) fn caught<T>(action: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = take_hook();
        set_hook(Box::new(move |info| {
            let catching = CAUGHT.with_borrow_mut(|caught| {
                caught.as_mut().map(|text| *text = format!("assertion failed: {info}")).is_some()
            });
            if !catching {
                previous(info);
            }
        }));
    });
    CAUGHT.set(Some(String::new()));
    // What the action has touched is abandoned after a panic, so nobody sees it half-changed.
    let result = catch_unwind(AssertUnwindSafe(action));
    let text = CAUGHT.take().unwrap_or_default();
    result.map_err(|_| text)
}
