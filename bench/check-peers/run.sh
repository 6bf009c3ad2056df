#!/bin/sh
# Runs `hapax check` on hapax and on other products, and prints the tables of docs/comparison.md.
# Everything is built and installed beneath target/peers. Needs cargo (with a toolchain that `idempotent` accepts in
# PEERS_TOOLCHAIN), npm, python3 and redis-server.
# Arguments are names of targets; without any, all of them run.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
peers=$root/target/peers
mkdir -p "$peers/node"
(cd "$root" && cargo build --quiet --package hapax-server --package example-check-target)
export CARGO_TARGET_DIR="$peers" RUSTUP_TOOLCHAIN="${PEERS_TOOLCHAIN:-1.98.0}"

(cd "$here/rust" && cargo build --quiet)
cargo install --quiet --debug --locked --root "$peers/installed" idempotent-proxy-server --version 1.2.2
cp "$here"/node/*.mjs "$here/node/package.json" "$peers/node/"
(cd "$peers/node" && npm install --silent --no-audit --no-fund --ignore-scripts)
[ -e "$peers/python/bin/python" ] || python3 -m venv "$peers/python"
"$peers/python/bin/pip" install --quiet --requirement "$here/python/requirements.txt"

BUILT="$root/target/debug" exec python3 "$here/compare.py" "$peers" "$@"
