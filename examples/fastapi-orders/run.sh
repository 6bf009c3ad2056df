#!/usr/bin/env bash
# Starts shop, relay and billing, orders twice with one key, shows one order and one invoice, and ends
# everything.
#
#   ./run.sh                          on two SQLite files in a temporary folder
#   ./run.sh postgres://me@db/shop    on this PostgreSQL database, for both services
#
# Uses $HAPAX, or hapax on the PATH, or builds it; $PYTHON, or a virtual environment that it makes.
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

python=${PYTHON:-.venv/bin/python}
if ! "$python" -c 'import fastapi, uvicorn, sqlalchemy, hapax_client' 2>/dev/null; then
    echo "installing requirements.txt into .venv"
    python3 -m venv --clear .venv
    .venv/bin/pip install --quiet --disable-pip-version-check --requirement requirements.txt
    python=.venv/bin/python
fi

if [[ -n ${1:-} ]]; then
    shop_store=$1 billing_store=$1
    shop_database=postgresql+psycopg://${1#*://} billing_database=postgresql+psycopg://${1#*://}
else
    shop_store=sqlite:$work/shop.db billing_store=sqlite:$work/billing.db
    shop_database=sqlite+aiosqlite:///$work/shop.db billing_database=sqlite+aiosqlite:///$work/billing.db
fi

"$hapax" migrate --store "$shop_store"
"$hapax" migrate --store "$billing_store"

read -r shop_port billing_port < <("$python" - <<'PORTS'
import socket
a, b = socket.socket(), socket.socket()
a.bind(("127.0.0.1", 0)); b.bind(("127.0.0.1", 0))
print(a.getsockname()[1], b.getsockname()[1])
PORTS
)
shop=http://127.0.0.1:$shop_port
billing=http://127.0.0.1:$billing_port

DATABASE_URL=$shop_database "$python" -m uvicorn --log-level warning --port "$shop_port" --factory shop:create_app &
pids+=($!)
DATABASE_URL=$billing_database "$python" -m uvicorn --log-level warning --port "$billing_port" --factory billing:create_app &
pids+=($!)
"$hapax" relay --from "$shop_store" --to "$billing/messages" --allow-private --log-level warn &
pids+=($!)

until_true() { for _ in {1..600}; do "$@" && return || sleep 0.1; done; echo "still not: $*" >&2; exit 1; }
answers() { curl --silent --fail --output /dev/null "$1"; }
until_true answers "$shop/orders"
until_true answers "$billing/invoices"

order() {
    curl --silent --include --header 'Idempotency-Key: tea-for-two' \
        --header 'Content-Type: application/json' --data '{"item":"tea","pieces":2}' "$shop/orders"
    echo
}
echo
echo "== the first request makes the order"
order
echo "== the retry gets the same answer"
order
echo "== the orders"
curl --silent "$shop/orders"
echo
has_invoice() { [[ $(curl --silent "$billing/invoices") != "[]" ]]; }
until_true has_invoice
echo "== the invoices"
curl --silent "$billing/invoices"
echo
