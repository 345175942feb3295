//! Programs people have, recorded and replayed: output and exit code must be
//! what the native run gives, twice.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const DEADHEAT: &str = env!("CARGO_BIN_EXE_deadheat");

struct Bench {
    folder: tempfile::TempDir,
}

fn output(command: &mut Command, folder: &Path) -> Output {
    command
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("the program starts")
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // Text that compresses, sorts and parses: the sources themselves.
        let mut text = Vec::new();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vm/src");
        let mut paths: Vec<PathBuf> = std::fs::read_dir(sources)
            .expect("the sources are there")
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.is_file())
            .collect();
        paths.sort();
        for path in paths {
            text.extend(std::fs::read(path).expect("a source can be read"));
        }
        std::fs::write(folder.path().join("text"), text).expect("the folder can be written");
        Bench { folder }
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).expect("the folder can be written");
    }

    /// Native, recorded and replayed: all alike.
    fn check(&self, words: &[&str]) {
        let folder = self.folder.path();
        let native = output(Command::new(words[0]).args(&words[1..]), folder);
        let recording = folder.join("recording");
        let _ = std::fs::remove_dir_all(&recording);
        let recorded = output(
            Command::new(DEADHEAT)
                .args(["record", "-o"])
                .arg(&recording)
                .arg("--")
                .args(words),
            folder,
        );
        let replayed = output(Command::new(DEADHEAT).arg("replay").arg(&recording), folder);
        for (what, run) in [("record", &recorded), ("replay", &replayed)] {
            assert!(
                run.status == native.status && run.stdout == native.stdout,
                "deadheat {what} -- {}: {} instead of {}, {} bytes of output instead of {}\n{}",
                words.join(" "),
                run.status,
                native.status,
                run.stdout.len(),
                native.stdout.len(),
                String::from_utf8_lossy(&run.stderr)
            );
        }
        assert!(
            recorded.stderr == replayed.stderr,
            "deadheat replay -- {}: standard error differs\n{}\n{}",
            words.join(" "),
            String::from_utf8_lossy(&recorded.stderr),
            String::from_utf8_lossy(&replayed.stderr)
        );
    }
}

#[test]
fn shells_and_lists() {
    let bench = Bench::new();
    bench.check(&[
        "bash",
        "-c",
        "for i in 1 2 3; do echo $i | cat; done; (exit 3)",
    ]);
    bench.check(&[
        "bash",
        "-c",
        "wc -l < text; sort text | uniq -c | sort -n | tail -3",
    ]);
    bench.check(&["ls", "-lR", "/usr/share/doc/bash"]);
    bench.file("script.sh", "#!/bin/sh\necho \"$0 $1\"\nexit 4\n");
    bench.check(&["sh", "script.sh", "word"]);
}

#[test]
fn compressors() {
    let bench = Bench::new();
    bench.check(&["gzip", "-c", "text"]);
    bench.check(&["xz", "-T2", "-1", "-c", "text"]);
    bench.check(&["pigz", "-p2", "-c", "text"]);
    bench.check(&["pbzip2", "-p2", "-c", "text"]);
}

#[test]
fn interpreters() {
    let bench = Bench::new();
    bench.check(&[
        "perl",
        "-ne",
        "$n += length; END { print \"$n\\n\" }",
        "text",
    ]);
    bench.file(
        "threads.py",
        "import threading, queue\n\
         q = queue.Queue()\n\
         def work(n):\n    for i in range(200): q.put(n * i)\n\
         ts = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n\
         [t.start() for t in ts]; [t.join() for t in ts]\n\
         print(sum(q.get() for _ in range(800)))\n",
    );
    bench.check(&["/usr/bin/python3", "threads.py"]);
    bench.file(
        "script.sql",
        "create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n \
         where i < 5000) insert into t select i, i * 7 % 100 from n; \
         select b, count(*), sum(a) from t group by b order by 3 desc limit 5;\n",
    );
    bench.check(&["sqlite3", ":memory:", ".read script.sql"]);
}

#[test]
fn sorting_and_compiling() {
    let bench = Bench::new();
    bench.check(&["sort", "--parallel=2", "-S", "1M", "text"]);
    bench.file(
        "unit.c",
        "#include <stdio.h>\nint main(void) { return puts(\"hi\") < 0; }\n",
    );
    bench.check(&["gcc", "-c", "unit.c", "-o", "unit.o"]);
    bench.check(&["gcc", "-fsyntax-only", "missing.c"]);
}
