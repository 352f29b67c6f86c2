"""Server of the view: a loopback socket, a token in its address, and a clean end by Ctrl-C or a signal."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import uvicorn

from testbed.cli.web.command_forms import HERE, OfferedCommands
from testbed.cli.web.run_list import ReportPages, RunList
from testbed.cli.web.view_application import Sampler, View, application
from testbed.cluster.records.ownership import temporary_directory
from testbed.errors import ConflictError, PermissionDeniedError

_ADDRESS: Final = "127.0.0.1"
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MAX_MESSAGE: Final = 1 << 16  # bytes of a message from the page


def serve(
    sampler: Sampler,
    interval: float,
    port: int,
    runs: Path,
    started: Callable[[str], None],
    commands: OfferedCommands = HERE,
) -> None:
    """Serve the view until Ctrl-C. A signal other than SIGINT is raised again at the end.

    interval: seconds between two samples. port: 0 for any free port. runs: directory of runs. started: called with the
    address. commands: the commands that pages offer. Raises ConflictError, PermissionDeniedError.
    """
    with (
        _listening(port) as listener,
        temporary_directory("web") as reports,
        contextlib.closing(RunList(runs)) as run_list,
    ):
        view = View(sampler, interval, run_list, ReportPages(reports), commands)
        ended_by = asyncio.run(_serve(view, listener, started))
    if ended_by not in (0, signal.SIGINT):
        signal.raise_signal(ended_by)


async def _serve(view: View, listener: socket.socket, started: Callable[[str], None]) -> int:
    """Serve until a signal; return its number, 0 if the server has ended by itself."""
    token, port = secrets.token_urlsafe(16), listener.getsockname()[1]
    server = _Server(
        uvicorn.Config(
            application(view, token=token, port=port),
            http="h11",
            ws="websockets-sansio",
            ws_max_size=_MAX_MESSAGE,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
    with _ended_by_signals(server) as received:
        started(f"http://{_ADDRESS}:{port}/{token}/")
        try:
            async with asyncio.TaskGroup() as tasks:
                sampling = tasks.create_task(view.sample())
                await server.serve([listener])
                sampling.cancel()
        finally:
            await view.jobs.finish()
    return received[0] if received else 0


class _Server(uvicorn.Server):
    """A server that does not handle signals; `_ended_by_signals` does."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Iterator[list[int]]:
    """Context manager: signals end the server; yields the received signals. On exit the handlers are restored."""
    received: list[int] = []

    def end(number: int) -> None:
        received.append(number)
        server.should_exit = True

    saved_handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    # SIGHUP is ignored under nohup.
    handled = [number for number in _SIGNALS if saved_handlers[number] is not signal.SIG_IGN]
    loop = asyncio.get_running_loop()
    for number in handled:
        loop.add_signal_handler(number, end, number)
    try:
        yield received
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
            signal.signal(number, saved_handlers[number])


@contextlib.contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    """Context manager for a listening socket on loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_ADDRESS, port))
            listener.listen(64)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConflictError(f"port {port} of {_ADDRESS} is in use: --port 0 takes a free one") from error
            if error.errno == errno.EACCES:
                raise PermissionDeniedError(f"only root may use port {port}: --port 0 takes a free one") from error
            raise
        yield listener
