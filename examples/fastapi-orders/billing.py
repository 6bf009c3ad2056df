"""The consumer: `hapax relay` posts each message here, perhaps twice, and each order gets one invoice.

DATABASE_URL=sqlite+aiosqlite:///billing.db uvicorn --factory billing:create_app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Optional

from fastapi import FastAPI, Header, Request, Response
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from hapax_client import Busy
from hapax_client.sqlalchemy import Inbox

PRICE = 7


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    amount: Mapped[int]


def create_app(database_url: Optional[str] = None) -> FastAPI:
    engine = create_async_engine(database_url or os.environ["DATABASE_URL"])
    sessions = async_sessionmaker(engine, expire_on_commit=False)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await create_tables(engine)
        yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/messages", status_code=204)
    async def receive(
        request: Request, message_id: Annotated[str, Header(alias="Idempotency-Key")]
    ) -> Response:
        order = await request.json()
        try:
            async with sessions.begin() as session:
                # False for a message that had its effect: it is acknowledged, and nothing happens.
                if await Inbox(session).receive("billing", message_id):
                    session.add(Invoice(order_id=order["id"], amount=order["pieces"] * PRICE))
        except Busy:
            # Not acknowledged: the relay delivers it again.
            return Response(status_code=503)
        return Response(status_code=204)

    @app.get("/invoices")
    async def list_invoices() -> list[dict[str, Any]]:
        async with sessions() as session:
            invoices = await session.scalars(select(Invoice).order_by(Invoice.id))
            return [{"order": i.order_id, "amount": i.amount} for i in invoices]

    return app


async def create_tables(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
