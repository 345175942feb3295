//! Text from elsewhere as a terminal may show it.
//!
//! Whatever a program, a recording, debug info or a report file says can hold
//! control characters, and those that turn the direction of writing. On a
//! terminal they move, hide or forge what is there. Here they become visible.
//! Guarantee: the result holds no control character but those that
//! [`plain_lines`] and [`plain_bytes`] name.

use std::borrow::Cow;
use std::fmt::Write;

/// Control characters, and those that turn the direction of writing.
fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}' | '\u{feff}')
}

fn escape(text: &str, is_kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let changes = |c: char| steers(c) && !is_kept(c);
    if !text.contains(changes) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        // Writing to a string cannot fail.
        let _ = match c {
            c if !changes(c) => write!(safe, "{c}"),
            '\n' => write!(safe, "\\n"),
            '\t' => write!(safe, "\\t"),
            '\r' => write!(safe, "\\r"),
            c if (c as u32) < 0x100 => write!(safe, "\\x{:02x}", c as u32),
            c => write!(safe, "\\u{{{:x}}}", c as u32),
        };
    }
    Cow::Owned(safe)
}

fn ends_a_line(c: char) -> bool {
    c == '\n' || c == '\t'
}

/// A name, a value, a path: all on one line.
pub fn plain(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// A text of several lines, in which ends of lines and tabs are meant.
pub fn plain_lines(text: &str) -> Cow<'_, str> {
    escape(text, ends_a_line)
}

/// The same for what a program wrote, in any encoding.
pub fn plain_bytes(bytes: &[u8]) -> Cow<'_, [u8]> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return match plain_lines(text) {
            Cow::Borrowed(_) => Cow::Borrowed(bytes),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        };
    }
    let mut safe = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        safe.push_str(&plain_lines(chunk.valid()));
        for byte in chunk.invalid() {
            let _ = write!(safe, "\\x{byte:02x}");
        }
    }
    Cow::Owned(safe.into_bytes())
}

/// JSON that says the same, with escapes for what a terminal may take for a
/// command. Between values it has no such characters but ends of lines.
pub fn plain_json(json: &str) -> Cow<'_, str> {
    let changes = |c: char| steers(c) && c != '\n';
    if !json.contains(changes) {
        return Cow::Borrowed(json);
    }
    let mut safe = String::with_capacity(json.len() + 8);
    for c in json.chars() {
        // Writing to a string cannot fail. All of them have 16 bits.
        let _ = match changes(c) {
            true => write!(safe, "\\u{:04x}", c as u32),
            false => write!(safe, "{c}"),
        };
    }
    Cow::Owned(safe)
}

/// A pattern for text of which some characters cannot be shown: they are any.
pub fn plain_pattern(text: &str) -> String {
    let shown = |c: char| if steers(c) { '*' } else { c };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_visible() {
        assert_eq!(plain("caf\u{e9} \u{4e16}"), "caf\u{e9} \u{4e16}");
        assert_eq!(
            plain("a\x1b[2Jb\r\n\t\u{9b}1m"),
            "a\\x1b[2Jb\\r\\n\\t\\x9b1m"
        );
        assert_eq!(plain("x\u{202e}y"), "x\\u{202e}y");
        assert_eq!(plain_lines("a\n\tb\x07\r\n"), "a\n\tb\\x07\\r\n");
        assert_eq!(plain_pattern("f\x1b[1mg"), "f*[1mg");
        assert_eq!(
            plain_json("{\n  \"\u{202e}\": \"\u{9b}\u{7f}\u{e9}\"\n}"),
            "{\n  \"\\u202e\": \"\\u009b\\u007f\u{e9}\"\n}"
        );
    }

    #[test]
    fn bytes_of_no_encoding_become_visible() {
        assert_eq!(&*plain_bytes(b"plain\n"), b"plain\n");
        assert_eq!(
            &*plain_bytes("\u{e9}\x1b".as_bytes()),
            "\u{e9}\\x1b".as_bytes()
        );
        assert_eq!(&*plain_bytes(b"a\xff\x9b\x1bb"), b"a\\xff\\x9b\\x1bb");
    }
}
