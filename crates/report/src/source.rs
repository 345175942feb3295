//! Source lines, where the files that the debug info names can be read.
//!
//! Only regular files of sensible size are opened (debug info is input: it
//! may name a device or a pipe), each at most once per report.

use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;

/// No hand-written source file is larger; generated ones are not shown.
const LARGEST_FILE: u64 = 8 << 20;

/// The source files read so far.
#[derive(Default)]
pub struct Sources {
    files: HashMap<String, Option<Rc<Vec<String>>>>,
}

/// Some lines of a file, the one asked for among them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snippet {
    /// Number of the first line in `lines`.
    pub first: u32,
    pub lines: Vec<String>,
}

impl Sources {
    /// `around` lines centred on `line` of `file`, fewer at the file's ends;
    /// nothing if the file cannot be read or has no such line.
    pub fn snippet(&mut self, file: &str, line: u32, around: usize) -> Option<Snippet> {
        if around == 0 || line == 0 {
            return None;
        }
        let lines = self
            .files
            .entry(file.to_string())
            .or_insert_with(|| read_lines(Path::new(file)).map(Rc::new))
            .clone()?;
        let index = usize::try_from(line).ok()? - 1;
        if index >= lines.len() {
            return None;
        }
        let start = index.saturating_sub((around - 1) / 2);
        let end = (index + around / 2 + 1).min(lines.len());
        Some(Snippet {
            first: u32::try_from(start).ok()? + 1,
            lines: lines[start..end].to_vec(),
        })
    }
}

fn read_lines(path: &Path) -> Option<Vec<String>> {
    let bytes = folder::read_regular(path, LARGEST_FILE).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some(
        text.lines()
            .map(|line| line.replace('\t', "    "))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn lines_around_the_one_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.c");
        fs::write(&file, "one\n\ttwo\nthree\nfour\n").unwrap();
        let file = file.to_str().unwrap();
        let mut sources = Sources::default();
        let shown = |sources: &mut Sources, line, around| {
            let snippet = sources.snippet(file, line, around)?;
            Some((snippet.first, snippet.lines.join("|")))
        };
        assert_eq!(shown(&mut sources, 2, 1), Some((2, "    two".into())));
        assert_eq!(
            shown(&mut sources, 2, 3),
            Some((1, "one|    two|three".into()))
        );
        assert_eq!(
            shown(&mut sources, 1, 5),
            Some((1, "one|    two|three".into()))
        );
        assert_eq!(shown(&mut sources, 4, 3), Some((3, "three|four".into())));
        assert_eq!(shown(&mut sources, 5, 3), None, "past the end");
        assert_eq!(shown(&mut sources, 0, 3), None, "line 0 means unknown");
        assert_eq!(shown(&mut sources, 1, 0), None, "no source wanted");
    }

    #[test]
    fn only_regular_files_are_opened() {
        let mut sources = Sources::default();
        for file in ["/dev/zero", "/", "/no/such/file.c", ""] {
            assert_eq!(sources.snippet(file, 1, 1), None, "{file}");
        }
    }
}
