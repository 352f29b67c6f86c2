"""The view as an ASGI application: its files, its WebSocket, and reports of runs.

A message to the page is an object with the changed parts by name; a message from the page is an `Order`. The cluster is
sampled only while a page is open. A GET request changes nothing in the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, TypedDict

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from testbed.cli.web.access_guard import AccessGuard
from testbed.cli.web.command_forms import HERE, FormError, OfferedCommands, Value
from testbed.cli.web.command_jobs import Jobs
from testbed.cli.web.page_parts import Choices, Parts, needs_agents, parts_of
from testbed.cli.web.run_list import ReportPages, RunList
from testbed.errors import TestbedError
from testbed.json_text import check, loads
from testbed.observe.live.snapshot import Absent, Snapshot

STATIC: Final = Path(__file__).with_name("static")
_MIN_SEND_INTERVAL: Final = 0.1  # s between two messages to a viewer
_REPORT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox allow-popups"


class Order(TypedDict, total=False):
    """A message from the page. show: the viewer's new choices. command: command to run. values: its filled form. name:
    identifier of its job. stop: number of the job to interrupt."""

    show: Choices
    command: str
    values: dict[str, str | bool | list[str]]
    name: str
    stop: int


class Sampler(Protocol):
    """Sampler of a cluster, such as `SnapshotSampler`."""

    def sample(self, *, agents: bool = True) -> Snapshot | Absent: ...


@dataclass(slots=True, eq=False)
class _Viewer:
    """An open page. snapshot: the snapshot that it shows. sent: the parts that were sent to it. changed: set when there may
    be changed parts to send."""

    choices: Choices = field(default_factory=lambda: Choices())
    snapshot: Snapshot | Absent = field(default_factory=lambda: Absent(""))
    sent: Parts = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class View:
    """State that all open pages share."""

    def __init__(
        self, sampler: Sampler, interval: float, runs: RunList, reports: ReportPages, commands: OfferedCommands = HERE
    ) -> None:
        """interval: seconds between two samples. commands: the commands that pages offer."""
        self._sampler = sampler
        self._interval = interval
        self._runs = runs
        self._reports = reports
        self._viewers: set[_Viewer] = set()
        self._sample_now = asyncio.Event()
        self._snapshot: Snapshot | Absent = Absent("")
        self._commands = commands
        self._common: Parts = {"forms": commands.forms()}  # parts that are equal for all viewers
        self.jobs = Jobs(self._notify, self._sample_now.set)

    async def sample(self) -> None:
        """Sample the cluster periodically, and when a command has ended or a page was opened, until cancelled."""
        due = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                timeout = max(0.0, due - time.monotonic()) if self._viewers else None
                await asyncio.wait_for(self._sample_now.wait(), timeout)
            self._sample_now.clear()
            due = time.monotonic() + self._interval
            agents = any(needs_agents(viewer.choices) for viewer in self._viewers)
            self._snapshot = self._sampler.sample(agents=agents)
            self._common["runs"] = self._runs.refresh()
            self._notify()

    def _notify(self) -> None:
        for viewer in self._viewers:
            viewer.changed.set()

    async def serve(self, websocket: WebSocket) -> None:
        """Serve one page until it is closed."""
        await websocket.accept()
        viewer = _Viewer()
        self._viewers.add(viewer)
        self._sample_now.set()
        sending = asyncio.create_task(self._send(websocket, viewer))
        try:
            while True:
                self._execute(viewer, await websocket.receive_text())
        except WebSocketDisconnect:
            pass
        except (ValueError, KeyError) as error:  # KeyError: a binary message
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                await websocket.close(1008, str(error)[:100])
        finally:
            self._viewers.discard(viewer)
            sending.cancel()
            await asyncio.wait([sending])

    async def _send(self, websocket: WebSocket, viewer: _Viewer) -> None:
        """Send a viewer the changed parts, until its page is closed. A slow page skips intermediate states."""
        while True:
            await viewer.changed.wait()
            viewer.changed.clear()
            is_paused = viewer.choices.get("paused", False)
            if not is_paused or isinstance(self._snapshot, Absent) or isinstance(viewer.snapshot, Absent):
                viewer.snapshot = self._snapshot
            parts = {**self._common, "jobs": self.jobs.to_json(), **parts_of(viewer.snapshot, viewer.choices)}
            changed_parts = {
                name: part for name, part in parts.items() if name not in viewer.sent or viewer.sent[name] != part
            }
            viewer.sent |= changed_parts
            if changed_parts:
                try:
                    await websocket.send_text(json.dumps(changed_parts, separators=(",", ":")))
                except (WebSocketDisconnect, RuntimeError):  # closed; `serve` gets an error, too
                    return
            await asyncio.sleep(_MIN_SEND_INTERVAL)

    def _execute(self, viewer: _Viewer, text: str) -> None:
        """Execute an order. Raises ValueError for an invalid order."""
        order: Order = loads(text)
        check(order, Order)
        if "show" in order:
            needed_agents = needs_agents(viewer.choices)
            viewer.choices = order["show"]
            viewer.changed.set()
            if needs_agents(viewer.choices) and not needed_agents:
                self._sample_now.set()
        if "command" in order:
            self._start(order["command"], dict(order.get("values", {})), order.get("name", ""))
        if "stop" in order:
            self.jobs.stop(order["stop"])

    def _start(self, command: str, values: dict[str, Value], name: str) -> None:
        """Start a command on the displayed cluster. An invalid form becomes a failed job."""
        if isinstance(self._snapshot, Absent):
            self.jobs.refuse(command, name, self._snapshot.why)
            return
        try:
            self.jobs.start(self._commands.arguments(command, self._snapshot.cluster, values), name)
        except FormError as error:
            self.jobs.refuse(command, name, str(error))

    async def report(self, request: Request) -> Response:
        """Respond with the report of a run."""
        folder = self._runs.folder(request.path_params["name"])
        if folder is None:
            return PlainTextResponse("There is no such run.\n", 404)
        try:
            page = await self._reports.page(folder)
        except TestbedError as error:
            return PlainTextResponse(f"{error}\n", 409)
        return FileResponse(page, media_type="text/html", headers={"content-security-policy": _REPORT_POLICY})


def application(view: View, *, token: str, port: int) -> Starlette:
    """Return the application. Requests need the token in their path, and a Host header with the port."""
    routes = [
        Route("/", _index),
        Route("/runs/{name:path}", view.report),
        WebSocketRoute("/socket", view.serve),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(AccessGuard, token=token, port=port)])


def _index(_request: Request) -> Response:
    return FileResponse(STATIC / "index.html")
