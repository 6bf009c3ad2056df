"""Functions that run once for each key, and give everybody the first result."""

from __future__ import annotations

import functools
import inspect
import json
import time
import typing
from collections.abc import Sequence
from typing import Any, Callable, Optional, TypeVar, Union

from ._arguments import HOUR, MAX_RETENTION, Seconds, check_name, check_operation, seconds
from ._commands import MAX_WAIT, Answer, AsyncCommand, Begun, Command, CommandSteps
from ._json_values import fingerprint_of, from_json, to_json
from ._lease import Lease, RenewalTask, RenewalThread, log, run_to_end
from ._locks import MAX_RENEW_FOR, RENEW_FOR
from ._protocol import Steps
from ._transport import AsyncTransport, SyncTransport
from .errors import HapaxError, InvalidRequest, OutcomeUnknown, ResultNotKept, StoreUnavailable

F = TypeVar("F", bound=Callable[..., Any])
KeySource = Union[str, Callable[..., Any]]
FingerprintSource = Union[None, str, Sequence[str], Callable[..., str]]

# Marks what a stored answer holds: a result, an exception, or nothing because it was too large.
KIND = "hapax-result"


class OnceOptions:
    """How a function is run once; checked when it is decorated."""

    def __init__(
        self,
        operation: str,
        key: KeySource,
        *,
        fingerprint: FingerprintSource = "arguments",
        lease: Seconds = 30,
        retention: Seconds = 86400,
        wait: Seconds = 30,
        renew_for: Seconds = RENEW_FOR,
        on_unknown: str = "refuse",
        on_replay: Optional[Callable[[Any], Any]] = None,
        store_exceptions: tuple[type[Exception], ...] = (),
    ) -> None:
        self.operation = check_operation(operation)
        self.lease = seconds("lease", lease, most=HOUR)
        self.retention = seconds("retention", retention, most=MAX_RETENTION)
        self.wait = seconds("wait", wait, most=MAX_WAIT, least=0)
        self.renew_for = seconds("renew_for", renew_for, most=MAX_RENEW_FOR, least=0)
        if on_unknown not in ("refuse", "rerun"):
            raise InvalidRequest('on_unknown must be "refuse" or "rerun"')
        if not isinstance(key, str) and not callable(key):
            raise InvalidRequest(
                "key must be a text, the name of an argument, or a callable of the arguments"
            )
        self.key, self.fingerprint = key, fingerprint
        self.on_unknown, self.on_replay = on_unknown, on_replay
        self.store_exceptions = tuple(store_exceptions)


class OnceFunction:
    """A decorated function: from its arguments to a key, from its result to an answer and back."""

    def __init__(self, options: OnceOptions, function: Callable[..., Any]) -> None:
        self.options, self.function = options, function
        self._signature = inspect.signature(function)
        self._annotation: Any = _return_annotation(function)
        named = isinstance(options.key, str) and options.key in self._signature.parameters
        self._key_argument = typing.cast(str, options.key) if named else None
        if isinstance(options.key, str) and not named:
            check_name("key", options.key)
        if isinstance(options.fingerprint, (list, tuple)):
            for name in options.fingerprint:
                if name not in self._signature.parameters:
                    raise InvalidRequest(
                        f"fingerprint names {name!r}, which is no argument of the function"
                    )

    def identify(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str]:
        """The key and the fingerprint of a call."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self._key(bound.arguments, args, kwargs), self._fingerprint(
            bound.arguments, args, kwargs
        )

    def _key(self, arguments: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        source = self.options.key
        if callable(source):
            key = source(*args, **kwargs)
        else:
            key = arguments[self._key_argument] if self._key_argument else source
        if key is None:
            raise InvalidRequest("the key of the call is None; without a key it cannot run once")
        return check_name("key", key if isinstance(key, str) else str(key))

    def _fingerprint(
        self, arguments: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        source = self.options.fingerprint
        if source is None:
            return ""
        if callable(source):
            return source(*args, **kwargs)
        if source == "arguments":
            hashed = {n: v for n, v in arguments.items() if n not in ("self", "cls")}
        else:
            hashed = {name: arguments[name] for name in source}
        for name, value in hashed.items():
            try:
                to_json(value)
            except TypeError as error:
                raise InvalidRequest(
                    f"the argument {name!r} cannot be hashed for the fingerprint: {error}; name those "
                    'that can, as in fingerprint=("order",), or give fingerprint=None'
                ) from None
        try:
            return fingerprint_of(hashed)
        except ValueError as error:
            raise InvalidRequest(
                f"the arguments cannot be hashed for the fingerprint: {error}"
            ) from None

    def begin(self, command: CommandSteps, fingerprint: str) -> Steps[Begun]:
        options = self.options
        return CommandSteps.begin.steps(
            command,
            fingerprint=fingerprint,
            lease=options.lease,
            retention=options.retention,
            wait=options.wait,
            on_unknown=options.on_unknown,
        )

    def complete(self, command: CommandSteps, token: str, result: Any) -> Steps[None]:
        """Stores the result; a result that cannot be stored is remembered as such."""
        try:
            body = json.dumps(to_json(result), allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError) as error:
            problem: Exception = error
        else:
            try:
                yield from self._store(command, token, 200, "result", body)
                return
            except InvalidRequest as error:
                problem = error
        yield from self._store(command, token, 200, "not-kept", b"")
        raise ResultNotKept(
            f"the function ran, but its result cannot be stored: {problem}; return something smaller, "
            "or of the types that the guide lists"
        )

    def store_exception(self, command: CommandSteps, token: str, error: Exception) -> Steps[None]:
        kept = {"type": _name(type(error)), "args": _plain_arguments(error)}
        yield from self._store(command, token, 500, "exception", json.dumps(kept).encode())

    def _store(
        self, command: CommandSteps, token: str, status: int, kind: str, body: bytes
    ) -> Steps[None]:
        headers = {"content-type": "application/json", KIND: kind}
        try:
            yield from CommandSteps.complete.steps(command, token, status, headers, body)
        except StoreUnavailable as error:
            raise OutcomeUnknown(
                "the function ran, but its result could not be stored, because the server does not "
                "answer; later calls are told that the outcome is unknown: settle the command with "
                "its result (`hapax command --help`)"
            ) from error

    def give_back(self, command: CommandSteps, token: str) -> Steps[None]:
        try:
            yield from CommandSteps.fail.steps(command, token)
        except HapaxError as error:
            # The function's own error tells more; the lease expires by itself.
            log.warning("a failed command could not be given back: %s", error.code or "no answer")

    def stores(self, error: BaseException) -> bool:
        return isinstance(error, self.options.store_exceptions)

    def replay(self, answer: Answer) -> Any:
        """The stored result; raises what was stored as an exception."""
        kind = answer.headers.get(KIND, "result")
        if kind == "not-kept":
            raise ResultNotKept("the function ran before, but its result was not kept")
        try:
            value = json.loads(answer.body) if answer.body else None
        except ValueError:
            raise ResultNotKept(
                "the command was completed by something else, with an answer that is not JSON"
            ) from None
        if kind == "exception":
            raise self._exception(value)
        return from_json(value, self._annotation)

    def _exception(self, kept: Any) -> Exception:
        # Only classes that the decorator names: a stored text never decides what is imported.
        for kind in _with_subclasses(self.options.store_exceptions):
            if _name(kind) == kept["type"]:
                try:
                    return kind(*kept["args"])
                except TypeError:
                    break
        return HapaxError(f"the function raised {kept['type']} when it ran")


def once_sync(transport: SyncTransport, options: OnceOptions, function: F) -> F:
    """Decorates a plain function."""
    if inspect.iscoroutinefunction(function):
        raise InvalidRequest("a coroutine function needs an async client: aconnect()")
    plan = OnceFunction(options, function)

    @functools.wraps(function)
    def run_once(*args: Any, **kwargs: Any) -> Any:
        key, fingerprint = plan.identify(args, kwargs)
        command = Command(transport, options.operation, key)
        lease = Lease(options.lease, options.renew_for)
        begun = transport.run(plan.begin(command, fingerprint))
        if begun.answer is not None:
            result = plan.replay(begun.answer)
            if options.on_replay is not None:
                options.on_replay(result)
            return result
        token = typing.cast(str, begun.token)
        lease.begin(time.monotonic())
        renewal = RenewalThread(
            transport, lease.keep(lambda: _renew(command, token, options.lease))
        )
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            renewal.stop()
            if isinstance(error, Exception) and plan.stores(error):
                transport.run(plan.store_exception(command, token, error))
            else:
                transport.run(plan.give_back(command, token))
            raise
        renewal.stop()
        transport.run(plan.complete(command, token, result))
        return result

    return run_once  # type: ignore[return-value]


def once_async(transport: AsyncTransport, options: OnceOptions, function: F) -> F:
    """Decorates a coroutine function."""
    if not inspect.iscoroutinefunction(function):
        raise InvalidRequest("a plain function needs a blocking client: connect()")
    plan = OnceFunction(options, function)

    @functools.wraps(function)
    async def run_once(*args: Any, **kwargs: Any) -> Any:
        key, fingerprint = plan.identify(args, kwargs)
        command = AsyncCommand(transport, options.operation, key)
        lease = Lease(options.lease, options.renew_for)
        begun = await transport.run(plan.begin(command, fingerprint))
        if begun.answer is not None:
            result = plan.replay(begun.answer)
            if options.on_replay is not None:
                told = options.on_replay(result)
                if inspect.isawaitable(told):
                    await told
            return result
        token = typing.cast(str, begun.token)
        lease.begin(time.monotonic())
        renewal = RenewalTask(transport, lease.keep(lambda: _renew(command, token, options.lease)))
        try:
            result = await function(*args, **kwargs)
        except BaseException as error:
            renewal.stop()
            if isinstance(error, Exception) and plan.stores(error):
                await run_to_end(plan.store_exception(command, token, error), transport)
            else:
                await run_to_end(plan.give_back(command, token), transport)
            raise
        renewal.stop()
        await run_to_end(plan.complete(command, token, result), transport)
        return result

    return run_once  # type: ignore[return-value]


def _renew(command: CommandSteps, token: str, lease: float) -> Steps[None]:
    return CommandSteps.renew.steps(command, token, lease)


def _return_annotation(function: Callable[..., Any]) -> Any:
    try:
        return typing.get_type_hints(function).get("return", Any)
    except (NameError, TypeError):
        # A name that exists for type checkers alone: the JSON is given as it is.
        return Any


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _with_subclasses(kinds: Sequence[type[Exception]]) -> list[type[Exception]]:
    found: list[type[Exception]] = []
    for kind in kinds:
        found.append(kind)
        found.extend(_with_subclasses(kind.__subclasses__()))
    return found


def _plain_arguments(error: Exception) -> list[Any]:
    try:
        arguments: list[Any] = to_json(list(error.args))
        json.dumps(arguments, allow_nan=False)
        return arguments
    except (TypeError, ValueError):
        return [str(error)]
