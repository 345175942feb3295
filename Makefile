# deadheat: every target installs what it needs on a Debian 12 machine by
# itself and says so.

.PHONY: build demo install deb test test-all results bench

PREFIX = /usr/local
DESTDIR =

# The monitor pass is a plugin of exactly this LLVM.
LLVM_PACKAGES = clang-22 llvm-22-dev lld-22
TEST_PACKAGES = gcc g++ make binutils dwz golang-go valgrind libclang-rt-22-dev \
	xz-utils pigz pbzip2 perl sqlite3 gdb

# What the programs of tests/programs/anything come from: the fast cut, and
# the rest.
FAST_PROGRAM_PACKAGES = python3 pypy3 luajit pigz zstd redis-server redis-tools memcached \
	nginx-light curl sqlite3 git nano golang-go
PROGRAM_PACKAGES = $(FAST_PROGRAM_PACKAGES) $(shell sed -n 's/^needs: *//p' \
	tests/programs/anything/*.cases | tr ' ' '\n' | sort -u)

build:
	@scripts/need gcc g++ binutils $(LLVM_PACKAGES)
	cargo build --release --workspace

demo:
	@scripts/need gcc libc6-dev
	cargo build --release -p deadheat
	@mkdir -p target/demo
	gcc -g -pthread examples/tally.c -o target/demo/tally
	$${CARGO_TARGET_DIR:-target}/release/deadheat run --store target/demo/store --quantum 2000 -- target/demo/tally; \
		[ $$? -eq 66 ]

# Installs what `make build` built: make build && sudo make install
install:
	@scripts/need binutils
	scripts/install '$(DESTDIR)' '$(PREFIX)'

deb: build
	@scripts/need dpkg-dev
	scripts/deb

test: build
	@scripts/need $(TEST_PACKAGES) $(FAST_PROGRAM_PACKAGES)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --release -- -D warnings
	cargo test --workspace --release

# Every corpus runs, whatever became of the one before; each writes its row of
# docs/results/test-all.md (scripts/corpus says how).
test-all: test
	@scripts/need chromium python3-jsonschema npm dpkg-dev cmake meson ninja-build redis-server redis-tools memcached bzip2 libbz2-dev python3
	@scripts/corpus --begin
	scripts/corpus differential env DEADHEAT_DIFFERENTIAL_SECONDS=600 cargo test --release -p deadheat --test differential -- --nocapture
	scripts/corpus identity env DEADHEAT_IDENTITY_SEEDS=10 cargo test --release -p deadheat --test identity
	scripts/corpus endings cargo test --release -p deadheat --test endings -- --ignored --nocapture
	scripts/corpus growth bench/growth/run --write
	scripts/corpus "damaged recordings" env DEADHEAT_DAMAGE_ROUNDS=60 cargo test --release -p deadheat --test damage -- --nocapture
	scripts/corpus "mutated recordings" env DEADHEAT_MUTANTS=10000 cargo test --release -p deadheat --test damage mutants -- --nocapture
	scripts/corpus pairs env DEADHEAT_IDENTITY_PAIRS=1000 DEADHEAT_IDENTITY_TABLE=$(CURDIR)/docs/results/pairs.md cargo test --release -p deadheat --test identity
	@scripts/result --stamp docs/results/pairs.md 'make test-all'
	@scripts/need $(PROGRAM_PACKAGES)
	scripts/corpus programs env DEADHEAT_TEST_ALL=1 DEADHEAT_PROGRAMS_TABLE=$(CURDIR)/docs/results/programs.md cargo test --release -p deadheat --test programs
	@scripts/result --stamp docs/results/programs.md 'make test-all'
	scripts/corpus identity-hard env DEADHEAT_IDENTITY_RECORDINGS=25 cargo test --release -p deadheat --test programs
	scripts/corpus "known accesses" env DEADHEAT_TEST_ALL=1 cargo test --release -p deadheat --test known_accesses
	scripts/corpus races env DEADHEAT_TEST_ALL=1 cargo test --release -p deadheat --test races
	scripts/corpus orders cargo test --release -p deadheat --test orders -- --ignored
	scripts/corpus classes cargo test --release -p deadheat --test classes -- --ignored --nocapture
	scripts/corpus "same state" env DEADHEAT_SAME_STATE_PROGRAMS=2000 cargo test --release -p deadheat --test same_state -- --nocapture
	scripts/corpus "memory errors" cargo test --release -p deadheat --test heap -- --ignored
	@scripts/need dpkg-dev libevent-dev libbz2-dev gdb python3
	scripts/corpus applications bench/explore/applications
	@scripts/result --stamp docs/results/applications.md bench/explore/applications
	scripts/corpus "locks of a real program" scripts/check-consequences
	scripts/corpus hunt cargo test --release -p deadheat --test hunt -- --ignored --nocapture
	scripts/corpus "damaged debug info" env DAMAGE_ROUNDS=300 cargo test --release -p symbols --test malformed
	scripts/corpus "random monitored programs" env DEADHEAT_IFR_PROGRAMS=5000 cargo test --release -p deadheat --test ifr_random -- --nocapture
	scripts/corpus "monitored programs" scripts/check-monitored
	scripts/corpus "annotated programs, monitored" cargo test --release -p deadheat --test ifr_programs -- --ignored --nocapture
	scripts/corpus sampling cargo test --release -p deadheat --test sample -- --ignored --test-threads 1
	scripts/corpus "report page" cargo test --release -p report --test page -- --include-ignored --test-threads 1
	scripts/corpus documents cargo test --release -p deadheat --test documents -- --include-ignored --test-threads 1
	scripts/corpus schemas scripts/check-schemas
	scripts/corpus package scripts/check-package
	@scripts/corpus --end

BENCH_PACKAGES = valgrind xz-utils pigz bzip2 perl python3 sqlite3 time dpkg-dev gdb pbzip2 memcached

# The pages of docs/results that take minutes; each says with which command and on
# which commit it was made (scripts/result).
results: build
	@scripts/need $(BENCH_PACKAGES)
	scripts/result docs/results/vm.md bench/vm/run
	scripts/result docs/results/reorder.md bench/reorder/run
	scripts/result docs/results/explore.md bench/explore/run
	scripts/result docs/results/heap.md bench/heap/run
	scripts/result docs/results/report.md bench/report

# Those and all others.
bench: results
	bench/detect/run
	scripts/result docs/results/applications.md bench/explore/applications
	scripts/result docs/results/sample.md bench/sample/run
	scripts/result docs/results/hunt.md bench/hunt/run
	scripts/result docs/results/ifr.md bench/ifr/run
	bench/growth/run --write
