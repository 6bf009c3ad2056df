"""The steps of a keyed request's claim, written once for the ASGI and the WSGI middleware."""

from __future__ import annotations

from typing import Any, Optional

from ._commands import Answer, Begun, CommandSteps, answer_from
from ._kept_response import NOT_KEPT, headers_to_store, judge
from ._keyed_request import Settings
from ._lease import Lease
from ._problem_document import Headers, Problem, problem_of
from ._protocol import Steps
from .errors import Busy, HapaxError, StoreUnavailable

# A store that failed to take an answer is asked again for so long, in seconds, with this pause.
SETTLE_FOR = 600.0
SETTLE_PAUSE = 1.0
# The least lease that the server takes: it is over at once, and the outcome is unknown then.
AT_ONCE = 0.001


def begin(settings: Settings, command: CommandSteps, fingerprint: str) -> Steps[Optional[Begun]]:
    """The claim, or the stored answer; None where the request may run without protection."""
    options: dict[str, Any] = {
        "fingerprint": fingerprint,
        "lease": settings.lease,
        "retention": settings.retention,
        "on_unknown": settings.on_unknown,
    }
    waited = False
    try:
        try:
            return (yield from CommandSteps.begin.steps(command, **options))
        except Busy:
            if not settings.wait:
                raise
            waited = True
        return (yield from CommandSteps.begin.steps(command, wait=settings.wait, **options))
    except StoreUnavailable as error:
        # Where the first answer was that another request has the key, this one must not run.
        if settings.on_store_error == "open" and not waited:
            return None
        raise problem_of(error) from None
    except HapaxError as error:
        raise problem_of(error) from None


def settle(
    settings: Settings,
    command: CommandSteps,
    token: str,
    status: int,
    headers: Headers,
    body: Optional[bytes],
) -> Steps[None]:
    """Stores the outcome of a run; `body` is None where the response is not kept."""
    verdict = judge(settings, status, headers)
    if verdict == "give-back":
        yield from CommandSteps.fail.steps(command, token)
    elif verdict == "unknown":
        yield from leave_unknown(command, token)
    elif body is None:
        yield from CommandSteps.complete.steps(command, token, status, {NOT_KEPT: "true"})
    else:
        kept = headers_to_store(headers)
        yield from CommandSteps.complete.steps(command, token, status, kept, body)


def keep_alive(settings: Settings, command: CommandSteps, token: str) -> Steps[None]:
    """Renews the lease while the service runs."""
    lease = Lease(settings.lease, settings.renew_for)
    return lease.keep(lambda: CommandSteps.renew.steps(command, token, settings.lease))


def leave_unknown(command: CommandSteps, token: str) -> Steps[None]:
    """The run may or may not have acted, and a retry is told so at once, not at the end of the lease."""
    yield from CommandSteps.renew.steps(command, token, AT_ONCE)


def answer_of_the_winner(command: CommandSteps) -> Steps[Answer]:
    """The answer of the attempt that took over from one that ran late."""
    shown = yield from CommandSteps.get.steps(command)
    if shown is None or shown["state"] != "completed":
        detail = "another attempt has taken over and has no answer yet; send the request again"
        raise Problem("in-progress", detail, 1.0)
    return answer_from(shown)
