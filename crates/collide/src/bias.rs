//! `--bias`: sites to prefer, from a report or a list (paper 002, section
//! 3.1.1: "prioritize those locations by biasing their selection").

use crate::sampling_set::CodeSite;
use race::Report;
use std::path::Path;
use symbols::Module;

/// One site, named in one of three ways.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    Offset(String, u64),
    Function(String),
    Line(String, u32),
}

#[derive(Debug, Clone, Default)]
pub struct Bias {
    sites: Vec<Named>,
}

#[derive(Debug, thiserror::Error)]
pub enum BiasError {
    #[error("{path}: {source}")]
    Read {
        path: String,
        source: std::io::Error,
    },
    #[error(
        "{path}:{line}: `{text}` names no site; write MODULE+0xOFFSET, FILE:LINE or FUNCTION, one to a line, or give a report that `--json=FILE` wrote"
    )]
    Line {
        path: String,
        line: usize,
        text: String,
    },
}

impl Bias {
    pub fn read(path: &Path) -> Result<Bias, BiasError> {
        let text = std::fs::read_to_string(path).map_err(|source| BiasError::Read {
            path: path.display().to_string(),
            source,
        })?;
        if let Ok(report) = serde_json::from_str::<Report>(&text) {
            return Ok(Bias::of_report(&report));
        }
        Bias::of_list(&text, &path.display().to_string())
    }

    fn of_report(report: &Report) -> Bias {
        let mut sites = Vec::new();
        for access in report.races.iter().flat_map(|race| &race.accesses) {
            let site = &access.site;
            if let (Some(file), Some(line)) = (&site.file, site.line) {
                sites.push(Named::Line(file.clone(), line));
            } else if let (Some(module), Some(offset)) = (&site.module, site.offset) {
                sites.push(Named::Offset(module.clone(), offset));
            }
        }
        sites.dedup();
        Bias { sites }
    }

    fn of_list(text: &str, path: &str) -> Result<Bias, BiasError> {
        let mut sites = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            sites.push(parse(line).ok_or_else(|| BiasError::Line {
                path: path.to_string(),
                line: number,
                text: line.to_string(),
            })?);
        }
        Ok(Bias { sites })
    }

    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// Whether a site of a module is preferred.
    pub fn prefers(&self, module: &Module, site: &CodeSite) -> bool {
        self.sites.iter().any(|named| match named {
            Named::Offset(name, offset) => name == module.name() && *offset == site.address,
            Named::Function(name) => module.function_at(site.address).is_some_and(|symbol| {
                symbol.name == *name || symbols::demangle(&symbol.name) == *name
            }),
            Named::Line(file, line) => module.frames(site.address).iter().any(|frame| {
                frame.line == Some(*line)
                    && frame
                        .file
                        .as_deref()
                        .is_some_and(|known| same_file(known, file))
            }),
        })
    }
}

/// Equal, or one is the end of the other from a `/` on.
fn same_file(one: &str, other: &str) -> bool {
    let (long, short) = if one.len() >= other.len() {
        (one, other)
    } else {
        (other, one)
    };
    long == short
        || long
            .strip_suffix(short)
            .is_some_and(|folder| folder.ends_with('/'))
}

fn parse(line: &str) -> Option<Named> {
    if let Some((module, offset)) = line.split_once("+0x") {
        let offset = u64::from_str_radix(offset, 16).ok()?;
        return Some(Named::Offset(module.to_string(), offset));
    }
    if let Some((file, number)) = line.rsplit_once(':')
        && let Ok(number) = number.parse()
    {
        return Some(Named::Line(file.to_string(), number));
    }
    (!line.contains(char::is_whitespace)).then(|| Named::Function(line.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_ways_to_name_a_site() {
        let list = "prog+0x1234 # the hot one\n\nsrc/table.c:52\nadd\nstd::vec::push\n";
        let bias = Bias::of_list(list, "list").unwrap();
        assert_eq!(
            bias.sites,
            [
                Named::Offset("prog".into(), 0x1234),
                Named::Line("src/table.c".into(), 52),
                Named::Function("add".into()),
                Named::Function("std::vec::push".into()),
            ]
        );
        let error = Bias::of_list("two words\n", "list").unwrap_err();
        assert!(error.to_string().starts_with("list:1: "), "{error}");
    }

    #[test]
    fn files_match_by_their_end() {
        assert!(same_file("/src/table.c", "table.c"));
        assert!(!same_file("/src/mytable.c", "table.c"));
    }
}
