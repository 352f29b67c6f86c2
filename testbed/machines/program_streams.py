"""Worker side of a program in a node whose streams or terminal are forwarded to the controller.

The worker sends chunks of output as they arrive, and the controller sends chunks of input. The worker acknowledges
input that it has passed to the program, and at most `WINDOW` bytes are unacknowledged. So a program that does not read
its input neither blocks keepalives nor fills memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pty
import select
import signal
import struct
import termios
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from testbed.cluster.access.node_programs import node_context, start
from testbed.cluster.records.state import Store
from testbed.machines.request_reader import KEEPALIVE_INTERVAL
from testbed.machines.worker import Dialogue

if TYPE_CHECKING:
    import subprocess

ATTACH: Final = "attach"
"""Name of the worker's call that runs `attach`."""

WINDOW: Final = 1 << 18
"""Maximum bytes of unacknowledged input."""

_CHUNK: Final = 1 << 15
_STDOUT, _STDERR = 1, 2


def attach(
    dialogue: Dialogue,
    name: str,
    node: str,
    command: Sequence[str],
    terminal: Sequence[int] | None,
    environment: Mapping[str, str],
) -> object:
    """Run a program in a node; return its exit code, negative for a signal. The program is killed if the controller
    disconnects. name: name of the cluster. terminal: rows and columns of the program's terminal; None: three pipes instead.
    Raises the errors of `node_programs.start`."""
    store = Store()
    context = node_context(store, store.choose(name), node)
    with ExitStack() as stack:
        if terminal is not None:
            master, slave = pty.openpty()
            stack.callback(os.close, master)
            _resize(master, terminal)
            try:
                program = start(
                    context, command, env=environment, stdin=slave, stdout=slave, stderr=slave, terminal=True
                )
            finally:
                os.close(slave)
            streams = _Streams(dialogue, program, master, {master: _STDOUT}, is_terminal=True)
        else:
            ends = [os.pipe() for _ in range(3)]
            worker_ends, program_ends = (ends[0][1], ends[1][0], ends[2][0]), (ends[0][0], ends[1][1], ends[2][1])
            try:
                program = start(
                    context,
                    command,
                    env=environment,
                    stdin=program_ends[0],
                    stdout=program_ends[1],
                    stderr=program_ends[2],
                    group=True,
                )
            except BaseException:
                for descriptor in worker_ends:
                    os.close(descriptor)
                raise
            finally:
                for descriptor in program_ends:
                    os.close(descriptor)
            for descriptor in worker_ends[1:]:
                stack.callback(os.close, descriptor)
            streams = _Streams(
                dialogue, program, worker_ends[0], {worker_ends[1]: _STDOUT, worker_ends[2]: _STDERR}, is_terminal=False
            )
        return {"code": streams.forward()}


class _Streams:
    """Forwarding between a program and the controller. source: descriptor to which the program's input is written. outputs:
    descriptor of an output stream -> its number in the program (1 or 2)."""

    def __init__(
        self,
        dialogue: Dialogue,
        program: subprocess.Popen[str],
        source: int,
        outputs: dict[int, int],
        *,
        is_terminal: bool,
    ) -> None:
        self._dialogue = dialogue
        self._program = program
        self._source: int | None = source
        self._outputs = outputs
        self._is_terminal = is_terminal
        self._pending = b""
        self._is_input_closed = False
        os.set_blocking(source, False)

    def forward(self) -> int:
        """Forward until the program ends; return its exit code, negative for a signal."""
        pidfd = os.pidfd_open(self._program.pid)
        try:
            while not self._step(pidfd):
                pass
            return self._program.wait()
        finally:
            os.close(pidfd)
            if self._source is not None and not self._is_terminal:
                os.close(self._source)

    def _step(self, pidfd: int) -> bool:
        """Wait for the next event and handle it; return whether the program has ended."""
        requests = self._dialogue.requests
        blocked_inputs = [self._source] if self._source is not None and self._pending else []
        readable, writable, _ = select.select(
            [requests.fileno(), pidfd, *self._outputs], blocked_inputs, [], KEEPALIVE_INTERVAL
        )
        while requests.has_line():
            self._handle_request(json.loads(next(iter(requests))))
        if not requests.is_open():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._program.pid, signal.SIGKILL)
        if writable or self._pending or self._is_input_closed:
            self._write()
        for descriptor in [output for output in self._outputs if output in readable]:
            self._read(descriptor)
        if pidfd not in readable:
            return False
        while self._outputs and (unread := select.select([*self._outputs], [], [], 0)[0]):
            for descriptor in unread:
                self._read(descriptor)
        return True

    def _handle_request(self, request: Mapping[str, Any]) -> None:
        if "size" in request:
            if self._is_terminal and self._source is not None:
                _resize(self._source, request["size"])
        elif data := b64decode(request["data"]):
            self._pending += data
        else:
            self._is_input_closed = True

    def _write(self) -> None:
        """Write as much pending input as the program accepts without blocking."""
        if self._source is None:
            return
        try:
            written = os.write(self._source, self._pending) if self._pending else 0
        except BlockingIOError:
            return
        except OSError:  # the program has closed its input
            written = len(self._pending)
        self._pending = self._pending[written:]
        if written:
            self._dialogue.send(taken=written)
        if self._is_input_closed and not self._pending and not self._is_terminal:
            os.close(self._source)
            self._source = None

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # all programs have closed the terminal
                raise
            data = b""
        if data:
            self._dialogue.send(stream=self._outputs[descriptor], data=b64encode(data).decode())
        else:
            del self._outputs[descriptor]


def _resize(terminal: int, size: Sequence[int]) -> None:
    rows, columns = size
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
