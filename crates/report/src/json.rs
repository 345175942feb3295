//! The JSON form: the `race::Report` value as serde writes it, which is what
//! `docs/report.schema.json` describes.

use race::Report;

/// One pretty-printed object and a newline.
pub fn render(report: &Report) -> String {
    let mut text = serde_json::to_string_pretty(report)
        .expect("a report is plain data with string keys, which always has a JSON form");
    text.push('\n');
    text
}
