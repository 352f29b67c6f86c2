"""Errors of a capture's output: a full disk and a closed pipe."""

from __future__ import annotations

import os

import pytest

from testbed.errors import reason_of
from testbed.observe.sniff.capture_sinks import CaptureFile


def test_the_file_that_could_not_be_written_is_named() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(OSError, match="No space left") as caught:
            CaptureFile(descriptor, "n1.pcapng")
    finally:
        os.close(descriptor)
    assert reason_of(caught.value) == "No space left on device: n1.pcapng"


def test_a_closed_pipe_raises_broken_pipe_error() -> None:
    """A pipe to Wireshark is closed with its window, which the command does not report as an error."""
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        CaptureFile(writer)
    os.close(writer)
