"""Results of ``once`` as JSON: plain values, dataclasses and pydantic models."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Callable, Optional, get_type_hints

from ..errors import InvalidRequest


def encode_result(value: object) -> bytes:
    try:
        text = json.dumps(
            value, default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            "the function's result cannot be stored; return a JSON value, a dataclass or a pydantic"
            " model (its writes were undone)"
        ) from error
    return text.encode()


def decode_result(stored: bytes, fn: Callable[..., Any], result: Optional[type]) -> Any:
    """The value that every caller gets, also the first one, so that all get the same.

    Its type is ``result``, or what ``fn`` is annotated with."""
    return _build(json.loads(stored), result or _annotated_result(fn))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError(f"no JSON for a {type(value).__name__}")


def _annotated_result(fn: Callable[..., Any]) -> Any:
    # A partial or a bound method has its function inside; an annotation may name an unknown type.
    while hasattr(fn, "func"):
        fn = fn.func
    try:
        return get_type_hints(fn).get("return")
    except (NameError, TypeError):
        return None


def _build(value: Any, wanted: Any) -> Any:
    if not isinstance(wanted, type) or not isinstance(value, dict):
        return value
    if dataclasses.is_dataclass(wanted):
        hints = get_type_hints(wanted)
        return wanted(**{name: _build(part, hints.get(name)) for name, part in value.items()})
    validate = getattr(wanted, "model_validate", None)
    return validate(value) if callable(validate) else value
