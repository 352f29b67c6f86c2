"""Controller side of a program in a node on another machine: forward this process's streams, or its terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import struct
import sys
import termios
import tty
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Condition, Thread
from typing import Final

from testbed.errors import TestbedError
from testbed.machines.program_streams import ATTACH, WINDOW
from testbed.machines.remote_workers import RemoteWorker
from testbed.machines.request_reader import INPUT

_CHUNK: Final = 1 << 15


def run_attached(
    worker: RemoteWorker, name: str, node: str, command: Sequence[str], environment: Mapping[str, str] = {}
) -> int:
    """Run a program in a node on a machine with this process's standard input and output; return its exit code,
    negative for a signal. The program gets a terminal if both are terminals. name: name of the cluster. Raises the errors
    of `RemoteWorker.call`."""
    is_terminal = os.isatty(0) and os.isatty(1)
    variables = {**environment, **({"TERM": os.environ.get("TERM", "dumb")} if is_terminal else {})}
    sys.stdout.flush()
    size = _terminal_size() if is_terminal else None
    number = worker.begin(ATTACH, name=name, node=node, command=list(command), terminal=size, environment=variables)
    window = _Window()
    with _raw_terminal(worker, number) if is_terminal else contextlib.nullcontext():
        Thread(target=_send_input, args=(worker, number, window), daemon=True).start()
        while True:
            answer = worker.answer(number)
            if "taken" in answer:
                window.open(answer["taken"])
            elif "stream" in answer:
                _write(answer["stream"], b64decode(answer["data"]))
            else:
                return int(answer["reply"]["code"])


class _Window:
    """Flow-control window of the input: number of bytes that may be sent before the program reads more."""

    def __init__(self) -> None:
        self._available = WINDOW
        self._changed = Condition()

    def open(self, size: int) -> None:
        with self._changed:
            self._available += size
            self._changed.notify()

    def take(self, size: int) -> None:
        """Wait until this many bytes may be sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._available >= size)
            self._available -= size


def _send_input(worker: RemoteWorker, number: int, window: _Window) -> None:
    with contextlib.suppress(TestbedError):  # the connection has ended; the main thread reports it
        while True:
            try:
                data = os.read(0, _CHUNK)
            except OSError:  # the input cannot be read, which counts as its end
                data = b""
            window.take(len(data))
            worker.answer_call(number, INPUT, data=b64encode(data).decode())
            if not data:
                return


def _write(stream: int, data: bytes) -> None:
    while data:
        data = data[os.write(stream, data) :]


@contextmanager
def _raw_terminal(worker: RemoteWorker, number: int) -> Iterator[None]:
    """Set this process's terminal to raw mode during the block, and forward changes of its size."""
    # A thread sends the sizes: the signal may interrupt a call that holds one of the connection's locks.
    sizes: SimpleQueue[list[int] | None] = SimpleQueue()

    def on_resize(*_: object) -> None:
        sizes.put(_terminal_size())

    def send_sizes() -> None:
        with contextlib.suppress(TestbedError):  # the connection has ended; the main thread reports it
            while (size := sizes.get()) is not None:
                worker.answer_call(number, INPUT, size=size)

    Thread(target=send_sizes, daemon=True).start()
    saved_attributes, saved_handler = termios.tcgetattr(0), signal.signal(signal.SIGWINCH, on_resize)
    tty.setraw(0, termios.TCSADRAIN)  # TCSADRAIN keeps input that is already typed
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved_attributes)
        signal.signal(signal.SIGWINCH, saved_handler)
        sizes.put(None)


def _terminal_size() -> list[int]:
    """Return the rows and columns of this process's terminal."""
    return list(struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))[:2])
