"""Lines of a worker's requests, complete and in order, until the controller has ended or is silent."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from testbed.machines.request_reader import RequestReader


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)


def test_split_lines_are_reassembled(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    lines = iter(RequestReader(reader))
    os.write(writer, b"one\n\ntw")
    assert next(lines) == b"one"
    os.write(writer, b"o\nthree\n")
    os.close(writer)
    assert list(lines) == [b"two", b"three"]


def test_silence_ends_the_requests_and_a_keepalive_prevents_that(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    request_reader = RequestReader(reader, silence=1.5)
    for _ in range(4):  # in total longer than the silence
        time.sleep(0.5)
        os.write(writer, b"\n")
        assert request_reader.is_open()
    start = time.monotonic()
    assert list(request_reader) == []
    assert 1.4 < time.monotonic() - start < 10
    assert not request_reader.is_open()
    os.close(writer)


def test_watching_the_controller_loses_no_request(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    request_reader = RequestReader(reader)
    os.write(writer, b"next\n")
    assert request_reader.is_open()
    os.close(writer)
    assert not request_reader.is_open()
    assert list(request_reader) == [b"next"]
