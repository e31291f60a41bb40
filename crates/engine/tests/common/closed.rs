//! A reactor that is closed when the test is through with it.

use reactor::Reactor;
use std::ops::Deref;
use std::rc::Rc;

/// What a test leaves running, and what is kept, would keep the reactor, and the locked memory of its ring, until the whole process ends:
/// with the usual 8 MiB of that, an ordinary user's ends too early.
pub struct ClosedAtEnd(pub Rc<Reactor>);

impl Deref for ClosedAtEnd {
    type Target = Rc<Reactor>;

    fn deref(&self) -> &Rc<Reactor> {
        &self.0
    }
}

impl Drop for ClosedAtEnd {
    fn drop(&mut self) {
        self.0.close();
    }
}
