#!/bin/sh
# Runs `hapax check` on each target behind `hapax proxy`, by the rules of hapax, of the draft and of Stripe, with crashes of the
# proxy. Fails where something is found. Packages go to target/check-targets. HAPAX names the binary; arguments name targets.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
hapax=${HAPAX:-$root/target/debug/hapax}
work=$root/target/check-targets
mkdir -p "$work/node"

[ -x "$hapax" ] || (cd "$root" && cargo build --quiet --package hapax-server)
(cd "$root" && cargo build --quiet --package example-check-target)
[ -e "$work/python/bin/python" ] || python3 -m venv "$work/python"
"$work/python/bin/pip" install --quiet fastapi uvicorn flask
cp "$here/express.mjs" "$work/node/"
(cd "$work/node" && npm install --silent --no-audit --no-fund --no-save --prefix . express)

free_port() { "$work/python/bin/python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# Starts the target $1 in its place: what it prints goes to a file.
start_target() {
    cd "$here"
    case $1 in
    axum) PORT=$2 exec "$root/target/debug/check-target" ;;
    express) PORT=$2 exec node "$work/node/express.mjs" ;;
    fastapi) exec "$work/python/bin/uvicorn" fastapi_app:app --port "$2" --log-level warning ;;
    flask) exec "$work/python/bin/flask" --app flask_app run --port "$2" ;;
    *) echo "no such target: $1" >&2; exit 2 ;;
    esac
}

# A proxy that is started again whenever it ends.
supervise_proxy() {
    while :; do
        "$hapax" proxy --config "$folder/hapax.toml" >>"$folder/proxy.log" 2>&1 &
        echo $! >"$folder/pid.new"
        mv "$folder/pid.new" "$folder/pid"
        wait $! || sleep 0.05
    done
}

folder=
stop() {
    [ -z "$folder" ] || { kill "$supervisor" "$target" 2>/dev/null; kill -9 "$(cat "$folder/pid")" 2>/dev/null; rm -r "$folder"; } || :
    folder=
}
trap stop EXIT
trap 'exit 130' INT TERM

found=0
for name in ${*:-axum express fastapi flask}; do
    for profile in hapax ietf stripe; do
        folder=$(mktemp -d) upstream=$(free_port) listen=$(free_port)
        cat >"$folder/hapax.toml" <<TOML
store = "sqlite:$folder/hapax.db"

[proxy]
upstream = "http://127.0.0.1:$upstream"
listen = "127.0.0.1:$listen"
lease = "2s"
TOML
        # Stripe replays a 500, and hapax does so where it is told to.
        [ $profile != stripe ] || echo 'statuses = { 500 = "keep" }' >>"$folder/hapax.toml"
        (start_target "$name" "$upstream") >"$folder/target.log" 2>&1 &
        target=$!
        supervise_proxy 2>/dev/null &
        supervisor=$!
        tries=0
        until curl --silent --fail --output /dev/null "http://127.0.0.1:$listen/executions"; do
            tries=$((tries + 1))
            [ $tries -lt 300 ] || { cat "$folder"/*.log >&2; exit 1; }
            sleep 0.1
        done
        restart="old=\$(cat $folder/pid); kill -9 \$old; while [ \"\$(cat $folder/pid)\" = \$old ]; do sleep 0.02; done"
        echo "== $name, rules of $profile"
        "$hapax" check "http://127.0.0.1:$listen" --profile $profile --strict --restart "$restart" || found=1
        stop
    done
done
exit $found
