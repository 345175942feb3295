# deadheat: every target installs what it needs on a Debian 12 machine by
# itself and says so.

.PHONY: build demo test test-all bench

TEST_PACKAGES = gcc g++ make $(LLVM_PACKAGES) libclang-rt-22-dev
# The monitor pass is a plugin of exactly this LLVM.
LLVM_PACKAGES = clang-22 llvm-22-dev lld-22

build:
	@scripts/need gcc g++ binutils $(LLVM_PACKAGES)
	cargo build --release --workspace

test: build
	@scripts/need $(TEST_PACKAGES)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --release -- -D warnings
	cargo test --workspace --release

test-all: test
	DEADHEAT_IFR_PROGRAMS=5000 cargo test --release -p deadheat --test ifr_random -- --nocapture

bench: build
	bench/ifr/run
