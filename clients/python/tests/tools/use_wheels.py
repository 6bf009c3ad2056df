"""Uses the installed wheels: run by an interpreter that has nothing else, outside of the repository."""

import os
import sys
import tempfile
from pathlib import Path

import hapax_server

import hapax_client

environment = Path(sys.prefix).resolve()
for place in (hapax_client.__file__, hapax_server.__file__, hapax_server.binary()):
    assert environment in Path(place).resolve().parents, f"{place} is not of this environment"
assert (Path(hapax_client.__file__).parent / "py.typed").exists()

with tempfile.TemporaryDirectory() as folder:
    os.environ["HAPAX_DATA"] = folder
    with hapax_client.connect() as client:
        calls = []

        @client.once("Wheel", key="key")
        def once(key: str) -> int:
            calls.append(key)
            return len(calls)

        assert [once("a"), once("a")] == [1, 1]
        with client.lock("wheel") as lock:
            assert lock.fence > 0
print("the wheels work")
