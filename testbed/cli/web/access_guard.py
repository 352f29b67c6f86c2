"""Access control of the view: requests without the token of its address are rejected.

The view listens on loopback, where every user of the machine, and every web page in a browser there, can connect. Each
request must have the token in its path, which is compared in constant time; a loopback address as its Host header, against
DNS rebinding; and, if a page makes it, the Origin of this view.
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
"""Default headers of each response."""


class AccessGuard:
    """ASGI middleware that forwards authorized requests, with the token removed from the path."""

    def __init__(self, app: ASGIApp, *, token: str, port: int) -> None:
        self._app = app
        self._token = token
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        inner = {**scope, "root_path": f"{scope.get('root_path', '')}/{self._token}"}
        rejection = self._rejection(scope)
        if scope["type"] == "websocket":
            # Closing before accepting makes the handshake fail with status 403.
            await (WebSocketClose()(scope, receive, send) if rejection else self._app(inner, receive, send))
        elif rejection:
            await PlainTextResponse(rejection, 403, HEADERS)(scope, receive, send)
        else:
            await self._app(inner, receive, _with_headers(send))

    def _rejection(self, scope: Scope) -> str:
        """Return the reason why a request is rejected, as a sentence; empty if it is accepted."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            return "This view is at 127.0.0.1 only.\n"
        if origin != f"http://{host}" and (origin is not None or scope["type"] == "websocket"):
            return "Requests of other pages are not allowed.\n"
        token = scope["path"].removeprefix("/").partition("/")[0]
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return "This is not the view's address: 'testbed top --web' prints it, with its token.\n"
        return ""


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message["headers"]}
            missing = [(name.encode(), text.encode()) for name, text in HEADERS.items() if name.encode() not in present]
            message = {**message, "headers": [*message["headers"], *missing]}
        await send(message)

    return send_with_headers
