#!/usr/bin/env bash
# Checks the Python packages: lints, types, tests against the real server on SQLite, Redis and
# PostgreSQL, and the built wheels in an empty environment. Needs target/debug/hapax and
# target/debug/with-servers (`cargo build --workspace --bins`).
#
#   clients/python/test.sh                 everything
#   clients/python/test.sh -k lock         some tests: the arguments go to pytest
#
# Reads:
#   HAPAX_TEST_BIN           the `hapax` binary to test against; default target/debug/hapax
#   HAPAX_TEST_WITH_SERVERS  starts the stores; default target/debug/with-servers
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

root=$(cd ../.. && pwd)
work=$root/target/clients/python
venv=$work/venv
python=$venv/bin/python
export HAPAX_TEST_BIN=${HAPAX_TEST_BIN:-$root/target/debug/hapax}
with_servers=${HAPAX_TEST_WITH_SERVERS:-$root/target/debug/with-servers}

die() {
    printf 'clients/python/test.sh: %s\n' "$*" >&2
    exit 1
}

# Registries fail now and then.
pip_install() {
    local pause
    for pause in 5 15 45 0; do
        "$1" -m pip install --quiet --disable-pip-version-check "${@:2}" && return
        sleep "$pause"
    done
    die "pip install failed: ${*:2}"
}

# A python3 earlier on the PATH may lack what the system's one has.
python_that_makes_venvs() {
    local candidate
    for candidate in python3 /usr/bin/python3; do
        "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1 && echo "$candidate" && return
    done
    die "no Python that makes venvs (Debian: python3-venv)"
}

make_venv() {
    # An interrupted earlier run leaves no stamp behind.
    if ! cmp -s requirements-test.txt "$work/installed"; then
        rm -rf "$work/installed" "$venv"
        "$(python_that_makes_venvs)" -m venv "$venv"
        pip_install "$python" --requirement requirements-test.txt
        pip_install "$python" --no-deps --no-build-isolation --editable .
        cp requirements-test.txt "$work/installed"
    fi
}

# Builds wheel and sdist of hapax-client, and the wheel of hapax-server around the tested binary.
build_wheels() {
    local built=$work/built/hapax
    REAL_CARGO=$(command -v cargo) || die "cargo is not installed"
    rm -rf "$work/dist"
    "$python" -m build --no-isolation --outdir "$work/dist" . >"$work/build.log" 2>&1 ||
        die "no wheel of hapax-client: $(tail -n 20 "$work/build.log")"
    mkdir -p "$work/built"
    # Without its debug information the binary is packed in seconds.
    strip -o "$built" "$HAPAX_TEST_BIN" || cp "$HAPAX_TEST_BIN" "$built"
    (
        export REAL_CARGO BUILT_HAPAX=$built PATH=$PWD/tests/tools:$PATH CARGO=$PWD/tests/tools/cargo
        cd ../python-server
        "$venv/bin/maturin" build --profile dev --auditwheel skip --compatibility linux --out "$work/dist"
    ) >"$work/build.log" 2>&1 ||
        die "no wheel of hapax-server: $(tail -n 20 "$work/build.log")"
}

# Installs the wheels, and nothing of the repository, into an empty environment.
use_wheels() {
    local empty=$work/empty
    rm -rf "$empty"
    "$(python_that_makes_venvs)" -m venv "$empty"
    pip_install "$empty/bin/python" "$work"/dist/*.whl
    (cd "$work/dist" && "$empty/bin/python" "$root/clients/python/tests/tools/use_wheels.py")
}

for binary in "$HAPAX_TEST_BIN" "$with_servers"; do
    [[ -x $binary ]] || die "$binary is missing: cargo build --workspace --bins"
done
mkdir -p "$work"
make_venv
if [[ $# -gt 0 ]]; then
    exec "$with_servers" redis postgres -- "$python" -m pytest "$@"
fi
"$venv/bin/ruff" check --quiet src tests
"$venv/bin/mypy" --no-error-summary --cache-dir "$work/mypy"
run_tests() {
    "$with_servers" redis postgres -- "$python" -m pytest
}
# In CI tests that need real servers are tried a second time, as the nextest profile `ci` does.
run_tests || {
    [[ -n ${CI:-} ]] || exit 1
    printf 'clients/python/test.sh: FLAKY, or broken: the tests are tried a second time\n' >&2
    run_tests
}
build_wheels
use_wheels
