"""Servers in nodes, which run for the time of a block."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from testbed import RunningNode

DEADLINE = 30.0  # seconds that a server gets to begin or to end


@contextmanager
def server(
    node: RunningNode, command: Sequence[str], port: int, stop: int = signal.SIGTERM, **place: Any
) -> Iterator[None]:
    """Run a server in a node: it listens inside the block, and the signal `stop` ends it behind. place: as for `popen`."""
    with tempfile.TemporaryFile("w+") as reported:
        process = node.popen(
            command, stdin=subprocess.DEVNULL, stdout=reported.fileno(), stderr=reported.fileno(), **place
        )
        try:
            until = time.monotonic() + DEADLINE
            while not node.run(["ss", "-Hltn", f"sport = :{port}"]).stdout:
                reported.seek(0)
                assert process.poll() is None, f"{command[0]} has ended: {reported.read()}"
                assert time.monotonic() < until, f"{command[0]} does not listen: {reported.read()}"
            yield
        finally:
            process.send_signal(stop)
            process.wait(DEADLINE)
