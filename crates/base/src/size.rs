//! Byte sizes as people write them: `4k`, `512MiB`, `1.5G`, `1TB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Parses binary (`k`, `KiB`, `M`, ...) and decimal (`kB`, `MB`, ...) suffixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a size could not be read; the text says what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSize(String);

impl fmt::Display for BadSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is not a size: expected a number with an optional unit, such as 4096, 4k, 512MiB, 10GiB or 1TB",
            self.0
        )
    }
}

impl std::error::Error for BadSize {}

impl FromStr for ByteSize {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize(text.to_string());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let scale = unit_scale(unit.trim()).ok_or_else(bad)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(ByteSize).ok_or_else(bad);
        }
        let value: f64 = number.parse().map_err(|_| bad())?;
        let bytes = value * scale as f64;
        if !(0.0..=u64::MAX as f64 / 2.0).contains(&bytes) {
            return Err(bad());
        }
        Ok(ByteSize(bytes as u64))
    }
}

fn unit_scale(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "p" | "pib" => 1 << 50,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        _ => return None,
    })
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 || value.fract() == 0.0 {
            write!(f, "{} {}", value as u64, UNITS[unit])
        } else {
            write!(f, "{value:.1} {}", UNITS[unit])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (text, bytes) in [
            ("4096", 4096),
            ("4k", 4096),
            ("512MiB", 512 << 20),
            ("1.5G", 3 << 29),
            ("1TB", 1_000_000_000_000),
            (" 2 MiB ", 2 << 20),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_size() {
        for text in ["", "k", "4x", "-1", "1e400G", "99999999999999P"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn shows_the_largest_fitting_unit() {
        assert_eq!(ByteSize(512 << 20).to_string(), "512 MiB");
        assert_eq!(ByteSize(1536).to_string(), "1.5 KiB");
    }
}
