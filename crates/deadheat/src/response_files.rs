//! `@FILE` among a compiler's arguments: what the file says stands in its place.
//! Build systems write such files when a command would be too long (Meson and
//! CMake with ninja).
//!
//! Words are cut as clang cuts them on this system: at white space, with quotes
//! and backslashes. What is no readable file stays as it is, as there.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A file that names itself would never end.
const DEEPEST: usize = 16;

/// The arguments with the words of all named files in their places.
pub fn expand(arguments: &[OsString]) -> Vec<OsString> {
    let mut out = Vec::new();
    for argument in arguments {
        push(argument, 0, &mut out);
    }
    out
}

fn push(argument: &OsStr, depth: usize, out: &mut Vec<OsString>) {
    let named = argument.as_bytes().strip_prefix(b"@");
    let text = named
        .filter(|_| depth < DEEPEST)
        .and_then(|name| fs::read(Path::new(OsStr::from_bytes(name))).ok());
    match text {
        Some(text) => {
            for word in words(&text) {
                push(&word, depth + 1, out);
            }
        }
        None => out.push(argument.to_owned()),
    }
}

fn words(text: &[u8]) -> Vec<OsString> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, quote) {
            // Between single quotes as well: clang does so.
            (b'\\', _) => word.get_or_insert_default().extend(bytes.next()),
            (_, Some(end)) if byte == end => quote = None,
            (_, Some(_)) => word.get_or_insert_default().push(byte),
            (b'"' | b'\'', None) => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            _ if byte.is_ascii_whitespace() => {
                words.extend(word.take().map(OsString::from_vec));
            }
            _ => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word.map(OsString::from_vec));
    words
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn words_are_cut_at_space_quotes_and_backslashes() {
        let cut = |text: &str| -> Vec<String> {
            words(text.as_bytes())
                .into_iter()
                .map(|word| word.into_string().unwrap_or_default())
                .collect()
        };
        assert_eq!(cut("-c  a.c\n-o\ta.o\n"), ["-c", "a.c", "-o", "a.o"]);
        assert_eq!(
            cut(r#"-DX="a b" 'c d' e\ f "g\"h" """#),
            ["-DX=a b", "c d", "e f", "g\"h", ""]
        );
        assert!(cut(" \n").is_empty());
    }
}
