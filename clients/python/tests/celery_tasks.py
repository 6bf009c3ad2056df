"""Tasks for the tests of `hapax_client.celery`: they count their effects in files, and can be held in the middle."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from celery import Celery
from celery.signals import task_retry

import hapax_client
from hapax_client.celery import once_task
from hapax_client.sqlite import Idempotency

FOLDER = Path(os.environ["TASKS_FOLDER"])
app = Celery("tasks", broker=os.environ["TASKS_BROKER"], backend=os.environ["TASKS_BROKER"])
app.conf.update(
    # Shorter than the tasks that are held: their messages are delivered again while they run.
    broker_transport_options={"visibility_timeout": 1},
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    task_default_retry_delay=0.1,
)
client = hapax_client.connect()


def effect(name: str) -> int:
    with (FOLDER / f"{name}.effects").open("a") as file:
        file.write("x")
    return effects(name)


def effects(name: str) -> int:
    file = FOLDER / f"{name}.effects"
    return len(file.read_text()) if file.exists() else 0


def hold(name: str) -> None:
    """Tells that the task came here, and waits until the test lets it go on."""
    (FOLDER / f"{name}.reached").touch()
    end = time.monotonic() + 120
    while not (FOLDER / "go").exists():
        assert time.monotonic() < end, "nobody let the task go on"
        time.sleep(0.02)


@task_retry.connect
def note_put_off(sender=None, request=None, **_):
    (FOLDER / f"{request.args[0]}.put-off").touch()


@app.task(base=once_task(client))
def by_id(name):
    return effect(name)


@app.task(base=once_task(client, key="name"))
def by_key(name):
    return effect(name)


@app.task(base=once_task(client))
def held(name):
    done = effect(name)
    hold(name)
    return done


@app.task(base=once_task(client, lease=2))
def held_with_short_lease(name):
    done = effect(name)
    hold(name)
    return done


@app.task(base=once_task(client, lease=2, on_unknown="rerun"))
def held_and_rerun(name):
    done = effect(name)
    hold(name)
    return done


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def in_transaction(self, name, hold_after_commit):
    """The effect, and the answer that tells it happened, are one transaction."""
    connection = sqlite3.connect(FOLDER / "shop.db", isolation_level=None, timeout=60)
    try:
        connection.execute("BEGIN IMMEDIATE")

        def order():
            connection.execute("INSERT INTO orders (name) VALUES (?)", (name,))
            if not hold_after_commit:
                hold(name)
            return {"name": name}

        made = Idempotency(connection).once("order", self.request.id, order)
        connection.execute("COMMIT")
        if hold_after_commit:
            hold(name)
        return made
    finally:
        connection.close()
