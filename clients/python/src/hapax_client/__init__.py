"""A client for hapax: duplicates made harmless.

>>> import hapax_client
>>> client = hapax_client.connect("http://127.0.0.1:8787")
>>> with client.lock("nightly", ttl=60, wait=5) as lock:  # doctest: +SKIP
...     print(lock.fence)
"""

from __future__ import annotations

from ._client import AsyncClient, Client, aconnect, connect
from ._commands import Answer, AsyncCommand, Begun, Command
from ._events import Event, Published
from ._inbox import AsyncInbox, Inbox
from ._keyed_request import Settings
from ._locks import AsyncLock, Lock
from ._records import AsyncRecord, Record, Version
from .errors import (
    Busy,
    EventRefused,
    HapaxError,
    InvalidRequest,
    KeyReused,
    Lost,
    Missing,
    OutcomeUnknown,
    ResultNotKept,
    StoreUnavailable,
    Unauthorized,
    UnsupportedServer,
    VersionMismatch,
)

__version__ = "0.1.0"

__all__ = [
    "AsyncInbox",
    "AsyncLock",
    "AsyncRecord",
    "Event",
    "Inbox",
    "Lock",
    "Published",
    "Record",
    "Version",
    "Answer",
    "AsyncClient",
    "AsyncCommand",
    "Begun",
    "Busy",
    "Client",
    "Command",
    "EventRefused",
    "HapaxError",
    "InvalidRequest",
    "KeyReused",
    "Lost",
    "Missing",
    "OutcomeUnknown",
    "ResultNotKept",
    "Settings",
    "StoreUnavailable",
    "Unauthorized",
    "UnsupportedServer",
    "VersionMismatch",
    "aconnect",
    "connect",
]
