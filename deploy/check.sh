#!/usr/bin/env bash
# Checks of this folder what can be checked without a container engine. ./test.sh runs it at its end, when what it
# needs is there: the linters in target/py, promtool, systemd-analyze, redis-server, and the programs in target/debug.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

tools=$PWD/../target/py/bin
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$tools/check-jsonschema" --builtin-schema vendor.compose-spec compose.yaml

# Compose's own opinion, where it is installed: it needs no engine for that.
if docker compose version >/dev/null 2>&1; then
    env POSTGRES_PASSWORD=x LINE_CHANNEL_SECRET=x LINE_CHANNEL_ACCESS_TOKEN=x \
        docker compose --file compose.yaml --profile gateway config --quiet
    echo "ok -- docker compose config"
fi

PATH=$PATH:$PWD/../target/promtool
if command -v promtool >/dev/null; then
    promtool check rules --lint-fatal alerts.yaml
    promtool test rules alerts.test.yaml
    # promtool knows no dashboards: their queries are checked as rules.
    "$tools/python" -c '
import json
targets = [target for panel in json.load(open("grafana.json"))["panels"] for target in panel.get("targets", [])]
rules = [{"record": f"query:{number}", "expr": target["expr"]} for number, target in enumerate(targets)]
print(json.dumps({"groups": [{"name": "grafana.json", "rules": rules}]}))' >"$scratch/queries.yaml"
    promtool check rules "$scratch/queries.yaml"
else
    echo "promtool not found: the rules were not checked by Prometheus"
fi

"$tools/hadolint" Dockerfile
echo "ok -- hadolint"

# What .dockerignore lets through is a whole workspace.
mapfile -t context < <(sed -n 's/^!//p' ../.dockerignore)
tar -C .. --exclude=target -cf - "${context[@]}" | tar -C "$scratch" -xf -
# Without its flag SQLite is slower.
[[ -e $scratch/.cargo/config.toml ]] || { echo ".cargo is missing in the build context" && exit 1; }
cargo metadata --manifest-path "$scratch/Cargo.toml" --no-deps --offline --format-version 1 >"$scratch/metadata.json"
echo "ok -- build context"

# With a program that is on every machine. It exits with 0 though it ignores keys, and may complain of other units.
sed 's|^ExecStart=/usr/local/bin/hapax|ExecStart=/bin/true|' hapax.service >"$scratch/hapax.service"
systemd-analyze verify --man=no "$scratch/hapax.service" 2>"$scratch/said" || {
    cat "$scratch/said"
    exit 1
}
if grep -F "$scratch/hapax.service" "$scratch/said"; then exit 1; fi
systemd-analyze security --offline=true --threshold=20 --no-pager "$scratch/hapax.service" | tail -n 1

"$tools/python" check.py "$scratch/metadata.json"
