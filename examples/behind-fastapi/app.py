"""A shop that knows nothing of Idempotency-Key: every POST makes a new order."""

import asyncio
from itertools import count

from fastapi import FastAPI, Request
from pydantic import BaseModel

app = FastAPI()
numbers = count(17)
orders: list[dict] = []


class NewOrder(BaseModel):
    item: str
    cups: int = 1


@app.post("/orders", status_code=201)
async def create(order: NewOrder, request: Request) -> dict:
    await asyncio.sleep(0.2)  # a payment provider takes its time
    made = {
        "order": next(numbers),
        "item": order.item,
        "cups": order.cups,
        # More than 1 only with --on-unknown rerun, or after an answer that was given back.
        "attempt": int(request.headers.get("hapax-attempt", 1)),
    }
    orders.append(made)
    return made


@app.get("/orders")
async def all_orders() -> list[dict]:
    return orders
