"""A shop: an order, the answer to its request and its message are one transaction.

DATABASE_URL=sqlite+aiosqlite:///shop.db uvicorn --factory shop:create_app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Optional

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from hapax_client import Busy, HapaxError, InvalidRequest, KeyReused, OutcomeUnknown
from hapax_client.sqlalchemy import Idempotency, Outbox, fingerprint_of

STATUS_OF_ERROR = {Busy: 409, KeyReused: 422, OutcomeUnknown: 409, InvalidRequest: 400}


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    pieces: Mapped[int]


class OrderRequest(BaseModel):
    item: str
    pieces: int = Field(ge=1)


def create_app(database_url: Optional[str] = None) -> FastAPI:
    engine = create_async_engine(database_url or os.environ["DATABASE_URL"])
    sessions = async_sessionmaker(engine, expire_on_commit=False)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await create_tables(engine)
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders")
    async def create_order(
        wanted: OrderRequest, key: Annotated[str, Header(alias="Idempotency-Key")]
    ) -> JSONResponse:
        async with sessions.begin() as session:

            async def create() -> dict[str, Any]:
                order = Order(item=wanted.item, pieces=wanted.pieces)
                session.add(order)
                await session.flush()
                answer = {"id": order.id, "item": order.item, "pieces": order.pieces}
                await Outbox(session).enqueue("orders", f"order-{order.id}", answer)
                return answer

            idempotency = Idempotency(session)
            fingerprint = fingerprint_of(wanted.model_dump())
            answer = await idempotency.once("CreateOrder", key, create, fingerprint)
        headers = {"Idempotent-Replayed": "true"} if idempotency.replayed else {}
        return JSONResponse(answer, 201, headers)

    @app.get("/orders")
    async def list_orders() -> list[dict[str, Any]]:
        async with sessions() as session:
            orders = await session.scalars(select(Order).order_by(Order.id))
            return [{"id": o.id, "item": o.item, "pieces": o.pieces} for o in orders]

    @app.exception_handler(HapaxError)
    async def refuse(_: Request, error: HapaxError) -> JSONResponse:
        headers = {} if error.retry_after is None else {"Retry-After": f"{error.retry_after:.0f}"}
        status = STATUS_OF_ERROR.get(type(error), 503)
        return JSONResponse({"detail": str(error), "retryable": error.retryable}, status, headers)

    return app


async def create_tables(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
