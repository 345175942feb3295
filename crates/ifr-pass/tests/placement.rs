//! Where monitors start and stop: the examples and figures of paper 004
//! (IFRit) as IR, run through `opt` with the pass, and compared step by step.
//!
//! A function is shown as its interesting steps: `lock`, `unlock`, `load`,
//! `store`, block names, and the pass's `strong`, `weak`, `range`, `stop`.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn plugin() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Beside the test is what this build made of the crate.
    let path = test.with_file_name("libifr_pass.so");
    assert!(
        path.is_file(),
        "{} is missing; cargo build -p ifr-pass makes it",
        path.display()
    );
    path
}

fn optimise(passes: &str, source: &str) -> String {
    optimise_without("", passes, source)
}

/// With parts of the pass left out.
fn optimise_without(parts: &str, passes: &str, source: &str) -> String {
    let mut opt = Command::new("opt-22")
        .env("DEADHEAT_IFR_WITHOUT", parts)
        .arg(format!("-load-pass-plugin={}", plugin().display()))
        .args([&format!("-passes={passes}"), "-S", "-", "-o", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("opt-22 does not run; install the package llvm-22");
    opt.stdin
        .take()
        .unwrap()
        .write_all(source.as_bytes())
        .unwrap();
    let result = opt.wait_with_output().unwrap();
    assert!(
        result.status.success(),
        "{}",
        String::from_utf8_lossy(&result.stderr)
    );
    String::from_utf8(result.stdout).unwrap()
}

const HEAD: &str = "
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare void @unknown()
declare i32 @fprintf(ptr, ptr, ...)
@array = global [1000 x i32] zeroinitializer
";

/// The steps of the one function of `body` after placement.
fn steps(parts: &str, body: &str) -> Vec<String> {
    let text = optimise_without(parts, "deadheat-ifr-place", &format!("{HEAD}{body}"));
    let mut steps = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        inside |= line.starts_with("define ");
        if line.starts_with('}') {
            inside = false;
        }
        if !inside {
            continue;
        }
        let line = line.trim();
        let step = if line.contains("@pthread_mutex_lock") {
            "lock"
        } else if line.contains("@pthread_mutex_unlock") {
            "unlock"
        } else if line.contains("@unknown") {
            "call"
        } else if line.contains("@__deadheat_ifr_mark(") {
            let number = line.rsplit("i64 ").next().unwrap_or_default();
            let number: u64 = number.trim_end_matches(')').parse().unwrap();
            if number >> 16 & 1 == 1 {
                "strong"
            } else {
                "weak"
            }
        } else if line.contains("@__deadheat_ifr_range_mark(") {
            "range"
        } else if line.contains("@__deadheat_ifr_stop_mark(") {
            "stop"
        } else if line.starts_with("store ") {
            "store"
        } else if line.contains("= load ") {
            "load"
        } else if let Some(label) = line.split(':').next().filter(|_| {
            line.contains(':')
                && line.chars().next().is_some_and(char::is_alphabetic)
                && !line.contains(' ')
        }) {
            steps.push(format!("{label}:"));
            continue;
        } else if let Some((label, _)) = line.split_once(":  ") {
            steps.push(format!("{label}:"));
            continue;
        } else {
            continue;
        };
        steps.push(step.to_string());
    }
    steps
}

fn check(body: &str, expected: &str) {
    check_without("", body, expected);
}

fn check_without(parts: &str, body: &str, expected: &str) {
    let found = steps(parts, body).join(" ");
    assert_eq!(
        found,
        expected.split_whitespace().collect::<Vec<_>>().join(" ")
    );
}

#[test]
fn first_example_one_monitor_for_a_loop_of_writes() {
    check(
        "define void @f(ptr %m, ptr %x, i32 %n) mustprogress {
entry:
  call i32 @pthread_mutex_lock(ptr %m)
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %j, %loop ]
  store i32 %i, ptr %x, align 4
  %j = add i32 %i, 1
  %c = icmp slt i32 %j, %n
  br i1 %c, label %loop, label %done
done:
  call i32 @pthread_mutex_unlock(ptr %m)
  ret void
}",
        "entry: lock strong loop: store done: unlock",
    );
}

#[test]
fn second_example_locks_inside_the_loop_do_not_end_the_region() {
    // The monitor before the loop covers the first accesses; after each unlock
    // it is started again because the next write is certain.
    check(
        "define void @f(ptr %m, ptr %x, i32 %n) mustprogress {
entry:
  store i32 1, ptr %x, align 4
  br label %loop
loop:
  %i = phi i32 [ 0, %entry ], [ %j, %loop ]
  store i32 %i, ptr %x, align 4
  call i32 @pthread_mutex_lock(ptr %m)
  call i32 @pthread_mutex_unlock(ptr %m)
  %j = add i32 %i, 1
  %c = icmp slt i32 %j, %n
  br i1 %c, label %loop, label %done
done:
  store i32 2, ptr %x, align 4
  ret void
}",
        "entry: strong store loop: store lock unlock strong done: store",
    );
}

#[test]
fn figure_1_a_read_between_acquires_and_releases() {
    // From after the last acquire to before the next release; acquires after
    // the access change nothing.
    check(
        "define i32 @f(ptr %m, ptr %x) {
entry:
  call i32 @pthread_mutex_lock(ptr %m)
  call i32 @pthread_mutex_unlock(ptr %m)
  call i32 @pthread_mutex_unlock(ptr %m)
  %v = load i32, ptr %x, align 4
  call i32 @pthread_mutex_lock(ptr %m)
  call i32 @pthread_mutex_unlock(ptr %m)
  ret i32 %v
}",
        "entry: lock weak unlock weak unlock weak load lock unlock",
    );
}

#[test]
fn figure_4a_nothing_starts_before_a_branch_that_may_miss_the_access() {
    check(
        "define void @f(ptr %x, i1 %c) {
entry:
  br i1 %c, label %then, label %done
then:
  store i32 1, ptr %x, align 4
  br label %done
done:
  ret void
}",
        "entry: then: strong store done:",
    );
}

#[test]
fn figure_4b_one_monitor_for_several_reads() {
    check(
        "define i32 @f(ptr %x, i1 %c) {
entry:
  %a = load i32, ptr %x, align 4
  br i1 %c, label %then, label %done
then:
  %b = load i32, ptr %x, align 4
  br label %done
done:
  %d = load i32, ptr %x, align 4
  ret i32 %d
}",
        "entry: weak load then: load done: load",
    );
}

#[test]
fn both_branches_write_so_the_monitor_starts_before_them() {
    check(
        "define void @f(ptr %x, i1 %c) {
entry:
  br i1 %c, label %one, label %two
one:
  store i32 1, ptr %x, align 4
  ret void
two:
  store i32 2, ptr %x, align 4
  ret void
}",
        "entry: strong one: store two: store",
    );
}

#[test]
fn one_branch_reads_so_the_monitor_is_weak_and_strengthened_later() {
    check(
        "define void @f(ptr %x, i1 %c) {
entry:
  br i1 %c, label %one, label %two
one:
  store i32 1, ptr %x, align 4
  ret void
two:
  %v = load i32, ptr %x, align 4
  ret void
}",
        "entry: weak one: strong store two: load",
    );
}

#[test]
fn figure_5a_a_strong_monitor_survives_a_release() {
    check(
        "define void @f(ptr %m, ptr %x) {
entry:
  call i32 @pthread_mutex_lock(ptr %m)
  store i32 1, ptr %x, align 4
  call i32 @pthread_mutex_unlock(ptr %m)
  store i32 2, ptr %x, align 4
  call i32 @pthread_mutex_lock(ptr %m)
  call i32 @pthread_mutex_unlock(ptr %m)
  ret void
}",
        "entry: lock strong store unlock strong store lock unlock",
    );
}

#[test]
fn figure_5b_a_strong_monitor_is_downgraded_at_a_release() {
    check(
        "define i32 @f(ptr %m, ptr %x) {
entry:
  call i32 @pthread_mutex_lock(ptr %m)
  store i32 1, ptr %x, align 4
  call i32 @pthread_mutex_unlock(ptr %m)
  %v = load i32, ptr %x, align 4
  call i32 @pthread_mutex_lock(ptr %m)
  call i32 @pthread_mutex_unlock(ptr %m)
  ret i32 %v
}",
        "entry: lock strong store unlock weak load lock unlock",
    );
}

#[test]
fn unknown_calls_end_the_search_and_quiet_ones_do_not() {
    check(
        "define void @f(ptr %x, ptr %y) {
entry:
  call void @unknown()
  store i32 1, ptr %x, align 4
  call void @unknown() nosync nounwind willreturn
  store i32 1, ptr %y, align 4
  ret void
}",
        "entry: call strong strong store call store",
    );
}

#[test]
fn an_array_walk_is_one_range_and_vectorises() {
    let body = "define void @f(i32 %v) mustprogress {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %p = getelementptr inbounds [1000 x i32], ptr @array, i64 0, i64 %i
  store i32 %v, ptr %p, align 4
  %j = add nuw nsw i64 %i, 1
  %c = icmp eq i64 %j, 1000
  br i1 %c, label %done, label %loop
done:
  ret void
}";
    check(body, "entry: range loop: store done:");
    let text = optimise(
        "default<O2>",
        &format!("target triple = \"x86_64-pc-linux-gnu\"\n{HEAD}{body}"),
    );
    assert!(text.contains("store <4 x i32>"), "not vectorised:\n{text}");
    assert!(text.contains("@__deadheat_ifr_range("), "no range:\n{text}");
}

#[test]
fn a_walk_that_synchronises_inside_is_not_a_range() {
    check(
        "define void @f(ptr %m, i64 %n) mustprogress {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  call i32 @pthread_mutex_lock(ptr %m)
  %p = getelementptr inbounds [1000 x i32], ptr @array, i64 0, i64 %i
  store i32 1, ptr %p, align 4
  call i32 @pthread_mutex_unlock(ptr %m)
  %j = add nuw nsw i64 %i, 1
  %c = icmp eq i64 %j, %n
  br i1 %c, label %done, label %loop
done:
  ret void
}",
        "entry: loop: lock strong store unlock done:",
    );
}

#[test]
fn atomics_by_their_order() {
    check(
        "define void @f(ptr %flag, ptr %x) {
entry:
  store i32 1, ptr %x, align 4
  store atomic i32 1, ptr %flag monotonic, align 4
  store i32 2, ptr %x, align 4
  store atomic i32 1, ptr %flag release, align 4
  ret void
}",
        "entry: strong store store store stop store",
    );
    check(
        "define i32 @f(ptr %flag, ptr %x) {
entry:
  %a = load atomic i32, ptr %flag acquire, align 4
  %b = load i32, ptr %x, align 4
  fence release
  ret i32 %b
}",
        "entry: load weak load stop",
    );
}

#[test]
fn a_loop_that_may_hang_ends_the_search() {
    // Without `mustprogress` the loop may run for ever and the write after it
    // may never come.
    check(
        "define void @f(ptr %x, ptr %y) {
entry:
  br label %loop
loop:
  %v = load i32, ptr %y, align 4
  %c = icmp eq i32 %v, 0
  br i1 %c, label %loop, label %done
done:
  store i32 1, ptr %x, align 4
  ret void
}",
        "entry: loop: weak load done: strong store",
    );
}

#[test]
fn what_stays_in_the_function_and_what_nobody_writes_is_not_monitored() {
    check(
        "@table = constant [4 x i32] zeroinitializer
define i32 @f(i64 %i) {
entry:
  %local = alloca i32, align 4
  store i32 1, ptr %local, align 4
  %p = getelementptr [4 x i32], ptr @table, i64 0, i64 %i
  %a = load i32, ptr %p, align 4
  %b = load i32, ptr %local, align 4
  %s = add i32 %a, %b
  ret i32 %s
}",
        "entry: store load load",
    );
}

#[test]
fn neighbouring_fields_are_one_monitor() {
    check(
        "define i64 @f(ptr %x) {
entry:
  %a = load i32, ptr %x, align 8
  %q = getelementptr i8, ptr %x, i64 4
  %b = load i32, ptr %q, align 4
  %r = getelementptr i8, ptr %x, i64 8
  %c = load i64, ptr %r, align 8
  ret i64 %c
}",
        "entry: weak load load load",
    );
}

#[test]
fn lowering_twice_changes_nothing() {
    let body =
        format!("{HEAD}define void @f(ptr %x) {{\n  store i32 1, ptr %x, align 4\n  ret void\n}}");
    let once = optimise("deadheat-ifr", &body);
    let twice = optimise("deadheat-ifr,deadheat-ifr", &body);
    assert_eq!(
        once.matches("@__deadheat_ifr_start(").count(),
        twice.matches("@__deadheat_ifr_start(").count()
    );
    assert!(once.contains("call preserve_mostcc void @__deadheat_ifr_start("));
}

#[test]
fn figure_2_regions_reach_over_acquires_after_and_releases_before() {
    // The writer's region reaches from its last acquire over the release before
    // the write; the reader's goes on over acquires after the read.
    check(
        "define void @f(ptr %m, ptr %x) {
entry:
  call i32 @pthread_mutex_lock(ptr %m)
  call i32 @pthread_mutex_unlock(ptr %m)
  store i32 1, ptr %x, align 4
  call i32 @pthread_mutex_lock(ptr %m)
  ret void
}",
        "entry: lock strong unlock strong store lock",
    );
    check(
        "define i32 @f(ptr %m, ptr %x) {
entry:
  call i32 @pthread_mutex_unlock(ptr %m)
  %v = load i32, ptr %x, align 4
  call i32 @pthread_mutex_lock(ptr %m)
  call i32 @pthread_mutex_lock(ptr %m)
  call i32 @pthread_mutex_unlock(ptr %m)
  ret i32 %v
}",
        "entry: weak unlock weak load lock lock unlock",
    );
}

#[test]
fn figure_3_a_critical_section_is_a_region_of_its_own() {
    // Nothing starts before the acquire and nothing again after the release.
    for (access, monitor) in [
        ("store i32 1, ptr %x, align 4", "strong store"),
        ("%v = load i32, ptr %x, align 4", "weak load"),
    ] {
        check(
            &format!(
                "define void @f(ptr %m, ptr %x) {{
entry:
  call i32 @pthread_mutex_lock(ptr %m)
  {access}
  call i32 @pthread_mutex_unlock(ptr %m)
  ret void
}}"
            ),
            &format!("entry: lock {monitor} unlock"),
        );
    }
}

#[test]
fn each_part_can_be_left_out() {
    let quiet_call = "define void @f(ptr %x, ptr %y) {
entry:
  store i32 1, ptr %x, align 4
  call void @unknown() nosync nounwind willreturn
  store i32 1, ptr %y, align 4
  ret void
}";
    check(quiet_call, "entry: strong strong store call store");
    check_without(
        "summaries",
        quiet_call,
        "entry: strong store call strong store",
    );
    let library_call = "declare i64 @strlen(ptr)
define void @f(ptr %x, ptr %y) {
entry:
  store i32 1, ptr %x, align 4
  %n = call i64 @strlen(ptr %y)
  store i32 1, ptr %y, align 4
  ret void
}";
    check(library_call, "entry: strong strong store store");
    check_without("library", library_call, "entry: strong store strong store");
    let walk = "define void @f() mustprogress {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %p = getelementptr inbounds [1000 x i32], ptr @array, i64 0, i64 %i
  store i32 1, ptr %p, align 4
  %j = add nuw nsw i64 %i, 1
  %c = icmp eq i64 %j, 1000
  br i1 %c, label %done, label %loop
done:
  ret void
}";
    check(walk, "entry: range loop: store done:");
    check_without("ranges", walk, "entry: loop: strong store done:");
    let local = "define i32 @f() {
entry:
  %local = alloca i32, align 4
  store i32 1, ptr %local, align 4
  %b = load i32, ptr %local, align 4
  ret i32 %b
}";
    check(local, "entry: store load");
    check_without("escape", local, "entry: strong store load");
}

#[test]
fn a_used_up_site_is_passed_by_without_a_call() {
    // The share is asked for before the shadow is read, and past it is where
    // the access is.
    let body =
        format!("{HEAD}define void @f(ptr %x) {{\n  store i64 1, ptr %x, align 8\n  ret void\n}}");
    let text = optimise("deadheat-ifr", &body);
    let function = text.split("define void @f").nth(1).unwrap();
    let share = function.find("icmp ult i64").expect("no test of the share");
    let shadow = function.find("inttoptr").expect("no shadow is read");
    let call = function.find("@__deadheat_ifr_start(").unwrap();
    assert!(share < shadow && shadow < call, "{function}");
}

/// A check cuts the block it stands in. No local variable may lie behind the cut:
/// it would no longer be in the first block.
#[test]
fn variables_stay_in_the_first_block() {
    let text = optimise(
        "deadheat-ifr",
        "declare void @fill(ptr)
         @shared = global i64 0
         define void @work(ptr %p) {
           %before = alloca i64
           store i64 1, ptr @shared
           %after = alloca i64
           call void @fill(ptr %before)
           call void @fill(ptr %after)
           ret void
         }",
    );
    let body = text.split("define void @work").nth(1).unwrap();
    let first: Vec<&str> = body
        .lines()
        .skip(1)
        .take_while(|line| line.contains("alloca"))
        .collect();
    assert_eq!(first.len(), 2, "{text}");
}

/// An atomic access reads the slot before it and calls the run-time after it.
#[test]
fn atomic_accesses_look_for_plain_ones() {
    let text = optimise(
        "deadheat-ifr",
        "@counted = global i64 0
         define i64 @count() {
           %old = atomicrmw add ptr @counted, i64 1 seq_cst
           ret i64 %old
         }",
    );
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}: {text}"));
    assert!(at("load volatile i64") < at("atomicrmw add"));
    assert!(at("atomicrmw add") < at("call preserve_mostcc void @__deadheat_ifr_atomic("));
}
