//! The report as one HTML file that needs no network and no server.
//!
//! The file holds the data as JSON and a small script that draws it. All text
//! reaches the document as text nodes, never as markup; `<`, `>` and `&` are
//! escaped in the JSON, so no name or output of the program can end the script
//! element; and a content security policy allows only the one script and the
//! one style sheet, by hash, so that even a mistake here runs nothing.
//!
//! Two thousand races stay under 5 MB because functions, files and frames are
//! kept once and referred to by number, and source lines once per file. The
//! racing lines come first when source has to be left out.

mod payload;
mod sha256;

use crate::store::Sighting;
use race::{Fingerprint, Report, plain, plain_json};
use std::collections::HashMap;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The HTML document. `histories` has what earlier runs said about each race,
/// where a store knows it.
pub fn render(report: &Report, histories: &HashMap<Fingerprint, Vec<Sighting>>) -> String {
    let data = payload::build(report, histories);
    let data = serde_json::to_string(&data).expect("a JSON value always has a text form");
    let title = html(&format!("deadheat: {}", report.program.join(" ")));
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        base64(&sha256::digest(SCRIPT.as_bytes())),
        base64(&sha256::digest(STYLE.as_bytes())),
    );
    let races = report.races.len();
    let parts = [
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
        "<meta http-equiv=\"Content-Security-Policy\" content=\"",
        &policy,
        "\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n",
        "<meta name=\"color-scheme\" content=\"light dark\">\n<title>",
        &title,
        "</title>\n<style>",
        STYLE,
        "</style>\n</head>\n<body>\n<noscript><p>This page draws ",
        &races.to_string(),
        " races with a script that is part of the file; please allow it, or use <code>deadheat report</code> for text.</p></noscript>\n",
        "<script type=\"application/json\" id=\"data\">",
        &for_script(&data),
        "</script>\n<script>",
        SCRIPT,
        "</script>\n</body>\n</html>\n",
    ];
    parts.concat()
}

/// Text inside an element or a double-quoted attribute.
fn html(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

/// JSON that may stand inside a script element: outside strings it has none
/// of these characters, inside strings the escapes mean the same.
fn for_script(json: &str) -> String {
    let mut safe = String::with_capacity(json.len() + json.len() / 16);
    for c in plain_json(json).chars() {
        match c {
            '<' => safe.push_str("\\u003c"),
            '>' => safe.push_str("\\u003e"),
            '&' => safe.push_str("\\u0026"),
            c => safe.push(c),
        }
    }
    safe
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut group = [0u8; 3];
        group[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
        for position in 0..4 {
            if position <= chunk.len() {
                let digit = (bits >> (18 - 6 * position)) & 63;
                text.push(char::from(DIGITS[digit as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_known_text() {
        let cases = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ];
        for (text, expected) in cases {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }

    #[test]
    fn nothing_ends_the_script_or_the_title() {
        let attack = "</script></title><img src=x onerror=alert(1)>&<!--";
        let report = Report::new("vm", vec![attack.into()]);
        let page = render(&report, &HashMap::new());
        assert_eq!(page.matches("<img").count(), 0);
        assert_eq!(page.matches("</title>").count(), 1);
        let open = page.matches("<script").count();
        assert_eq!((open, page.matches("</script>").count()), (2, 2));
        let start = page.find("id=\"data\">").unwrap() + "id=\"data\">".len();
        let end = start + page[start..].find("</script>").unwrap();
        let data: serde_json::Value = serde_json::from_str(&page[start..end]).unwrap();
        assert_eq!(data["program"][0], attack, "the data is what it was");
    }

    #[test]
    fn the_page_asks_for_nothing_from_outside() {
        for word in [
            "http:",
            "https:",
            "url(",
            "import ",
            "fetch(",
            "XMLHttpRequest",
            "innerHTML",
        ] {
            assert!(!SCRIPT.contains(word), "{word} in the script");
            assert!(!STYLE.contains(word), "{word} in the style sheet");
        }
    }
}
