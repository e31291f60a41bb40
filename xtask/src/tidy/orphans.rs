//! Files of tests that no program has: they would be green for ever.

use super::Finding;

/// Finds files beside a `tests/main.rs` that are neither modules of it nor programs of their own.
pub fn check(files: &[(String, String)]) -> Vec<Finding> {
    let text_of = |path: String| files.iter().find(|(other, _)| *other == path).map_or("", |(_, text)| text.as_str());
    let mut findings = Vec::new();
    for (path, _) in files {
        let Some((package, name)) = path.split_once("/tests/").filter(|(_, name)| !name.contains('/')) else {
            continue;
        };
        let (root, manifest) = (text_of(format!("{package}/tests/main.rs")), text_of(format!("{package}/Cargo.toml")));
        let module = format!("mod {};", name.trim_end_matches(".rs"));
        let is_built = name == "main.rs"
            || root.is_empty()
            || root.lines().any(|line| line == module)
            || manifest.contains(&format!("\"tests/{name}\""));
        if !is_built {
            let text = format!("is compiled by nothing: say `{module}` in {package}/tests/main.rs");
            findings.push(Finding { path: path.clone(), line: 0, text });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_tests_that_nothing_compiles_is_found() {
        let files = [
            ("crates/a/Cargo.toml", "[[test]]\npath = \"tests/apart.rs\"\n"),
            ("crates/a/tests/main.rs", "mod known;\n"),
            ("crates/a/tests/known.rs", ""),
            ("crates/a/tests/apart.rs", ""),
            ("crates/a/tests/common/mod.rs", ""),
            ("crates/a/tests/forgotten.rs", ""),
            ("crates/b/tests/found_by_cargo.rs", ""),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
        let found: Vec<String> = check(&files).iter().map(|finding| finding.path.clone()).collect();
        assert_eq!(found, ["crates/a/tests/forgotten.rs"]);
    }
}
