//! What this machine lets deadheat do.

use super::{COMPILED, Finding, SAMPLING, STORE, TOOLS, VM, trial};
use report::Store;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub fn examine(store: &Path) -> Vec<Finding> {
    let mut findings = vec![kernel(), processor()];
    findings.push(confinement());
    findings.extend(memory());
    findings.extend(breakpoints());
    findings.push(attaching());
    findings.push(perf_rights());
    findings.extend(compilers());
    findings.push(gdb());
    findings.push(keeping(store));
    findings.push(space(store));
    findings
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_string())
}

/// User code may use rdfsbase and wrfsbase, with which the vm switches guest
/// threads (elf.h: HWCAP2_FSGSBASE).
fn kernel() -> Finding {
    const HWCAP2_FSGSBASE: u64 = 2;
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into());
    // SAFETY: getauxval only reads this process's auxiliary vector.
    let capabilities = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    if capabilities & HWCAP2_FSGSBASE == 0 {
        return Finding::missing(
            VM,
            format!("Linux {release} does not let programs use wrfsbase"),
            "use Linux 5.9 or newer, and remove `nofsgsbase` from the kernel command line",
        );
    }
    Finding::good(VM, format!("Linux {release}"))
}

fn processor() -> Finding {
    let text = read("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let name = field("model name").unwrap_or_else(|| "unknown processor".into());
    let flags = field("flags").unwrap_or_default();
    let has = |flag: &str| flags.split(' ').any(|one| one == flag);
    let missing: Vec<_> = ["sse4_2", "cx16", "popcnt", "xsave"]
        .into_iter()
        .filter(|flag| !has(flag))
        .collect();
    match missing.is_empty() {
        true => Finding::good(VM, format!("{name} (no performance counters needed)")),
        false => Finding::missing(
            VM,
            format!("{name} has no {}", missing.join(", ")),
            "use an x86-64-v2 processor; in a virtual machine pass the host's model through (qemu: -cpu host)",
        ),
    }
}

/// What keeps the program of a recording from this machine while it is replayed.
fn confinement() -> Finding {
    let confine::Support { seccomp, landlock } = confine::support();
    if !seccomp {
        return Finding::missing(
            VM,
            "this kernel has no seccomp filters: recordings are not replayed",
            "use a kernel with CONFIG_SECCOMP_FILTER, and a sandbox that passes it on",
        );
    }
    if landlock >= confine::Support::WITH_SIGNALS {
        return Finding::good(
            VM,
            format!("replays are confined by seccomp and Landlock {landlock}"),
        );
    }
    let (text, what) = match landlock {
        0 => (
            "seccomp alone, without Landlock".into(),
            "read your files and kill your processes",
        ),
        older => (
            format!("seccomp and Landlock {older}"),
            "kill your processes",
        ),
    };
    Finding::limited(
        VM,
        format!(
            "replays are confined by {text}: should a recording break out of the vm, it could {what}, nothing else"
        ),
        "use Linux 6.12 or newer with `landlock` in CONFIG_LSM or on the kernel command line (lsm=landlock,...)",
    )
}

/// The vm reserves large ranges of addresses without using them.
fn memory() -> Vec<Finding> {
    let mut findings = Vec::new();
    if read("/proc/sys/vm/overcommit_memory").as_deref() == Some("2") {
        findings.push(Finding::missing(
            VM,
            "the kernel counts reserved memory as used (vm.overcommit_memory = 2)",
            "sudo sysctl vm.overcommit_memory=0",
        ));
    }
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: getrlimit writes one rlimit through a valid pointer.
    let answer = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) };
    if answer == 0 && limit.rlim_cur != libc::RLIM_INFINITY {
        findings.push(Finding::missing(
            VM,
            format!(
                "addresses are limited to {} MB (ulimit -v)",
                limit.rlim_cur >> 20
            ),
            "ulimit -v unlimited",
        ));
    }
    findings
}

fn breakpoints() -> Vec<Finding> {
    match trial::perf_breakpoints() {
        Ok(4..) => vec![Finding::good(
            SAMPLING,
            "4 hardware breakpoints through perf_event_open",
        )],
        Ok(number) => vec![Finding::limited(
            SAMPLING,
            format!("{number} of 4 hardware breakpoints can be used"),
            "another debugger may hold the rest: `sudo ls -l /proc/*/fd | grep perf_event` shows who",
        )],
        Err(error) => vec![Finding::missing(
            SAMPLING,
            format!("no hardware breakpoints through perf_event_open ({error})"),
            match error.raw_os_error() {
                Some(libc::EACCES | libc::EPERM) => {
                    "sudo sysctl kernel.perf_event_paranoid=2 (in a container also: docker run --cap-add PERFMON --security-opt seccomp=unconfined)"
                }
                Some(libc::ENOSPC) => {
                    "all debug registers are taken: end other debuggers, or on the host detach them from this virtual machine"
                }
                Some(libc::ENOSYS) => {
                    "the kernel was built without CONFIG_PERF_EVENTS: use a distribution kernel"
                }
                _ => "the virtual machine may not pass debug registers on: try on the host",
            },
        )],
    }
}

fn attaching() -> Finding {
    let can_any = capable(19 /* CAP_SYS_PTRACE */);
    let scope = read("/proc/sys/kernel/yama/ptrace_scope");
    match trial::attach_to_child() {
        Err(error) => Finding::missing(
            SAMPLING,
            format!("ptrace is refused ({error})"),
            "in a container: docker run --cap-add SYS_PTRACE --security-opt seccomp=unconfined",
        ),
        Ok(attached) => match (can_any, scope.as_deref()) {
            (true, _) | (false, None | Some("0")) => {
                let classic = if attached.debug_registers {
                    ""
                } else {
                    " (not their debug registers)"
                };
                Finding::good(
                    SAMPLING,
                    format!("ptrace: can attach to running processes{classic}"),
                )
            }
            (false, Some("1")) => Finding::limited(
                SAMPLING,
                "ptrace: can attach only to processes that deadheat starts",
                "sudo sysctl kernel.yama.ptrace_scope=0, or let deadheat start the program, or use sudo",
            ),
            (false, Some(scope)) => Finding::limited(
                SAMPLING,
                format!("ptrace: only administrators may attach (ptrace_scope = {scope})"),
                "use sudo, or sudo sysctl kernel.yama.ptrace_scope=1 (3 needs a reboot)",
            ),
        },
    }
}

fn perf_rights() -> Finding {
    let paranoid =
        read("/proc/sys/kernel/perf_event_paranoid").and_then(|text| text.parse::<i32>().ok());
    let privileged = capable(38 /* CAP_PERFMON */) || capable(21 /* CAP_SYS_ADMIN */);
    match paranoid {
        _ if privileged => Finding::good(
            SAMPLING,
            "breakpoints per processor: cheap with many threads",
        ),
        Some(..=0) => Finding::good(
            SAMPLING,
            "breakpoints per processor: cheap with many threads",
        ),
        _ => Finding::limited(
            SAMPLING,
            "breakpoints per thread only: slower with many threads",
            "sudo sysctl kernel.perf_event_paranoid=0, or use sudo",
        ),
    }
}

/// Whether this process has the capability with that number.
fn capable(number: u32) -> bool {
    let status = read("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> number & 1 == 1)
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|file| {
            use std::os::unix::fs::PermissionsExt;
            file.metadata()
                .is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
        })
}

fn compilers() -> Vec<Finding> {
    [
        ("clang-22", "C and C++ programs"),
        ("ld.lld-22", "Rust programs"),
    ]
    .into_iter()
    .map(|(name, good_for)| match in_path(name) {
        Some(path) => Finding::good(COMPILED, format!("{} for {good_for}", path.display())),
        None => Finding::limited(
            COMPILED,
            format!("no {name}: no monitors in {good_for}"),
            "sudo apt install clang-22 lld-22 (from apt.llvm.org where the distribution is older)",
        ),
    })
    .collect()
}

fn gdb() -> Finding {
    match in_path("gdb") {
        Some(path) => Finding::good(
            TOOLS,
            format!("{} for stepping through a replay", path.display()),
        ),
        None => Finding::limited(
            TOOLS,
            "no gdb: replays run, but cannot be stepped through (replay --gdb)",
            "sudo apt install gdb",
        ),
    }
}

fn keeping(folder: &Path) -> Finding {
    match Store::open(folder) {
        Ok(store) => match (store.sound(), store.runs()) {
            (Ok(true), Ok(runs)) => {
                let runs = report::count(runs.len() as u64, "run");
                Finding::good(STORE, format!("{} has {runs}", folder.display()))
            }
            _ => Finding::missing(
                STORE,
                format!("{} is damaged", folder.display()),
                "move the folder away; recordings in it can still be replayed by their path",
            ),
        },
        Err(report::Error::NoStore { .. }) => {
            let parent = folder
                .parent()
                .filter(|parent| *parent != Path::new(""))
                .unwrap_or(Path::new("."));
            match writable(parent) {
                true => Finding::good(STORE, format!("{} will be made here", folder.display())),
                false => Finding::limited(
                    STORE,
                    format!("cannot write in {}", parent.display()),
                    "use --store DIR with a folder of yours, or --no-store",
                ),
            }
        }
        Err(error) => Finding::missing(
            STORE,
            error.to_string(),
            "or use --store DIR with another folder",
        ),
    }
}

fn c_path(path: &Path) -> Option<std::ffi::CString> {
    std::ffi::CString::new(OsStr::as_bytes(path.as_os_str())).ok()
}

fn writable(folder: &Path) -> bool {
    // SAFETY: access reads a terminated string that lives through the call.
    c_path(folder).is_some_and(|path| unsafe { libc::access(path.as_ptr(), libc::W_OK) } == 0)
}

fn space(folder: &Path) -> Finding {
    let existing = folder
        .ancestors()
        .find(|one| one.is_dir())
        .unwrap_or(Path::new("."));
    // SAFETY: statvfs is plain integers, for which all-zero is a value.
    let mut facts: libc::statvfs = unsafe { std::mem::zeroed() };
    let answer = c_path(existing).map(|path| {
        // SAFETY: the string is terminated, the buffer is one statvfs.
        unsafe { libc::statvfs(path.as_ptr(), &mut facts) }
    });
    let free = facts.f_bavail.saturating_mul(facts.f_frsize) >> 20;
    match (answer, free) {
        (Some(0), 0..500) => Finding::limited(
            STORE,
            format!("{free} MB free for recordings"),
            "deadheat gc, or --store DIR on another disk",
        ),
        (Some(0), _) => Finding::good(
            STORE,
            format!("{:.1} GB free for recordings", free as f64 / 1024.0),
        ),
        _ => Finding::limited(
            STORE,
            format!("cannot tell the free space of {}", existing.display()),
            "use --store DIR with a folder of yours",
        ),
    }
}
