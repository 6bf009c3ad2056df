"""Runs every block of docs/python.md, and of two sections of docs/migrating.md: the blocks of one section share their names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BINARY, REPOSITORY, clean_environment

import hapax_client

DOCS = REPOSITORY / "docs"
MIGRATING = ("From Powertools for AWS Lambda (Python)", "From python-redis-lock")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Packages that the guide may tell to install, and their extras.
PACKAGES = re.compile(r"hapax-client(\[\w+(,\w+)*\])?|hapax-server|fastapi|celery|django")


def sections() -> list[tuple[str, list[tuple[str, str]]]]:
    """The title of each part, and its blocks as (language, text)."""
    migrating = [part for part in parts_of("migrating.md") if part[0] in MIGRATING]
    assert len(migrating) == len(MIGRATING)
    return parts_of("python.md") + migrating


def parts_of(page: str) -> list[tuple[str, list[tuple[str, str]]]]:
    parts = re.split(r"^#+ (.*)$", (DOCS / page).read_text(), flags=re.MULTILINE)[1:]
    return [(title, BLOCK.findall(text)) for title, text in zip(parts[::2], parts[1::2])]


@pytest.fixture
def workplace(tmp_path, monkeypatch, sqlite_server) -> Path:
    """A folder with `hapax` on the PATH, and a server in the environment."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "hapax").symlink_to(BINARY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAPAX_URL", sqlite_server.url)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.fixture
def names(workplace, monkeypatch) -> Iterator[dict[str, typing.Any]]:
    """The names of a module of its own: dataclasses look their module up."""
    module = types.ModuleType("guide")
    monkeypatch.setitem(sys.modules, "guide", module)
    with hapax_client.connect() as client:
        module.__dict__.update(hapax_client=hapax_client, client=client)
        yield module.__dict__
    for value in module.__dict__.values():
        if isinstance(value, hapax_client.Client):
            value.close()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the guide uses newer annotations")
@pytest.mark.parametrize(
    ("title", "blocks"), sections(), ids=lambda part: part if isinstance(part, str) else ""
)
def test_guide_blocks_run(title, blocks, names):
    for language, block in blocks:
        if language == "python":
            code = compile(block, f"the section {title!r}", "exec", dont_inherit=True)
            exec(code, names)
        else:
            assert language == "console", f"a block of {language!r} is not run"
            run_console(block)


def run_console(block: str) -> None:
    for line in block.splitlines():
        assert line.startswith("$ "), "a command in a console block begins with `$ `"
        command = line[2:]
        if command.startswith("pip install "):
            for package in command.split()[2:]:
                assert PACKAGES.fullmatch(package), package
        else:
            subprocess.run(command, shell=True, check=True, env=clean_environment(), timeout=60)
