"""Whether the programs that this folder's files start take what they are given. Called by check.sh."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ruamel.yaml import YAML

HERE = Path(__file__).parent
PROGRAMS = Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent / "target")) / "debug"
WAIT_TIMEOUT = 60

problems = []
compose = YAML(typ="safe", pure=True).load(HERE / "compose.yaml")
services = compose["services"]
built_here = {name: service for name, service in services.items() if "build" in service}
dockerfile = (HERE / "Dockerfile").read_text().replace("\\\n", " ")
default_bot = re.search(r"^ARG BOT=(\S+)", dockerfile, re.M)[1]


def bot_of(service):
    return service["build"].get("args", {}).get("BOT", default_bot)


def check_call(where, program, words, variables=()):
    """Words up to the first flag say what to do; flags and variables must be in the help for that."""
    first = next((i for i, word in enumerate(words) if word.startswith("-")), len(words))
    call = [program, *(word for word in words[:first] if re.fullmatch("[a-z]+", word))]
    if not (PROGRAMS / program).exists():
        sys.exit(f"deploy: {program} is not in {PROGRAMS}; `cargo test` leaves it there")
    text = subprocess.check_output([PROGRAMS / call[0], *call[1:], "--help"], text=True, timeout=WAIT_TIMEOUT)
    known = set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]*)", text, re.M)) | set(re.findall(r"\b[A-Z][A-Z_]+\b", text))
    used = {word.split("=")[0] for word in words if word.startswith("--")} | set(variables)
    problems.extend(f"{where}: `{' '.join(call)} --help` knows no {unknown}" for unknown in sorted(used - known))


def check_names():
    """The schema does not look whether what a service names is there."""
    for name, service in services.items():
        named = {("services", other) for other in service.get("depends_on", {})}
        named |= {("networks", network) for network in service["networks"]}
        named |= {("volumes", volume.split(":")[0]) for volume in service["volumes"]}
        named |= {("configs", config["source"]) for config in service.get("configs", [])}
        for section, missing in sorted(pair for pair in named if pair[1] not in compose[pair[0]]):
            problems.append(f"compose.yaml, {name}: there is no {missing} among the {section}")


def check_compose():
    for name, service in built_here.items():
        program = bot_of(service) if service["build"]["target"] == "bot" else "hapax"
        check_call(f"compose.yaml, {name}", program, service["command"], service["environment"])


def check_dockerfile(packages):
    targets = [(package["name"], target) for package in packages for target in package["targets"]]
    programs = {(package, target["name"]) for package, target in targets if target["kind"] == ["bin"]}
    built = re.findall(r'--package "?([^\s"]+)"? --bin "?([^\s"]+)"?', dockerfile)
    for bot in {default_bot, *map(bot_of, built_here.values())}:
        for package, program in built:
            package, program = package.replace("$BOT", bot), program.replace("$BOT", bot)
            if (package, program) not in programs:
                problems.append(f"Dockerfile: no package {package} has a program {program}")
    for entry, words in re.findall(r"^ENTRYPOINT (.*)\n(?:#.*\n)*CMD (.*)$", dockerfile, re.M):
        check_call("Dockerfile", json.loads(entry)[0].replace("bot", default_bot), json.loads(words))


def check_unit():
    started = re.search(r"^ExecStart=/usr/local/bin/(.*)$", (HERE / "hapax.service").read_text(), re.M)[1]
    program, *words = started.split()
    check_call("hapax.service", program, words)


def check_readme():
    for block in re.findall(r"^```\w+\n(.*?)^```", (HERE / "README.md").read_text(), re.M | re.S):
        for line in re.findall(r"(?:^|[ /])hapax ((?:[a-z]+ )+-.*)$", block, re.M):
            words = shlex.split(re.split(" [|>]", line)[0], comments=True)
            check_call("README.md", "hapax", words)


def eventually(attempt):
    until = time.monotonic() + WAIT_TIMEOUT
    while not attempt() and time.monotonic() < until:
        time.sleep(0.05)
    return attempt()


def succeeds(command):
    return subprocess.run(command, capture_output=True, timeout=WAIT_TIMEOUT).returncode == 0


def start_redis(folder):
    """A Redis as compose.yaml starts it, and its port. Somebody else may take that in between: then on another."""
    service = services["redis"]
    program, *words = service["healthcheck"]["test"][1:]
    for _ in range(5):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        redis = subprocess.Popen([*service["command"], "--dir", folder, "--port", port], stdout=subprocess.DEVNULL)
        green = eventually(lambda: succeeds([program, "-p", port, *words]) or redis.poll() is not None)
        if green and redis.poll() is None:
            return redis, port
        redis.kill()
        if not green:
            break
    sys.exit("deploy: compose.yaml, redis: it does not start, or its health check stays red")


def check_redis(folder):
    """The doctor must have no complaint about how it keeps things."""
    redis, port = start_redis(folder)
    doctor = [PROGRAMS / "hapax", "doctor", "--json", "--store", f"redis://127.0.0.1:{port}"]
    kept = {}

    # It waits for two seconds only, and a busy machine may take longer.
    def reached():
        report = json.loads(subprocess.run(doctor, stdout=subprocess.PIPE, timeout=WAIT_TIMEOUT).stdout)
        kept.update((finding["check"], finding) for finding in report["findings"])
        return {"redis.eviction", "redis.durability"} <= kept.keys()

    try:
        if not eventually(reached):
            sys.exit(f"deploy: compose.yaml, redis: {kept['store.reach']['detail']}")
    finally:
        redis.kill()
        redis.wait()
    for check in ["redis.eviction", "redis.durability"]:
        if kept[check]["severity"] != "fine":
            problems.append(f"compose.yaml, redis: {kept[check]['detail']}")


def check_health_check(folder):
    """`healthy` must be green while the server lives, and red when it does not."""
    command = [PROGRAMS / "hapax", "serve", "--listen", "127.0.0.1:0", "--store", "memory:"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        port = re.search(r"\d*$", server.stdout.readline())[0]
        green = eventually(lambda: succeeds([HERE / "healthy", port]))
        server.kill()
    if not green:
        problems.append("healthy: red although the server lives")
    if succeeds([HERE / "healthy", port]):
        problems.append("healthy: green although nobody is there")


if __name__ == "__main__":
    check_names()
    check_compose()
    check_dockerfile(json.loads(Path(sys.argv[1]).read_text())["packages"])
    check_unit()
    check_readme()
    with tempfile.TemporaryDirectory() as folder:
        check_redis(folder)
        check_health_check(folder)
    if problems:
        sys.exit("\n".join(f"deploy: {problem}" for problem in problems))
    print("ok -- flags, variables, Redis' settings, health check")
