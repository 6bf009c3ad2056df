#!/usr/bin/env bash
# Fuzzes every target; ends with an error at the first crash.
#
#   fuzz/run.sh             a fixed seed and a fixed number of inputs: the same run every time
#   fuzz/run.sh SECONDS     new inputs for SECONDS on each target
#
# cargo-fuzz is installed if it is missing. It needs a C++ compiler, and no nightly toolchain:
# RUSTC_BOOTSTRAP lets the stable one build with a sanitizer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

if [ -n "${1:-}" ]; then
    amount=(-max_total_time="$1")
else
    amount=(-seed=1 -runs=100000)
fi
export RUSTC_BOOTSTRAP=1

if ! cargo fuzz --version >/dev/null 2>&1; then
    cargo install cargo-fuzz --locked
fi

for target in targets/*.rs; do
    name=$(basename "$target" .rs)
    mkdir -p "corpus/$name"
    cargo fuzz run --fuzz-dir . --target-dir ../target/fuzz "$name" \
        "corpus/$name" "seeds/$name" -- \
        "${amount[@]}" -timeout=60 -rss_limit_mb=2048 -max_len=4096 -verbosity=0 -print_final_stats=1
done
