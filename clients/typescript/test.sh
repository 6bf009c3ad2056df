#!/usr/bin/env bash
# Checks the TypeScript package: types, drift from the server's API, tests against the real server on SQLite,
# Redis and PostgreSQL, and the packed tarball in an empty project, from ESM and CommonJS. Needs
# target/debug/hapax and target/debug/with-servers (`cargo build --workspace --bins`).
#
#   clients/typescript/test.sh                     everything
#   clients/typescript/test.sh core                the tests of test/core.test.ts alone
#   clients/typescript/test.sh --update            writes src/schema.ts anew from the server's API
#   clients/typescript/test.sh --pack              only builds target/clients/typescript/hapax-client.tgz
#
# Everything is installed and built in a copy under target/clients/typescript.
#
# Reads:
#   HAPAX_TEST_BIN        the `hapax` binary to test against; default target/debug/hapax
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

source=$PWD
root=$(cd ../.. && pwd)
work=$root/target/clients/typescript
export HAPAX_TEST_BIN=${HAPAX_TEST_BIN:-$root/target/debug/hapax}
export HAPAX_TEST_ROOT=$root
with_servers=${HAPAX_TEST_WITH_SERVERS:-$root/target/debug/with-servers}

die() {
    printf 'clients/typescript/test.sh: %s\n' "$*" >&2
    exit 1
}

# Registries fail now and then. The last try shows what the others kept to themselves.
with_retries() {
    local pause log=$work/install.log
    for pause in 5 15 45 90 0; do
        "$@" >"$log" 2>&1 && return
        printf 'clients/typescript/test.sh: failed, trying again in %s s: %s\n' "$pause" "$*" >&2
        sleep "$pause"
    done
    tail -n 40 "$log" >&2
    die "failed five times: $*"
}

install_dependencies() {
    ! grep -q '"resolved"' package-lock.json || die "package-lock.json names a registry; omit-lockfile-registry-resolved is in .npmrc"
    # An interrupted earlier run leaves no stamp behind.
    cmp -s package-lock.json "$work/installed" && return
    rm -f "$work/installed"
    # A package that this machine has had before is taken from npm's cache: the lock file has its hash.
    with_retries npm ci --prefer-offline --ignore-scripts --no-audit --no-fund --prefix "$work"
    cp package-lock.json "$work/installed"
}

copy_sources() {
    mkdir -p "$work"
    rm -rf "$work"/{src,test,out,dist}
    cp -r src test ./*.json ./*.mjs .npmrc README.md "$work"
}

# The types that follow from the API of this server.
generate_schema() {
    local port log=$work/server.log
    "$HAPAX_TEST_BIN" serve --listen 127.0.0.1:0 --store memory: >"$log" 2>&1 &
    local server=$!
    # shellcheck disable=SC2064
    trap "kill $server 2>/dev/null || true" EXIT
    for _ in $(seq 600); do
        port=$(sed -n 's|.*listens on http://127.0.0.1:\([0-9]*\).*|\1|p' "$log")
        [[ -z $port ]] || break
        kill -0 "$server" 2>/dev/null || die "the server ended: $(cat "$log")"
        sleep 0.1
    done
    node -e 'fetch(process.argv[1]).then((r) => r.text()).then((t) => process.stdout.write(t))' \
        "http://127.0.0.1:$port/openapi.json" >"$work/openapi.json"
    kill "$server"
    trap - EXIT
    (cd "$work" && node generate.mjs openapi.json schema-now.ts)
}

check_drift() {
    generate_schema
    diff -u src/schema.ts "$work/schema-now.ts" ||
        die "src/schema.ts differs from the server's API; look at what changed, then run clients/typescript/test.sh --update"
}

pack() {
    (cd "$work" && node build.mjs && rm -f hapax-client*.tgz && npm pack --silent >/dev/null && mv hapax-client-*.tgz hapax-client.tgz)
}

# Installs the tarball into an empty project and uses it from there.
use_tarball() {
    local empty=$work/empty
    rm -rf "$empty" && mkdir -p "$empty"
    echo '{ "private": true }' >"$empty/package.json"
    # The package has no dependencies, so that no registry is asked.
    (cd "$empty" && npm install --silent --offline --no-audit --no-fund "$work/hapax-client.tgz")
    cp "$source"/test/tarball/* "$empty"
    (cd "$empty" && node use.mjs && node use.cjs && node "$work/node_modules/typescript/bin/tsc" -p .)
}

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then die "install Node.js 18 or later, with npm"; fi
copy_sources
install_dependencies
if [[ ${1:-} == --pack ]]; then
    pack
    exit 0
fi
for binary in "$HAPAX_TEST_BIN" "$with_servers"; do
    [[ -x $binary ]] || die "$binary is missing: cargo build --workspace --bins"
done
if [[ ${1:-} == --update ]]; then
    generate_schema
    cp "$work/schema-now.ts" src/schema.ts
    exit 0
fi
(cd "$work" && node node_modules/typescript/bin/tsc -p tsconfig.json)
[[ $# -gt 0 ]] || check_drift
pack
run_tests() {
    (cd "$work" && "$with_servers" redis postgres -- node --test out/test/${1:-*}.test.js)
}
# In CI tests that need real servers are tried a second time, as the nextest profile `ci` does.
run_tests "$@" || {
    [[ -n ${CI:-} ]] || exit 1
    printf 'clients/typescript/test.sh: FLAKY, or broken: the tests are tried a second time\n' >&2
    run_tests "$@"
}
[[ $# -gt 0 ]] || use_tarball
