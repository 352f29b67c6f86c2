"""The controller's side of a program in a node on another machine: its streams are this process's, or its terminal is."""

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
    """Run a program in a node of a cluster on a machine, with this process's standard input and output; return its exit
    code, negative for a signal. It gets a terminal if both are one. Raises as `RemoteWorker.call`."""
    is_terminal = os.isatty(0) and os.isatty(1)
    variables = {**environment, **({"TERM": os.environ.get("TERM", "dumb")} if is_terminal else {})}
    sys.stdout.flush()
    size = _size() if is_terminal else None
    number = worker.begin(ATTACH, name=name, node=node, command=list(command), terminal=size, environment=variables)
    window = _Window()
    with _raw(worker, number) if is_terminal else contextlib.nullcontext():
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
    """Bytes of input that may still be sent."""

    def __init__(self) -> None:
        self._left = WINDOW
        self._changed = Condition()

    def open(self, taken: int) -> None:
        with self._changed:
            self._left += taken
            self._changed.notify()

    def take(self, size: int) -> None:
        """Wait until this many bytes may be sent."""
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size)
            self._left -= size


def _send_input(worker: RemoteWorker, number: int, window: _Window) -> None:
    with contextlib.suppress(TestbedError):  # the connection has ended, which the other thread tells
        data = b"-"
        while data:
            try:
                data = os.read(0, _CHUNK)
            except OSError:  # nothing can be read
                data = b""
            window.take(len(data))
            worker.answer_call(number, INPUT, data=b64encode(data).decode())


def _write(stream: int, data: bytes) -> None:
    while data:
        data = data[os.write(stream, data) :]


@contextmanager
def _raw(worker: RemoteWorker, number: int) -> Iterator[None]:
    """Pass all keys of this terminal on, and changes of its size."""

    def resized(*_: object) -> None:
        worker.answer_call(number, INPUT, size=_size())

    before, handler = termios.tcgetattr(0), signal.signal(signal.SIGWINCH, resized)
    tty.setraw(0, termios.TCSADRAIN)  # what has been typed already is kept
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.signal(signal.SIGWINCH, handler)


def _size() -> list[int]:
    """Return rows and columns of this terminal."""
    return list(struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))[:2])
