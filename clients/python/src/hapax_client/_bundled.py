"""A server of the user's own: started by the first process that needs it, ended with the last.

Files, in a folder that only the user may enter:

| file | contents |
|---|---|
| `clients.lock` | every process with a client holds a shared lock (flock) on it. The supervisor (`_supervisor.py`), the parent of the server, waits for the exclusive one and then ends the server; the kernel drops the lock of a process that is killed |
| `start.lock` | held while a process looks for a server and starts one: two never start two |
| `server.json` | address and token of the server that was started last |
| `server.toml` | the server's settings: the hash of the token |
| `server.log` | its warnings since its start |
| `hapax.db` | the data |

The server listens on a free loopback port and asks for the token, so that other users of the machine
can reach the port and do nothing with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import httpx

if sys.platform != "win32":
    import fcntl

from ._endpoint import Address
from ._fork import fork_waits, watch_forks
from .errors import HapaxError, InvalidRequest, StoreUnavailable

# The longest that one server may take to end, or another to start.
PATIENCE = 30.0
PROBE_TIMEOUT = 5.0


class BundledEndpoint:
    """Finds the user's server, or starts it; keeps it running until it is closed."""

    trust_env = False
    is_fixed = False

    def __init__(self) -> None:
        self._clients_lock: Optional[int] = None
        if sys.platform == "win32":
            raise InvalidRequest("on Windows the server must be given: connect(url) or HAPAX_URL")
        self._address: Optional[Address] = None
        self.after_fork_in_child()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """The shared lock on `clients.lock` belongs to parent and child together."""
        self._mutex = threading.Lock()

    def address(self) -> Address:
        address = self._address
        if address is not None:
            return address
        with self._mutex:
            return self._address or self._find()

    def find_again(self, failed: Address) -> bool:
        with self._mutex:
            if self._address == failed:
                with contextlib.suppress(HapaxError):
                    self._find()
            return self._address != failed

    def close(self) -> None:
        with self._mutex:
            self._address = None
            descriptor, self._clients_lock = self._clients_lock, None
            if descriptor is not None:
                os.close(descriptor)

    def __del__(self) -> None:
        if self._clients_lock is not None:
            os.close(self._clients_lock)

    def _find(self) -> Address:
        folder = data_folder()
        if self._clients_lock is None:
            # Waits for a server that is ending, which holds the exclusive lock until it is gone.
            self._clients_lock = _lock(folder / "clients.lock", shared=True)
        with _held(folder / "start.lock"):
            self._address = _running_server(folder) or _start_server(folder)
        return self._address


def data_folder() -> Path:
    """HAPAX_DATA, or the user's data folder; made for this user alone."""
    named = os.environ.get("HAPAX_DATA")
    if named:
        folder = Path(named)
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support" / "hapax"
    else:
        share = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
        folder = Path(share) / "hapax"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.getuid():
            raise InvalidRequest(f"{folder} belongs to another user; name a folder with HAPAX_DATA")
        folder.chmod(0o700)
    except OSError as error:
        raise InvalidRequest(
            f"{folder} cannot be used: {error.strerror}; name a folder with HAPAX_DATA"
        ) from None
    return folder.resolve()


def find_binary() -> str:
    """The `hapax` of HAPAX_BIN, of the package `hapax-server`, or of the PATH."""
    named = os.environ.get("HAPAX_BIN")
    if named:
        return named
    with contextlib.suppress(ImportError, FileNotFoundError):
        return str(importlib.import_module("hapax_server").binary())
    found = shutil.which("hapax")
    if found is None:
        raise InvalidRequest(
            "no server: give connect(url), set HAPAX_URL, or install one: pip install hapax-server"
        )
    return found


def _lock(path: Path, *, shared: bool) -> int:
    """A file descriptor that holds the lock. Closing it everywhere, or dying, gives the lock back."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise StoreUnavailable(
                    f"the lock file {path.name} was not free for {PATIENCE:g} s: another process is "
                    "starting or ending the server"
                ) from None
        except OSError as error:
            os.close(descriptor)
            raise InvalidRequest(
                f"{path} cannot be locked: {error.strerror}; name a folder on a local disk with HAPAX_DATA"
            ) from None
        time.sleep(0.01)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    descriptor = _lock(path, shared=False)
    try:
        yield
    finally:
        # Closing would not be enough where another thread forked meanwhile.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _running_server(folder: Path) -> Optional[Address]:
    """The server that was started last, if it answers to its token."""
    try:
        told = json.loads((folder / "server.json").read_text())
        address = Address(told["url"], told["token"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    headers = {"authorization": f"Bearer {address.token}"}
    try:
        # Another program may have got the port meanwhile: only the server knows the token.
        path = "/v1/jobs/hapax-client/probe"
        with fork_waits:  # it makes a TLS context
            probe = httpx.Client(trust_env=False, timeout=PROBE_TIMEOUT)
        with probe as http:
            response = http.get(address.url + path, headers=headers)
    except httpx.HTTPError:
        return None
    is_hapax = response.headers.get("content-type", "").startswith("application/problem+json")
    return address if is_hapax and response.status_code in (404, 429, 503) else None


def _start_server(folder: Path) -> Address:
    token = secrets.token_urlsafe(32)
    digest = hashlib.sha256(token.encode()).hexdigest()
    settings = (
        f'[[token]]\nname = "local"\nsha256 = "{digest}"\nscopes = ["data", "admin", "metrics"]\n'
    )
    _write(folder / "server.toml", settings)
    log = folder / "server.log"
    _write(log, "")
    process = _spawn(folder, log)
    # Reaps the server where this process outlives it.
    threading.Thread(target=process.wait, daemon=True, name="hapax-reaper").start()
    url = _announced(process, log)
    _write(folder / "server.json", json.dumps({"url": url, "token": token, "pid": process.pid}))
    return Address(url, token)


def _spawn(folder: Path, log: Path) -> subprocess.Popen[bytes]:
    binary = find_binary()
    if not os.access(binary, os.X_OK):
        raise InvalidRequest(f"{binary} cannot be run: no such program")
    arguments = [_interpreter(), "-I", str(Path(__file__).with_name("_supervisor.py"))]
    arguments += [str(folder / "clients.lock")]
    arguments += [binary, "serve", "--listen", "127.0.0.1:0", "--log-level", "warn"]
    arguments += [
        "--store",
        f"sqlite:{folder / 'hapax.db'}",
        "--config",
        str(folder / "server.toml"),
    ]
    arguments += ["--shutdown-timeout", "2s"]
    # Settings for other servers and clients must not reach this one.
    keep = {
        n: v for n, v in os.environ.items() if not n.startswith(("HAPAX_", "PROCESSING_", "REDIS_"))
    }
    with log.open("ab") as output:
        try:
            return subprocess.Popen(
                arguments,
                cwd=folder,
                env=keep,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # Ctrl-C in the terminal of the first process must not end everybody's server.
                start_new_session=True,
            )
        except OSError as error:
            raise InvalidRequest(f"{arguments[0]} cannot be run: {error.strerror}") from None


def _interpreter() -> str:
    """A Python that runs scripts: in an embedding program, `sys.executable` is that program."""
    if Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    return str(Path(sys.exec_prefix) / "bin" / "python3")


def _announced(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address, as the server prints it when it is ready."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        text = log.read_text(errors="replace")
        for line in text.splitlines():
            if " listens on " in line:
                return line.split(" listens on ", 1)[1].strip()
        if process.poll() is not None:
            raise StoreUnavailable(f"the server did not start: {text.strip()[-500:]}")
        time.sleep(0.02)
    process.kill()
    raise StoreUnavailable(f"the server did not start within {PATIENCE:g} s; see {log}")


def _write(path: Path, text: str) -> None:
    """Replaces a file at once, readable by the user alone."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    temporary.replace(path)
