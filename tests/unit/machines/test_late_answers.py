"""A worker that answers late, and changes of a terminal's size while a connection is in use."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import time
from collections.abc import Iterator
from threading import Event, Lock

import pytest

from testbed.machines import program_client
from testbed.machines.remote_workers import RemoteWorker, WorkerLostError
from testbed.spec.machines import Machine


class ScriptedChannel:
    """A channel whose program sends these lines; an empty one is a timeout."""

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines

    def send(self, line: bytes) -> None:
        del line

    def receive(self, timeout: float | None) -> bytes:
        del timeout
        line = self._lines.pop(0)
        if not line:
            raise TimeoutError
        return line

    def close(self) -> None:
        pass


def test_the_reply_to_a_call_that_was_given_up_is_skipped() -> None:
    replies = [json.dumps({"number": number, "reply": reply}).encode() for number, reply in ((1, "late"), (2, "down"))]
    worker = RemoteWorker(Machine(name="lab2"), ScriptedChannel([b"", *replies]))
    with contextlib.closing(worker):
        with pytest.raises(WorkerLostError, match="machine lab2: its worker has not answered within 120 s"):
            worker.call("up")
        assert worker.call("down") == "down"


class LockedWorker:
    """A worker whose connection is in use, as during a call that a signal interrupts."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.is_sent = Event()
        self.sizes: list[list[int]] = []

    def answer_call(self, number: int, word: str, *, size: list[int]) -> None:
        del number, word
        assert self.lock.acquire(timeout=10), "the signal's handler waits for the code that it has interrupted"
        self.sizes.append(size)
        self.lock.release()
        self.is_sent.set()


@pytest.fixture
def _terminal() -> Iterator[None]:
    """Make the standard input a terminal."""
    saved = os.dup(0)
    master, slave = pty.openpty()
    os.dup2(slave, 0)
    yield
    os.dup2(saved, 0)
    for descriptor in (saved, master, slave):
        os.close(descriptor)


@pytest.mark.usefixtures("_terminal")
def test_a_change_of_size_does_not_wait_for_the_code_that_it_interrupts() -> None:
    worker = LockedWorker()
    with program_client._raw_terminal(worker, 1):
        with worker.lock:
            os.kill(os.getpid(), signal.SIGWINCH)
            time.sleep(0.1)
        assert worker.is_sent.wait(10)
    assert worker.sizes == [[0, 0]]
