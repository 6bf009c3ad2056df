"""Records: JSON values with a version and a time to live."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Callable, Optional

from ._arguments import MAX_RETENTION, Seconds, check_name, encode_json, millis, path, seconds
from ._dual import AsyncBound, SyncBound, sync_or_async
from ._protocol import Call, Pause, Request, Response, Steps
from ._retry import send
from ._transport import AsyncTransport, SyncTransport
from .errors import InvalidRequest, Missing, StoreUnavailable, VersionMismatch

UPDATE_ATTEMPTS = 50


@dataclass(frozen=True)
class Version:
    """A value as it was read, its version, and for how many seconds it is still kept."""

    value: Any
    version: str
    expires_in: Optional[float] = None


class RecordSteps:
    """The operations of one record, for sync and async clients.

    >>> cart = client.record("cart:7")               # doctest: +SKIP
    >>> cart.put({"tea": 1})                         # doctest: +SKIP
    >>> cart.update(lambda old: {**old, "cup": 1})   # doctest: +SKIP
    {'tea': 1, 'cup': 1}
    """

    key: str

    @property
    def _path(self) -> str:
        return path("records", self.key)

    @sync_or_async
    def get(self, default: Any = None) -> Steps[Any]:
        """The value, or `default` where there is none. A server that is away is an error."""
        found = yield from _read(self._path)
        return default if found is None else found.value

    @sync_or_async
    def read(self) -> Steps[Optional[Version]]:
        """The value with its version; None where there is no record."""
        return (yield from _read(self._path))

    @sync_or_async
    def put(
        self,
        value: Any,
        *,
        ttl: Optional[Seconds] = None,
        version: Optional[str] = None,
        absent: bool = False,
    ) -> Steps[str]:
        """Writes a value and returns its version.

        With `version`, only over that version; with `absent=True`, only where there is no record;
        else VersionMismatch. Without `ttl` a new record is kept, a changed one keeps its expiry.
        """
        return (yield from _put(self._path, value, ttl, version, absent))

    @sync_or_async
    def update(
        self, change: Callable[[Any], Any], *, default: Any = None, ttl: Optional[Seconds] = None
    ) -> Steps[Any]:
        """Writes `change(value)`, again with the newer value where another writer was faster.

        `change` gets `default` where there is no record; it may be called several times. Returns the
        value that was written.
        """
        if not callable(change):
            raise InvalidRequest(f"change must be callable, not {type(change).__name__}")
        for attempt in range(UPDATE_ATTEMPTS):
            found = yield from _read(self._path)
            value = yield Call(change, (default if found is None else found.value,))
            try:
                yield from _put(
                    self._path, value, ttl, None if found is None else found.version, found is None
                )
                return value
            except VersionMismatch:
                yield Pause(random.uniform(0, min(0.5, 0.005 * 2.0**attempt)))
        raise VersionMismatch(f"other writers changed the record during {UPDATE_ATTEMPTS} attempts")

    @sync_or_async
    def delete(self, *, version: Optional[str] = None) -> Steps[bool]:
        """Deletes the record; false where there was none."""
        headers = {} if version is None else {"if-match": _version(version)}
        request = Request("DELETE", self._path, headers=headers, repeatable=False)
        try:
            yield from send(request)
        except Missing:
            return False
        return True


class Record(RecordSteps, SyncBound):
    def __init__(self, transport: SyncTransport, key: str) -> None:
        super().__init__(transport)
        self.key = check_name("key", key)


class AsyncRecord(RecordSteps, AsyncBound):
    def __init__(self, transport: AsyncTransport, key: str) -> None:
        super().__init__(transport)
        self.key = check_name("key", key)


def _read(path: str) -> Steps[Optional[Version]]:
    try:
        response: Response = yield from send(Request("GET", path))
    except Missing:
        return None
    expires = response.headers.get("hapax-expires-in-ms")
    return Version(
        response.json(), response.headers["etag"], None if expires is None else int(expires) / 1000
    )


def _put(
    path: str, value: Any, ttl: Optional[Seconds], version: Optional[str], absent: bool
) -> Steps[str]:
    body = encode_json("value", value)
    query = {}
    if ttl is not None:
        query["ttl_ms"] = str(millis(seconds("ttl", ttl, most=MAX_RETENTION)))
    headers = {}
    if version is not None:
        headers["if-match"] = _version(version)
    if absent:
        headers["if-none-match"] = "*"
    # A write that is repeated after it happened would see its own version as another's.
    request = Request("PUT", path, body, query, headers, repeatable=False)
    try:
        response = yield from send(request)
    except StoreUnavailable as error:
        error.retryable = False
        raise
    return response.headers["etag"]


def _version(version: Any) -> str:
    if not isinstance(version, str) or not version.isascii() or not version:
        raise InvalidRequest("version must be the text that put() or read() returned")
    return version
