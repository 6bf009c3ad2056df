#!/usr/bin/env bash
# Starts the shop and `hapax proxy` in front of it, orders twice with one key, and ends everything.
#
#   ./run.sh             uses $HAPAX, or hapax on the PATH, or builds it
#   ./run.sh --keep      leaves both running until Ctrl-C
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

work=$(mktemp -d)
pids=()
finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT

hapax=${HAPAX:-$(command -v hapax || true)}
if [[ -z $hapax ]]; then
    cargo build --quiet --package hapax-server
    hapax=$(cargo metadata --format-version 1 --no-deps |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')/debug/hapax
fi

if ! .venv/bin/python -c 'import fastapi, uvicorn' 2>/dev/null; then
    echo "installing fastapi and uvicorn into .venv"
    python3 -m venv --clear .venv
    .venv/bin/pip install --quiet --disable-pip-version-check --requirement requirements.txt
fi

read -r app_port proxy_port < <(python3 - <<'PORTS'
import socket
a, b = socket.socket(), socket.socket()
a.bind(("127.0.0.1", 0)); b.bind(("127.0.0.1", 0))
print(a.getsockname()[1], b.getsockname()[1])
PORTS
)
shop=http://127.0.0.1:$app_port
front=http://127.0.0.1:$proxy_port

.venv/bin/uvicorn --log-level warning --port "$app_port" app:app &
pids+=($!)
"$hapax" proxy --upstream "$shop" --listen "127.0.0.1:$proxy_port" \
    --store "sqlite:$work/hapax.db" --log-level warn &
pids+=($!)

up() { curl --silent --fail --output /dev/null "$1/orders"; }
for url in "$shop" "$front"; do
    for _ in {1..600}; do up "$url" && break || sleep 0.1; done
    up "$url" || { echo "nothing answers at $url" >&2; exit 1; }
done

order() {
    curl --silent --include --header 'Idempotency-Key: tea-for-two' \
        --header 'Content-Type: application/json' --data '{"item":"tea","cups":2}' "$front/orders"
    echo
}
echo
echo "== the first request runs"
order
echo "== the retry gets the same answer, and nothing runs"
order
echo "== what the shop has made"
curl --silent "$front/orders"
echo

made=$(curl --silent "$shop/orders" | python3 -c 'import json, sys; print(len(json.load(sys.stdin)))')
if [[ $made != 1 ]]; then
    echo "expected one order, and there are $made" >&2
    exit 1
fi

if [[ ${1:-} == --keep ]]; then
    echo
    echo "the shop is at $shop, the proxy at $front; Ctrl-C ends both"
    wait
fi
