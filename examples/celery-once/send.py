"""Sends each task three times, as a client that retries does, and shows what came of it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import tasks

for task, arguments in [(tasks.send_receipt, ("order-1",)), (tasks.book, ("order-1", 1250))]:
    for sent in [task.delay(*arguments) for _ in range(3)]:
        print(task.name, sent.get(timeout=60))
print("mails:", Path("mails.txt").read_text().splitlines())
with closing(sqlite3.connect("shop.db")) as database:
    print("bookings:", database.execute("SELECT * FROM bookings").fetchall())
