# deadheat: every target installs what it needs on a Debian 12 machine by
# itself and says so.

.PHONY: build demo test test-all bench

# The monitor pass is a plugin of exactly this LLVM.
LLVM_PACKAGES = clang-22 llvm-22-dev lld-22
TEST_PACKAGES = gcc g++ make binutils dwz golang-go valgrind libclang-rt-22-dev \
	xz-utils pigz pbzip2 perl sqlite3

build:
	@scripts/need gcc g++ binutils $(LLVM_PACKAGES)
	cargo build --release --workspace

demo:
	@scripts/need gcc libc6-dev
	cargo build --release -p deadheat
	@mkdir -p target/demo
	gcc -g -pthread examples/tally.c -o target/demo/tally
	target/release/deadheat run --store target/demo/store --quantum 2000 -- target/demo/tally; \
		[ $$? -eq 66 ]

test: build
	@scripts/need $(TEST_PACKAGES)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --release -- -D warnings
	cargo test --workspace --release

test-all: test
	@scripts/need chromium python3-jsonschema redis-server redis-tools memcached bzip2
	DEADHEAT_DIFFERENTIAL_SECONDS=1800 cargo test --release -p deadheat --test differential
	DEADHEAT_IDENTITY_SEEDS=10 cargo test --release -p deadheat --test identity
	DEADHEAT_TEST_ALL=1 cargo test --release -p deadheat --test races
	cargo test --release -p deadheat --test classes -- --ignored
	DAMAGE_ROUNDS=300 cargo test --release -p symbols --test malformed
	DEADHEAT_IFR_PROGRAMS=5000 cargo test --release -p deadheat --test ifr_random -- --nocapture
	cargo test --release -p deadheat --test sample -- --ignored --test-threads 1
	cargo test --release -p report --test page -- --include-ignored --test-threads 1

bench: build
	@scripts/need valgrind xz-utils pigz bzip2 perl python3 sqlite3 time dpkg-dev
	bench/vm/run
	bench/report
	bench/sample/run
	bench/ifr/run
