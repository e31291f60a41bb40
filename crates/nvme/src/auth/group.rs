//! The Diffie-Hellman groups of DH-HMAC-CHAP (Base 2.0, section 8.13.5.2, DHgIDList): RFC 7919's, generator 2.

use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, CtAssign, CtEq, Odd};
use zeroize::{Zeroize, Zeroizing};

use super::Random;
use super::primes::{FFDHE2048, FFDHE3072, FFDHE4096, FFDHE6144, FFDHE8192};

/// A group, by its identifier on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum DhGroup {
    /// No Diffie-Hellman exchange.
    Null = 0,
    /// 2048 bits.
    Ffdhe2048 = 1,
    /// 3072 bits.
    Ffdhe3072 = 2,
    /// 4096 bits.
    Ffdhe4096 = 3,
    /// 6144 bits.
    Ffdhe6144 = 4,
    /// 8192 bits.
    Ffdhe8192 = 5,
}

impl DhGroup {
    /// All of them, in the order in which a side prefers them that was not told otherwise: first the smallest with a strength
    /// of 128 bits, since larger ones cost more than they bring, then what is weaker.
    pub const ALL: [DhGroup; 6] = [
        DhGroup::Ffdhe3072,
        DhGroup::Ffdhe4096,
        DhGroup::Ffdhe6144,
        DhGroup::Ffdhe8192,
        DhGroup::Ffdhe2048,
        DhGroup::Null,
    ];

    /// Longest public value, in bytes.
    pub const LEN_MAX: usize = 1024;

    /// The group with this identifier.
    pub fn from_u8(value: u8) -> Option<DhGroup> {
        DhGroup::ALL.into_iter().find(|group| *group as u8 == value)
    }

    /// Its name, as administrators write it.
    pub const fn name(self) -> &'static str {
        match self {
            DhGroup::Null => "null",
            DhGroup::Ffdhe2048 => "ffdhe2048",
            DhGroup::Ffdhe3072 => "ffdhe3072",
            DhGroup::Ffdhe4096 => "ffdhe4096",
            DhGroup::Ffdhe6144 => "ffdhe6144",
            DhGroup::Ffdhe8192 => "ffdhe8192",
        }
    }

    /// The group with this name.
    pub fn from_name(name: &str) -> Option<DhGroup> {
        DhGroup::ALL.into_iter().find(|group| group.name() == name)
    }

    /// Bytes of a public value and of the shared secret; zero without an exchange.
    pub const fn public_len(self) -> usize {
        match self {
            DhGroup::Null => 0,
            DhGroup::Ffdhe2048 => 256,
            DhGroup::Ffdhe3072 => 384,
            DhGroup::Ffdhe4096 => 512,
            DhGroup::Ffdhe6144 => 768,
            DhGroup::Ffdhe8192 => 1024,
        }
    }

    /// Whether there is no exchange.
    pub const fn is_null(self) -> bool {
        matches!(self, DhGroup::Null)
    }

    const fn prime(self) -> &'static str {
        match self {
            DhGroup::Null => panic!("the null group has no prime"),
            DhGroup::Ffdhe2048 => FFDHE2048,
            DhGroup::Ffdhe3072 => FFDHE3072,
            DhGroup::Ffdhe4096 => FFDHE4096,
            DhGroup::Ffdhe6144 => FFDHE6144,
            DhGroup::Ffdhe8192 => FFDHE8192,
        }
    }

    /// Bytes of a private exponent: twice the group's strength, and more than RFC 7919, section 5.2, asks for.
    const fn exponent_len(self) -> usize {
        match self {
            DhGroup::Null => 0,
            DhGroup::Ffdhe2048 => 32,
            DhGroup::Ffdhe3072 => 40,
            DhGroup::Ffdhe4096 => 48,
            DhGroup::Ffdhe6144 => 56,
            DhGroup::Ffdhe8192 => 64,
        }
    }

    /// A fresh private exponent.
    pub(super) fn private(self, random: Random<'_>) -> Zeroizing<Vec<u8>> {
        let mut exponent = Zeroizing::new(vec![0; self.exponent_len()]);
        random(&mut exponent);
        exponent
    }

    /// The public value of an exponent, to be computed.
    pub(super) fn public(self, exponent: &[u8]) -> Exponentiation {
        let bits = self.public_len() as u32 * 8;
        let two = BoxedUint::from_be_slice(&[2], bits).expect("two fits");
        Exponentiation::new(self, two, exponent)
    }

    /// The secret shared with the side that has this public value, to be computed. `None` for a value that no honest side has:
    /// another length, 0, 1, p - 1 and above (RFC 7919, section 5.1).
    pub(super) fn shared(self, exponent: &[u8], theirs: &[u8]) -> Option<Exponentiation> {
        if theirs.len() != self.public_len() {
            return None;
        }
        let bits = self.public_len() as u32 * 8;
        let base = BoxedUint::from_be_slice(theirs, bits).ok()?;
        let one = BoxedUint::one_with_precision(bits);
        let last = self.modulus().as_ref().wrapping_sub(&one);
        (base > one && base < last).then(|| Exponentiation::new(self, base, exponent))
    }

    fn modulus(self) -> Odd<BoxedUint> {
        let bits = self.public_len() as u32 * 8;
        let prime = BoxedUint::from_be_hex(self.prime(), bits).into_option().expect("the digits are hexadecimal");
        Odd::new(prime).into_option().expect("a large prime is odd")
    }
}

/// Bits of the exponent that one round takes.
const WINDOW_BITS: usize = 4;
const TABLE_LEN: usize = 1 << WINDOW_BITS;

/// A power modulo a group's prime, computed in steps of one multiplication each, so that whoever computes it can do other
/// things in between. What it does depends on the lengths alone, not on the values.
pub struct Exponentiation {
    group: DhGroup,
    params: BoxedMontyParams,
    /// Powers 0 to 15 of the base, as far as they are there.
    table: Vec<BoxedMontyForm>,
    power: BoxedMontyForm,
    exponent: Zeroizing<Vec<u8>>,
    /// Windows of the exponent that were taken in.
    windows_done: usize,
    /// Squarings made since.
    squarings: usize,
}

impl Exponentiation {
    fn new(group: DhGroup, base: BoxedUint, exponent: &[u8]) -> Exponentiation {
        // The modulus is no secret.
        let params = BoxedMontyParams::new_vartime(group.modulus());
        let one = BoxedMontyForm::one(&params);
        let base = BoxedMontyForm::new(base, &params);
        Exponentiation {
            group,
            table: vec![one.clone(), base],
            power: one,
            exponent: Zeroizing::new(exponent.to_vec()),
            params,
            windows_done: 0,
            squarings: 0,
        }
    }

    /// Makes one multiplication; false when nothing is left to do.
    pub fn step(&mut self) -> bool {
        if self.table.len() < TABLE_LEN {
            let next = self.table[self.table.len() - 1].mul(&self.table[1]);
            self.table.push(next);
        } else if self.windows_done == self.exponent.len() * 8 / WINDOW_BITS {
            return false;
        } else if self.squarings < WINDOW_BITS {
            self.power = self.power.square();
            self.squarings += 1;
        } else {
            self.power = self.power.mul(&self.look_up());
            self.squarings = 0;
            self.windows_done += 1;
        }
        true
    }

    /// Makes as many multiplications as take some ten microseconds; false when nothing is left to do.
    pub fn turn(&mut self) -> bool {
        // A multiplication takes the square of the length.
        let multiplications = (DhGroup::LEN_MAX / self.group.public_len()).pow(2);
        (0..multiplications).all(|_| self.step())
    }

    /// The table's entry for the next window; every entry is read, whichever it is.
    fn look_up(&self) -> BoxedMontyForm {
        let byte = self.exponent[self.windows_done / 2];
        let window = if self.windows_done.is_multiple_of(2) { byte >> 4 } else { byte & 0xf };
        let mut found = self.table[0].to_montgomery();
        for (index, entry) in self.table.iter().enumerate() {
            found.ct_assign(entry.as_montgomery(), (index as u8).ct_eq(&window));
        }
        BoxedMontyForm::from_montgomery(found, &self.params)
    }

    /// The power, as many bytes as the prime has, big-endian.
    ///
    /// # Panics
    /// If steps are left.
    pub fn finish(self) -> Zeroizing<Vec<u8>> {
        assert_eq!(self.windows_done, self.exponent.len() * 8 / WINDOW_BITS, "all steps were made");
        let mut power = self.power.retrieve();
        let bytes = Zeroizing::new(power.to_be_bytes().to_vec());
        power.zeroize();
        assert_eq!(bytes.len(), self.group.public_len());
        bytes
    }

    /// All steps at once, for who has nothing else to do.
    pub fn run(mut self) -> Zeroizing<Vec<u8>> {
        while self.step() {}
        self.finish()
    }
}

impl Drop for Exponentiation {
    fn drop(&mut self) {
        self.power.zeroize();
        self.table.iter_mut().for_each(Zeroize::zeroize);
    }
}

impl core::fmt::Debug for Exponentiation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Exponentiation").field("group", &self.group).finish_non_exhaustive()
    }
}
