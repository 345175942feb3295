//! The JSON form: the `race::Report` value as serde writes it, which is what
//! `docs/report.schema.json` describes.

use race::plain_json;
use serde::Serialize;

/// One pretty-printed value and a newline; a terminal may show it.
pub fn render(value: &impl Serialize) -> String {
    let text = serde_json::to_string_pretty(value)
        .expect("plain data with string keys always has a JSON form");
    plain_json(&text).into_owned() + "\n"
}
