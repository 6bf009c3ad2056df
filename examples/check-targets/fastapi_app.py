"""The two routes that `hapax check` asks of a service, for FastAPI.

pip install fastapi uvicorn; uvicorn fastapi_app:app --port 8080
"""

import asyncio

from fastapi import Body, FastAPI, Response
from fastapi.responses import StreamingResponse

app = FastAPI()
executions = 0

# Put your own idempotency middleware here: app.add_middleware(…)


async def slowly(body: bytes):
    for at in range(0, len(body), 256):
        yield body[at : at + 256]
        await asyncio.sleep(0.005)


@app.post("/orders/other-path")
@app.post("/orders")
async def create_order(order: dict = Body(default={})):
    global executions
    executions += 1
    headers = {"x-run": str(executions)}
    await asyncio.sleep(order.get("delay_ms", 0) / 1000)
    body = (b"\xff" if order.get("binary") else b"x") * order.get("size", 16)
    status = order.get("status", 201)
    if order.get("stream"):
        return StreamingResponse(slowly(body), status, headers)
    return Response(body, status, headers, "application/octet-stream")


@app.get("/executions")
async def count():
    return {"executions": executions}
