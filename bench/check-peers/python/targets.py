"""The routes of `hapax check` behind five Python products. PEER says which; STORE is `memory` or a Redis address."""

import asyncio
import os
import time

import redis
import redis.asyncio
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

PEER, STORE = os.environ["PEER"], os.environ["STORE"]
executions = 0


class JsonOfSize(JSONResponse):
    """A JSON text of exactly so many bytes: some products keep nothing but JSON."""

    def render(self, size: int) -> bytes:
        return b'"%s"' % (b"x" * (size - 2)) if size >= 2 else b"0" * size


async def slowly(body: bytes):
    for at in range(0, len(body), 256):
        yield body[at : at + 256]
        await asyncio.sleep(0.005)


def started() -> dict:
    global executions
    executions += 1
    return {"x-run": str(executions)}


async def answer(request: Request) -> Response:
    order, headers = await request.json(), started()
    await asyncio.sleep(order.get("delay_ms", 0) / 1000)
    body = (b"\xff" if order.get("binary") else b"x") * order.get("size", 16)
    status = order.get("status", 201)
    if order.get("stream"):
        return StreamingResponse(slowly(body), status, headers)
    return Response(body, status, headers, "application/octet-stream")


async def answer_in_json(request: Request) -> Response:
    order, headers = await request.json(), started()
    await asyncio.sleep(order.get("delay_ms", 0) / 1000)
    return JsonOfSize(order.get("size", 16), order.get("status", 201), headers)


def caller(request) -> str:
    return request.headers.get("authorization") or "anonymous"


app = FastAPI()

if PEER == "asgi-idempotency-header":
    from idempotency_header_middleware import IdempotencyHeaderMiddleware
    from idempotency_header_middleware.backends import RedisBackend

    backend = RedisBackend(redis=redis.asyncio.from_url(STORE))
    app.add_middleware(IdempotencyHeaderMiddleware, backend=backend)
    create_order = answer_in_json

elif PEER == "fastapi-idempotency":
    from fastapi_idempotency import IdempotencyMiddleware

    app.add_middleware(IdempotencyMiddleware, scope=caller)
    create_order = answer

elif PEER == "idemkit":
    from idemkit import HttpConfig, IdempotencyMiddleware, RedisBackend

    backend = RedisBackend.from_url(STORE)
    app.add_middleware(IdempotencyMiddleware, backend=backend, config=HttpConfig(scope=caller))
    create_order = answer

elif PEER == "idemptx":
    from idemptx import idempotent
    from idemptx.backend import AsyncRedisBackend
    from idemptx.exceptions import ConflictRequestException, RequestInProgressException

    # It leaves the statuses to the service.
    @app.exception_handler(RequestInProgressException)
    async def in_progress(_request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": str(error)}, 409)

    @app.exception_handler(ConflictRequestException)
    async def conflict(_request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": str(error)}, 422)

    @idempotent(storage_backend=AsyncRedisBackend(redis.asyncio.from_url(STORE)), required=False)
    async def create_order(request: Request) -> Response:
        return await answer_in_json(request)

elif PEER == "aws-lambda-powertools":
    from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
    from aws_lambda_powertools.utilities.idempotency.exceptions import (
        IdempotencyAlreadyInProgressError,
        IdempotencyValidationError,
    )
    from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer

    class FunctionContext:
        """What a Lambda function is told about its time. Powertools gives a key free when it is over."""

        def get_remaining_time_in_millis(self) -> int:
            return 30_000

    class ServiceFailed(Exception):
        """A function that fails raises, and Powertools forgets its key."""

    # Without `payload_validation_jmespath`: with it, the Redis layer of this version refuses every replay, since it stores
    # the answer without the payload's hash.
    config = IdempotencyConfig(event_key_jmespath="[path, caller, key]")
    config.register_lambda_context(FunctionContext())
    store = CachePersistenceLayer(client=redis.Redis.from_url(STORE, decode_responses=True))

    def handle(event: dict) -> dict:
        order, headers = event["order"], started()
        time.sleep(order.get("delay_ms", 0) / 1000)
        if order.get("status", 201) >= 500:
            raise ServiceFailed
        return {"status": order.get("status", 201), "headers": headers, "size": order.get("size", 16)}

    protected = idempotent_function(
        data_keyword_argument="event", persistence_store=store, config=config
    )(handle)

    async def create_order(request: Request) -> Response:
        """The front that API Gateway is for a function: it makes the event, and a response of the result."""
        order, key = await request.json(), request.headers.get("idempotency-key")
        path = str(request.url.path) + "?" + str(request.url.query)
        event = {"path": path, "caller": caller(request), "key": key, "order": order}
        try:
            run = protected if key else handle
            result = await asyncio.to_thread(run, event=event)
        except IdempotencyAlreadyInProgressError as error:
            return JSONResponse({"message": str(error)}, 409)
        except IdempotencyValidationError as error:
            return JSONResponse({"message": str(error)}, 422)
        except ServiceFailed:
            return JsonOfSize(order.get("size", 16), order["status"])
        return JsonOfSize(result["size"], result["status"], result["headers"])

else:
    raise SystemExit(f"no such peer: {PEER}")

app.post("/orders")(create_order)
app.post("/orders/other-path")(create_order)


@app.get("/executions")
async def count():
    return {"executions": executions}
