//! `deadheat cc` and `deadheat c++`: stand in for clang and clang++ in any
//! build (`CC="deadheat cc" ./configure`), and put monitors on
//! interference-free regions into what they compile.
//!
//! All arguments go to clang-22. Added are the pass, frame pointers (the
//! run-time reads call chains off them), line tables when no debug info is
//! asked for, and, when an executable is linked, the run-time.

use super::Failure;
use crate::monitored_build::{self, Kit};
use crate::plain_objects::Gates;
use crate::response_files;
use std::ffi::{OsStr, OsString};

#[derive(clap::Args)]
#[command(
    disable_help_flag = true,
    disable_version_flag = true,
    after_help = "\
Examples:
  deadheat cc -O2 -g prog.c -o prog -pthread && ./prog
  CC='deadheat cc' CXX='deadheat c++' ./configure && make
  DEADHEAT_IFR=cap=10,json=races.json ./prog && deadheat report races.json"
)]
pub struct Arguments {
    /// Arguments for clang
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    arguments: Vec<OsString>,
}

/// Which of clang's front ends.
#[derive(Clone, Copy)]
pub enum Language {
    C,
    Cxx,
}

/// What clang was asked to do, as far as it matters here.
struct Request {
    /// The processor that code is asked for, if it is none with monitors.
    other_processor: Option<String>,
    links: bool,
    shared: bool,
    is_static: bool,
    has_debug: bool,
    has_linker: bool,
    has_lto: bool,
}

/// Options whose value is the next argument.
const TAKES_VALUE: &[&str] = &[
    "-o",
    "-x",
    "-I",
    "-L",
    "-D",
    "-U",
    "-include",
    "-imacros",
    "-isystem",
    "-iquote",
    "-idirafter",
    "-MF",
    "-MT",
    "-MQ",
    "-Xclang",
    "-Xlinker",
    "-Xassembler",
    "-Xpreprocessor",
    "-target",
    "-arch",
    "-T",
    "-u",
    "-z",
    "--param",
    "-isysroot",
    "--sysroot",
    "-e",
];

fn understand(arguments: &[OsString]) -> Request {
    let mut request = Request {
        other_processor: None,
        links: true,
        shared: false,
        is_static: false,
        has_debug: false,
        has_linker: false,
        has_lto: false,
    };
    let mut inputs = 0;
    let mut words = arguments.iter();
    while let Some(argument) = words.next() {
        let text = argument.to_string_lossy();
        if TAKES_VALUE.contains(&text.as_ref()) {
            let value = words.next().map(|value| value.to_string_lossy());
            match (text.as_ref(), value) {
                ("-x", Some(language)) => request.links &= !language.ends_with("-header"),
                ("-target", Some(target)) => request.aim(&text, &target),
                _ => {}
            }
            continue;
        }
        match text.as_ref() {
            "-m32" | "-mx32" | "-m16" => request.other_processor = Some(text.into_owned()),
            "-c" | "-S" | "-E" | "-M" | "-MM" | "-fsyntax-only" | "-r" | "--version"
            | "-dumpversion" | "-dumpmachine" | "-emit-ast" | "--precompile" => {
                request.links = false;
            }
            "-shared" => request.shared = true,
            "-static" | "-static-pie" => request.is_static = true,
            _ if text.starts_with("--target=") => {
                request.aim(&text, text.trim_start_matches("--target="));
            }
            _ if text.starts_with("-x") => request.links &= !text.ends_with("-header"),
            _ if text.starts_with("-print-") || text.starts_with("--print-") => {
                request.links = false;
            }
            _ if text.starts_with("-fuse-ld") || text.starts_with("--ld-path") => {
                request.has_linker = true;
            }
            _ if text.starts_with("-flto") => request.has_lto = true,
            _ if text.starts_with("-g") && text != "-g0" => request.has_debug = true,
            // A header alone is compiled to be included.
            _ if is_header(&text) => {}
            _ if !text.starts_with('-') || text == "-" || text.starts_with("-l") => inputs += 1,
            _ => {}
        }
    }
    request.links &= inputs > 0;
    request
}

fn is_header(text: &str) -> bool {
    const ENDS: [&str; 6] = ["h", "hh", "hpp", "hxx", "H", "h++"];
    !text.starts_with('-')
        && text
            .rsplit_once('.')
            .is_some_and(|(_, end)| ENDS.contains(&end))
}

pub fn run(arguments: &Arguments, language: Language) -> Result<i32, Failure> {
    let (name, package) = match language {
        Language::C => ("clang-22", "clang-22"),
        Language::Cxx => ("clang++-22", "clang-22"),
    };
    monitored_build::need(name, package)?;
    let kit = Kit::find()?;
    let expanded = response_files::expand(&arguments.arguments);
    let request = understand(&expanded);
    if let Some(option) = &request.other_processor {
        return Err(Failure::usage(format!(
            "{option}: monitors are for x86-64 programs only; compile this with clang-22 itself"
        )));
    }
    if request.links && request.is_static {
        return Err(Failure::usage(
            "-static cannot be monitored: the run-time sees locks and thread creation by standing before the shared C library; link without -static",
        ));
    }
    let gates = match request.links {
        true => Gates::make(&expanded, kit.folder(), || {
            trace(name, &arguments.arguments, &request, &kit)
        })?,
        false => None,
    };
    let mut command = kit.command(OsStr::new(name));
    // Before the libraries whose members they need.
    command.args(gates.iter().flat_map(Gates::arguments));
    command.arg("--start-no-unused-arguments");
    let mut plugin = OsString::from("-fpass-plugin=");
    plugin.push(&kit.pass);
    command.arg(plugin).arg("-fno-omit-frame-pointer");
    if !request.has_debug {
        command.arg("-gline-tables-only");
    }
    command.args(request.linker());
    command.arg("--end-no-unused-arguments");
    command.args(&arguments.arguments);
    command.args(request.linked_besides(&kit));
    monitored_build::run(command)
}

impl Request {
    /// The option `text` asks for code of this target.
    fn aim(&mut self, text: &str, target: &str) {
        if !target.starts_with("x86_64") && !target.starts_with("amd64") {
            self.other_processor = Some(match text.contains('=') {
                true => text.to_string(),
                false => format!("{text} {target}"),
            });
        }
    }

    /// Bitcode is lld's to link.
    fn linker(&self) -> Option<&'static str> {
        (self.has_lto && !self.has_linker).then_some("-fuse-ld=lld")
    }

    /// What a link is given after the user's arguments.
    fn linked_besides(&self, kit: &Kit) -> Vec<OsString> {
        if !self.links {
            return Vec::new();
        }
        if self.shared {
            // Bound at once, so that the run-time sees where calls lead. The
            // run-time is in the program: a library that shall have no undefined
            // symbols (Meson's default) has those.
            return ["-Wl,-z,now", "-Wl,-z,undefs"].map(OsString::from).to_vec();
        }
        // `-x c` must not make our object a source file.
        let mut arguments: Vec<OsString> = ["-x", "none"].map(OsString::from).to_vec();
        arguments.extend(kit.link_arguments());
        arguments
    }
}

/// What the linker takes in, as its trace says; none if the link fails, which
/// it will do again and say why.
fn trace(name: &str, arguments: &[OsString], request: &Request, kit: &Kit) -> Option<String> {
    let away = kit.folder().join(format!("trial-{}", std::process::id()));
    let output = kit
        .command(OsStr::new(name))
        .arg("-w")
        .args(request.linker())
        .args(arguments)
        .args(["-Wl,-t,-t", "-o"])
        .arg(&away)
        .args(request.linked_besides(kit))
        .output();
    // Not there if the link failed.
    let _ = std::fs::remove_file(&away);
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::understand;
    use std::ffi::OsString;

    fn links(line: &str) -> bool {
        let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let request = understand(&arguments);
        request.links && !request.shared
    }

    #[test]
    fn only_executables_get_the_run_time() {
        assert!(links("-O2 a.c -o a"));
        assert!(links("a.o b.o -lm -o prog"));
        for line in [
            "-c a.c",
            "-E a.c",
            "--version",
            "-v",
            "-shared a.o -o a.so",
            "-print-search-dirs",
            "-o x -I include",
            "all.hpp",
            "-x c++-header all -o all.pch",
        ] {
            assert!(!links(line), "{line}");
        }
        assert!(links("-include all.h a.c"));
    }

    #[test]
    fn other_processors_are_seen() {
        let other = |line: &str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            understand(&arguments).other_processor
        };
        assert_eq!(other("-c a.c -m32"), Some("-m32".into()));
        assert_eq!(other("-target arm a.c"), Some("-target arm".into()));
        assert_eq!(other("--target=arm a.c"), Some("--target=arm".into()));
        assert_eq!(other("--target=x86_64-linux-gnu -m64 a.c"), None);
    }
}
