//! What translated code notes by itself must be what the detector would note:
//! random programs, each detected with and without it, and while it is recorded,
//! give the same report.
//!
//! Threads of such a program access bytes, words and vectors at odd places of a
//! few areas, mostly under the area's lock, sometimes not, and hand areas on, so
//! that granules are shared by threads, by epochs and by bytes.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// More with DEADHEAT_TEST_ALL.
const PROGRAMS: u64 = 16;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

const HEAD: &str = "\
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <string.h>
static unsigned char area[4][48] __attribute__((aligned(16)));
static pthread_mutex_t lock[4] = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER,
    PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER};
static sem_t turn[4];
static volatile uint64_t sink;
#define READ(type, i, at) do { type v; memcpy(&v, area[i] + (at), sizeof v); use(&v); } while (0)
#define WRITE(type, i, at) do { type v; memset(&v, i + at, sizeof v); memcpy(area[i] + (at), &v, sizeof v); } while (0)
typedef struct { uint64_t a, b; } wide;
static __attribute__((noinline)) void use(void *p) { __asm__ volatile(\"\" : : \"r\"(p) : \"memory\"); }
";

fn program(seed: u64) -> String {
    let mut random = Random(seed);
    let mut text = String::from(HEAD);
    let threads = 2 + random.below(3);
    for thread in 0..threads {
        let _ = writeln!(text, "static void *work{thread}(void *unused) {{");
        let _ = writeln!(text, "    for (int round = 0; round < 2; round++) {{");
        for _ in 0..4 + random.below(8) {
            let which = random.below(4);
            let guarded = random.below(20) != 0;
            if guarded {
                let _ = writeln!(text, "        pthread_mutex_lock(&lock[{which}]);");
            }
            for _ in 0..1 + random.below(6) {
                let kind = ["READ", "WRITE"][random.below(2) as usize];
                let width = ["uint8_t", "uint16_t", "uint32_t", "uint64_t", "wide"]
                    [random.below(5) as usize];
                let at = random.below(32);
                let _ = writeln!(text, "        {kind}({width}, {which}, {at});");
            }
            if guarded {
                let _ = writeln!(text, "        pthread_mutex_unlock(&lock[{which}]);");
            }
            if random.below(6) == 0 {
                let _ = writeln!(text, "        sem_post(&turn[{}]);", random.below(4));
                let _ = writeln!(text, "        sem_trywait(&turn[{}]);", random.below(4));
            }
        }
        let _ = writeln!(text, "    }}\n    return unused;\n}}");
    }
    let _ = writeln!(text, "int main(void) {{\n    pthread_t all[{threads}];");
    let _ = writeln!(
        text,
        "    for (int i = 0; i < 4; i++) sem_init(&turn[i], 0, 0);"
    );
    for thread in 0..threads {
        let _ = writeln!(
            text,
            "    pthread_create(&all[{thread}], 0, work{thread}, 0);"
        );
    }
    let _ = writeln!(
        text,
        "    for (int i = 0; i < {threads}; i++) pthread_join(all[i], 0);\n}}"
    );
    text
}

/// The report of a recording, without what names the command.
fn detected(recording: &Path, options: &[&str]) -> serde_json::Value {
    let output = Command::new(env!("CARGO_BIN_EXE_deadheat"))
        .args(["detect", "--no-store", "--json"])
        .args(options)
        .arg(recording)
        .output()
        .unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    })
}

#[test]
fn nothing_is_lost_by_noting_accesses_where_they_are_made() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("known_accesses");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let programs = match std::env::var_os("DEADHEAT_TEST_ALL") {
        Some(_) => 20 * PROGRAMS,
        None => PROGRAMS,
    };
    let mut racy = 0;
    for seed in 0..programs {
        let source = folder.join(format!("{seed}.c"));
        let executable = folder.join(format!("{seed}.exe"));
        std::fs::write(&source, program(seed)).unwrap();
        let level = ["-O0", "-O2"][(seed % 2) as usize];
        let built = Command::new("gcc")
            .args(["-g", level, "-pthread", "-w"])
            .arg(&source)
            .arg("-o")
            .arg(&executable)
            .status()
            .unwrap();
        assert!(built.success(), "{} compiles", source.display());
        let recording = folder.join(format!("{seed}.recording"));
        let recorded = Command::new(env!("CARGO_BIN_EXE_deadheat"))
            .args(["run", "--no-classify", "--no-store", "--quantum", "500"])
            .args(["--seed", &seed.to_string(), "--json", "-o"])
            .arg(&recording)
            .arg("--")
            .arg(&executable)
            .output()
            .unwrap();
        let at_once: serde_json::Value = serde_json::from_slice(&recorded.stdout)
            .unwrap_or_else(|error| panic!("{} is recorded: {error}", source.display()));
        let quick = detected(&recording, &[]);
        let all = detected(&recording, &["--tell-all"]);
        assert_eq!(
            quick["races"],
            all["races"],
            "deadheat detect {0} and deadheat detect --tell-all {0} differ",
            recording.display()
        );
        assert_eq!(
            quick["races"],
            at_once["races"],
            "deadheat detect {} and the run that recorded it differ",
            recording.display()
        );
        racy += usize::from(!all["races"].as_array().unwrap().is_empty());
    }
    assert!(racy > 0, "some of the programs are racy");
    std::fs::remove_dir_all(&folder).unwrap();
}
