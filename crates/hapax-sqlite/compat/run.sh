#!/usr/bin/env bash
# Proves which SQLite stacks resolve, compile and run in one program with hapax. A program can link SQLite
# only once (`links = "sqlite3"`), so hapax and the stack must agree on a version of it.
#
#   run.sh                all stacks of stacks.txt resolve; those of FEW are compiled and run
#   run.sh --all          all of them are compiled and run
#   run.sh NAME…          only these, compiled and run
#   run.sh --lock NAME…   writes locks/NAME.lock anew
#
# The programs are made in target/sqlite-compat, with one target directory for all of them.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../../.." && pwd)
made=$root/target/sqlite-compat
export CARGO_TARGET_DIR=$made/target
# The oldest SQLite and the newest one, and a stack that has its own bindings. These have lock files.
FEW="sqlx-0.8 rusqlite-0.41 diesel-2.3"

die() {
    echo "compat: $*" >&2
    exit 1
}

# Registries fail now and then.
with_retries() {
    local pause
    for pause in 5 15 45 0; do
        "$@" && return
        sleep "$pause"
    done
    return 1
}

# Prints `name program dependency` of every stack, with | between.
stacks() { grep -v '^#' "$here/stacks.txt" | sed -E 's/ *\| */|/g'; }

make_program() { # name program dependency
    local folder=$made/$1
    mkdir -p "$folder/src"
    cp "$here/programs/$2.rs" "$folder/src/main.rs"
    cp "$here/programs/shared.rs" "$here/programs/in_transaction.rs" "$folder/src/"
    [[ ! -f $here/locks/$1.lock ]] || cp "$here/locks/$1.lock" "$folder/Cargo.lock"
    cat >"$folder/Cargo.toml" <<TOML
[package]
name = "compat-$1"
version = "0.0.0"
edition = "2024"
publish = false

[dependencies]
hapax = { path = "$root/crates/hapax", features = [$([[ $2 != sqlx ]] || echo '"sqlx-sqlite"')] }
tokio = { version = "1", features = ["macros", "rt-multi-thread"] }
$3
$([[ $2 != r2d2_sqlite ]] || echo 'r2d2 = "0.8"')

[profile.dev]
debug = false
incremental = false

[workspace]
TOML
    # A dot is not allowed in the name of a package.
    sed -i "s/^name = .*/name = \"compat-${1//./-}\"/" "$folder/Cargo.toml"
}

# Resolves with the versions of the lock file; fails where hapax and the stack cannot share one SQLite.
resolve() {
    with_retries cargo update --quiet --workspace --manifest-path "$made/$1/Cargo.toml" ||
        die "$1 does not resolve beside hapax"
}

sqlite_of() { sed -n '/^name = "libsqlite3-sys"/{n;s/version = "\(.*\)"/\1/p}' "$made/$1/Cargo.lock"; }

run_program() {
    with_retries cargo fetch --quiet --manifest-path "$made/$1/Cargo.toml" --target "$(rustc --print host-tuple)" ||
        die "$1: its crates cannot be fetched"
    cargo run --quiet --manifest-path "$made/$1/Cargo.toml" </dev/null || die "$1 does not run beside hapax"
}

mode=few
case ${1:-} in
--all) mode=all ;;
--lock) mode=lock && shift ;;
?*) mode=named ;;
esac
names=" $* "
while IFS='|' read -r name program dependency; do
    [[ $mode != named && $mode != lock ]] || [[ $names == *" $name "* || $names == "  " ]] || continue
    [[ $mode != lock ]] || rm -f "$here/locks/$name.lock" "$made/$name/Cargo.lock"
    make_program "$name" "$program" "$dependency"
    resolve "$name"
    echo "$name resolves: libsqlite3-sys $(sqlite_of "$name")"
    case $mode in
    # hapax takes sqlx 0.9 where nothing else is said.
    lock)
        [[ $name != sqlx-0.8 ]] ||
            cargo update --quiet --manifest-path "$made/$name/Cargo.toml" -p sqlx@0.9.0 --precise 0.8.6
        cp "$made/$name/Cargo.lock" "$here/locks/$name.lock"
        ;;
    few) [[ " $FEW " != *" $name "* ]] || run_program "$name" ;;
    *) run_program "$name" ;;
    esac
done < <(stacks)
