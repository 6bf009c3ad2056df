"""Celery tasks that have their effect once, also where a message is delivered again or sent twice.

>>> client = hapax_client.connect()                                # doctest: +SKIP
>>> @app.task(base=once_task(client, key="order_id"))              # doctest: +SKIP
... def charge(order_id): ...

A delivery that comes while the task runs, because the visibility timeout is shorter than the task, is put
off; one that comes later gets the stored result. Tasks are acknowledged late and given back when their
worker dies: the next delivery is told that the outcome is unknown, and `on_unknown` decides. An effect in
a SQL database is exactly once with `hapax_client.sqlalchemy` and the task's id as the key.
"""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from celery import Task

from ._client import Client
from .errors import Busy

# A delivery that is put off comes again after this long, in seconds; twice as long each time, at most a minute.
PUT_OFF = 1.0
PUT_OFF_MAX = 60.0


def once_task(
    client: Client,
    *,
    key: Optional[Union[str, Callable[..., Any]]] = None,
    operation: Optional[str] = None,
    **options: Any,
) -> type[Task]:
    """A base class for tasks that run once for each key.

    `key` is a text, the name of an argument, or a callable of the arguments; by default it is the task's
    id, which a redelivered message keeps. `operation` is the task's name by default; `options` are those
    of `Client.once`.
    """

    class OnceTask(Task):  # type: ignore[misc]
        abstract = True
        # The message of a worker that dies must come again: the claim tells whether it may run.
        acks_late = True
        reject_on_worker_lost = True
        max_retries = None

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            if self.request.called_directly and key is None:
                return self.run(*args, **kwargs)
            try:
                return self._run_once(args, kwargs)
            except Busy as busy:
                countdown = min(PUT_OFF * 2 ** min(self.request.retries, 10), PUT_OFF_MAX)
                raise self.retry(exc=busy, countdown=countdown) from None

        def _run_once(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            name = operation or self.name
            if key is not None:
                once = client.once(name, key=key, wait=0, **options)
                return once(self.run)(*args, **kwargs)
            task_id = self.request.id
            once = client.once(name, key=task_id, wait=0, fingerprint=None, **options)
            # A function without arguments: none of them can be taken for the name of the key.
            return once(lambda: self.run(*args, **kwargs))()

    return OnceTask
