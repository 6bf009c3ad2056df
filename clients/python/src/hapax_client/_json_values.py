"""Python values as JSON and back: results of functions, and the canonical text of arguments."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import hashlib
import json
import pathlib
import types
import typing
import uuid
from collections.abc import Mapping, Sequence, Set
from typing import Any, Union

_AS_TEXT = (uuid.UUID, decimal.Decimal, pathlib.PurePath)
_WITH_ISOFORMAT = (datetime.datetime, datetime.date, datetime.time)


def to_json(value: Any) -> Any:
    """A value that `json.dumps` takes; raises TypeError for types that are not listed in the guide."""
    if isinstance(value, enum.Enum):
        return to_json(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, _WITH_ISOFORMAT):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):  # pydantic, without importing it
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {_field_name(name): to_json(item) for name, item in value.items()}
    if isinstance(value, Set):
        return sorted((to_json(item) for item in value), key=_canonical_text)
    if isinstance(value, Sequence):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def fingerprint_of(value: Any) -> str:
    """SHA-256 of the canonical JSON: names sorted, no spaces, ASCII."""
    return "sha256:" + hashlib.sha256(_canonical_text(to_json(value)).encode()).hexdigest()


def _canonical_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _field_name(name: Any) -> str:
    if isinstance(name, bool) or not isinstance(name, (str, int, uuid.UUID)):
        raise TypeError(f"a mapping with keys of type {type(name).__name__} has no JSON form here")
    return str(name)


def from_json(value: Any, annotation: Any) -> Any:
    """The value that an annotation asks for, from its JSON form; unknown annotations keep the JSON."""
    if value is None or annotation is Any:
        return value
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return from_json(value, arguments[0])
    if origin in (Union, getattr(types, "UnionType", Union)):
        return _from_union(value, arguments)
    if origin is not None:
        return _from_generic(value, origin, arguments)
    if not isinstance(annotation, type):
        return value
    return _from_class(value, annotation)


def _from_class(value: Any, kind: type) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        given = [f for f in dataclasses.fields(kind) if f.init and f.name in value]
        return kind(**{f.name: from_json(value[f.name], hints[f.name]) for f in given})
    if issubclass(kind, _WITH_ISOFORMAT):
        return kind.fromisoformat(value)
    if issubclass(kind, datetime.timedelta):
        return kind(seconds=value)
    if issubclass(kind, (bytes, bytearray)):
        return kind(base64.b64decode(value))
    if issubclass(kind, (enum.Enum, *_AS_TEXT)):
        return kind(value)
    if kind in (tuple, set, frozenset):
        return kind(value)
    return value


def _from_generic(value: Any, origin: Any, arguments: tuple[Any, ...]) -> Any:
    if not isinstance(origin, type):
        return value
    if issubclass(origin, Mapping):
        of = arguments[1] if len(arguments) == 2 else Any
        return {name: from_json(item, of) for name, item in value.items()}
    if issubclass(origin, tuple) and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return tuple(from_json(item, of) for item, of in zip(value, arguments))
    if issubclass(origin, (Sequence, Set)):
        items = [from_json(item, arguments[0]) for item in value]
        return origin(items) if origin in (tuple, set, frozenset) else items
    return value


def _from_union(value: Any, arguments: tuple[Any, ...]) -> Any:
    """The first member that takes the value; plain JSON types are members of their own."""
    for of in arguments:
        if isinstance(of, type) and of in (bool, int, float, str) and type(value) is of:
            return value
    for of in arguments:
        if of is type(None) or of in (bool, int, float, str):
            continue
        try:
            return from_json(value, of)
        except (TypeError, ValueError, KeyError, AttributeError):
            continue
    return value
