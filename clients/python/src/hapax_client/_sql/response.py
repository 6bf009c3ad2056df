"""The stored form of an answer on SQLite: byte for byte that of the server.

``1``, the status (u16), the number of headers (u16); for each header the length of its name (u16), the
name, the length of its value (u32) and the value; all numbers big-endian; the rest is the body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ..errors import HapaxError

FORM = 1


def encode_response(status: int, headers: Sequence[tuple[str, str]], body: bytes) -> bytes:
    parts = [struct.pack(">BHH", FORM, status, len(headers))]
    for name, value in headers:
        name_bytes, value_bytes = name.encode(), value.encode()
        parts += [struct.pack(">H", len(name_bytes)), name_bytes]
        parts += [struct.pack(">I", len(value_bytes)), value_bytes]
    return b"".join([*parts, body])


def decode_response(stored: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
    try:
        form, status, count = struct.unpack_from(">BHH", stored)
        if form != FORM:
            raise HapaxError("the stored answer was written by another version, or not by hapax")
        at = 5
        headers = []
        for _ in range(count):
            name, at = _take(stored, at, ">H")
            value, at = _take(stored, at, ">I")
            headers.append((name.decode(), value.decode(errors="replace")))
    except (struct.error, UnicodeDecodeError) as error:
        raise HapaxError("the stored answer cannot be read: it is not whole") from error
    return status, headers, stored[at:]


def _take(stored: bytes, at: int, form: str) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(form, stored, at)
    start = at + struct.calcsize(form)
    if start + length > len(stored):
        raise struct.error("too short")
    return stored[start : start + length], start + length
