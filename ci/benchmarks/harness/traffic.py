"""`traffic.c`, compiled here, and one process of it per role."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.compiler import compile_program
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.processors import RECEIVER, SENDER

SOURCE = Path(__file__).with_name("traffic.c")
TIMEOUT = 120.0  # s, for a role to exit
FRAME = 1500  # bytes of an IP packet


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Addresses of a node: path of its network namespace, IP address, and MAC address of its NIC."""

    namespace: str
    address: str
    mac: str


class Traffic:
    """Run traffic.c; its header comment documents the roles."""

    def __init__(self, directory: Path) -> None:
        self._program = str(compile_program(SOURCE, directory))

    def run(self, role: str, *arguments: object) -> dict[str, Any]:
        """Run a role of traffic.c to its end; return its result."""
        with self._process(role, *arguments) as process:
            return _result(role, process)

    def send(
        self,
        pairs: list[tuple[NodeAddress, NodeAddress]],
        rate: float,
        count: int,
        *,
        batch: int = 1,
        realtime: bool = False,
    ) -> dict[str, Any]:
        """Send frames from the first node of each pair to the second, pair by pair; see "send" in traffic.c.

        realtime: send with real-time priority, which keeps the rate on a busy machine and moves other work to other
        processors.
        """
        ends = [text for source, sink in pairs for text in (source.namespace, sink.mac)]
        return self.run("send", SENDER, int(realtime), rate, batch, FRAME, count, *ends)

    @contextlib.contextmanager
    def receiver(self, node: NodeAddress) -> Iterator[dict[str, Any]]:
        """Receive frames at a node during the block; the yielded dictionary gets the counts when the block ends."""
        counts: dict[str, Any] = {}
        with self._process("catch", RECEIVER, node.namespace) as process:
            _wait_until_ready("catch", process)
            yield counts
            counts |= _result("catch", process)

    def tcp(
        self, source: NodeAddress, sink: NodeAddress, seconds: float, *, sender: int = SENDER, receiver: int = RECEIVER
    ) -> dict[str, Any]:
        """Measure a TCP stream. Returns "bits": bit/s at the sink, and "sent" and "received": results of both roles."""
        with self._process("sink", receiver, sink.namespace) as process:
            port = _wait_until_ready("sink", process)
            sent = self.run("source", sender, source.namespace, sink.address, port, seconds)
            received = _result("sink", process)
        return {"bits": received["bytes"] * 8 / received["seconds"], "sent": sent, "received": received}

    def round_trips(
        self, source: NodeAddress, sink: NodeAddress, count: int, *, spin: bool, poll: int = 0
    ) -> dict[str, Any]:
        """Measure TCP round trips of 8 bytes: quantiles, in ns.

        spin: poll without ever sleeping. poll: otherwise, nanoseconds to poll before sleeping.
        """
        poll_time = -1 if spin else poll
        with self._process("pong", RECEIVER, sink.namespace, poll_time) as process:
            port = _wait_until_ready("pong", process)
            trip = self.run("ping", SENDER, source.namespace, poll_time, sink.address, port, count)
            _result("pong", process)
        return trip

    def timers(self, interval: int, count: int) -> dict[str, Any]:
        """Measure how late timers expire on the relay's processor: quantiles, in ns."""
        return self.run("timers", RECEIVER, interval, count)

    @contextlib.contextmanager
    def _process(self, role: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        """Start a process for a role; it is killed at the end of the block if it still runs."""
        command = [self._program, role, *map(str, arguments)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def _wait_until_ready(role: str, process: subprocess.Popen[str]) -> int:
    """Wait for a role's "ready"; return the port that it listens on."""
    assert process.stdout is not None
    word, _, port = process.stdout.readline().partition(" ")
    if word != "ready":
        _result(role, process)
        raise ContenderError(f"traffic {role} did not become ready: it printed {word!r}")
    return int(port)


def _result(role: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Close a role's standard input, wait for its exit, and return the JSON that it printed."""
    try:
        output, error = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise ContenderError(f"traffic {role} did not exit within {TIMEOUT:g} s") from None
    if process.returncode:
        raise ContenderError(f"traffic {role}: {error.strip() or f'exit code {process.returncode}'}")
    decoded: dict[str, Any] = json.loads(output)
    return decoded
