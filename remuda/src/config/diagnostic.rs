//! What is wrong with a configuration: every problem with its place, its key and a way out, all reported at once.

use super::Config;
use super::value::Span;
use serde_json::json;
use std::fmt::Write as _;

/// A configuration file's text and the name it was read under.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// As given on the command line.
    pub path: String,
    /// Its contents.
    pub text: String,
}

impl Source {
    /// Line and column (in characters) of a byte offset, both from 1.
    pub fn position(&self, offset: usize) -> (usize, usize) {
        let mut offset = offset.min(self.text.len());
        while !self.text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &self.text[..offset];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    fn line(&self, number: usize) -> &str {
        self.text.lines().nth(number - 1).unwrap_or("")
    }
}

/// One problem.
#[derive(Clone, Debug)]
pub struct Diagnostic {
    /// What is wrong, naming section and key.
    pub message: String,
    /// The key at fault, when it is one key.
    pub key: Option<String>,
    /// Where.
    pub span: Option<Span>,
    /// What would be right.
    pub help: Option<String>,
}

/// Problems as they are found.
#[derive(Default, Debug)]
pub struct Problems {
    /// In the order found.
    pub list: Vec<Diagnostic>,
}

impl Problems {
    /// Notes a problem with `key` at `span`.
    pub fn add(&mut self, span: Option<Span>, key: &str, message: impl Into<String>, help: Option<String>) {
        let key = (!key.is_empty()).then(|| key.to_string());
        self.list.push(Diagnostic { message: message.into(), key, span, help });
    }

    /// All problems in one line, for an RPC answer.
    pub fn one_line(&self) -> String {
        let each = self.list.iter().map(|one| match &one.help {
            Some(help) => format!("{}; {help}", one.message),
            None => one.message.clone(),
        });
        each.collect::<Vec<_>>().join("; ")
    }
}

/// A configuration that cannot be used.
#[derive(Debug)]
pub struct BadConfig {
    /// The file.
    pub source: Source,
    /// Everything that is wrong with it.
    pub problems: Vec<Diagnostic>,
    /// A node would start all the same, without the pools that the problems are about.
    pub would_start: bool,
}

impl BadConfig {
    /// A file that could not even be read.
    pub fn unreadable(path: &str, error: &std::io::Error) -> BadConfig {
        let help = match error.kind() {
            std::io::ErrorKind::IsADirectory => "it is a directory: name a file in it",
            std::io::ErrorKind::InvalidData => "it is no text in UTF-8: is it another file than was meant?",
            std::io::ErrorKind::NotFound => "give an existing file; 'remuda config example' prints one to start from",
            std::io::ErrorKind::PermissionDenied => "check its permissions",
            _ => "name a file that can be read",
        };
        let problem = Diagnostic {
            message: format!("cannot read the file: {error}"),
            key: None,
            span: None,
            help: Some(help.to_string()),
        };
        BadConfig {
            source: Source { path: path.to_string(), text: String::new() },
            problems: vec![problem],
            would_start: false,
        }
    }

    /// What can be made out of it all the same, for looking at what its node has left; `None` where it is no TOML.
    pub fn salvage(&self) -> Option<Config> {
        super::parse_text(&self.source, &mut Problems::default())
    }

    /// For people: each problem with its line quoted.
    pub fn render(&self) -> String {
        let mut out = String::new();
        for problem in &self.problems {
            self.render_one(problem, &mut out);
        }
        let count = self.problems.len();
        let end = match self.would_start {
            true => "the node would start, and what is named here would stay closed",
            false => "nothing was started",
        };
        let _ = write!(out, "{}: {count} problem{}; {end}", self.source.path, plural(count));
        out
    }

    fn render_one(&self, problem: &Diagnostic, out: &mut String) {
        let Some(span) = &problem.span else {
            let _ = writeln!(out, "error: {}: {}", self.source.path, problem.message);
            if let Some(help) = &problem.help {
                let _ = writeln!(out, "  = {help}");
            }
            out.push('\n');
            return;
        };
        let (line, column) = self.source.position(span.start);
        let quoted = self.source.line(line);
        let gutter = line.to_string().len();
        let room = quoted.chars().count().saturating_sub(column - 1).max(1);
        let covered = self.source.text.get(span.clone()).map_or(1, |text| text.chars().count());
        let _ = writeln!(out, "error: {}", problem.message);
        let _ = writeln!(out, "{:gutter$}--> {}:{line}:{column}", "", self.source.path);
        let _ = writeln!(out, "{:gutter$} |", "");
        let _ = writeln!(out, "{line} | {quoted}");
        let _ = writeln!(out, "{:gutter$} | {:pad$}{}", "", "", "^".repeat(covered.clamp(1, room)), pad = column - 1);
        if let Some(help) = &problem.help {
            let _ = writeln!(out, "{:gutter$} = {help}", "");
        }
        out.push('\n');
    }

    /// For programs.
    pub fn to_json(&self) -> serde_json::Value {
        let problems = self.problems.iter().map(|problem| {
            let place = problem.span.as_ref().map(|span| self.source.position(span.start));
            json!({
                "file": self.source.path,
                "line": place.map(|place| place.0),
                "column": place.map(|place| place.1),
                "key": problem.key,
                "message": problem.message,
                "help": problem.help,
            })
        });
        let problems: Vec<_> = problems.collect();
        json!({ "ok": false, "would_start": self.would_start, "problems": problems })
    }
}

impl std::fmt::Display for BadConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.render())
    }
}

impl std::error::Error for BadConfig {}

/// `s` unless there is exactly one.
pub fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A number of things, such as `1 pool` or `2 pools`.
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", plural(count))
}

/// The candidate nearest to `word`, if any is near enough to be what was meant.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, candidate)| *distance <= limit && *distance < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    rows[0] = (0..=b.len()).collect();
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_word_that_was_meant() {
        assert_eq!(nearest("bytez", ["bytes", "name"]), Some("bytes"));
        assert_eq!(nearest("szie", ["size", "path"]), Some("size"));
        assert_eq!(nearest("stirpe", ["file", "stripe", "mirror"]), Some("stripe"));
        assert_eq!(nearest("zzz", ["size", "path"]), None);
    }

    #[test]
    fn positions_count_characters_from_one() {
        let source = Source { path: "f".into(), text: "a = 1\nü = 2\n".into() };
        assert_eq!(source.position(0), (1, 1));
        assert_eq!(source.position(9), (2, 3));
        assert_eq!(source.position(1000), (3, 1));
    }
}
