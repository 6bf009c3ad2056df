"""Things that must begin anew in a forked child: connections are the parent's, and locks may be held by
threads that exist there alone. And things that a fork has to wait for."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class ForkAware(Protocol):
    def after_fork_in_child(self) -> None:
        """Drops connections without closing them, and makes new locks."""


_AWARE: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def watch_forks(aware: ForkAware) -> None:
    """Calls `after_fork_in_child` in every child, for as long as the object lives."""
    _AWARE.add(aware)


def _tell_all() -> None:
    for aware in list(_AWARE):
        aware.after_fork_in_child()


# Held while a thread uses what a child could not use any more if it was forked meanwhile: OpenSSL has locks of its
# own, which nobody makes anew.
fork_waits = threading.RLock()


def _after_in_child() -> None:
    fork_waits.release()
    _tell_all()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=fork_waits.acquire,
        after_in_parent=fork_waits.release,
        after_in_child=_after_in_child,
    )
