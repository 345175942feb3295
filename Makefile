# deadheat: every target installs what it needs on a Debian 12 machine by
# itself and says so.

.PHONY: build demo test test-all bench

TEST_PACKAGES = gcc g++ make

build:
	@scripts/need gcc
	cargo build --release --workspace

test: build
	@scripts/need $(TEST_PACKAGES)
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --release -- -D warnings
	cargo test --workspace --release
