//! Byte sizes as people write them: `4k`, `512MiB`, `1.5G`, `1TB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Parses binary (`k`, `KiB`, `M`, ...) and decimal (`kB`, `MB`, ...) suffixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Why a size could not be read; the text says what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSize {
    text: String,
    is_too_large: bool,
}

impl fmt::Display for BadSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = &self.text;
        if self.is_too_large {
            return write!(f, "'{text}' is too large a size: expected less than 16384 PiB");
        }
        write!(
            f,
            "'{text}' is not a size: expected a number with an optional unit, such as 4096, 4k, 512MiB, 10GiB or 1TB"
        )
    }
}

impl std::error::Error for BadSize {}

impl FromStr for ByteSize {
    type Err = BadSize;

    fn from_str(text: &str) -> Result<Self, BadSize> {
        let bad = || BadSize { text: text.to_string(), is_too_large: false };
        let too_large = || BadSize { is_too_large: true, ..bad() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let scale = unit_scale(unit.trim()).ok_or_else(bad)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(ByteSize).ok_or_else(too_large);
        }
        let value: f64 = number.parse().map_err(|_| bad())?;
        let bytes = value * scale as f64;
        if !(0.0..=u64::MAX as f64 / 2.0).contains(&bytes) {
            return Err(too_large());
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
        "e" | "eib" => 1 << 60,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        "eb" => 1_000_000_000_000_000_000,
        _ => return None,
    })
}

const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/// Whole numbers from here on are too long to be read at a glance.
const WHOLE_MAX: u64 = 100_000;

/// Exactly, in the largest unit in which two decimals are enough for that: `1.5 GiB`, `1100 MiB`. Where no such unit gives a
/// short number, about, rounded down: `~1.17 MiB`. What is not exact can be told by its `~`.
impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.0);
        let largest = (0..UNITS.len()).rev().find(|unit| bytes >= scale(*unit)).unwrap_or(0);
        let is_short = |unit: &usize| bytes / scale(*unit) < u128::from(WHOLE_MAX);
        let exact = |unit: &usize| (bytes * 100).is_multiple_of(scale(*unit));
        if let Some(unit) = (0..=largest).rev().take_while(is_short).find(exact) {
            return write_hundredths(f, bytes * 100 / scale(unit), unit);
        }
        f.write_str("~")?;
        write_hundredths(f, bytes * 100 / scale(largest), largest)
    }
}

fn scale(unit: usize) -> u128 {
    1 << (10 * unit)
}

fn write_hundredths(f: &mut fmt::Formatter<'_>, hundredths: u128, unit: usize) -> fmt::Result {
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    match rest {
        0 => write!(f, "{whole} {}", UNITS[unit]),
        _ if rest.is_multiple_of(10) => write!(f, "{whole}.{} {}", rest / 10, UNITS[unit]),
        _ => write!(f, "{whole}.{rest:02} {}", UNITS[unit]),
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
    fn shows_exactly_what_fits_and_marks_what_does_not() {
        for (bytes, text) in [
            (0, "0 B"),
            (1000, "1000 B"),
            (512 << 20, "512 MiB"),
            (1536, "1.5 KiB"),
            (5 << 28, "1.25 GiB"),
            (1100 << 20, "1100 MiB"),
            ((20 << 30) - (1 << 20), "20479 MiB"),
            (4097, "4097 B"),
            (1_234_567, "~1.17 MiB"),
            ((1 << 40) - 4096, "~1023.99 GiB"),
            ((100 << 30) + 1, "~100 GiB"),
            (1_000_000_000_000, "~931.32 GiB"),
            (u64::MAX, "~16383.99 PiB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }

    #[test]
    fn what_is_shown_without_a_mark_is_read_as_the_same_number() {
        let mut rng = crate::Rng::new(3);
        let mut exact = 0;
        for _ in 0..10_000 {
            let bytes = rng.next_u64() >> rng.below(64) >> 10 << rng.below(11);
            let text = ByteSize(bytes).to_string();
            if !text.starts_with('~') {
                assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
                exact += 1;
            }
        }
        assert!(exact > 1000, "{exact}");
    }
}
