"""Checks arguments before anything is sent, so that a mistake leaves nothing claimed."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Union
from urllib.parse import quote

from .errors import InvalidRequest

Seconds = Union[int, float, timedelta]

MAX_NAME = 255
HOUR = 3600.0
MAX_RETENTION = 366 * 24 * HOUR


def check_operation(value: Any) -> str:
    """The name of an operation. It may have spaces inside: `POST /orders`."""
    if isinstance(value, str) and value.strip(" ") == value:
        check_name("operation", value.replace(" ", "_"))
        return value
    return check_name("operation", value)


def check_name(argument: str, value: Any) -> str:
    """A name or key as the server takes it: 1 to 255 bytes of printable ASCII."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{argument} must be a str, not {type(value).__name__}")
    if not 1 <= len(value) <= MAX_NAME:
        raise InvalidRequest(f"{argument} must have 1 to {MAX_NAME} characters, not {len(value)}")
    if any(not "!" <= character <= "~" for character in value):
        raise InvalidRequest(
            f"{argument} must be printable ASCII without spaces; encode other texts, for example "
            "with urllib.parse.quote"
        )
    return value


def path(*segments: str) -> str:
    """A path below /v1. Dots are encoded too: clients and proxies would resolve `..`."""
    quoted = (quote(segment, safe="").replace(".", "%2E") for segment in segments)
    return "/v1/" + "/".join(quoted)


def seconds(argument: str, value: Any, *, most: float, least: float = 0.001) -> float:
    """A duration in seconds, from a number or a timedelta."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidRequest(
            f"{argument} must be seconds or a timedelta, not {type(value).__name__}"
        )
    if not least <= value <= most:
        raise InvalidRequest(f"{argument} must be {least:g} to {most:g} seconds, not {value:g}")
    return float(value)


def millis(value: float) -> int:
    return max(0, round(value * 1000))


def encode_json(argument: str, value: Any) -> bytes:
    """Strict JSON: NaN and objects that JSON does not know are refused."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{argument} cannot be written as JSON: {error}") from None
