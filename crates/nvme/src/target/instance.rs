//! Instances of controllers: what tells one from all others that had or will have its identifier (Base 2.3, CIU and CIRN).
//!
//! A host that lost its controller names the lost one by these numbers when it has another controller reset it. Whoever is
//! named by an older instance's numbers has been reset already.

use base::Rng;

/// One instance of a controller. A reset ends it and begins the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    /// CIU: never zero, which would say that the controller has no such number.
    pub(super) uniquifier: u8,
    /// CIRN.
    pub(super) random: u64,
}

/// Makes instances.
#[derive(Debug)]
pub(super) struct Instances {
    rng: Rng,
    last: u8,
}

impl Instances {
    pub(super) fn new(seed: u64) -> Self {
        Instances { rng: Rng::new(seed), last: 0 }
    }

    pub(super) fn next(&mut self) -> Instance {
        self.last = self.last.wrapping_add(1).max(1);
        Instance { uniquifier: self.last, random: self.rng.next_u64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_instance_has_the_uniquifier_zero_or_the_numbers_of_another() {
        let mut instances = Instances::new(3);
        let made: Vec<_> = (0..600).map(|_| instances.next()).collect();
        assert!(made.iter().all(|instance| instance.uniquifier != 0));
        assert!(made.iter().enumerate().all(|(index, instance)| !made[..index].contains(instance)));
    }
}
