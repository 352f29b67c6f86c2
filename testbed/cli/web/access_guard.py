"""Access to the view: who does not know its address gets nothing of it.

The view listens on loopback, where any user and any web page of the machine's browsers can connect. Each request has to
have the token in its path, compared in constant time; a Host header that names loopback, so that a name that is rebound to
127.0.0.1 is no way in; and, from a page, the Origin of this view.
"""

from __future__ import annotations

import hmac
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

HEADERS: Final = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",  # the address has the token
    "x-content-type-options": "nosniff",
}
"""Headers of each response that does not set its own."""


class AccessGuard:
    """ASGI middleware that passes on what is allowed, with the token taken from the path."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        inner = {**scope, "root_path": f"{scope.get('root_path', '')}/{self._token}"}
        refusal = self._refusal(scope)
        if scope["type"] == "websocket":
            # Closed before it is accepted, the handshake fails with 403.
            await (WebSocketClose()(scope, receive, send) if refusal else self._app(inner, receive, send))
        elif refusal:
            await PlainTextResponse(refusal, 403, HEADERS)(scope, receive, send)
        else:
            await self._app(inner, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> str:
        """Why a request is refused, as a sentence; empty if it is not."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            return "This view is at 127.0.0.1 only.\n"
        if origin != f"http://{host}" and (origin is not None or scope["type"] == "websocket"):
            return "Another page may not use this view.\n"
        given = scope["path"].removeprefix("/").partition("/")[0]
        if not hmac.compare_digest(given.encode(), self._token.encode()):
            return "This is not the view's address: 'testbed top --web' prints it, with its token.\n"
        return ""


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name for name, _ in message["headers"]}
            missing = [(name.encode(), text.encode()) for name, text in HEADERS.items() if name.encode() not in given]
            message = {**message, "headers": [*message["headers"], *missing]}
        await send(message)

    return send_with_headers
