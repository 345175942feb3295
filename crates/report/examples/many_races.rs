//! Prints a report with many races as JSON, for `bench/report` and for trying
//! things out:
//!
//! ```text
//! many_races NUMBER SOURCE_FOLDER [--hostile] [--shift N]
//! ```
//!
//! The races are between lines of the `.rs` files under SOURCE_FOLDER.
//! `--hostile` puts markup, scripts and control characters into every text
//! that a program could choose. `--shift N` starts N races later in the same
//! endless list, so that two reports overlap.

#[path = "../tests/support/many.rs"]
mod many;

use std::path::PathBuf;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = "usage: many_races NUMBER SOURCE_FOLDER [--hostile] [--shift N]";
    let number: u32 = arguments
        .first()
        .and_then(|text| text.parse().ok())
        .expect(usage);
    let folder = PathBuf::from(arguments.get(1).expect(usage));
    let shift = arguments
        .iter()
        .position(|argument| argument == "--shift")
        .map_or(0, |at| {
            arguments
                .get(at + 1)
                .and_then(|text| text.parse().ok())
                .expect(usage)
        });
    let mut report = many::report(number, &folder, shift);
    if arguments.iter().any(|argument| argument == "--hostile") {
        many::make_hostile(&mut report);
    }
    println!("{}", serde_json::to_string(&report).expect("plain data"));
}
