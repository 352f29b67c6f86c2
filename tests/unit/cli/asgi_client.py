"""Client for an ASGI 3.0 application without a server: requests and WebSockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from starlette.types import ASGIApp, Message

TIMEOUT = 5.0  # s for a response

_Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def _scope(kind: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
    raw: _Headers = [(name.lower().encode(), text.encode()) for name, text in headers.items()]
    return {
        "type": kind, "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": raw, "subprotocols": [],
    }  # fmt: skip


async def request(app: ASGIApp, path: str, headers: Mapping[str, str], method: str = "GET") -> Response:
    sent: list[Message] = []
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": b"", "more_body": False})

    async def send(message: Message) -> None:
        sent.append(message)

    async with asyncio.timeout(TIMEOUT):
        await app({**_scope("http", path, headers), "method": method}, incoming.get, send)
    start_message = sent[0]
    response_headers = {name.decode(): text.decode() for name, text in start_message["headers"]}
    return Response(
        start_message["status"], response_headers, b"".join(message.get("body", b"") for message in sent[1:])
    )


class Socket:
    """Client end of a WebSocket. parts: latest received value of each part."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[Message] = asyncio.Queue()
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.parts: dict[str, Any] = {}

    def send(self, order: object) -> None:
        text = order if isinstance(order, str) else json.dumps(order)
        self.orders.put_nowait({"type": "websocket.receive", "text": text})

    async def message(self) -> Message:
        async with asyncio.timeout(TIMEOUT):
            message = await self.messages.get()
        if "text" in message:
            message["text"].encode()  # a server encodes it, too
        return message

    async def next_parts(self) -> dict[str, Any]:
        """Return the parts of the next message."""
        document: dict[str, Any] = json.loads((await self.message())["text"])
        self.parts |= document
        return document

    async def until(self, name: str) -> Self:
        """Wait for a message that has a part."""
        while name not in await self.next_parts():
            pass
        return self


@asynccontextmanager
async def connected(app: ASGIApp, path: str, headers: Mapping[str, str]) -> AsyncIterator[Socket]:
    """Open a WebSocket, which the client closes at the end of the block."""
    socket = Socket()
    socket.orders.put_nowait({"type": "websocket.connect"})
    serving = asyncio.ensure_future(app(_scope("websocket", path, headers), socket.orders.get, socket.messages.put))
    try:
        yield socket
    finally:
        socket.orders.put_nowait({"type": "websocket.disconnect", "code": 1001})
        async with asyncio.timeout(TIMEOUT):
            await serving
