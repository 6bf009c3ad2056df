"""Things that must begin anew in a forked child: connections are the parent's, and locks may be held by
threads that exist there alone."""

from __future__ import annotations

import os
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell_all)
