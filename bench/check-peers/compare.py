"""Starts each target, runs `hapax check` on it with two profiles, and prints the tables of docs/comparison.md."""

import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

PEERS, BUILT = Path(sys.argv[1]), Path(os.environ["BUILT"])
HAPAX = str(BUILT / "hapax")
HERE = Path(__file__).parent
PROFILES = ("ietf", "hapax")
# Longer than the leases of the products, most of which are of a minute.
TIMEOUT = "75s"
AT_ONCE = int(os.environ.get("AT_ONCE", "3"))


@dataclass
class Product:
    name: str
    version: str
    store: str  # memory, SQLite or Redis
    command: str  # with {listen}, {host}, {port}, {store}, {upstream}
    environment: dict = field(default_factory=dict)
    flags: str = ""
    before: bool = False  # it is a proxy before the axum target

    @property
    def id(self) -> str:
        return f"{self.name} {self.store}".lower().replace("/", "-").replace(" ", "-")


def hapax_version() -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return f"0.1.0 ({commit.stdout.strip()})"


def products() -> list[Product]:
    own, rust = hapax_version(), str(PEERS / "debug")
    uvicorn = f"{PEERS}/python/bin/uvicorn targets:app --app-dir {HERE}/python --host {{host}} --port {{port}} --log-level warning"
    node = f"node {PEERS}/node"

    def layer(store: str) -> Product:
        return Product("hapax layer", own, store, f"{rust}/peer-hapax-layer")

    def proxy(store: str) -> Product:
        place = {"memory": "memory:", "SQLite": "sqlite:{store}", "Redis": "{store}"}[store]
        command = f"{HAPAX} proxy --listen {{listen}} --upstream {{upstream}} --store {place}"
        return Product("hapax proxy", own, store, command, before=True)

    def python(name: str, version: str, store: str) -> Product:
        return Product(name, version, store, uvicorn, {"PEER": name})

    return [
        *(layer(store) for store in ("memory", "SQLite", "Redis")),
        *(proxy(store) for store in ("memory", "SQLite", "Redis")),
        Product("idempotent", "2.0.0", "memory", f"{rust}/peer-idempotent"),
        Product("idempotent", "2.0.0", "Redis", f"{rust}/peer-idempotent"),
        Product("axum-idempotent", "0.6.0", "memory", f"{rust}/peer-axum-idempotent"),
        Product(
            "idempotent-proxy-server",
            "1.2.2",
            "Redis",
            # A shell does not pass on a variable with such a name.
            f"env URL_ORDERS/other-path={{upstream}}/orders/other-path {PEERS}/installed/bin/idempotent-proxy-server",
            {"SERVER_ADDR": "{listen}", "REDIS_URL": "{store}", "URL_ORDERS": "{upstream}/orders"},
            "--path /URL_ORDERS --count-path {upstream}/executions",
            before=True,
        ),
        Product("express-idempotency", "1.0.6", "memory", f"{node}/express-idempotency.mjs"),
        Product("@node-idempotency/core", "1.0.11", "Redis", f"{node}/node-idempotency.mjs"),
        python("asgi-idempotency-header", "0.2.0", "Redis"),
        python("aws-lambda-powertools", "3.37.0", "Redis"),
        python("fastapi-idempotency", "0.1.1", "memory"),
        python("idemkit", "1.0.2", "Redis"),
        python("idemptx", "0.2.2", "Redis"),
    ]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for_port(port: int) -> None:
    for _ in range(600):
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port}")


class Supervised:
    """A process that is started again whenever it ends, as a supervisor does."""

    def __init__(self, command: str, environment: dict, folder: str):
        self.folder = folder
        script = (
            f"while :; do {command} >>{folder}/log 2>&1 & "
            f"echo $! >{folder}/pid.new; mv {folder}/pid.new {folder}/pid; wait $!; sleep 0.05; done"
        )
        variables = {**os.environ, **environment}
        Path(folder, ".env").touch()  # idempotent-proxy-server wants one
        self.shell = subprocess.Popen(["sh", "-c", script], env=variables, cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True)

    def restart_command(self) -> str:
        pid = f"{self.folder}/pid"
        return f'old=$(cat {pid}); kill -9 $old; while [ "$(cat {pid})" = $old ]; do sleep 0.02; done'

    def stop(self) -> None:
        os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.wait()


def start_upstream(folder: str) -> tuple[Supervised, str]:
    port = free_port()
    Path(folder, "upstream").mkdir()
    upstream = Supervised(f"{BUILT}/check-target", {"PORT": str(port)}, f"{folder}/upstream")
    wait_for_port(port)
    return upstream, f"http://127.0.0.1:{port}"


def check(product: Product, database: int, redis_port: int) -> dict:
    reports = {}
    for profile in PROFILES:
        with tempfile.TemporaryDirectory() as folder:
            port, running = free_port(), []
            place = {"memory": "memory", "SQLite": f"{folder}/hapax.db"}
            redis = f"redis://127.0.0.1:{redis_port}/{database}"
            values = {"host": "127.0.0.1", "port": port, "listen": f"127.0.0.1:{port}"}
            values["store"] = place.get(product.store, redis)
            try:
                if product.before:
                    upstream, values["upstream"] = start_upstream(folder)
                    running.append(upstream)
                environment = {"LISTEN": values["listen"], "STORE": values["store"]}
                environment |= {name: value.format(**values) for name, value in product.environment.items()}
                target = Supervised(product.command.format(**values), environment, folder)
                running.append(target)
                wait_for_port(port)
                command = [HAPAX, "check", f"http://127.0.0.1:{port}", "--json", "--profile", profile]
                command += ["--timeout", TIMEOUT, "--restart", target.restart_command()]
                command += product.flags.format(**values).split()
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode not in (0, 1):
                    raise RuntimeError(done.stderr)
                reports[profile] = json.loads(done.stdout)
            except RuntimeError as error:
                log = Path(folder, "log").read_text()[-2000:]
                raise SystemExit(f"{product.id}: {error}\n{log}")
            finally:
                for process in running:
                    process.stop()
    (PEERS / f"result-{product.id}.json").write_text(json.dumps(reports, indent=1))
    print(f"{product.id}: done", file=sys.stderr, flush=True)
    return reports


LISTS = {"holds": "✓", "fails": "✗", "recommended": "!", "skipped": "–"}


def verdicts(report: dict) -> dict:
    named = lambda item: item["name"] if isinstance(item, dict) else item
    return {named(item): mark for name, mark in LISTS.items() for item in report[name]}


def print_tables(products: list[Product], results: dict) -> None:
    print("| | product | version | store |" + "".join(f" {profile}: holds, fails, recommended, not asked |" for profile in PROFILES))
    print("|---|---|---|---|" + "---|" * len(PROFILES))
    for number, product in enumerate(products, 1):
        counts = [", ".join(str(len(results[product.id][profile][name])) for name in LISTS) for profile in PROFILES]
        print(f"| {number} | {product.name} | {product.version} | {product.store} | " + " | ".join(counts) + " |")
    for profile in PROFILES:
        columns = [verdicts(results[product.id][profile]) for product in products]
        guide = (HERE / "../../docs/check.md").read_text()
        checks = [name for name in re.findall(r"^\| `([a-z0-9-]+)`", guide, re.M) if name in columns[0]]
        print(f"\nProfile {profile}:\n")
        print("| check |" + "".join(f" {number} |" for number in range(1, len(products) + 1)))
        print("|---|" + "---|" * len(products))
        for name in checks:
            print(f"| `{name}` | " + " | ".join(column.get(name, "?") for column in columns) + " |")


def main() -> None:
    asked = [product for product in products() if not sys.argv[2:] or product.id in sys.argv[2:]]
    redis_port = free_port()
    redis = ["redis-server", "--port", str(redis_port), "--bind", "127.0.0.1", "--save", "", "--databases", "64"]
    server = subprocess.Popen(redis, stdout=subprocess.DEVNULL)
    try:
        wait_for_port(redis_port)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            done = pool.map(lambda pair: check(pair[1], pair[0], redis_port), enumerate(asked))
            results = {product.id: reports for product, reports in zip(asked, done)}
    finally:
        server.kill()
    print(f"{time.strftime('%Y-%m-%d')}, {platform.platform()}, {os.cpu_count()} processors\n")
    print_tables(asked, results)


main()
