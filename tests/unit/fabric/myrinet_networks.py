"""Networks of Myrinet switches for tests: NICs that offer their frames until accepted, and a record of arrivals."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from testbed.fabric.interface import SwitchPort
from testbed.fabric.myrinet.channel import Channel
from testbed.fabric.myrinet.network import Network
from testbed.fabric.myrinet.route import append_crc, route_byte
from testbed.fabric.myrinet.settings import Settings
from testbed.fabric.myrinet.switch import CAUSES
from testbed.fates.records import Record
from testbed.fates.rules import RuleSet
from testbed.fates.stage import NO_IMPAIRMENT, FateOptions
from testbed.spec.layout import BOTH, Impairment

CAUSES = {words: cause for cause, words in CAUSES.items()}
HEAD = bytes.fromhex("020000000002 020000000001 88b6")
TYPE = b"\0\4"
HOP = 300

End = tuple[str, int]
"""A switch and its port, or a NIC and 0."""


class MyrinetNetwork:
    """Network of switches and NICs. cables: pairs of ends, in the forward direction."""

    def __init__(
        self,
        cables: Sequence[tuple[End, End]],
        impairments: Mapping[str, Impairment] | None = None,
        settings: Settings | None = None,
        rules: RuleSet | None = None,
        ports: int = 8,
    ) -> None:
        """impairments: of both directions of a cable, by its name."""
        settings = replace(settings or Settings(hop=HOP), ports=ports)
        self.dropped: list[tuple[int, str, int, str]] = []
        self.network = Network(settings, lambda *drop: self.dropped.append((*drop[:3], CAUSES[drop[4]])))
        self.log: list[Record] = []
        self.arrivals: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
        self.channels: dict[tuple[End, End], Channel] = {}
        self._nic_links: dict[str, Channel] = {}
        self._queues: dict[str, deque[bytes]] = defaultdict(deque)
        for a, b in cables:
            name = f"{a[0]}:{a[1]}--{b[0]}:{b[1]}"
            impairment = (impairments or {}).get(name, NO_IMPAIRMENT)
            for direction, (source, end) in zip(BOTH, ((a, b), (b, a)), strict=True):
                options = FateOptions(7, rules=rules, log=self.log.append)
                start_port, end_port = (SwitchPort(*end_point) if end_point[1] else None for end_point in (source, end))
                channel = self.network.join(name, direction, impairment, options, start_port, end_port)
                self.channels[source, end] = channel
                if not source[1]:
                    self._nic_links[source[0]] = channel
                    channel.on_space = lambda now, nic=source[0]: self._pump(now, nic)
                if not end[1]:
                    channel.receive = lambda now, frame, nic=end[0]: self.arrivals[nic].append((now, frame))

    def send(self, now: int, nic: str, *frames: bytes) -> None:
        """Queue frames at a NIC, which sends each as soon as its link accepts it."""
        was_empty = not self._queues[nic]
        self._queues[nic].extend(frames)
        if was_empty:
            self._pump(now, nic)

    def run(self, until: int | None = None) -> int:
        """Run until `until` or until no event is left; return the time of the last event."""
        now = 0
        while (time := self.network.deadline) is not None and (until is None or time <= until):
            assert time >= now, "time runs backwards"
            now = time
            self.network.poll(now)
        return now

    def counter(self, cause: str) -> int:
        return sum(counters[cause] for counters in self.network.switch_counters.values())

    def _pump(self, now: int, nic: str) -> None:
        queue = self._queues[nic]
        while queue and self.network.offer(now, self._nic_links[nic], queue[0]):
            queue.popleft()


def frame(steps: Sequence[int], size: int = 0, mark: int = 0) -> bytes:
    """Return a frame with a route. size: of the payload, bytes, which begins with a mark of four bytes."""
    return append_crc(HEAD, bytes(map(route_byte, steps)) + TYPE + mark.to_bytes(4, "big") + bytes(max(size - 4, 0)))


def mark_of(arrived: bytes) -> int:
    """Return the mark of a frame whose route is consumed."""
    return int.from_bytes(arrived[16:20], "big")


def star(nics: int) -> list[tuple[End, End]]:
    """Return cables of NICs n1, n2, ... to ports 1, 2, ... of one switch."""
    return [((f"n{number}", 0), ("s", number)) for number in range(1, nics + 1)]


def wire_time(frame_bytes: bytes, rate: int = 1_280_000_000) -> int:
    """Return the transmission time of a frame in ns."""
    return -(-(len(frame_bytes) - len(HEAD)) * 8_000_000_000 // rate)
