#!/bin/sh
# Measures hapax's layer beside that of the crate `idempotent`, and prints the table of docs/benchmarks.md.
# Arguments: --seconds 4, --tasks 64. Everything is built beneath target/peers.
# `idempotent` 2.0.0 asks for Rust 1.98 and builds with older ones too.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
export CARGO_TARGET_DIR="$here/../../target/peers"
cd "$here"
exec cargo run --quiet --release --locked --ignore-rust-version -- "$@"
