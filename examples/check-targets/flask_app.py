"""The two routes that `hapax check` asks of a service, for Flask.

pip install flask; flask --app flask_app run --port 8080
"""

import itertools
import time

from flask import Flask, Response, request

app = Flask(__name__)
runs = itertools.count()
executions = 0

# Put your own idempotency middleware here: app.wsgi_app = …(app.wsgi_app)


def slowly(body):
    for at in range(0, len(body), 256):
        yield body[at : at + 256]
        time.sleep(0.005)


@app.post("/orders/other-path")
@app.post("/orders")
def create_order():
    global executions
    order = request.get_json()
    executions = next(runs) + 1  # Threads share the iterator, and each gets another number.
    headers = {"x-run": str(executions)}
    time.sleep(order.get("delay_ms", 0) / 1000)
    body = (b"\xff" if order.get("binary") else b"x") * order.get("size", 16)
    return Response(slowly(body) if order.get("stream") else body, order.get("status", 201), headers)


@app.get("/executions")
def count():
    return {"executions": executions}
