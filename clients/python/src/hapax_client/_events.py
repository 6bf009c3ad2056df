"""Events of a job: publishing, and following with an automatic resume."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Optional

from ._arguments import Seconds, check_name, encode_json, path, seconds
from ._problems import error_from
from ._protocol import (
    Emit,
    OpenStream,
    Pause,
    ReadChunk,
    Request,
    Response,
    Steps,
    TransportFailure,
)
from ._retry import send
from .errors import HapaxError, InvalidRequest, StoreUnavailable

# The longest line of an event stream; an event is at most as large as a request body.
MAX_LINE = 16 * 1024 * 1024
RECONNECT_FOR = 60.0
MAX_RECONNECT_FOR = 24 * 3600.0


@dataclass(frozen=True)
class Published:
    """The place of an event in its log. `published` is false for one that the log has already."""

    published: bool
    offset: int
    epoch: int


@dataclass(frozen=True)
class Event:
    """One event of a job.

    `kind` is `event`; or `gap`, where events are missing (`data` has `from` and `to`, `seq`, `offset`
    and `timestamp` are None); or `snapshot`, the job's latest state after a gap.
    """

    id: Optional[str]
    stage: str
    seq: Optional[int]
    offset: Optional[int]
    data: Any
    timestamp: Optional[str]
    kind: str = "event"


def publish_steps(
    domain: str, job_id: str, stage: str, seq: int, data: Any, final: bool
) -> Steps[Published]:
    """Publishes an event. Its identity is (domain, job_id, stage, seq): a repetition changes nothing."""
    if isinstance(seq, bool) or not isinstance(seq, int):
        raise InvalidRequest(f"seq must be an int, not {type(seq).__name__}")
    event = {
        "domain": check_name("domain", domain),
        "job_id": check_name("job_id", job_id),
        "stage": check_name("stage", stage),
        "seq": seq,
        "data": data,
    }
    if final:
        event["final"] = True
    response = yield from send(Request("POST", "/v1/events", encode_json("data", event)))
    told = response.json()
    return Published(told["published"], told["offset"], told["epoch"])


def follow_steps(
    domain: str, job_id: str, last_event_id: Optional[str], reconnect_for: Seconds
) -> Steps[None]:
    """Emits the events of a job until it is closed; reconnects with the last id that was emitted."""
    where = path("jobs", check_name("domain", domain), check_name("job_id", job_id)) + "/events"
    if last_event_id is not None:
        check_name("last_event_id", last_event_id)
    limit = seconds("reconnect_for", reconnect_for, most=MAX_RECONNECT_FOR, least=0)
    answered_at, failures = time.monotonic(), 0
    while True:
        try:
            response = yield OpenStream(_request(where, last_event_id))
            if response.status == 204:
                return
            _raise_for(response)
            parser = FrameParser()
            while True:
                chunk = yield ReadChunk()
                if not chunk:
                    break
                answered_at, failures = time.monotonic(), 0
                for event in parser.feed(chunk):
                    last_event_id = event.id or last_event_id
                    yield Emit(event)
            problem: HapaxError = StoreUnavailable("the server ended the event stream")
        except TransportFailure as failure:
            problem = StoreUnavailable(f"no answer from the server: {failure}")
        except StoreUnavailable as error:
            problem = error
        failures += 1
        pause = min(5.0, 0.1 * 2.0 ** min(failures, 10)) * random.uniform(0.5, 1.0)
        pause = max(pause, problem.retry_after or 0.0)
        if failures > 1 and time.monotonic() + pause - answered_at > limit:
            raise problem
        yield Pause(pause)


def _request(where: str, last_event_id: Optional[str]) -> Request:
    headers = {"accept": "text/event-stream"}
    if last_event_id is not None:
        headers["last-event-id"] = last_event_id
    return Request("GET", where, headers=headers)


def _raise_for(response: Response) -> None:
    if response.status >= 400:
        raise error_from(response)


class FrameParser:
    """Turns pieces of an event stream into events; a line ends with LF alone, as the server writes it."""

    def __init__(self) -> None:
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, chunk: bytes) -> Iterator[Event]:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > MAX_LINE:
            raise HapaxError(f"the event stream has a line of more than {MAX_LINE} bytes")
        for line in lines:
            event = self._line(line.rstrip(b"\r").decode())
            if event is not None:
                yield event

    def _line(self, line: str) -> Optional[Event]:
        if line:
            name, _, value = line.partition(":")
            self._fields[name] = value[1:] if value.startswith(" ") else value
            return None
        fields, self._fields = self._fields, {}
        return _event(fields) if "data" in fields else None


def _event(fields: dict[str, str]) -> Event:
    data = json.loads(fields["data"])
    name, id = fields.get("event", ""), fields.get("id")
    if name == "gap":
        return Event(id, "gap", None, None, data, None, kind="gap")
    return Event(
        id,
        data.get("stage", name),
        data.get("seq"),
        data.get("offset"),
        data.get("data"),
        data.get("timestamp"),
        kind="snapshot" if name == "snapshot" else "event",
    )
