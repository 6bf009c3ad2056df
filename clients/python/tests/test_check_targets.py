"""examples/check-targets: `hapax check` finds each target broken alone, and right behind `hapax proxy`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest
from conftest import BINARY, REPOSITORY, clean_environment, wait_for

SERVERS = {
    "fastapi": ["uvicorn", "fastapi_app:app", "--port", "0"],
    "flask": ["flask", "--app", "flask_app", "run", "--port", "0"],
}
ADDRESS = re.compile(r"(?:[Rr]unning|listens) on (http://[0-9.:]+)\s")


@contextmanager
def started(command, log):
    """Starts a process in the folder of the targets; its address, which it prints."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY / "examples/check-targets",
            env={**clean_environment(), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield wait_for(lambda: ADDRESS.search(log.read_text()), f"an address in {log}")[1]
    finally:
        process.kill()
        process.wait()


def check(url, *flags):
    command = [str(BINARY), "check", url, "--json", *flags]
    ended = subprocess.run(command, env=clean_environment(), capture_output=True, text=True)
    assert ended.stdout, ended.stderr
    return ended.returncode, json.loads(ended.stdout)


def names(findings):
    return [finding["name"] for finding in findings]


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_check_finds_no_fault_in_the_target_behind_the_proxy(name, tmp_path):
    target = [sys.executable, "-m", *SERVERS[name]]
    with started(target, tmp_path / "target.log") as upstream:
        code, report = check(upstream, "--only", "replay")
        assert (code, names(report["fails"])) == (1, ["replay"])
        proxy = [str(BINARY), "proxy", "--listen", "127.0.0.1:0", "--upstream", upstream]
        with started([*proxy, "--store", "memory:"], tmp_path / "proxy.log") as url:
            code, report = check(url, "--strict")
    assert (code, report["fails"]) == (0, [])
    skipped = ["crash-keeps-answers", "crash-in-the-middle", "retention"]
    assert names(report["skipped"]) == skipped
