//! Rust source split into code and comments, line by line, with the lines that only tests compile marked.
//!
//! It knows as much of the language as that takes: comments, string and character literals, attributes and brackets.

/// One line of a file.
#[derive(Debug, Default, Clone)]
pub struct Line {
    /// The code, its literals emptied and its comments gone.
    pub code: String,
    /// The text of its comments.
    pub comment: String,
    /// Only compiled for tests.
    pub test: bool,
}

/// A file as lines.
pub struct Source {
    pub lines: Vec<Line>,
    /// Modules in other files that are declared for tests alone.
    pub test_modules: Vec<String>,
}

enum State {
    Code,
    LineComment,
    BlockComment(usize),
    /// Hashes after the `r`; `None` for a string with escapes.
    Text(Option<usize>),
}

/// Splits a file.
pub fn scan(text: &str) -> Source {
    let mut lines = split(text);
    let test_modules = mark_tests(&mut lines);
    Source { lines, test_modules }
}

fn split(text: &str) -> Vec<Line> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut lines, mut line, mut state, mut i) = (Vec::new(), Line::default(), State::Code, 0);
    while i < chars.len() {
        let c = chars[i];
        if c == '\n' {
            lines.push(std::mem::take(&mut line));
            if matches!(state, State::LineComment) {
                state = State::Code;
            }
            i += 1;
            continue;
        }
        let mut width = 1;
        match state {
            State::Code if c == '/' && at(i + 1) == '/' => (state, width) = (State::LineComment, 2),
            State::Code if c == '/' && at(i + 1) == '*' => (state, width) = (State::BlockComment(1), 2),
            State::Code if c == '"' => {
                line.code.push('"');
                state = State::Text(raw_hashes(&chars[..i]));
            }
            State::Code if c == '\'' => {
                // a character, or else a lifetime
                if let Some(length) = char_literal(&chars[i..]) {
                    line.code.push_str("''");
                    width = length;
                } else {
                    line.code.push(c);
                }
            }
            State::Code => line.code.push(c),
            State::LineComment => line.comment.push(c),
            State::BlockComment(depth) => match (c, at(i + 1)) {
                ('*', '/') => {
                    width = 2;
                    state = if depth == 1 { State::Code } else { State::BlockComment(depth - 1) };
                }
                ('/', '*') => (state, width) = (State::BlockComment(depth + 1), 2),
                _ => line.comment.push(c),
            },
            State::Text(None) if c == '\\' => {
                // an escaped line end still ends a line
                width = if at(i + 1) == '\n' { 1 } else { 2 };
            }
            State::Text(hashes) => {
                let hashes_len = hashes.unwrap_or(0);
                if c == '"' && (0..hashes_len).all(|k| at(i + 1 + k) == '#') {
                    line.code.push('"');
                    width = 1 + hashes_len;
                    state = State::Code;
                }
            }
        }
        i += width;
    }
    if !text.ends_with('\n') {
        lines.push(line);
    }
    lines
}

/// How many hashes the raw string has whose quote comes next; `None` when it is an ordinary one.
fn raw_hashes(before: &[char]) -> Option<usize> {
    let hashes = before.iter().rev().take_while(|c| **c == '#').count();
    let mut rest = before[..before.len() - hashes].iter().rev();
    let raw = rest.next() == Some(&'r');
    let previous = match rest.next() {
        Some('b' | 'c') => rest.next(),
        other => other,
    };
    // (an identifier that ends in r, as in `for"`, is no prefix)
    (raw && !previous.is_some_and(|c| c.is_alphanumeric() || *c == '_')).then_some(hashes)
}

/// The length of the character literal that starts here; `None` for a lifetime.
fn char_literal(chars: &[char]) -> Option<usize> {
    match (chars.get(1)?, chars.get(2)) {
        ('\\', _) => chars.iter().skip(3).position(|c| *c == '\'').map(|k| k + 4),
        (_, Some('\'')) => Some(3),
        _ => None,
    }
}

/// Marks what stands under `#[cfg(test)]`, `#[cfg(any(test, ..))]`, `#[test]` and the like; returns the modules so
/// declared that live in other files.
fn mark_tests(lines: &mut [Line]) -> Vec<String> {
    let mut modules = Vec::new();
    let mut from = 0;
    while from < lines.len() {
        let code = lines[from].code.trim().to_owned();
        if !is_test_attribute(&code) {
            from += 1;
            continue;
        }
        let to = if code.starts_with("#![") { lines.len() - 1 } else { item_end(lines, from) };
        for line in &mut lines[from..=to] {
            line.test = true;
        }
        let item = lines[from..=to].iter().map(|line| line.code.as_str()).collect::<Vec<_>>().join(" ");
        if let Some(name) =
            item.trim().strip_suffix(';').and_then(|item| item.rsplit_once("mod ")).map(|(_, name)| name.trim())
        {
            modules.push(name.to_owned());
        }
        from = to + 1;
    }
    modules
}

/// Whether the attribute that the line starts with limits what follows to tests.
fn is_test_attribute(code: &str) -> bool {
    let Some(body) = code.strip_prefix("#[").or_else(|| code.strip_prefix("#![")) else { return false };
    let body = body.split(']').next().unwrap_or_default();
    if body == "test" {
        return true;
    }
    let mut words = body.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.next() == Some("cfg") && words.any(|word| word == "test") && !body.contains("not(test)")
}

/// The last line of the item that the attribute on line `from` belongs to.
fn item_end(lines: &[Line], from: usize) -> usize {
    let (mut depth, mut braces) = (0i32, false);
    for (number, line) in lines.iter().enumerate().skip(from) {
        for c in line.code.chars() {
            match c {
                '(' | '[' => depth += 1,
                '{' => (depth, braces) = (depth + 1, true),
                ')' | ']' => depth -= 1,
                '}' => {
                    depth -= 1;
                    if depth == 0 && braces {
                        return number;
                    }
                }
                ';' if depth == 0 => return number,
                _ => {}
            }
        }
    }
    lines.len() - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        scan(text).lines.iter().map(|line| line.code.trim_end()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn comments_and_literals_are_no_code() {
        assert_eq!(code("a /* unsafe /* b */ c */ d // e"), "a  d");
        assert_eq!(code(r#"f("unsafe \" {", 'x', '"', '\'', '\u{7d}') ; x"#), r#"f("", '', '', '', '') ; x"#);
        assert_eq!(code("r#\"a \" unsafe\"# + br\"\\\" + x"), "r#\"\" + br\"\" + x");
        assert_eq!(code("fn f<'a>(x: &'a str) -> &'a str {}"), "fn f<'a>(x: &'a str) -> &'a str {}");
        assert_eq!(code("\"a\n  // b\n\" c"), "\"\n\n\" c");
    }

    #[test]
    fn comments_are_kept_aside() {
        assert_eq!(scan("// SAFETY: x\nunsafe {}").lines[0].comment, " SAFETY: x");
    }

    #[test]
    fn what_only_tests_compile_is_marked() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() { c(); }\n}\nfn d() {}\n#[cfg(all(test, not(loom)))]\nmod e;\n#[cfg(not(test))]\nfn f() {}\n";
        let source = scan(text);
        let marked: Vec<bool> = source.lines.iter().map(|line| line.test).collect();
        assert_eq!(marked, [false, true, true, true, true, false, true, true, false, false]);
        assert_eq!(source.test_modules, ["e"]);
        assert!(scan("#![cfg(test)]\nfn a() {}").lines.iter().all(|line| line.test));
    }
}
