//! JSON that says something else: other numbers, names and shapes in the place
//! of those that were there.

use crate::change;
use crate::random::{Random, extreme};
use serde_json::Value;
use std::path::Path;

/// A file that nobody may write to, and what could lead there or elsewhere.
pub struct Hostile {
    texts: Vec<String>,
}

impl Hostile {
    /// `outside` is a folder that is no part of what is read.
    pub fn new(outside: &Path) -> Hostile {
        let outside = outside.display();
        let mut texts: Vec<String> = [
            "",
            ".",
            "..",
            "/",
            "../outside/new",
            "../../outside/new",
            "../../../outside/new",
            "/dev/zero",
            "/dev/stdin",
            "/proc/self/mem",
            "/proc/self/fd/0",
            "/etc/shadow",
            "e\u{1b}[2J\u{1b}]0;x\u{7}vil",
            "\u{202e}\u{2066}\u{9b}31m\r\n\u{0}",
            "<script>alert(1)</script>",
            "</script><img src=x onerror=alert(1)>",
            "]]>&amp;<!--\u{fffe}",
            "%s%s%n",
            "-1",
            "1e999",
            "18446744073709551616",
            "fun:*\n}\nrace:*",
        ]
        .map(str::to_string)
        .to_vec();
        texts.push(format!("{outside}/theirs"));
        texts.push(format!("{outside}/new"));
        texts.push("A".repeat(1 << 20));
        Hostile { texts }
    }

    fn text(&self, random: &mut Random) -> String {
        random.of(&self.texts).clone()
    }

    /// Changes a file of JSON, or one with a JSON text per line. Says how.
    pub fn change_file(&self, path: &Path, donor: &Path, random: &mut Random) -> String {
        let text = std::fs::read(path).expect("a file of ours");
        if random.one_in(6) || text.is_empty() {
            let mut bytes = text;
            let how = change(&mut bytes, random);
            std::fs::write(path, bytes).expect("a file of ours");
            return how;
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let (text, how) = match path.extension().is_some_and(|end| end == "jsonl") {
            true => self.change_lines(&text, donor, random),
            false => self.change_text(&text, random),
        };
        std::fs::write(path, text).expect("a file of ours");
        how
    }

    fn change_lines(&self, text: &str, donor: &Path, random: &mut Random) -> (String, String) {
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        let (at, other) = (random.below(lines.len()), random.below(lines.len()));
        let how = match random.below(6) {
            0 => {
                lines.swap(at, other);
                format!("lines {at} and {other} swapped")
            }
            1 => {
                lines.remove(at);
                format!("line {at} is gone")
            }
            2 => {
                let copies = vec![lines[at].clone(); 1 + random.below(500)];
                lines.splice(at..at, copies);
                format!("line {at} repeated")
            }
            3 => {
                let donor = std::fs::read_to_string(donor).unwrap_or_default();
                lines.truncate(at);
                lines.extend(donor.lines().map(str::to_string));
                format!("after {at} lines those of another recording")
            }
            _ => {
                let (line, how) = self.change_text(&lines[at], random);
                lines[at] = line;
                format!("line {at}: {how}")
            }
        };
        (lines.join("\n") + "\n", how)
    }

    /// Changes one to three places of a JSON text. Says how.
    pub fn change_text(&self, text: &str, random: &mut Random) -> (String, String) {
        let Ok(mut value) = serde_json::from_str::<Value>(text) else {
            return (self.text(random), "another text".to_string());
        };
        let mut said = Vec::new();
        for _ in 0..1 + random.below(3) {
            let mut places = Vec::new();
            list(&value, String::new(), &mut places);
            let pointer = random.of(&places).clone();
            let other = random.of(&places);
            let other = value.pointer(other).cloned().unwrap_or_default();
            if let Some(place) = value.pointer_mut(&pointer) {
                *place = self.changed(place, other, random);
                let now: String = place.to_string().chars().take(60).collect();
                said.push(format!("{pointer} = {now}"));
            }
        }
        (value.to_string(), said.join(", "))
    }

    /// What stands in the place of a value.
    fn changed(&self, was: &Value, other: Value, random: &mut Random) -> Value {
        match (was, random.below(8)) {
            (_, 0) => Value::Null,
            (_, 1) => other,
            (_, 2) => self.text(random).into(),
            (_, 3) => extreme(random, was.as_u64().unwrap_or(0)).into(),
            (Value::Number(number), _) => match number.as_u64() {
                Some(number) if random.below(4) > 0 => extreme(random, number).into(),
                _ => (extreme(random, 1) as i64).into(),
            },
            (Value::String(text), _) => {
                let mut text = text.clone();
                let at = text.floor_char_boundary(random.below(text.len()));
                match random.below(3) {
                    0 => text.insert_str(at, &self.text(random)),
                    1 => text.truncate(at),
                    _ => text = text.repeat(2 + random.below(3)),
                }
                text.into()
            }
            (Value::Array(values), kind) => {
                let mut values = values.clone();
                let at = random.below(values.len());
                match kind {
                    _ if values.is_empty() => values.push(other),
                    4 => {
                        values.remove(at);
                    }
                    5 => values.reverse(),
                    6 => {
                        // Some thousand entries, but no file of many megabytes.
                        let most = (1 << 20) / (values[at].to_string().len() + 1);
                        let copies = vec![values[at].clone(); random.below(most.min(5000))];
                        values.splice(at..at, copies);
                    }
                    _ => values.push(other),
                }
                values.into()
            }
            (Value::Object(fields), _) => {
                let mut fields = fields.clone();
                let names: Vec<String> = fields.keys().cloned().collect();
                if !names.is_empty() {
                    fields.remove(random.of(&names));
                }
                if random.one_in(2) {
                    fields.insert(self.text(random), other);
                }
                fields.into()
            }
            (Value::Bool(was), _) => (!was).into(),
            (Value::Null, _) => other,
        }
    }

    pub fn name(&self, random: &mut Random) -> String {
        self.text(random)
    }
}

/// Pointers to all that is in a value.
fn list(value: &Value, at: String, places: &mut Vec<String>) {
    match value {
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                list(value, format!("{at}/{index}"), places);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                list(value, format!("{at}/{name}"), places);
            }
        }
        _ => {}
    }
    places.push(at);
}
