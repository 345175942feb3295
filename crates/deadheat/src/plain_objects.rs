//! Objects without monitors that are linked into a monitored program.
//!
//! What they synchronise by, their own atomics above all, nobody sees. A shared
//! library of that kind is found by the run-time when the program starts; code
//! that is linked statically is found here, when `deadheat cc` links: every
//! reference to one of its functions is led through a gate that stops all
//! monitors and goes on (`--wrap` of the linker), and monitored functions stop
//! them when they return to such a caller.
//!
//! Guarantee: no call from one object into a plain one, by name or by pointer,
//! leaves a monitor running. Inline functions that both kinds of objects define
//! are not gated.

use crate::commands::Failure;
use crate::monitored_build;
use object::read::archive::ArchiveFile;
use object::{Object, ObjectSymbol, SymbolKind};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the linker looks besides the folders of `-L`.
const SYSTEM: [&str; 4] = [
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib",
];
/// What the pass leaves in every object that it has worked on.
const MARK: &[u8] = b"__deadheat_ifr_";

/// The gates of one link: files that are removed when it is over.
pub struct Gates {
    source: PathBuf,
    object: PathBuf,
    options: PathBuf,
}

impl Gates {
    /// Gates for the plain objects among the arguments of a link; none if
    /// there are none. Of a static library the linker takes in what it needs:
    /// `trial` does the link without gates and returns what the linker's trace
    /// says (`-t`).
    pub fn make(
        arguments: &[OsString],
        folder: &Path,
        trial: impl FnOnce() -> Option<String>,
    ) -> Result<Option<Gates>, Failure> {
        let mut functions = BTreeSet::new();
        let mut members = Vec::new();
        for file in inputs(arguments) {
            // What cannot be read or is no object is the linker's to refuse.
            let Ok(bytes) = fs::read(&file) else {
                continue;
            };
            match ArchiveFile::parse(bytes.as_slice()) {
                Ok(archive) => members.extend(plain_members(&file, &bytes, &archive)),
                Err(_) => functions.extend(plain_functions(&bytes)),
            }
        }
        if !members.is_empty()
            && let Some(trace) = trial()
        {
            let taken: BTreeSet<&str> = trace.lines().filter_map(base_name).collect();
            for member in members {
                if member
                    .names
                    .iter()
                    .any(|name| taken.contains(name.as_str()))
                {
                    functions.extend(member.functions);
                }
            }
        }
        functions.remove("main");
        if functions.is_empty() {
            return Ok(None);
        }
        let base = format!("gates-{}", std::process::id());
        let gates = Gates {
            source: folder.join(format!("{base}.s")),
            object: folder.join(format!("{base}.o")),
            options: folder.join(format!("{base}.options")),
        };
        let options: String = functions
            .iter()
            .map(|name| format!("-Wl,--wrap={name}\n"))
            .collect();
        for (path, text) in [
            (&gates.source, assembly(&functions)),
            (&gates.options, options),
        ] {
            fs::write(path, text).map_err(|error| {
                Failure::usage(format!("cannot write {}: {error}", path.display()))
            })?;
        }
        gates.assemble()?;
        Ok(Some(gates))
    }

    /// On its own: with a source in the command of a link, clang would warn of
    /// every option there that a link does not use.
    fn assemble(&self) -> Result<(), Failure> {
        let mut clang = Command::new("clang-22");
        clang
            .arg("-c")
            .arg(&self.source)
            .arg("-o")
            .arg(&self.object);
        match monitored_build::run(clang)? {
            0 => Ok(()),
            _ => Err(Failure::own(format!(
                "cannot assemble {}",
                self.source.display()
            ))),
        }
    }

    /// What clang is given besides.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut options = OsString::from("@");
        options.push(&self.options);
        vec![self.object.clone().into_os_string(), options]
    }
}

impl Drop for Gates {
    fn drop(&mut self) {
        for path in [&self.source, &self.object, &self.options] {
            // Small files in the cache folder; nobody is hurt if they stay.
            let _ = fs::remove_file(path);
        }
    }
}

/// Counts the epoch, then goes on to the function; and once, when the program
/// starts, tells monitored functions that they may have plain callers.
fn assembly(functions: &BTreeSet<String>) -> String {
    let mut text = String::from(".text\n");
    for name in functions {
        text.push_str(&format!(
            "\t.globl __wrap_{name}\n\t.hidden __wrap_{name}\n\t.type __wrap_{name}, @function\n__wrap_{name}:\n\
             \tsubq $8, %rsp\n\tcall *__deadheat_ifr_release@GOTPCREL(%rip)\n\taddq $8, %rsp\n\
             \tjmp __real_{name}@PLT\n\t.size __wrap_{name}, . - __wrap_{name}\n"
        ));
    }
    text.push_str(
        ".Lforeign:\n\tmovq __deadheat_ifr_foreign@GOTPCREL(%rip), %rax\n\tmovb $1, (%rax)\n\tret\n\
         \t.section .init_array,\"aw\"\n\t.balign 8\n\t.quad .Lforeign\n\
         \t.section .note.GNU-stack,\"\",@progbits\n",
    );
    text
}

/// A member of a static library, without monitors.
struct Member {
    /// As GNU ld and lld call it in a trace: `lib.a(member)`, `lib.a)member`.
    names: [String; 2],
    functions: Vec<String>,
}

/// The last part of the path in a line of the trace.
fn base_name(line: &str) -> Option<&str> {
    let last = line.trim().rsplit('/').next()?;
    Some(last.trim_start_matches('('))
}

fn plain_members(file: &Path, bytes: &[u8], archive: &ArchiveFile) -> Vec<Member> {
    let library = file.file_name().unwrap_or_default().to_string_lossy();
    let mut members = Vec::new();
    for member in archive.members().flatten() {
        let functions = member.data(bytes).map(plain_functions).unwrap_or_default();
        if !functions.is_empty() {
            let name = String::from_utf8_lossy(member.name());
            members.push(Member {
                names: [format!("{library}({name})"), format!("{library}){name}")],
                functions,
            });
        }
    }
    members
}

/// Global functions of an object, if it has no monitors.
fn plain_functions(bytes: &[u8]) -> Vec<String> {
    // Bitcode is worked on when it is linked; programs and libraries are not
    // objects.
    let Ok(file) = object::File::parse(bytes) else {
        return Vec::new();
    };
    let is_monitored = || {
        let mut symbols = file.symbols();
        symbols.any(|symbol| symbol.name_bytes().is_ok_and(|name| name.starts_with(MARK)))
    };
    if file.kind() != object::ObjectKind::Relocatable || is_monitored() {
        return Vec::new();
    }
    let assembles = |byte: u8| byte.is_ascii_alphanumeric() || b"_.$".contains(&byte);
    file.symbols()
        .filter(|symbol| {
            symbol.is_definition()
                && symbol.is_global()
                && !symbol.is_weak()
                && symbol.kind() == SymbolKind::Text
        })
        .filter_map(|symbol| symbol.name().ok())
        .filter(|name| !name.is_empty() && name.bytes().all(assembles))
        .map(String::from)
        .collect()
}

/// Objects and static libraries that a link takes in.
fn inputs(arguments: &[OsString]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut files = Vec::new();
    let mut libraries = Vec::new();
    let mut only_static = false;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        match text.as_ref() {
            "-o" | "-MF" | "-MT" | "-MQ" => {
                words.next();
            }
            "-L" => folders.extend(words.next().map(PathBuf::from)),
            "-l" => libraries.extend(
                words
                    .next()
                    .map(|name| (name.to_string_lossy().into_owned(), only_static)),
            ),
            "-Wl,-Bstatic" | "-Wl,-static" => only_static = true,
            "-Wl,-Bdynamic" => only_static = false,
            _ => {
                if let Some(folder) = text.strip_prefix("-L") {
                    folders.push(folder.into());
                } else if let Some(name) = text.strip_prefix("-l") {
                    libraries.push((name.to_string(), only_static));
                } else if !text.starts_with('-')
                    && (text.ends_with(".o")
                        || text.ends_with(".a")
                        || text.ends_with(".lo")
                        || text.ends_with(".obj"))
                {
                    files.push(word.into());
                }
            }
        }
    }
    folders.extend(SYSTEM.map(PathBuf::from));
    for (name, only_static) in libraries {
        let names = match name.strip_prefix(':') {
            Some(file) => vec![file.to_string()],
            None if only_static => vec![format!("lib{name}.a")],
            None => vec![format!("lib{name}.so"), format!("lib{name}.a")],
        };
        let found = folders
            .iter()
            .flat_map(|folder| names.iter().map(move |name| folder.join(name)))
            .find(|path| path.is_file());
        files.extend(found.filter(|path| path.extension().is_some_and(|end| end == "a")));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_static_libraries_are_found() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["libone.a", "libtwo.a", "libtwo.so"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let line = format!(
            "-o out.o a.o b.c -L{0} -lone -ltwo x/c.a -Wl,-Bstatic -ltwo -Wl,-Bdynamic -lnowhere",
            folder.path().display()
        );
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let at = |name: &str| folder.path().join(name);
        assert_eq!(
            inputs(&words),
            [
                PathBuf::from("a.o"),
                "x/c.a".into(),
                at("libone.a"),
                at("libtwo.a")
            ]
        );
    }
}
