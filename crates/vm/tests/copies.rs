//! Copies of the world: many of them leave nothing behind, and none sees what
//! another writes.

use std::path::Path;
use std::process::Command;
use vm::copy::Captured;
use vm::record::{FORMAT, Manifest, Recording};
use vm::snapshot::{CopyError, Limits};
use vm::{Program, ScheduleChoice, Vm};

const SOURCE: &str = r#"
    #include <sys/mman.h>
    #include <unistd.h>
    long *shared;
    int main(void) {
        shared = mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        for (long i = 0; i < 1000; i++) (*shared)++;
        for (;;) (*shared)++;
    }
"#;

const SHARED: u64 = 0x1000_0000;

fn manifest(program: &Program) -> Manifest {
    Manifest {
        format: u32::from(FORMAT),
        made_by: "test".into(),
        program: program.path.as_os_str().as_encoded_bytes().to_vec(),
        arguments: program.arguments.clone(),
        environment: program.environment.clone(),
        directory: b"/".to_vec(),
        schedule: "random".into(),
        seed: 0,
        quantum: vm::DEFAULT_QUANTUM,
        left_out: Vec::new(),
        guard: None,
        redacted: Vec::new(),
    }
}

/// A vm somewhere in the program's second loop.
fn vm_in_loop(folder: &Path) -> Result<Vm, vm::Error> {
    let (code, path) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&code, SOURCE).expect("the folder can be written");
    let compiled = Command::new("gcc")
        .args(["-O0", "-static", "-o"])
        .args([&path, &code])
        .status()
        .expect("gcc runs");
    assert!(compiled.success());
    let program = Program::find(path.as_os_str(), &[])?;
    let recording = Recording::create(&folder.join("recording"), manifest(&program))?;
    let mut vm = Vm::record(&recording, &program, ScheduleChoice::default())?;
    vm.run(Some(race::Moment::new(1, 200_000)))?;
    Ok(vm)
}

fn counter() -> i64 {
    vm::memory::get(SHARED).unwrap_or(-1)
}

fn children_and_descriptors() -> (usize, usize) {
    let count = |path: &str| std::fs::read_dir(path).map_or(0, |entries| entries.count());
    let children = std::fs::read_to_string("/proc/self/task/self/children")
        .or_else(|_| {
            let pid = std::process::id();
            std::fs::read_to_string(format!("/proc/self/task/{pid}/children"))
        })
        .map_or(0, |text| text.split_whitespace().count());
    (children, count("/proc/self/fd"))
}

#[test]
fn ten_thousand_copies_leave_nothing_behind_and_keep_to_themselves() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_path_buf();
    let told: Result<(i64, bool), vm::snapshot::Failed> = vm::snapshot::isolated(move || {
        let mut vm = vm_in_loop(&path)?;
        let before = children_and_descriptors();
        let start = counter();
        let mut alike = true;
        for _ in 0..10_000 {
            let copy = vm.copy(Limits::default(), |vm| {
                vm.run_thread(1, 300, false)?;
                Ok(counter())
            });
            let seen = copy.and_then(|running| running.join());
            // Each copy counts on from the same value; nobody sees another's.
            alike &= matches!(seen, Ok(Ok(value)) if value > start) && counter() == start;
        }
        Ok((start, alike && before == children_and_descriptors()))
    })
    .expect("a fork")
    .join()
    .expect("an answer");
    let (start, clean) = told.expect("the vm runs");
    assert!(start > 0, "the program has counted: {start}");
    assert!(
        clean,
        "a copy left something behind or saw another's memory"
    );
}

#[test]
fn a_copy_that_runs_away_or_dies_hurts_nobody() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_path_buf();
    let told: Result<(bool, bool), vm::snapshot::Failed> = vm::snapshot::isolated(move || {
        let mut vm = vm_in_loop(&path)?;
        let limits = Limits {
            instructions: 50_000,
            ..Limits::default()
        };
        let stopped = vm.copy(limits, |vm| Ok(vm.run(None)? == vm::Stop::Limit));
        let limited = matches!(stopped.and_then(|running| running.join()), Ok(Ok(true)));
        let killed = vm.copy(Limits::default(), |_| -> Result<(), vm::Error> {
            std::process::abort()
        });
        let died = matches!(
            killed.and_then(|running| running.join()),
            Err(CopyError::Died(_))
        );
        Ok((limited, died))
    })
    .expect("a fork")
    .join()
    .expect("an answer");
    assert_eq!(told, Ok((true, true)));
}

/// Compiles `source`, records it with this standard input, and runs `body` on
/// a replay that knows its streams.
fn with_replay<R: serde::Serialize + serde::de::DeserializeOwned>(
    source: &str,
    input: &[u8],
    body: impl FnOnce(&mut Vm, &Path) -> Result<R, vm::Error>,
) -> R {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (code, path) = (
        folder.path().join("program.c"),
        folder.path().join("program"),
    );
    std::fs::write(&code, source).expect("the folder can be written");
    std::fs::write(folder.path().join("input"), input).expect("the folder can be written");
    let compiled = Command::new("gcc")
        .args(["-O1", "-static", "-pthread", "-o"])
        .args([&path, &code])
        .status()
        .expect("gcc runs");
    assert!(compiled.success());
    let at = folder.path().join("recording");
    let told: Result<(), vm::snapshot::Failed> = vm::snapshot::isolated(|| {
        // A pipe, so that the input is a stream.
        let mut ends = [0; 2];
        // SAFETY: plain out-parameter, and descriptors of this process, which
        // ends with the recording.
        unsafe {
            libc::pipe(ends.as_mut_ptr());
            libc::write(ends[1], input.as_ptr().cast(), input.len());
            libc::dup2(ends[0], 0);
            libc::close(ends[0]);
            libc::close(ends[1]);
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
            libc::dup2(null, 1);
            libc::close(null);
            let folder = std::ffi::CString::new(folder.path().as_os_str().as_encoded_bytes());
            libc::chdir(folder.unwrap_or_default().as_ptr());
        }
        let program = Program::find(path.as_os_str(), &[])?;
        let mut manifest = manifest(&program);
        manifest.directory = folder.path().as_os_str().as_encoded_bytes().to_vec();
        let recording = Recording::create(&at, manifest)?;
        Vm::record(&recording, &program, ScheduleChoice::default())?.run(None)?;
        Ok(())
    })
    .expect("a fork")
    .join()
    .expect("an answer");
    told.expect("the program is recorded");
    let recording = Recording::open(&at).expect("a recording");
    let index = vm::snapshot::index_inputs(&recording).expect("the recording replays");
    let folder = folder.path().to_path_buf();
    vm::snapshot::isolated(move || {
        let mut vm = Vm::replay(&recording)?;
        vm.mute();
        vm.know_inputs(std::rc::Rc::new(index));
        body(&mut vm, &folder)
    })
    .expect("a fork")
    .join()
    .expect("an answer")
    .expect("the vm runs")
}

/// How a copy of the vm made at this moment stops, and what it writes.
fn captured_after(vm: &mut Vm, count: u64) -> Result<(String, Vec<Captured>), vm::Error> {
    vm.run(Some(race::Moment::new(1, count)))?;
    vm.copy(Limits::default(), |vm| {
        let stop = vm.run(None)?;
        let stop = match stop {
            vm::Stop::Ended(_) => "ended".to_string(),
            other => format!("{other:?}"),
        };
        Ok((stop, vm.captured()))
    })
    .and_then(|running| running.join())
    .map_err(|error| vm::Error::Machine(error.to_string()))?
    .map_err(vm::Error::Machine)
}

const FILES: &str = r#"
    #include <fcntl.h>
    #include <stdio.h>
    #include <string.h>
    #include <sys/stat.h>
    #include <unistd.h>
    int main(void) {
        char back[64] = "";
        struct stat data;
        int in = open("input", O_RDONLY);
        int fd = open("written", O_RDWR | O_CREAT | O_TRUNC, 0600);
        write(fd, "hello ", 6);
        write(fd, "overlay", 7);
        pwrite(fd, "J", 1, 0);
        pread(fd, back, 13, 0);
        fstat(fd, &data);
        lseek(fd, 0, SEEK_END);
        printf("%s %ld ", back, (long)data.st_size);
        memset(back, 0, sizeof back);
        read(in, back, 3);
        read(in, back + 3, 60);
        printf("%s ", back);
        unlink("written");
        printf("%d\n", open("written", O_RDONLY));
        return 0;
    }
"#;

#[test]
fn a_copy_sees_its_own_files_and_leaves_the_hosts_alone() {
    let (text, file, left) = with_replay(FILES, b"from outside", |vm, folder| {
        // What the recorded run left; a copy must not touch it.
        let witness = folder.join("written");
        std::fs::write(&witness, "untouched").expect("the folder can be written");
        // The process that runs the guest gives up its rights before it begins.
        vm.may_read_files();
        let (stop, captured) = captured_after(vm, 1000)?;
        let text = captured
            .iter()
            .find(|output| output.name == "fd 1")
            .map(|output| output.bytes(0, 99))
            .unwrap_or_default();
        let file = captured.iter().any(|output| output.file);
        let left = std::fs::read_to_string(&witness).expect("what was left is there");
        Ok((stop + " " + &String::from_utf8_lossy(&text), file, left))
    });
    assert_eq!(text, "ended Jello overlay 13 from outside -1\n");
    assert!(file, "the removed file is among what was captured");
    assert_eq!(left, "untouched");
}

/// Reads a pipe in other portions than it came in.
const PORTIONS: &str = r#"
    #include <pthread.h>
    #include <stdio.h>
    #include <unistd.h>
    int main(void) {
        char line[9] = "";
        for (volatile int i = 0; i < 20000; i++) {}
        if (read(0, line, 4) == 4) dprintf(1, "<%s>", line);
        if (read(0, line, 3) == 3) dprintf(1, "<%.3s>", line);
        int n = read(0, line, 8);
        dprintf(1, "end %d", n);
        return 0;
    }
"#;

#[test]
fn input_comes_again_byte_by_byte_and_its_end_stays() {
    let text = with_replay(PORTIONS, b"abcdefg", |vm, _| {
        let (stop, captured) = captured_after(vm, 5000)?;
        let text = captured
            .iter()
            .map(|output| String::from_utf8_lossy(&output.bytes(0, 99)).into_owned())
            .collect::<String>();
        Ok(stop + " " + &text)
    });
    assert_eq!(text, "ended <abcd><efg>end 0");
}

/// Reads as long as `more` is set; the recorded run cleared it in time.
const THIRSTY: &str = r#"
    #include <pthread.h>
    #include <unistd.h>
    volatile int *const more = (int *)0x10000000;
    #include <sys/mman.h>
    void *reader(void *unused) {
        char byte;
        do read(0, &byte, 1); while (*more);
        return 0;
    }
    int main(void) {
        pthread_t thread;
        mmap((void *)0x10000000, 4096, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        for (volatile int i = 0; i < 20000; i++) {}
        pthread_create(&thread, 0, reader, 0);
        pthread_join(thread, 0);
        write(1, "done", 4);
        return 0;
    }
"#;

#[test]
fn input_that_runs_out_is_not_a_deadlock() {
    let told = with_replay(THIRSTY, b"x", |vm, _| {
        vm.run(Some(race::Moment::new(1, 80_000)))?;
        let mut stops = Vec::new();
        for more in [0u32, 1] {
            let copy = vm.copy(Limits::default(), |vm| {
                vm::memory::put(0x1000_0000, more)
                    .map_err(|_| vm::Error::Machine("no flag".into()))?;
                let stop = vm.run(None)?;
                Ok(match stop {
                    vm::Stop::Ended(_) => "ended".to_string(),
                    other => format!("{other:?}"),
                })
            });
            let stop = copy.and_then(|running| running.join());
            stops.push(format!("{stop:?}"));
        }
        Ok(stops)
    });
    // The pipe's end was never read: with nothing recorded the reader waits.
    assert_eq!(
        told,
        [r#"Ok(Ok("ended"))"#, r#"Ok(Ok("Stuck { input: true }"))"#]
    );
}

#[test]
fn a_copy_that_eats_memory_is_told_no() {
    const HUNGRY: &str = r#"
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        int main(void) {
            for (volatile int i = 0; i < 20000; i++) {}
            for (int i = 0; i < 64; i++) {
                char *block = malloc(1 << 20);
                if (!block) { write(1, "refused", 7); return 0; }
                memset(block, 1, 1 << 20);
            }
            write(1, "fed", 3);
            return 0;
        }
    "#;
    let texts = with_replay(HUNGRY, b"", |vm, _| {
        vm.run(Some(race::Moment::new(1, 80_000)))?;
        let mut texts = Vec::new();
        for bytes in [2 << 30, 16 << 20] {
            let limits = Limits {
                bytes,
                ..Limits::default()
            };
            let copy = vm.copy(limits, |vm| {
                vm.run(None)?;
                let text = vm
                    .captured()
                    .iter()
                    .map(|output| output.bytes(0, 9))
                    .collect::<Vec<_>>();
                Ok(String::from_utf8_lossy(&text.concat()).into_owned())
            });
            let text = copy.and_then(|running| running.join());
            texts.push(format!("{text:?}"));
        }
        Ok(texts)
    });
    assert_eq!(texts, [r#"Ok(Ok("fed"))"#, r#"Ok(Ok("refused"))"#]);
}

/// Writes code through one mapping and runs it through another, all the time: by
/// stores, by a system call, and in shared anonymous memory.
const ALIASES: &str = r#"
    #define _GNU_SOURCE
    #include <stdio.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <unistd.h>
    static int call(unsigned char *at) { return ((int (*)(void))at)(); }
    int main(void) {
        int fd = memfd_create("code", 0);
        ftruncate(fd, 4096);
        unsigned char *w = mmap(0, 4096, 3, MAP_SHARED, fd, 0);
        unsigned char *x = mmap(0, 4096, 5, MAP_SHARED, fd, 0);
        unsigned char *first = mmap(0, 4096, 3, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        unsigned char *second = mremap(first, 0, 4096, MREMAP_MAYMOVE);
        mprotect(second, 4096, 5);
        int right = 0;
        for (int i = 0; i < 200; i++) {
            unsigned char code[6] = {0xb8, i, 0, 0, 0, 0xc3};
            memcpy(w, code, 6);
            right += call(x) == i;
            code[1] = i + 1;
            pwrite(fd, code, 6, 0);
            right += call(x) == (i + 1) % 256;
            memcpy(first, code, 6);
            right += call(second) == (i + 1) % 256;
        }
        printf("%d", right);
        return 0;
    }
"#;

#[test]
fn a_copy_runs_code_as_it_is_written_through_another_mapping() {
    let seen = with_replay(ALIASES, b"", |vm, _| {
        let mut seen = Vec::new();
        // From the first lines to the middle of the loop.
        for count in [100, 5_000, 20_000, 30_000] {
            let (stop, captured) = captured_after(vm, count)?;
            let bytes = captured
                .iter()
                .find(|output| output.name == "fd 1")
                .map(|output| output.bytes(0, 99))
                .unwrap_or_default();
            seen.push(stop + " " + &String::from_utf8_lossy(&bytes));
        }
        // The replay itself goes on with what was its own.
        seen.push(format!("{:?}", vm.run(None)?));
        Ok(seen)
    });
    for one in &seen[..4] {
        assert_eq!(one, "ended 600");
    }
    assert_eq!(seen[4], "Ended(Exited(0))");
}
