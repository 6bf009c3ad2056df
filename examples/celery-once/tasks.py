"""Two tasks that have their effect once, however often their messages are delivered."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from celery import Celery

import hapax_client
from hapax_client.celery import once_task
from hapax_client.sqlite import Idempotency

broker = os.environ.get("BROKER", "redis://127.0.0.1:6379/0")
app = Celery("celery-once", broker=broker, backend=broker)
# The server that HAPAX_URL names.
client = hapax_client.connect()


@app.task(base=once_task(client, key="order_id"))
def send_receipt(order_id):
    """An effect outside of any database: one mail for each order, here a line in a file."""
    with Path("mails.txt").open("a") as mails:
        mails.write(f"receipt for {order_id}\n")
    return f"mail to the customer of {order_id}"


@app.task(acks_late=True, reject_on_worker_lost=True)
def book(order_id, cents):
    """An effect in a database: the booking and its claim are one transaction, so it is exactly once."""
    with closing(sqlite3.connect("shop.db", timeout=10)) as database:
        database.execute("CREATE TABLE IF NOT EXISTS bookings (order_id TEXT, cents INTEGER)")

        def insert():
            database.execute("INSERT INTO bookings VALUES (?, ?)", (order_id, cents))
            return {"order": order_id, "cents": cents}

        booked = Idempotency(database).once("book", order_id, insert)
        database.commit()
        return booked
