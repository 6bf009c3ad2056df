"""The time of a SQLite file: milliseconds since boot plus a base that is stored in the file once per
boot, so that all processes agree and no step of the wall clock matters. The wall clock counts only
while the machine is off."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Optional

_PROCESS_START = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
CLOCK_ROWS = ("clock_boot", "clock_base", "clock_last", "clock_wall")


@dataclass(frozen=True)
class FileTime:
    now: int
    #: The rows of hapax_meta that are to be written; empty where the file knows this boot.
    rows: Mapping[str, int]


def file_time(meta: Mapping[str, int]) -> FileTime:
    """The present time by the clock of the file, given its rows of hapax_meta."""
    wall = wall_ms()
    boot, elapsed = _boot_id(), _since_boot_ms()
    if boot is None or elapsed is None:
        # Without a boot id: the wall clock at the start of this process, and the time since then.
        return FileTime(_PROCESS_START + time.monotonic_ns() // 1_000_000, {})
    if not all(name in meta for name in CLOCK_ROWS):
        base = wall - elapsed
    elif meta["clock_boot"] == boot:
        # A restored snapshot of the machine goes on from its own time since boot: never go back.
        base = max(meta["clock_base"], meta["clock_last"] - elapsed)
    else:
        base = meta["clock_last"] + max(wall - meta["clock_wall"], 0) - elapsed
    now = base + elapsed
    if meta.get("clock_boot") == boot and meta.get("clock_base") == base:
        return FileTime(now, {})
    return FileTime(now, dict(zip(CLOCK_ROWS, (boot, base, now, wall))))


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@cache
def _boot_id() -> Optional[int]:
    """63 bits of the UUID that Linux makes at every boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return int(file.read().strip().replace("-", ""), 16) >> 65
    except (OSError, ValueError):
        return None


def _since_boot_ms() -> Optional[int]:
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    if clock is None:
        return None
    nanoseconds = time.clock_gettime_ns(clock)
    return nanoseconds // 1_000_000 - _namespace_offset_ms()


@cache
def _namespace_offset_ms() -> int:
    """The seconds that a container's time namespace adds to the time since boot."""
    try:
        with open("/proc/self/timens_offsets", encoding="ascii") as file:
            fields = next((line.split() for line in file if line.startswith("boottime")), [])
        return int(fields[1]) * 1000 + int(fields[2]) // 1_000_000 if len(fields) == 3 else 0
    except (OSError, ValueError):
        return 0
