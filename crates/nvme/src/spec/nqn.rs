//! NVMe Qualified Names (Base 2.0, section 4.5).

use core::fmt;
use core::str::FromStr;

/// Bytes of an NQN field on the wire; the rest after the name is zero.
pub const NQN_FIELD_LEN: usize = 256;

/// Longest name, its terminating zero not counted (Base 2.0, section 4.5: 223 bytes).
pub const NQN_LEN_MAX: usize = 223;

/// The name under which every discovery service is reached (Base 2.0, section 4.5).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

const UUID_PREFIX: &str = "nqn.2014-08.org.nvmexpress:uuid:";

/// A valid NVMe Qualified Name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nqn(String);

/// Why a string is no NQN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// Longer than 223 bytes, or no terminating zero in the field.
    #[error("an NQN has at most {NQN_LEN_MAX} bytes")]
    TooLong,
    /// Not UTF-8, or it contains characters that nobody sees.
    #[error("an NQN is printable UTF-8")]
    NotText,
    /// Does not start with `nqn.yyyy-mm.` and a reversed domain, or with the UUID form's prefix.
    #[error("an NQN looks like nqn.2024-01.org.example:name or {UUID_PREFIX}<uuid>")]
    Form,
}

impl Nqn {
    /// Checks and keeps a name.
    ///
    /// The form is checked as far as hosts in the field obey it: `nqn.`, a date, a dot and something behind it.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        if name.len() > NQN_LEN_MAX {
            return Err(NqnError::TooLong);
        }
        if !name.chars().all(base::is_shown) {
            return Err(NqnError::NotText);
        }
        let rest = name.strip_prefix("nqn.").ok_or(NqnError::Form)?;
        let date = rest.as_bytes().get(..8).ok_or(NqnError::Form)?;
        let is_date = date.iter().enumerate().all(|(index, byte)| match index {
            4 => *byte == b'-',
            7 => *byte == b'.',
            _ => byte.is_ascii_digit(),
        });
        if !is_date || rest.len() == 8 {
            return Err(NqnError::Form);
        }
        if let Some(uuid) = name.strip_prefix(UUID_PREFIX) {
            uuid::Uuid::try_parse(uuid).map_err(|_| NqnError::Form)?;
        }
        Ok(Nqn(name.to_owned()))
    }

    /// The well-known name of the discovery subsystem.
    pub fn discovery() -> Self {
        Nqn(DISCOVERY_NQN.to_owned())
    }

    /// The name built from a UUID.
    pub fn from_uuid(uuid: uuid::Uuid) -> Self {
        Nqn(format!("{UUID_PREFIX}{uuid}"))
    }

    /// Reads a 256-byte field: a name, a zero, anything behind it ignored.
    pub fn from_field(field: &[u8; NQN_FIELD_LEN]) -> Result<Self, NqnError> {
        let len = field.iter().position(|byte| *byte == 0).ok_or(NqnError::TooLong)?;
        Nqn::new(core::str::from_utf8(&field[..len]).map_err(|_| NqnError::NotText)?)
    }

    /// The 256-byte field, zero filled.
    pub fn to_field(&self) -> [u8; NQN_FIELD_LEN] {
        let mut field = [0; NQN_FIELD_LEN];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the well-known discovery name.
    pub fn is_discovery(&self) -> bool {
        self.0 == DISCOVERY_NQN
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Nqn {
    type Err = NqnError;

    fn from_str(name: &str) -> Result<Self, NqnError> {
        Nqn::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_hosts_use_are_accepted() {
        for name in [
            DISCOVERY_NQN,
            "nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
            "nqn.2016-06.io.spdk:cnode1",
        ] {
            let nqn = Nqn::new(name).expect(name);
            assert_eq!(Nqn::from_field(&nqn.to_field()), Ok(nqn));
        }
    }

    #[test]
    fn malformed_names_are_refused_with_the_reason() {
        assert_eq!(Nqn::new(""), Err(NqnError::Form));
        assert_eq!(Nqn::new("nqn.2014.08.org"), Err(NqnError::Form));
        assert_eq!(Nqn::new("nqn.2014-08."), Err(NqnError::Form));
        assert_eq!(Nqn::new("iqn.2014-08.org.x"), Err(NqnError::Form));
        assert_eq!(Nqn::new("nqn.2014-08.org.nvmexpress:uuid:nonsense"), Err(NqnError::Form));
        assert_eq!(Nqn::new("nqn.2014-08.org\n"), Err(NqnError::NotText));
        assert_eq!(Nqn::new("nqn.2014-08.org.x:\u{202E}ksid"), Err(NqnError::NotText), "turned around");
        assert_eq!(Nqn::new("nqn.2014-08.org.x:disk\u{200B}"), Err(NqnError::NotText), "looks like another");
        let long = format!("nqn.2014-08.org.{}", "x".repeat(NQN_LEN_MAX));
        assert_eq!(Nqn::new(&long), Err(NqnError::TooLong));
    }

    #[test]
    fn a_field_without_terminator_or_text_is_refused() {
        assert_eq!(Nqn::from_field(&[b'n'; NQN_FIELD_LEN]), Err(NqnError::TooLong));
        let mut field = Nqn::discovery().to_field();
        field[5] = 0xff;
        assert_eq!(Nqn::from_field(&field), Err(NqnError::NotText));
    }
}
