#!/usr/bin/env bash
# Builds the image and runs it as compose.yaml does, on a machine without Docker and without a registry of images:
#
#   sudo deploy/run-image.sh [BINARY]      BINARY is target/debug/hapax unless named
#
# Debian's podman, buildah and runc build and run it; mmdebstrap makes the base images from Debian's packages. What
# differs from `docker compose up`:
# - the base images have the names of the Dockerfile and of compose.yaml, and Debian's contents: Redis is the one of Debian;
# - they are Debian 13 where BINARY was built with a newer C library than the one of Debian 12;
# - BINARY is copied where the Dockerfile compiles it: crates are not fetched, and nothing is compiled twice;
# - the limit of open files is the machine's, where it may not be raised to the one of compose.yaml;
# - podman-compose knows no `configs`, so that hapax.toml is mounted as a volume;
# - without systemd podman runs no health check by itself, so that the script asks for it.
# Images, containers and volumes are in a temporary folder, and are gone at the end.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

binary=$(realpath "${1:-target/debug/hapax}")
scratch=$(mktemp -d)
export CONTAINERS_STORAGE_CONF=$scratch/storage.conf CONTAINERS_CONF=$scratch/containers.conf
mkdir "$scratch/compose"

say() { printf '== %s\n' "$*"; }
die() {
    tail -n 20 "$scratch/podman.log" >&2 || true
    printf 'run-image.sh: %s\n' "$*" >&2
    exit 1
}

clean_up() {
    podman rm --all --force --time 0 >/dev/null 2>&1 || true
    podman volume prune --force >/dev/null 2>&1 || true
    podman network prune --force >/dev/null 2>&1 || true
    # Mounts that a killed podman left behind.
    grep -oF "$scratch" /proc/mounts >/dev/null && umount -R "$scratch"/*/* 2>/dev/null || true
    rm -rf "$scratch"
}

install_tools() {
    local missing=()
    for tool in podman buildah runc mmdebstrap iptables curl; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    command -v strip >/dev/null || missing+=(binutils)
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    [[ -x /usr/lib/podman/aardvark-dns ]] || missing+=(aardvark-dns netavark)
    # Not there on Ubuntu.
    [[ -e /usr/share/keyrings/debian-archive-keyring.gpg ]] || missing+=(debian-archive-keyring)
    [[ ${#missing[@]} -eq 0 ]] && return
    say "installing ${missing[*]}"
    apt-get -qq update
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "${missing[@]}" >/dev/null
}

# podman complains of systemd in its log where there is none: then it runs a health check only when it is asked to.
# crun refuses a machine with both versions of cgroups; runc does not. Neither may raise a limit that the
# machine forbids to raise.
configure_podman() {
    open_files=$(ulimit -Hn)
    ((open_files < 65536)) || open_files=65536
    # podman itself goes down to the largest process number, and cannot come up again.
    processes=$(sort -n <(ulimit -Hu) /proc/sys/kernel/pid_max | head -n 1)
    cat >"$scratch/storage.conf" <<END
[storage]
driver = "vfs"
runroot = "$scratch/run"
graphroot = "$scratch/images"
END
    cat >"$scratch/containers.conf" <<END
[containers]
default_ulimits = ["nofile=$open_files:$open_files", "nproc=$processes:$processes"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
[network]
network_config_dir = "$scratch/networks"
END
}

# The name and tag of a base image, as the Dockerfile or compose.yaml has them.
base_of() { sed -nE "s/^(FROM|    image:) ($1:[^ ]+).*/\2/p" deploy/Dockerfile deploy/compose.yaml | head -n 1; }

build() { buildah bud --quiet --isolation chroot --network host --format docker "$@" >/dev/null; }

# The release of Debian whose C library is new enough for the binary.
suite() {
    local newest
    newest=$(objdump --dynamic-syms "$binary" 2>/dev/null | grep -oE 'GLIBC_2\.[0-9]+' | sort --version-sort | tail -n 1) || true
    newest=${newest#GLIBC_2.}
    if ((${newest:-0} > 36)); then echo trixie; else echo bookworm; fi
}

make_bases() {
    say "making the base images from Debian's packages"
    mmdebstrap --quiet --variant=minbase --include=ca-certificates --aptopt='Acquire::Languages "none"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        "$(suite)" "$scratch/base.tar"
    podman import --quiet "$scratch/base.tar" "docker.io/library/$(base_of debian)" >/dev/null
    rm "$scratch/base.tar"
    # In place of the compiler: what it would have compiled.
    mkdir "$scratch/compiler" "$scratch/redis"
    strip -o "$scratch/compiler/hapax" "$binary"
    cat >"$scratch/compiler/cargo" <<'END'
#!/bin/sh
install -D /opt/hapax target/release/hapax
END
    chmod 755 "$scratch/compiler/cargo"
    cat >"$scratch/compiler/Dockerfile" <<END
FROM $(base_of debian)
COPY cargo /usr/local/bin/cargo
COPY hapax /opt/hapax
END
    build --tag "docker.io/library/$(base_of rust)" "$scratch/compiler"
    # As in the official image: clients on other machines need no password.
    printf '#!/bin/sh\nexec /usr/bin/redis-server "$@" --protected-mode no\n' >"$scratch/redis/redis-server"
    chmod 755 "$scratch/redis/redis-server"
    cat >"$scratch/redis/Dockerfile" <<END
FROM $(base_of debian)
RUN apt-get -qq update && apt-get -qq -y --no-install-recommends install redis-server redis-tools >/dev/null
COPY redis-server /usr/local/bin/redis-server
WORKDIR /data
VOLUME /data
END
    build --tag "docker.io/library/$(base_of redis)" "$scratch/redis"
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# ask METHOD PATH [CURL ARGUMENT…]: the answer's status on the last line, its body before.
ask() {
    local method=$1 path=$2
    shift 2
    curl --silent --show-error --max-time 20 --write-out '\n%{http_code}' --request "$method" \
        --header "Authorization: Bearer $token" "$@" "http://127.0.0.1:$port$path"
}

# expect STATUS METHOD PATH …: fails with the answer if its status is another one.
expect() {
    local status=$1 answer
    shift
    answer=$(ask "$@") || die "no answer to $1 $2"
    [[ ${answer##*$'\n'} == "$status" ]] || die "$1 $2 was answered $answer instead of $status"
    printf '%s\n' "${answer%$'\n'*}"
}

wait_until() {
    local what=$1 second
    shift
    for second in $(seq 60); do
        "$@" >/dev/null 2>&1 && return
        sleep 1
    done
    podman logs --tail 30 "$container" >&2 || true
    die "after ${second} s still not: $what"
}

is_ready() { [[ $(ask GET /readyz | tail -n 1) == 200 ]]; }

# A token, and the file with its hash, which the container's user has to read.
make_token() {
    podman run --rm --network none hapax token new --name ops --scope data --scope admin --scope metrics \
        >"$scratch/token" 2>>"$scratch/podman.log" || die "no token"
    token=$(head -n 1 "$scratch/token")
    sed '1,2d' "$scratch/token" >"$scratch/compose/hapax.toml"
    chmod 644 "$scratch/compose/hapax.toml"
    [[ $token == hapax_* ]] || die "no token: $(cat "$scratch/token")"
}

# A container with a file on its volume, with every restriction of compose.yaml.
start_alone() {
    podman run --detach --name "$container" --publish "127.0.0.1:$port:8787" \
        --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --stop-timeout 45 --volume hapax-alone:/data \
        --volume "$scratch/compose/hapax.toml:/etc/hapax/hapax.toml:ro" \
        hapax serve --listen 0.0.0.0:8787 --config /etc/hapax/hapax.toml --log json >>"$scratch/podman.log" 2>&1 ||
        die "it did not start"
    wait_until "ready" is_ready
}

is_restricted() {
    local user status
    user=$(podman exec "$container" id -u)
    [[ $user == 10001 ]] || die "it runs as user $user"
    status=$(podman exec "$container" cat /proc/1/status)
    grep -qE '^CapEff:\s+0+$' <<<"$status" || die "it has capabilities"
    grep -qE '^NoNewPrivs:\s+1$' <<<"$status" || die "it may gain privileges"
    ! podman exec "$container" touch /usr/local/bin/x 2>/dev/null || die "its root can be written"
    podman exec "$container" touch /tmp/x || die "its /tmp cannot be written"
}

run_alone() {
    container=hapax-alone
    port=$(free_port)
    say "one container with a volume"
    start_alone
    is_restricted
    podman healthcheck run "$container" 2>>"$scratch/podman.log" || die "it is not healthy"
    expect 201 POST /v1/locks/before --json '{"ttl_ms":3600000}' >/dev/null
    granted=$(expect 201 POST /v1/commands/pay/1 --json '{}')
    command_token=$(sed -E 's/.*"token":"([^"]+)".*/\1/' <<<"$granted")
    expect 200 PUT /v1/commands/pay/1 --json '{"token":"'"$command_token"'","status":201,"body":"paid"}' >/dev/null

    say "kill -9, and a start on the same volume"
    podman kill --signal KILL "$container" >/dev/null 2>>"$scratch/podman.log"
    podman wait "$container" >/dev/null
    ! podman healthcheck run "$container" 2>/dev/null || die "a dead container is healthy"
    podman rm "$container" >/dev/null 2>>"$scratch/podman.log"
    start_alone
    expect 409 POST /v1/locks/before --json '{"ttl_ms":1000}' >/dev/null
    replayed=$(expect 200 POST /v1/commands/pay/1 --json '{}')
    [[ $replayed == *'"body":"paid"'* ]] || die "the answer is not there: $replayed"

    say "a graceful stop, with a request in flight"
    ask POST /v1/locks/before --json '{"ttl_ms":1000,"wait_ms":15000}' >"$scratch/waited" &
    waiting=$!
    sleep 1
    began=$SECONDS
    podman stop "$container" >/dev/null 2>>"$scratch/podman.log"
    took=$((SECONDS - began))
    ((took < 45)) || die "it took $took s to stop, and was killed"
    code=$(podman inspect --format '{{.State.ExitCode}}' "$container")
    [[ $code == 0 ]] || die "it ended with $code"
    wait "$waiting" || die "the waiting request was cut off"
    say "stopped after $took s with 0; the waiting request was answered $(tail -n 1 "$scratch/waited")"
    podman rm "$container" >/dev/null 2>>"$scratch/podman.log"
}

# compose.yaml itself, its services hapax and redis, by podman-compose.
run_compose() {
    container=hapax-compose
    port=$(free_port)
    python3 -m venv "$scratch/venv" && "$scratch/venv/bin/pip" install --quiet podman-compose==1.6.0 || {
        say "NOT RUN: compose.yaml, because podman-compose could not be installed"
        return 0
    }
    say "compose.yaml by podman-compose"
    cp deploy/compose.yaml "$scratch/compose/"
    # Images are built above; the limit of open files is the machine's; podman-compose ignores `configs`.
    cat >"$scratch/compose/override.yaml" <<END
services:
  hapax:
    pull_policy: never
    ulimits: { nofile: $open_files, nproc: $processes }
    volumes: ["$scratch/compose/hapax.toml:/etc/hapax/hapax.toml:ro"]
END
    export HAPAX_PORT=$port POSTGRES_PASSWORD=x LINE_CHANNEL_SECRET=x LINE_CHANNEL_ACCESS_TOKEN=x
    compose=("$scratch/venv/bin/podman-compose" --file "$scratch/compose/compose.yaml" --file "$scratch/compose/override.yaml")
    "${compose[@]}" up --detach --no-build hapax >"$scratch/up.log" 2>&1 || {
        cat "$scratch/up.log" >&2
        die "podman-compose up failed"
    }
    container=$(podman ps --format '{{.Names}}' | grep hapax_hapax)
    wait_until "ready" is_ready
    is_restricted
    podman healthcheck run "$container" 2>>"$scratch/podman.log" || die "it is not healthy"
    expect 201 POST /v1/locks/before --json '{"ttl_ms":3600000}' >/dev/null
    say "kill -9 of hapax and of Redis, which comes back with its file"
    redis=$(podman ps --format '{{.Names}}' | grep hapax_redis)
    podman kill --signal KILL "$container" "$redis" >/dev/null 2>>"$scratch/podman.log"
    podman start "$redis" "$container" >/dev/null 2>>"$scratch/podman.log"
    wait_until "ready" is_ready
    expect 409 POST /v1/locks/before --json '{"ttl_ms":1000}' >/dev/null
    "${compose[@]}" down --volumes >/dev/null 2>&1 || die "podman-compose down failed"
}

[[ $EUID -eq 0 ]] || die "podman needs root for this; with sudo: sudo deploy/run-image.sh"
[[ -x $binary ]] || die "there is no $binary; cargo build --package hapax-server"
trap clean_up EXIT
install_tools
configure_podman
make_bases
say "building the image"
build --file deploy/Dockerfile --target hapax --tag hapax .
make_token
run_alone
run_compose
say "ok"
