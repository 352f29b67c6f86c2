"""`traffic.c`, compiled here, and one process of it per role."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.compiler import compiled
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.processors import RECEIVER, SENDER

SOURCE = Path(__file__).with_name("traffic.c")
PATIENCE = 120.0  # s for any role to end
FRAME = 1500  # bytes of IP


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node: the path of its network namespace, its address and its NIC's MAC."""

    namespace: str
    address: str
    mac: str


class Traffic:
    """The program, in the roles that its head explains."""

    def __init__(self, directory: Path) -> None:
        self._program = str(compiled(SOURCE, directory))

    def run(self, role: str, *arguments: object) -> dict[str, Any]:
        """Run a role of traffic.c from its start to its end; return its output."""
        with self._started(role, *arguments) as process:
            return _said(role, process)

    def send(
        self, places: list[tuple[NodeAddress, NodeAddress]], rate: float, count: int, *, batch: int = 1, insist: bool = False
    ) -> dict[str, Any]:
        """Send frames from the first of each pair to the second, in turn; see the head of traffic.c.

        insist: with real-time priority, which keeps the rate on a busy machine and moves other work to other
        processors.
        """
        pairs = [text for source, sink in places for text in (source.namespace, sink.mac)]
        return self.run("send", SENDER, int(insist), rate, batch, FRAME, count, *pairs)

    @contextlib.contextmanager
    def caught(self, place: NodeAddress) -> Iterator[dict[str, Any]]:
        """Count the frames that arrive at a node during the block; the dictionary is filled in at its end."""
        found: dict[str, Any] = {}
        with self._started("catch", RECEIVER, place.namespace) as process:
            _ready("catch", process)
            yield found
            found |= _said("catch", process)

    def tcp(
        self, source: NodeAddress, sink: NodeAddress, seconds: float, *, sender: int = SENDER, receiver: int = RECEIVER
    ) -> dict[str, Any]:
        """Return bits: per second, as the sink counted them. sent, received: reports of source and sink."""
        with self._started("sink", receiver, sink.namespace) as process:
            port = _ready("sink", process)
            sent = self.run("source", sender, source.namespace, sink.address, port, seconds)
            received = _said("sink", process)
        return {"bits": received["bytes"] * 8 / received["seconds"], "sent": sent, "received": received}

    def round_trips(self, source: NodeAddress, sink: NodeAddress, count: int, *, spin: bool, look: int = 0) -> dict[str, Any]:
        """Measure TCP round trips of 8 bytes: quantiles, in ns.

        spin: never sleep. look: else, for how many ns to poll before sleeping.
        """
        looking = -1 if spin else look
        with self._started("pong", RECEIVER, sink.namespace, looking) as process:
            port = _ready("pong", process)
            found = self.run("ping", SENDER, source.namespace, looking, sink.address, port, count)
            _said("pong", process)
        return found

    def timers(self, interval: int, count: int) -> dict[str, Any]:
        """How late timers are on the relay's processor, in ns: quantiles."""
        return self.run("timers", RECEIVER, interval, count)

    @contextlib.contextmanager
    def _started(self, role: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
        """A process of the program, killed if the block ends before it."""
        command = [self._program, role, *map(str, arguments)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()


def _ready(role: str, process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    word, _, port = process.stdout.readline().partition(" ")
    if word != "ready":
        _said(role, process)
        raise ContenderError(f"traffic {role} does not get ready")
    return int(port)


def _said(role: str, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Ends its standard input, and waits for its end."""
    try:
        answer, error = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise ContenderError(f"traffic {role} did not end in {PATIENCE:g} s") from None
    if process.returncode:
        raise ContenderError(f"traffic {role}: {error.strip() or f'exit code {process.returncode}'}")
    decoded: dict[str, Any] = json.loads(answer)
    return decoded
