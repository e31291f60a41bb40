//! Tables, units and JSON on standard output.

use super::Context;
use super::exit::Exit;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use std::io::Write;

/// Prints a line, in which what comes from disks, peers and other processes moves no cursor; a closed pipe
/// (`remuda ... | head`) ends the process quietly, any other error of standard output with 1 and a word.
pub fn print_line(text: &str) {
    print_raw(&base::shown(text));
}

/// The same with what the program itself has made and is taken byte for byte: JSON, a script, what moves the cursor on purpose.
pub fn print_raw(text: &str) {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("error: standard output cannot be written: {error}");
            std::process::exit(Exit::Failed as i32);
        }
    }
}

/// Prints indented JSON.
pub fn print_json(value: &serde_json::Value) {
    print_raw(&format!("{value:#}"));
}

/// Prints a text of the program's own, such as a reference; as JSON under `text`.
pub fn print_text(context: &Context, text: &str) {
    match context.json {
        true => print_json(&serde_json::json!({ "text": text })),
        false => print_raw(text.trim_end()),
    }
}

/// A table without lines; columns whose heading starts with '>' are aligned to the right.
pub fn table(headings: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headings.iter().map(|heading| heading.trim_start_matches('>')));
    for (index, heading) in headings.iter().enumerate() {
        if let Some(column) = table.column_mut(index) {
            column.set_padding((0, 2));
            if heading.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
    }
    table.add_rows(rows);
    table.lines().map(|line| line.trim_end().to_string()).collect::<Vec<_>>().join("\n")
}

/// Two columns: what, and its value.
pub fn facts(rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}")).collect::<Vec<_>>().join("\n")
}

/// A count with thousands set apart.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}
