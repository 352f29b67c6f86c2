"""Lines that several threads send to a machine."""

from __future__ import annotations

import io
import time
from threading import Thread

import pytest

from testbed.ssh.machine_connections import LineChannel


class ChunkedChannel:
    """A channel that sends a long text in chunks, as paramiko's does."""

    def __init__(self) -> None:
        self.sent = b""

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO()

    def sendall(self, data: bytes) -> None:
        for start in range(0, len(data), 10):
            self.sent += data[start : start + 10]
            time.sleep(0.001)


def test_lines_of_several_threads_are_not_interleaved() -> None:
    channel = ChunkedChannel()
    line = LineChannel([], channel)
    keepalive_sender = Thread(target=lambda: [line.send(b"\n") for _ in range(20)])
    keepalive_sender.start()
    line.send(b"x" * 500 + b"\n")
    keepalive_sender.join()
    assert channel.sent.replace(b"\n", b"") == b"x" * 500
    assert b"x" * 500 in channel.sent
    assert channel.sent.count(b"\n") == 21


class OpenErrorStream(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        del size
        raise TimeoutError  # as paramiko's file does if the stream stays open


class ChannelOfADaemonsParent(ChunkedChannel):
    """A channel whose program has ended, and has left a process that keeps its standard error open."""

    def settimeout(self, timeout: float) -> None:
        del timeout

    def makefile_stderr(self, _mode: str) -> io.BytesIO:
        return OpenErrorStream()


def test_a_standard_error_that_stays_open_has_no_last_line() -> None:
    assert LineChannel([], ChannelOfADaemonsParent()).last_error_line() == ""


class BrokenChannel(ChunkedChannel):
    def sendall(self, data: bytes) -> None:
        del data
        raise EOFError  # as paramiko does on a broken socket


def test_a_connection_that_breaks_while_a_line_is_sent_is_an_os_error() -> None:
    with pytest.raises(ConnectionError, match="connection closed"):
        LineChannel([], BrokenChannel()).send(b"\n")
