//! fio's iolog, versions 2 and 3: `[TIMESTAMP] FILE ACTION [OFFSET LENGTH]`, after a line that says which. Times are microseconds from
//! the start of the job; in version 2 there are waits instead, each from the one before, and often there are none.

use super::{Access, Cause, Kind, Times, number};
use std::collections::HashMap;

/// Most files of one log.
const FILES_MAX: usize = 1 << 16;

#[derive(Default)]
pub(super) struct Iolog {
    version: u32,
    pub(super) times: Times,
    files: HashMap<String, u16>,
}

impl Iolog {
    pub(super) fn name(&self) -> &'static str {
        "fio iolog"
    }

    pub(super) fn line(&mut self, text: &str) -> Result<Option<Access>, Cause> {
        if self.version == 0 {
            self.version = match text {
                "fio version 2 iolog" => 2,
                "fio version 3 iolog" => 3,
                other => return Err(format!("'{other}': expected 'fio version 2 iolog' or 'fio version 3 iolog'")),
            };
            return Ok(None);
        }
        if text.is_empty() {
            return Ok(None);
        }
        let mut words = text.split_ascii_whitespace();
        if self.version == 3 {
            self.times.at(number("timestamp", words.next())?.saturating_mul(1_000));
        }
        let file = words.next().ok_or("the file is missing")?;
        let action = words.next().ok_or("the action is missing")?;
        let kind = match action {
            "read" => Kind::Read,
            "write" => Kind::Write,
            "trim" => Kind::Trim,
            "add" => {
                let id = self.files.len();
                if id == FILES_MAX {
                    return Err(format!("more than {FILES_MAX} files"));
                }
                self.files.entry(file.to_string()).or_insert(id as u16);
                return Ok(None);
            }
            "wait" if self.version == 2 => {
                self.times.later(number("wait", words.next())?.saturating_mul(1_000));
                return Ok(None);
            }
            "open" | "close" | "wait" | "sync" | "datasync" => return Ok(None),
            other => {
                return Err(format!(
                    "the action is '{other}': expected read, write, trim, sync, datasync, wait, add, open or close"
                ));
            }
        };
        let space = *self.files.get(file).ok_or_else(|| format!("file '{file}' is used and was not added before"))?;
        let (offset, bytes) = (number("offset", words.next())?, number("length", words.next())?);
        match words.next() {
            Some(more) => Err(format!("'{more}' after the length: a line of version {} ends there", self.version)),
            None => Ok(Some(Access { kind, space, offset, bytes })),
        }
    }
}
