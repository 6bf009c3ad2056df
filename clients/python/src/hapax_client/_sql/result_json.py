"""Results of ``once`` as JSON, as the decorator ``client.once`` stores them."""

from __future__ import annotations

import json
from typing import Any, Callable, Optional, get_type_hints

from .._json_values import from_json, to_json
from .._once import KIND
from ..errors import InvalidRequest, ResultNotKept
from .values import Headers


def encode_result(value: object) -> bytes:
    try:
        text = json.dumps(
            to_json(value), allow_nan=False, ensure_ascii=False, separators=(",", ":")
        )
    except (TypeError, ValueError) as error:
        raise InvalidRequest(
            "the function's result cannot be stored; return a JSON value, a dataclass or a pydantic"
            " model (its writes were undone)"
        ) from error
    return text.encode()


def replay_result(
    stored: bytes, headers: Optional[Headers], fn: Callable[..., Any], result: Optional[type]
) -> Any:
    """The result that an earlier ``once`` stored, here, in Rust or by the decorator ``client.once``."""
    kind = (headers or {}).get(KIND, "result")
    if kind != "result":
        raise ResultNotKept(f"the function ran before; its stored answer is '{kind}', no result")
    try:
        return decode_result(stored or b"null", fn, result)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ResultNotKept(
            "the command ran before, but its stored answer is not what this function returns; read it"
            " with `begin`"
        ) from error


def decode_result(stored: bytes, fn: Callable[..., Any], result: Optional[type]) -> Any:
    """The value that every caller gets, also the first one, so that all get the same.

    Its type is ``result``, or what ``fn`` is annotated with."""
    return from_json(json.loads(stored), result or _annotated_result(fn))


def _annotated_result(fn: Callable[..., Any]) -> Any:
    # A partial has its function inside; an annotation may name a type that is not known here.
    while hasattr(fn, "func"):
        fn = fn.func
    try:
        return get_type_hints(fn).get("return", Any)
    except (NameError, TypeError):
        return Any
