"""Context manager that runs a server in a node."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from testbed import RunningNode

DEADLINE = 30.0  # seconds for a server to start or to stop


@contextmanager
def server(
    node: RunningNode, command: Sequence[str], port: int, stop: int = signal.SIGTERM, **options: Any
) -> Iterator[None]:
    """Run a server in a node: it listens within the block; the signal `stop` ends it. options: of `popen`."""
    with tempfile.TemporaryFile("w+") as output:
        process = node.popen(
            command, stdin=subprocess.DEVNULL, stdout=output.fileno(), stderr=output.fileno(), **options
        )
        try:
            until = time.monotonic() + DEADLINE
            while not node.run(["ss", "-Hltn", f"sport = :{port}"]).stdout:
                output.seek(0)
                assert process.poll() is None, f"{command[0]} has ended: {output.read()}"
                assert time.monotonic() < until, f"{command[0]} does not listen on port {port}: {output.read()}"
            yield
        finally:
            process.send_signal(stop)
            process.wait(DEADLINE)
