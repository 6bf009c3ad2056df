"""Runs a server until no client is left. A script of its own, started by `_bundled`; it imports nothing
of the package, so that it starts quickly and stays small.

    python _supervisor.py CLIENTS_LOCK PROGRAM ARGUMENT…

Every process with a client holds a shared lock (flock) on CLIENTS_LOCK. The supervisor waits for the
exclusive one: then no client is left, and it ends the server. It holds the lock until it has ended
itself, so that a client that comes meanwhile waits, and then starts another server.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """On Linux the kernel ends the server where the supervisor is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def main() -> int:
    clients = os.open(sys.argv[1], os.O_RDWR)
    server = subprocess.Popen(sys.argv[2:], preexec_fn=end_with_parent)  # noqa: PLW1509

    def end_without_clients() -> None:
        fcntl.flock(clients, fcntl.LOCK_EX)
        server.terminate()

    threading.Thread(target=end_without_clients, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.terminate())
    return server.wait()


if __name__ == "__main__":
    sys.exit(main())
