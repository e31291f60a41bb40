//! Reads one table: typed keys, unknown keys found, every problem noted and none fatal to the rest.
//!
//! Keys are declared as data ([`Key`]), so the reference of the configuration file and `remuda device kinds` come from
//! the same tables as the checks.

use super::diagnostic::{Problems, nearest};
use super::value::{Data, Located, Span, Table, Value};
use base::ByteSize;

/// What a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A string.
    Text,
    /// A list of strings.
    TextList,
    /// Bytes: an integer, or a string with a unit.
    Size,
    /// A length of time: a string with a unit.
    Duration,
    /// An integer within bounds.
    Count(u64, u64),
    /// A fraction within 0 and 1.
    Fraction,
    /// True or false.
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Described by the key's text (reactors, namespaces).
    Special(&'static str),
}

impl Form {
    /// As shown in the reference.
    pub fn describe(self) -> String {
        match self {
            Form::Text => "string".into(),
            Form::TextList => "list of strings".into(),
            Form::Size => "size (\"4KiB\", \"10GiB\", or bytes)".into(),
            Form::Duration => "duration (\"50us\", \"10s\")".into(),
            Form::Count(min, u64::MAX) => format!("integer >= {min}"),
            Form::Count(min, max) => format!("integer, {min} to {max}"),
            Form::Fraction => "fraction, 0 to 1".into(),
            Form::Flag => "true or false".into(),
            Form::Choice(words) => words.iter().map(|word| format!("\"{word}\"")).collect::<Vec<_>>().join(" or "),
            Form::Special(text) => text.into(),
        }
    }
}

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub form: Form,
    /// What holds when it is absent; "required" when it must be present.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
}

/// Declares a key.
pub const fn key(name: &'static str, form: Form, default: &'static str, doc: &'static str) -> Key {
    Key { name, form, default, doc }
}

/// A table being read. Getters return `None` when the key is absent or wrong; what is wrong has been noted.
pub struct Section<'a> {
    /// How messages call it, such as `[[device]] 'd0'`; empty where whoever shows them says already what they are about.
    pub title: String,
    /// Where the table stands.
    pub span: Option<Span>,
    table: &'a Table,
    keys: Vec<Key>,
    /// Words of a command line carry no types: `size=4096` is the text "4096".
    words: bool,
    /// Problems so far.
    pub problems: &'a mut Problems,
}

impl<'a> Section<'a> {
    /// Starts reading `table`, whose possible keys are `keys`.
    pub fn new(
        title: impl Into<String>,
        span: Option<Span>,
        table: &'a Table,
        keys: &[&[Key]],
        words: bool,
        problems: &'a mut Problems,
    ) -> Self {
        Section { title: title.into(), span, table, keys: keys.concat(), words, problems }
    }

    /// Notes every key that is not declared. `elsewhere` explains a key that exists, but in another place.
    pub fn check_unknown(&mut self, elsewhere: impl Fn(&str) -> Option<String>) {
        for (name, _) in self.table {
            if self.keys.iter().any(|key| key.name == name.value) {
                continue;
            }
            let help = elsewhere(&name.value)
                .or_else(|| {
                    nearest(&name.value, self.keys.iter().map(|key| key.name))
                        .map(|near| format!("did you mean '{near}'?"))
                })
                .unwrap_or_else(|| {
                    format!("it takes: {}", self.keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", "))
                });
            self.problems.add(
                name.span.clone(),
                &name.value,
                format!("unknown key '{}'{}", name.value, self.within()),
                Some(help),
            );
        }
    }

    /// Notes a problem with a value of this section.
    pub fn wrong(&mut self, span: Option<Span>, key: &str, message: impl std::fmt::Display, help: Option<String>) {
        let message = format!("{key}{}: {message}", self.within());
        self.problems.add(span.or_else(|| self.span.clone()), key, message, help);
    }

    /// Notes a missing key.
    pub fn missing(&mut self, key: &str) {
        let declared = self.declared(key);
        let help = format!("add {key} = ... ({}): {}", declared.form.describe(), declared.doc);
        let message = match self.title.as_str() {
            "" => format!("'{key}' is missing"),
            title => format!("{title} has no '{key}'"),
        };
        self.problems.add(self.span.clone(), key, message, Some(help));
    }

    /// ` in [[device]] 'd0'`.
    fn within(&self) -> String {
        if self.title.is_empty() { String::new() } else { format!(" in {}", self.title) }
    }

    fn declared(&self, name: &str) -> Key {
        let key = self.keys.iter().find(|key| key.name == name);
        *key.unwrap_or_else(|| panic!("key '{name}' is read but not declared"))
    }

    /// The raw value.
    pub fn raw(&self, name: &str) -> Option<&'a Value> {
        let _ = self.declared(name);
        self.table.iter().find(|(key, _)| key.value == name).map(|(_, value)| value)
    }

    /// Whether the key was written.
    pub fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    fn mistyped(&mut self, name: &str, value: &Value) {
        let expected = self.declared(name).form.describe();
        self.wrong(value.span.clone(), name, format!("expected {expected}, found {}", value.data.type_name()), None);
    }

    /// A string.
    pub fn text(&mut self, name: &str) -> Option<Located<String>> {
        let value = self.raw(name)?;
        match &value.data {
            Data::Text(text) => Some(Located { value: text.clone(), span: value.span.clone() }),
            _ => {
                self.mistyped(name, value);
                None
            }
        }
    }

    /// A string that must be there.
    pub fn need_text(&mut self, name: &str) -> Option<Located<String>> {
        if !self.has(name) {
            self.missing(name);
        }
        self.text(name)
    }

    /// Strings; a single string counts as a list of one.
    pub fn texts(&mut self, name: &str) -> Option<Vec<Located<String>>> {
        let value = self.raw(name)?;
        let items = match &value.data {
            Data::List(items) => items,
            Data::Text(text) if self.words => {
                let each = text.split(',').map(|word| Located { value: word.trim().to_string(), span: None });
                return Some(each.collect());
            }
            Data::Text(text) => return Some(vec![Located { value: text.clone(), span: value.span.clone() }]),
            _ => {
                self.mistyped(name, value);
                return None;
            }
        };
        let mut texts = Vec::new();
        for item in items {
            match &item.data {
                Data::Text(text) => texts.push(Located { value: text.clone(), span: item.span.clone() }),
                _ => self.mistyped(name, item),
            }
        }
        Some(texts)
    }

    /// Bytes.
    pub fn size(&mut self, name: &str) -> Option<Located<u64>> {
        let value = self.raw(name)?;
        let bytes = match &value.data {
            Data::Integer(number) if *number >= 0 => Ok(*number as u64),
            Data::Text(text) => text.parse::<ByteSize>().map(|size| size.0).map_err(|error| error.to_string()),
            Data::Integer(_) => Err("a size cannot be negative".to_string()),
            _ => {
                self.mistyped(name, value);
                return None;
            }
        };
        self.or_wrong(name, value, bytes)
    }

    /// Nanoseconds.
    pub fn duration_ns(&mut self, name: &str) -> Option<Located<u64>> {
        let value = self.raw(name)?;
        let Data::Text(text) = &value.data else {
            self.mistyped(name, value);
            return None;
        };
        self.or_wrong(name, value, parse_duration_ns(text))
    }

    /// An integer within the key's bounds.
    pub fn count(&mut self, name: &str) -> Option<Located<u64>> {
        let value = self.raw(name)?;
        let Form::Count(min, max) = self.declared(name).form else { panic!("'{name}' is not declared as a count") };
        let number = match &value.data {
            Data::Integer(number) => u64::try_from(*number).map_err(|_| "it cannot be negative".to_string()),
            Data::Text(text) if self.words => text.parse().map_err(|_| format!("'{text}' is not a number")),
            _ => {
                self.mistyped(name, value);
                return None;
            }
        };
        let number = number.and_then(|number| {
            if (min..=max).contains(&number) {
                Ok(number)
            } else {
                Err(format!("{number} is not within {min} and {max}"))
            }
        });
        self.or_wrong(name, value, number)
    }

    /// A fraction within 0 and 1.
    pub fn fraction(&mut self, name: &str) -> Option<Located<f64>> {
        let value = self.raw(name)?;
        let number = match &value.data {
            Data::Integer(number) => Ok(*number as f64),
            Data::Float(number) => Ok(*number),
            Data::Text(text) if self.words => text.parse().map_err(|_| format!("'{text}' is not a number")),
            _ => {
                self.mistyped(name, value);
                return None;
            }
        };
        let number = number.and_then(|number| {
            if (0.0..=1.0).contains(&number) { Ok(number) } else { Err(format!("{number} is not within 0 and 1")) }
        });
        self.or_wrong(name, value, number)
    }

    /// True or false.
    pub fn flag(&mut self, name: &str) -> Option<Located<bool>> {
        let value = self.raw(name)?;
        match &value.data {
            Data::Flag(flag) => Some(Located { value: *flag, span: value.span.clone() }),
            Data::Text(text)
                if self.words && matches!(text.as_str(), "true" | "yes" | "on" | "false" | "no" | "off") =>
            {
                Some(Located { value: matches!(text.as_str(), "true" | "yes" | "on"), span: None })
            }
            _ => {
                self.mistyped(name, value);
                None
            }
        }
    }

    /// One of the declared words.
    pub fn choice(&mut self, name: &str) -> Option<Located<&'static str>> {
        let text = self.text(name)?;
        let Form::Choice(words) = self.declared(name).form else { panic!("'{name}' is not declared as a choice") };
        if let Some(word) = words.iter().find(|word| **word == text.value) {
            return Some(Located { value: word, span: text.span });
        }
        let help = match nearest(&text.value, words.iter().copied()) {
            Some(near) => format!("did you mean '{near}'?"),
            None => format!("it is one of: {}", words.join(", ")),
        };
        self.wrong(text.span, name, format!("'{}' is not a valid value", text.value), Some(help));
        None
    }

    fn or_wrong<T>(&mut self, name: &str, value: &Value, result: Result<T, String>) -> Option<Located<T>> {
        match result {
            Ok(good) => Some(Located { value: good, span: value.span.clone() }),
            Err(reason) => {
                self.wrong(value.span.clone(), name, reason, None);
                None
            }
        }
    }
}

/// Help where a size is so small that a unit may have been forgotten.
pub const UNITS_HINT: &str = "a number without a unit is bytes; write for example 300MiB or 10GiB";

/// A length of time as people write it: `250ns`, `50us`, `1.5ms`, `10s`, `2m`.
pub fn parse_duration_ns(text: &str) -> Result<u64, String> {
    let bad = || format!("'{text}' is not a duration: expected a number and a unit, such as 50us, 20ms, 10s or 2m");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let scale = match unit.trim() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" | "min" => 60e9,
        "h" => 3600e9,
        _ => return Err(bad()),
    };
    let value: f64 = number.parse().map_err(|_| bad())?;
    let ns = value * scale;
    if ns < 1e18 { Ok(ns.round() as u64) } else { Err(bad()) }
}

/// A duration in the unit that suits it.
pub fn show_duration_ns(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", ns as f64 / 1e6),
        1_000_000_000..60_000_000_000 => format!("{:.2} s", ns as f64 / 1e9),
        _ => {
            let seconds = ns / 1_000_000_000;
            let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
            if days > 0 {
                format!("{days}d {hours}h {minutes}m")
            } else if hours > 0 {
                format!("{hours}h {minutes}m")
            } else {
                format!("{minutes}m {}s", seconds % 60)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration_ns("50us"), Ok(50_000));
        assert_eq!(parse_duration_ns("1.5 ms"), Ok(1_500_000));
        for bad in ["", "10", "s", "10 parsecs", "1e30s", "-1s"] {
            assert!(parse_duration_ns(bad).is_err(), "{bad}");
        }
    }
}
