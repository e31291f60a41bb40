//! Text that comes from elsewhere, before it is shown on a terminal or taken for a name.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character is seen where a text is shown: no control character, and none that hides or turns around what is beside
/// it (Unicode's format characters, which RFC 3454 tables C.2, C.8 and C.9 prohibit in names).
pub fn is_shown(char: char) -> bool {
    let hides = matches!(char,
        '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2060}'..='\u{206F}'
        | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}');
    !char.is_control() && !hides
}

/// A text of which everything is seen; lines and tabs stay. What is not shown is there by its number, such as `\u{1b}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    let is_plain = |char: char| is_shown(char) || matches!(char, '\n' | '\t');
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for char in text.chars() {
        match is_plain(char) {
            true => out.push(char),
            false => write!(out, "\\u{{{:x}}}", char as u32).expect("strings take everything"),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_move_or_turn_a_terminal_is_written_out() {
        assert_eq!(shown("pool 'größe'\n\tis there"), "pool 'größe'\n\tis there");
        assert_eq!(shown("a\u{1b}[2Jb\r"), "a\\u{1b}[2Jb\\u{d}");
        assert_eq!(shown("x\u{202e}y\u{200b}"), "x\\u{202e}y\\u{200b}");
        assert!(!is_shown('\u{9b}') && !is_shown('\n') && is_shown('é'));
    }
}
