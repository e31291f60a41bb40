//! What a source file may say.

use super::Finding;
use super::scan::{Line, Source, scan};

/// Longer files are split by idea.
const FILE_LINES_MAX: usize = 900;

/// How far above an `unsafe` block its SAFETY comment may end: a statement, formatted over several lines, fits between.
const SAFETY_LINES_ABOVE_MAX: usize = 8;

/// Files that may be longer, with why.
const LONG: &[(&str, &str)] = &[];

/// Library files besides the Linux driver that may name the operating system, with why.
const SYSTEM: &[(&str, &str)] = &[
    ("crates/reactor/src/linux/", "the Linux driver"),
    ("crates/vhost/src/unix/", "the sockets, eventfds and shared memory of vhost-user front ends"),
    ("crates/reactor/src/arena.rs", "maps the memory that buffers are cut from, in both worlds"),
];

/// What reaches the operating system: paths, or their beginnings.
const SYSTEM_PATHS: &[&str] = &[
    "libc",
    "io_uring",
    "socket2",
    "tokio",
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// Beginnings of the above that are mere data.
const PLAIN_DATA: &[&str] = &[
    "std::net::IpAddr",
    "std::net::Ipv4Addr",
    "std::net::Ipv6Addr",
    "std::net::SocketAddr",
    "std::net::SocketAddrV4",
    "std::net::SocketAddrV6",
];

/// Hash maps that iterate in another order in each process: the same seed would give another trace.
const RANDOM_ORDER: &[&str] =
    &["HashMap::new(", "HashSet::new(", "HashMap::with_capacity(", "HashSet::with_capacity(", "RandomState"];

/// Left-overs that fail a program when reached, or a test that is not run.
const LEFT_OVERS: &[(&str, &str)] = &[
    ("todo!(", "unfinished"),
    ("unimplemented!(", "unfinished"),
    ("dbg!(", "left over from debugging"),
    ("#[ignore", "no test is ignored"),
];

/// Checks every Rust file; the others are skipped.
pub fn check(files: &[(String, String)]) -> Vec<Finding> {
    let mut scanned: Vec<(&str, Source)> = files
        .iter()
        .filter(|(path, _)| path.ends_with(".rs"))
        .map(|(path, text)| (path.as_str(), scan(text)))
        .collect();
    let test_files: Vec<String> = scanned.iter().flat_map(|(path, source)| test_module_files(path, source)).collect();
    for (path, source) in &mut scanned {
        if is_test_path(path)
            || test_files
                .iter()
                .any(|file| path == file || path.starts_with(&format!("{}/", file.trim_end_matches(".rs"))))
        {
            source.lines.iter_mut().for_each(|line| line.test = true);
        }
    }
    scanned.iter().flat_map(|(path, source)| check_file(path, source)).collect()
}

fn is_test_path(path: &str) -> bool {
    ["/tests/", "/benches/", "/examples/"].iter().any(|dir| path.contains(dir)) || path.ends_with("/tests.rs")
}

/// Where the modules may live that `source` declares for tests alone.
fn test_module_files(path: &str, source: &Source) -> Vec<String> {
    let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = match file {
        "lib.rs" | "main.rs" | "mod.rs" => dir.to_owned(),
        _ => format!("{dir}/{}", file.trim_end_matches(".rs")),
    };
    source.test_modules.iter().flat_map(|name| [format!("{dir}/{name}.rs"), format!("{dir}/{name}/mod.rs")]).collect()
}

fn check_file(path: &str, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line: usize, text: String| findings.push(Finding { path: path.to_owned(), line, text });

    let length = source.lines.len();
    if length > FILE_LINES_MAX && !excepted(LONG, path) {
        found(0, format!("has {length} lines, more than {FILE_LINES_MAX}: split it by idea"));
    }
    let library = path.starts_with("crates/") && path.contains("/src/") && !excepted(SYSTEM, path);
    for (index, line) in source.lines.iter().enumerate() {
        let (number, code) = (index + 1, line.code.as_str());
        if unsafe_starts(&source.lines, index) && !safety_near(&source.lines, index) {
            found(number, "unsafe without a `// SAFETY:` comment that names the invariant".to_owned());
        }
        for (word, why) in LEFT_OVERS {
            if contains_word(code, word) {
                found(number, format!("`{}`: {why}", word.trim_end_matches('(')));
            }
        }
        if code.trim_start().starts_with("matches!(")
            && code.trim_end().ends_with(");")
            && statement_starts(&source.lines, index)
        {
            found(number, "`matches!(..);` checks nothing: assert it".to_owned());
        }
        if line.test {
            continue;
        }
        if code.contains(".unwrap()") || code.contains(".unwrap_err()") {
            found(
                number,
                "`unwrap` outside tests: return an error, or `expect` with the reason it cannot fail".to_owned(),
            );
        }
        if library {
            for word in RANDOM_ORDER {
                if contains_word(code, word) {
                    found(
                        number,
                        format!(
                            "`{}`: iterates in another order each time; use a BTreeMap or a fixed hasher",
                            word.trim_end_matches('(')
                        ),
                    );
                }
            }
        }
    }
    if library {
        for (number, path) in system_paths(&source.lines) {
            found(number, format!("`{path}` names the operating system; only the Linux driver and `remuda` do"));
        }
    }
    findings
}

fn excepted(table: &[(&str, &str)], path: &str) -> bool {
    table.iter().any(|(name, _)| path == *name || (name.ends_with('/') && path.starts_with(name)))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `word` stands in the code, not as the end of a longer word.
fn contains_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| !code[..at].ends_with(is_word))
}

/// Whether an `unsafe` block or implementation starts on this line.
fn unsafe_starts(lines: &[Line], index: usize) -> bool {
    let code = &lines[index].code;
    code.match_indices("unsafe").any(|(at, word)| {
        let (before, after) = (&code[..at], &code[at + word.len()..]);
        if before.ends_with(is_word) || after.starts_with(is_word) {
            return false;
        }
        let next = match after.trim_start() {
            "" => lines.get(index + 1).map_or("", |line| line.code.trim_start()),
            rest => rest,
        };
        next.starts_with('{') || next.starts_with("impl")
    })
}

/// Whether the line is the first of a statement: what came before it has ended.
fn statement_starts(lines: &[Line], index: usize) -> bool {
    let before = lines[..index].iter().rev().map(|line| line.code.trim()).find(|code| !code.is_empty());
    before.is_none_or(|code| code.ends_with([';', '{', '}', ']']))
}

fn safety_near(lines: &[Line], index: usize) -> bool {
    let from = index.saturating_sub(SAFETY_LINES_ABOVE_MAX);
    lines[from..=index].iter().any(|line| line.comment.contains("SAFETY"))
}

/// Paths to the operating system outside tests, with their lines: from `use` declarations and from the code.
fn system_paths(lines: &[Line]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut add = |number: usize, path: &str| {
        let under =
            |prefix: &str| path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        if SYSTEM_PATHS.iter().any(|prefix| under(prefix)) && !PLAIN_DATA.iter().any(|prefix| under(prefix)) {
            found.push((number, path.to_owned()));
        }
    };
    let mut index = 0;
    while index < lines.len() {
        let line = &lines[index];
        let number = index + 1;
        index += 1;
        if line.test {
            continue;
        }
        let code = line.code.trim();
        let declaration = code.strip_prefix("pub ").unwrap_or(code);
        let declaration = declaration.strip_prefix("pub(crate) ").unwrap_or(declaration);
        if let Some(first) = declaration.strip_prefix("use ") {
            let mut tree = first.to_owned();
            while !tree.contains(';') && index < lines.len() {
                tree.push_str(lines[index].code.trim());
                index += 1;
            }
            let tree: String =
                tree.split(';').next().unwrap_or_default().replace(" as ", "@").split_whitespace().collect();
            for path in use_paths(&tree) {
                add(number, &path);
            }
        } else {
            for path in inline_paths(code) {
                add(number, &path);
            }
        }
    }
    found
}

/// The paths of a use tree, as in `std::{fs,io::{self,Read}}`, written without spaces.
fn use_paths(tree: &str) -> Vec<String> {
    let Some((prefix, group)) = tree.split_once('{') else {
        let path = tree.split('@').next().unwrap_or_default();
        return vec![path.trim_start_matches("::").trim_end_matches("::self").to_owned()];
    };
    let group = group.strip_suffix('}').unwrap_or(group);
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts.into_iter().filter(|part| !part.is_empty()).flat_map(|part| use_paths(&format!("{prefix}{part}"))).collect()
}

/// Every `a::b::c` of a line of code.
fn inline_paths(code: &str) -> Vec<String> {
    code.split(|c: char| !is_word(c) && c != ':')
        .filter(|word| word.contains("::"))
        .map(|word| word.trim_matches(':').to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&[(path.to_owned(), text.to_owned())]).into_iter().map(|finding| finding.to_string()).collect()
    }

    const LIBRARY: &str = "crates/bdev/src/file.rs";

    #[test]
    fn the_operating_system_is_found_in_library_code() {
        for text in [
            "use std::fs;",
            "use std::{collections::BTreeMap, fs::File};",
            "pub use std::{\n    io,\n    time::{Duration, Instant},\n};",
            "use std::time::SystemTime as Clock;",
            "fn f() { let t = std::time::Instant::now(); }",
            "fn f() -> i32 { libc::EIO }",
            "use libc;",
            "use std::net::{SocketAddr, TcpStream};",
            "use tokio::sync::mpsc;",
            "use std::os::fd::RawFd;",
        ] {
            let found = findings(LIBRARY, text);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(found[0].contains("operating system"), "{found:?}");
        }
    }

    #[test]
    fn the_operating_system_is_allowed_where_it_belongs() {
        let text = "use std::fs::File;\nuse std::time::Instant;\n";
        for path in [
            "remuda/src/main.rs",
            "crates/reactor/src/linux/files.rs",
            "crates/reactor/tests/linux.rs",
            "xtask/src/main.rs",
        ] {
            assert_eq!(findings(path, text), [""; 0], "{path}");
        }
        for text in [
            "use std::net::{IpAddr, SocketAddr};",
            "use std::time::Duration;",
            "// std::fs is for others\nfn f() { g(\"std::fs\"); }",
            "#[cfg(test)]\nmod tests {\n    use std::fs;\n}",
            "use crate::libc_like::std_fs;",
        ] {
            assert_eq!(findings(LIBRARY, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_module_declared_for_tests_is_a_test_file() {
        let root = ("crates/bdev/src/lib.rs".to_owned(), "#[cfg(test)]\nmod conformance;\n".to_owned());
        for path in [
            "crates/bdev/src/conformance.rs",
            "crates/bdev/src/conformance/mod.rs",
            "crates/bdev/src/conformance/io.rs",
        ] {
            let file = (path.to_owned(), "use std::fs;\nfn f() { g().unwrap(); }\n".to_owned());
            assert_eq!(check(&[root.clone(), file.clone()]), []);
            assert_eq!(check(&[file]).len(), 2);
        }
    }

    #[test]
    fn unsafe_without_a_reason_is_found() {
        for text in
            ["fn f() { unsafe { g() } }", "unsafe impl Send for A {}", "fn f() {\n    let x = unsafe\n    { g() };\n}"]
        {
            assert_eq!(findings(LIBRARY, text).len(), 1, "{text}");
        }
        for text in [
            "// SAFETY: g has no conditions\nunsafe impl Send for A {}",
            "fn f() {\n    // SAFETY: as above\n    let long = h(\n        1,\n    );\n    unsafe { g() }\n}",
            "unsafe fn f() {}",
            "#![forbid(unsafe_code)]",
            "// unsafe { }",
        ] {
            assert_eq!(findings(LIBRARY, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn unwrap_is_found_outside_tests() {
        assert_eq!(findings(LIBRARY, "fn f() { g().unwrap(); }").len(), 1);
        assert_eq!(findings("remuda/src/cli.rs", "fn f() { g()\n    .unwrap(); }").len(), 1);
        for text in [
            "fn f() { g().unwrap_or(1); }",
            "/// ```\n/// f().unwrap();\n/// ```\nfn f() {}",
            "#[test]\nfn f() {\n    g().unwrap();\n}",
        ] {
            assert_eq!(findings(LIBRARY, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn random_iteration_order_is_found_in_library_code() {
        assert_eq!(findings(LIBRARY, "fn f() { let m = HashMap::new(); }").len(), 1);
        assert_eq!(findings("remuda/src/cli.rs", "fn f() { let m = HashMap::new(); }"), [""; 0]);
        assert_eq!(findings(LIBRARY, "fn f() { let m = FixedHashMap::new(); }"), [""; 0]);
    }

    #[test]
    fn left_overs_and_tests_that_check_nothing_are_found() {
        for text in [
            "fn f() { todo!() }",
            "#[test]\n#[ignore]\nfn f() {}",
            "#[test]\nfn f() {\n    matches!(x, Some(_));\n}",
            "fn f() { dbg!(1); }",
        ] {
            assert_eq!(findings(LIBRARY, text).len(), 1, "{text}");
        }
        for text in
            ["fn f() -> bool {\n    matches!(x, Some(_))\n}", "fn f() {\n    let y =\n        matches!(x, Some(_));\n}"]
        {
            assert_eq!(findings(LIBRARY, text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(findings(LIBRARY, &"fn f() {}\n".repeat(FILE_LINES_MAX + 1)).len(), 1);
        assert_eq!(findings(LIBRARY, &"fn f() {}\n".repeat(FILE_LINES_MAX)), [""; 0]);
    }
}
