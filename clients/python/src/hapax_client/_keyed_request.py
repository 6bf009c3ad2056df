"""Reads a request with an ``Idempotency-Key``: its key, its caller and its fingerprint.

Everything here is a function of bytes, shared by the ASGI and the WSGI middleware. The rules are those of the Rust layer
(``docs/idempotency-key.md``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Callable, Optional

from ._problem_document import Headers, Problem

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
DEFAULT_CREDENTIAL_HEADERS = ("x-api-key", "api-key", "x-auth-token", "x-access-token")
METHOD_OVERRIDES = (b"x-http-method-override", b"x-http-method", b"x-method-override")
#: Headers that only the middleware sets; a client's own are removed.
RESERVED_HEADERS = (b"hapax-attempt", b"hapax-fence")
MAX_NAME = 255
_BARE_SCHEMES = (b"basic", b"bearer", b"digest", b"negotiate", b"token")


@dataclass(frozen=True)
class Settings:
    """How requests with a key are treated. Durations are seconds.

    ``scope`` says who is asking: ``authorization`` (all credentials in the head), ``cookie:NAME``, ``header:NAME`` (set by a
    trusted hop) or ``single``. ``verdicts`` overrules, for a status, whether the response is kept: ``keep``, ``give-back``
    or ``unknown``.
    """

    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    require_key: bool = False
    wait: float = 10.0
    lease: float = 30.0
    renew_for: float = 3600.0
    retention: float = 86_400.0
    on_unknown: str = "refuse"
    on_store_error: str = "closed"
    max_body: int = 1024 * 1024
    body_timeout: float = 30.0
    detached_timeout: float = 60.0
    scope: str = "authorization"
    credential_headers: tuple[str, ...] = DEFAULT_CREDENTIAL_HEADERS
    verdicts: Mapping[int, str] = field(default_factory=dict)
    path: Optional[Callable[[str], str]] = None

    def __post_init__(self) -> None:
        _one_of("on_unknown", self.on_unknown, ("refuse", "rerun"))
        _one_of("on_store_error", self.on_store_error, ("closed", "open"))
        for status, verdict in self.verdicts.items():
            _one_of(f"verdicts[{status}]", verdict, ("keep", "give-back", "unknown"))
        kind, _, name = self.scope.partition(":")
        if (
            kind not in ("authorization", "single")
            if not name
            else kind not in ("cookie", "header")
        ):
            raise ValueError(
                f"scope is {self.scope!r}; it is 'authorization', 'single', 'cookie:NAME' or 'header:NAME'"
            )
        if not 0 <= self.wait <= 60:
            raise ValueError(f"wait is {self.wait} s; it is at most 60")

    def takes_key(self, method: str) -> bool:
        return method in self.methods and method not in SAFE_METHODS

    def verdict(self, status: int) -> str:
        """Whether a response with this status is kept: ``keep``, ``give-back`` or ``unknown``."""
        overruled = self.verdicts.get(status)
        if overruled is not None:
            return overruled
        if status in (502, 504):
            return "unknown"
        if status in (401, 403, 408, 425, 429) or not 200 <= status < 500:
            return "give-back"
        return "keep"


def _one_of(name: str, value: str, allowed: Iterable[str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it is one of {', '.join(allowed)}")


@dataclass(frozen=True)
class Head:
    """The head of a request; header names are lower-case. `raw_path` is the path as it was sent."""

    method: str
    path: str
    query: bytes
    headers: Headers
    raw_path: bytes

    def values(self, name: bytes) -> list[bytes]:
        return [value for found, value in self.headers if found == name]

    def non_empty(self, name: bytes) -> list[bytes]:
        return [value for value in self.values(name) if value.strip()]


@dataclass(frozen=True)
class KeyedRequest:
    """A request that claims ``operation`` and ``key``."""

    operation: str
    key: str

    @staticmethod
    def parse(settings: Settings, head: Head) -> Optional[KeyedRequest]:
        """Reads the head; ``None`` where it has no key and needs none.

        Raises :class:`Problem` for a key or a caller that cannot be used.
        """
        if not settings.takes_key(head.method):
            _refuse_disguised_method(settings, head)
            return None
        key = _key_of(head)
        if key is None:
            if settings.require_key:
                raise Problem(
                    "key-missing",
                    "send an Idempotency-Key header with a value of your own, the same for every retry",
                )
            return None
        return KeyedRequest(
            _operation_of(settings, head), _key_of_caller(_caller_of(settings, head), key)
        )


def fingerprint_of(head: Head, body: bytes) -> str:
    """The hash of everything that makes two requests the same."""
    content_type = (head.values(b"content-type") or [b""])[0]
    parts = [
        head.method.encode(),
        head.path.encode(),
        head.raw_path,
        head.query,
        content_type,
        body,
    ]
    for name in METHOD_OVERRIDES:
        for value in head.values(name):
            parts += [name, value]
    return "sha256:" + _hash(parts)


def _hash(parts: Iterable[bytes]) -> str:
    # Each part is preceded by its length, so that no two lists of parts give the same bytes.
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _key_of(head: Head) -> Optional[str]:
    lines = head.values(b"idempotency-key")
    if not lines:
        return None
    if len(lines) > 1:
        raise Problem("invalid-key", "there are several Idempotency-Key headers; send one")
    line = lines[0].strip(b" \t")
    if line.startswith(b'"'):
        line = _unquote(line)
    if not line:
        raise Problem("invalid-key", "Idempotency-Key is empty")
    if len(line) > MAX_NAME:
        raise Problem(
            "invalid-key", f"Idempotency-Key has {len(line)} bytes; at most {MAX_NAME} are allowed"
        )
    if any(not 0x21 <= byte <= 0x7E for byte in line):
        raise Problem("invalid-key", "Idempotency-Key may only have printable ASCII without spaces")
    return line.decode("ascii")


def _unquote(line: bytes) -> bytes:
    """The content of an RFC 8941 string."""
    content = bytearray()
    inside = iter(line[1:])
    for byte in inside:
        if byte == 0x5C:
            byte = next(inside, 0)
            if byte not in (0x22, 0x5C):
                break
        elif byte == 0x22:
            if next(inside, None) is not None:
                break
            return bytes(content)
        elif not 0x20 <= byte <= 0x7E:
            break
        content.append(byte)
    raise Problem(
        "invalid-key",
        'Idempotency-Key starts with a quote but is no RFC 8941 string; send "key" or key',
    )


def _caller_of(settings: Settings, head: Head) -> str:
    """A hash of what identifies the caller; empty where all requests are one caller."""
    kind, _, name = settings.scope.partition(":")
    if kind == "single":
        return ""
    if kind == "authorization":
        values = _credentials(settings, head)
    elif kind == "header":
        values = head.non_empty(name.lower().encode())
    else:
        values = _cookies(head, name.encode())
    if not values and kind != "authorization":
        raise Problem(
            "scope-missing",
            "a key belongs to its caller: send the header or cookie that the service is configured to identify callers by",
        )
    return _hash([kind.encode(), *values])[:32]


def _credentials(settings: Settings, head: Head) -> list[bytes]:
    authorization = [
        value
        for value in head.non_empty(b"authorization")
        if value.strip().lower() not in _BARE_SCHEMES
    ]
    names = [name.lower().encode() for name in settings.credential_headers]
    others = [name + b":" + value for name in names for value in head.non_empty(name)]
    only_basic = not others and all(
        value.split(None, 1)[0].lower() == b"basic" for value in authorization
    )
    if only_basic and head.non_empty(b"cookie"):
        raise Problem(
            "scope-missing",
            "a key belongs to its caller, and a cookie beside no credentials, or beside nothing but Basic, does not say "
            "which part of it identifies the caller: send a token, or set scope to cookie:NAME, header:NAME or single",
        )
    # Names are lower-case and have no colon, so a credential never reads as another header's.
    return [b"authorization:" + value for value in authorization] + others


def _cookies(head: Head, name: bytes) -> list[bytes]:
    pairs = (pair.partition(b"=") for line in head.values(b"cookie") for pair in line.split(b";"))
    return [value.strip() for found, _, value in pairs if found.strip() == name and value.strip()]


def _operation_of(settings: Settings, head: Head) -> str:
    path = settings.path(head.path) if settings.path else head.path
    operation = f"{head.method} {path}"
    if len(operation) <= MAX_NAME and all(0x20 <= ord(character) < 0x7F for character in operation):
        return operation
    return f"{head.method} sha256:{_hash([operation.encode()])}"


def _key_of_caller(caller: str, key: str) -> str:
    """Another caller's key is another key: a command belongs to the hash of its caller and the key."""
    joined = f"{caller}:{key}" if caller else key
    return joined if len(joined) <= MAX_NAME else f"{caller}:sha256:{_hash([key.encode()])}"


def _refuse_disguised_method(settings: Settings, head: Head) -> None:
    """A method without keys that asks the service to be treated as one with keys would run unprotected."""
    if not settings.require_key and not head.values(b"idempotency-key"):
        return
    overrides = (value for name in METHOD_OVERRIDES for value in head.values(name))
    if any(settings.takes_key(value.strip().upper().decode("latin-1")) for value in overrides):
        raise Problem(
            "invalid-request",
            "the method takes no key, and a method override names one that does; send the request with that method "
            "itself; nothing was run",
        )
