//! Both sides against each other, against values of an independent implementation, and against whatever bytes come.

mod dialogue;
mod hostile;
mod vectors;

use super::*;
use crate::spec::Nqn;
use std::sync::Arc;

fn host() -> Nqn {
    Nqn::new("nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555").expect("valid")
}

fn subsystem() -> Nqn {
    Nqn::new("nqn.2014-08.org.example:vault").expect("valid")
}

/// Runs `test` with the names.
fn with_names<T>(test: impl FnOnce(&Names<'_>) -> T) -> T {
    let (host, subsystem) = (host(), subsystem());
    test(&Names { host: &host, subsystem: &subsystem })
}

/// Another "random" byte each time, the same in each run.
struct Bytes(u8);

impl Bytes {
    fn fill(&mut self, out: &mut [u8]) {
        for byte in out {
            self.0 = self.0.wrapping_mul(29).wrapping_add(17);
            *byte = self.0;
        }
    }
}

fn secret(seed: u8) -> Arc<Secret> {
    let mut bytes = Bytes(seed);
    Arc::new(Secret::generate(Some(Hash::Sha256), &mut |out| bytes.fill(out)))
}
