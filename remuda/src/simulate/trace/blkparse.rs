//! What `blkparse` prints unless told otherwise: `8,0  3  1  0.000000000  697  Q  WS 223490 + 8 [name]`, and at the end a summary.

use super::{Access, Cause, Event, Kind, SECTOR, Seen, Times, number};

pub(super) struct Blkparse {
    event: Event,
    device: Option<String>,
    seen: Seen,
    pub(super) times: Times,
    /// The summary has begun.
    ended: bool,
}

/// Whether the first line is one.
pub(super) fn is_like(bytes: &[u8]) -> bool {
    let line = bytes.split(|byte| *byte == b'\n').find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    std::str::from_utf8(line).is_ok_and(|line| is_device(line.split_ascii_whitespace().next().unwrap_or("")))
}

fn is_device(word: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    word.split_once(',').is_some_and(|(major, minor)| is_number(major) && is_number(minor))
}

/// What the letters of a request say: flushes and requests without a direction are no access.
pub(super) fn kind_of(letters: &str) -> Option<Kind> {
    match letters.trim_start_matches('F').bytes().next()? {
        b'R' => Some(Kind::Read),
        b'W' => Some(Kind::Write),
        b'D' => Some(Kind::Trim),
        _ => None,
    }
}

impl Blkparse {
    pub(super) fn new(event: Event, device: Option<&str>) -> Blkparse {
        Blkparse {
            event,
            device: device.map(str::to_string),
            seen: Seen::default(),
            times: Times::default(),
            ended: false,
        }
    }

    pub(super) fn line(&mut self, text: &str) -> Result<Option<Access>, Cause> {
        let mut words = text.split_ascii_whitespace();
        let Some(device) = words.next() else { return Ok(None) };
        if !is_device(device) {
            self.ended |= text.starts_with("CPU") || text.starts_with("Total");
            return if self.ended {
                Ok(None)
            } else {
                Err(format!("'{device}': expected a device such as 8,0 at the start of a line of blkparse"))
            };
        }
        number("CPU", words.next())?;
        number("sequence number", words.next())?;
        let time = words.next().ok_or("the time is missing")?;
        let seconds = time.parse::<f64>().map_err(|_| format!("the time is '{time}': expected seconds"))?;
        number("process id", words.next())?;
        let action = words.next().ok_or("the action is missing")?;
        let Some(kind) = words.next().and_then(kind_of) else { return Ok(None) };
        if action != self.event.letter() {
            self.seen.other(action);
            return Ok(None);
        }
        let Some(sector) = words.next().filter(|word| *word != "[0]" && !word.starts_with('[')) else {
            return Ok(None);
        };
        let sector = number("sector", Some(sector))?;
        match words.next() {
            Some("+") => {}
            // A command of another kind, which has no range.
            _ => return Ok(None),
        }
        let sectors = number("number of sectors", words.next())?;
        if !self.seen.admits(device, self.device.as_deref())? {
            return Ok(None);
        }
        self.seen.wanted += 1;
        self.times.at((seconds * 1e9) as u64);
        let bytes = |count: u64| count.checked_mul(SECTOR).ok_or_else(|| format!("{count} sectors are too many"));
        Ok(Some(Access { kind, space: 0, offset: bytes(sector)?, bytes: bytes(sectors)? }))
    }

    pub(super) fn end(&self) -> Result<(), Cause> {
        self.seen.end(self.event, self.device.as_deref())
    }
}
