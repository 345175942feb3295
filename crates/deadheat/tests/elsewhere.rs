//! A replay depends on the recording alone: it is the same under other
//! conditions of the host than those of the recording (docs/determinism.md).
//!
//! Each program is recorded once and replayed with another environment, folder,
//! processor, layout of the address space, limits, session and standard input.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};

const DEADHEAT: &str = env!("CARGO_BIN_EXE_deadheat");

/// What stands before the command that replays. All of these come with Debian's
/// essential packages.
const CONDITIONS: [&[&str]; 10] = [
    &[],
    &["env", "-i"],
    &[
        "env",
        "LANG=C.UTF-8",
        "TZ=Asia/Kathmandu",
        "LD_BIND_NOW=1",
        "MALLOC_PERTURB_=85",
    ],
    &["taskset", "-c", "0"],
    &["setarch", "--addr-no-randomize"],
    &["setarch", "--addr-compat-layout"],
    &["prlimit", "--stack=unlimited"],
    &["prlimit", "--stack=262144", "--nofile=32"],
    &["nice", "-n", "10"],
    &["setsid", "--wait"],
];

fn build(folder: &Path, name: &str, source: &str) -> PathBuf {
    let text = folder.join(format!("{name}.c"));
    let program = folder.join(name);
    std::fs::write(&text, source).expect("the source can be written");
    let status = Command::new("gcc")
        .args(["-g", "-O1", "-pthread", "-o"])
        .args([&program, &text])
        .arg("-lm")
        .status()
        .expect("gcc can be started");
    assert!(status.success());
    program
}

fn output(mut command: Command) -> Output {
    command.output().expect("deadheat can be started")
}

/// Reads whatever a process can ask about where and when it runs.
const CURIOUS: &str = r#"
#define _GNU_SOURCE
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>
#include <cpuid.h>

static long total;
static unsigned long long sum = 1469598103934665603u;
static void mix(const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++)
        sum = (sum ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
}
static void *worker(void *unused) {
    for (int i = 0; i < 20000; i++)
        total++;
    return unused;
}
static void file(const char *path) {
    char bytes[65536];
    FILE *from = fopen(path, "r");
    if (from) {
        mix(bytes, fread(bytes, 1, sizeof bytes, from));
        fclose(from);
    }
}
int main(int count, char **arguments) {
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, worker, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int key = 0; key < 64; key++) {
        unsigned long value = getauxval(key);
        mix(&value, sizeof value);
    }
    mix((void *)getauxval(AT_RANDOM), 16);
    struct stat stat_bytes;
    memset(&stat_bytes, 0x5a, sizeof stat_bytes);
    stat("/", &stat_bytes);
    mix(&stat_bytes, sizeof stat_bytes);
    struct sysinfo info;
    sysinfo(&info);
    mix(&info, sizeof info);
    struct utsname name;
    uname(&name);
    mix(&name, sizeof name);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    mix(&usage, sizeof usage);
    struct tms tms;
    clock_t ticks = times(&tms);
    mix(&ticks, sizeof ticks);
    struct statvfs vfs;
    statvfs("/", &vfs);
    mix(&vfs, sizeof vfs);
    struct timespec now;
    for (int clock = 0; clock < 12; clock++)
        if (!clock_gettime(clock, &now))
            mix(&now, sizeof now);
    struct rlimit limit;
    for (int which = 0; which < 16; which++)
        if (!getrlimit(which, &limit))
            mix(&limit, sizeof limit);
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    mix(&set, sizeof set);
    unsigned where[2] = {0, 0};
    getcpu(&where[0], &where[1]);
    mix(where, sizeof where);
    unsigned long long ticks_now = __rdtsc();
    mix(&ticks_now, sizeof ticks_now);
    for (unsigned leaf = 0; leaf < 32; leaf++) {
        unsigned words[4];
        __cpuid_count(leaf, 0, words[0], words[1], words[2], words[3]);
        mix(words, sizeof words);
    }
    float numbers[4] = {1.1f, 2.2f, 3.3f, 4.4f};
    _mm_storeu_ps(numbers, _mm_rsqrt_ps(_mm_rcp_ps(_mm_loadu_ps(numbers))));
    mix(numbers, sizeof numbers);
    long ids[] = {getpid(), getppid(), getuid(), getpgrp(), getsid(0), nice(0), (long)malloc(300000),
                  (long)&threads, (long)main, sysconf(_SC_NPROCESSORS_ONLN), sysconf(_SC_AVPHYS_PAGES)};
    mix(ids, sizeof ids);
    for (char **variable = environ; *variable; variable++)
        mix(*variable, strlen(*variable));
    char folder[4096];
    if (getcwd(folder, sizeof folder))
        mix(folder, strlen(folder));
    for (int i = 1; i < count; i++)
        file(arguments[i]);
    DIR *list = opendir("/");
    for (struct dirent *entry; list && (entry = readdir(list));)
        mix(entry->d_name, strlen(entry->d_name));
    printf("%ld %llx %a\n", total, sum, sin(total));
    return 0;
}
"#;

/// Ends by a signal, with a handler before and a child beside it.
const SIGNALLED: &str = r#"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static unsigned char frame[4096];
static void handler(int signal, siginfo_t *info, void *context) {
    memcpy(frame, info, sizeof *info);
    memcpy(frame + 512, context, 968);
    (void)signal;
}
int main(void) {
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    pid_t child = fork();
    if (!child)
        kill(getppid(), SIGUSR1), _exit(7);
    int status;
    while (waitpid(child, &status, 0) < 0)
        ;
    unsigned sum = 0;
    for (unsigned i = 0; i < sizeof frame; i++)
        sum = sum * 31 + frame[i];
    printf("%x %d\n", sum, WEXITSTATUS(status));
    fflush(stdout);
    raise(SIGTERM);
    return 1;
}
"#;

fn replays_alike(name: &str, source: &str, arguments: &[&str], exit: ExitStatus) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = build(folder.path(), name, source);
    let recording = folder.path().join("recording");
    let mut record = Command::new(DEADHEAT);
    record.arg("record").arg("-o").arg(&recording).arg("--");
    record
        .arg(&program)
        .args(arguments)
        .current_dir(folder.path());
    let recorded = output(record);
    assert_eq!(recorded.status, exit, "{recorded:?}");
    assert!(!recorded.stdout.is_empty());
    for (number, condition) in CONDITIONS.iter().enumerate() {
        let mut words = condition.iter().copied().chain([DEADHEAT, "replay"]);
        let mut replay = Command::new(words.next().expect("there is deadheat at least"));
        replay.args(words).arg(&recording);
        // Every other time from elsewhere, with something to read.
        if number % 2 == 1 {
            replay.current_dir("/");
            replay.stdin(Stdio::from(
                std::fs::File::open("/proc/self/status").expect("it is there"),
            ));
        }
        let replayed = output(replay);
        assert!(
            replayed.status == recorded.status && replayed.stdout == recorded.stdout,
            "{} {DEADHEAT} replay {}:\n{replayed:?}\nrecorded: {recorded:?}",
            condition.join(" "),
            recording.display()
        );
    }
}

#[test]
fn what_a_program_can_ask_of_its_host_comes_from_the_recording() {
    let asked = [
        "/proc/self/maps",
        "/proc/self/stat",
        "/proc/self/status",
        "/proc/self/limits",
        "/proc/self/auxv",
        "/proc/self/cmdline",
        "/proc/self/environ",
        "/proc/self/mountinfo",
        "/proc/self/cgroup",
        "/proc/self/io",
        "/proc/self/sched",
        "/proc/self/oom_score",
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/uptime",
        "/proc/loadavg",
        "/proc/stat",
        "/proc/interrupts",
        "/proc/self/smaps",
        "/proc/self/personality",
    ];
    replays_alike("curious", CURIOUS, &asked, ExitStatus::from_raw(0));
}

#[test]
fn signals_and_children_come_from_the_recording() {
    replays_alike(
        "signalled",
        SIGNALLED,
        &[],
        ExitStatus::from_raw(libc::SIGTERM),
    );
}
