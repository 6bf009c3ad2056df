"""Leases: how long a claim is believed, and its renewal in the background."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from typing import Callable

from ._protocol import Pause, Steps
from ._transport import AsyncTransport, SyncTransport
from .errors import HapaxError, Lost, StoreUnavailable

log = logging.getLogger("hapax_client")

# How often a lease is renewed while it lasts.
RENEWALS = 3


class Lease:
    """When a claim ends unless it is renewed. Counted from before the request was sent, so that it is
    never believed longer than by the server."""

    def __init__(self, duration: float, renew_for: float) -> None:
        self.duration = duration
        self._renew_until = time.monotonic() + renew_for
        self._until = time.monotonic() + duration
        self._is_lost = False
        self._is_over = False

    def begin(self, asked_at: float) -> None:
        self._until = asked_at + self.duration

    @property
    def lost(self) -> bool:
        """Whether another owner may be at work."""
        return self._is_lost or (not self._is_over and time.monotonic() >= self._until)

    def end(self) -> None:
        """The claim is given up on purpose: what a late renewal finds is not a loss."""
        self._is_lost = self.lost
        self._is_over = True

    def keep(self, renew: Callable[[], Steps[None]]) -> Steps[None]:
        """Renews after every third of the lease, until it is lost or the limit is reached."""
        pause = self.duration / RENEWALS
        while time.monotonic() + pause < self._renew_until:
            yield Pause(pause)
            asked_at = time.monotonic()
            try:
                yield from renew()
            except Lost:
                self._is_lost = self._is_lost or not self._is_over
                return
            except StoreUnavailable as error:
                log.warning("a lease could not be renewed yet: %s", error.code or "no answer")
                pause = self.duration / 10
            except HapaxError as error:
                log.warning("a lease cannot be renewed: %s", error.code or type(error).__name__)
                return
            else:
                self.begin(asked_at)
                pause = self.duration / RENEWALS


class _Stopped(Exception):
    """Ends a renewal between two steps."""


class RenewalThread:
    """Renews a lease in a daemon thread. After a fork it goes on in the parent alone."""

    def __init__(self, transport: SyncTransport, steps: Steps[None]) -> None:
        self._stop = threading.Event()
        thread = threading.Thread(target=self._run, args=(transport, steps), daemon=True)
        thread.name = "hapax-renewal"
        thread.start()

    def _run(self, transport: SyncTransport, steps: Steps[None]) -> None:
        with contextlib.suppress(_Stopped):
            transport.run(steps, pause=self._pause)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped

    def stop(self) -> None:
        self._stop.set()


class RenewalTask:
    """Renews a lease in a task of the running event loop."""

    def __init__(self, transport: AsyncTransport, steps: Steps[None]) -> None:
        self._task = asyncio.get_running_loop().create_task(transport.run(steps))

    def stop(self) -> None:
        self._task.cancel()


async def run_to_end(steps: Steps[None], transport: AsyncTransport) -> None:
    """Runs to the end even if the task is cancelled meanwhile: a claim must not be left behind."""
    task = asyncio.get_running_loop().create_task(transport.run(steps))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(asyncio.CancelledError, HapaxError):
            await asyncio.wait({task})
        raise
