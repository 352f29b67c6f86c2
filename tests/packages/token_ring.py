"""Token ring: a fabric known only by its registration. Each switch is a ring, with a station at each port.

A station keeps the token while it sends one frame; the token then moves on, `HOP` from port to port. Stations learn
addresses from passing frames, as bridges do.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush

from testbed.errors import UnsupportedError
from testbed.fabric.entrance import Entrance
from testbed.fabric.interface import OnDrop, Receive, SwitchPort, Table, discard
from testbed.fates.stage import FateOptions
from testbed.spec.kinds import Kind
from testbed.spec.layout import DirectionName, Impairment, Layout, Switch

RATE, HOP = 100_000_000, 1_000  # bit/s, ns
MANY = 16  # frames that wait at a station, from which on it takes none
NOBODY = "nobody"

RING = Kind(
    "ring", "token ring",
    lacks=("jitter", "distribution", "jitter_file", "rate", "rate_trace", "reorder", "queue", "queue_frames",
           "minimum_frame", "overhead", "cell_size", "cell_overhead"),
    why_lacks="a ring has one rate and one order", needs_switch=True,
)  # fmt: skip


class Channel:
    def __init__(self, rings: Rings, entrance: Entrance, delay: int, port: SwitchPort) -> None:
        self.entrance, self.delay, self.port = entrance, delay, port
        self.receive: Receive = discard
        self.on_space: Callable[[int], object] | None = None
        self.in_flight = 0
        self._rings = rings

    def change(
        self, now: int, impairment: Impairment, files: Mapping[str, str] | None = None, restart: bool | None = None
    ) -> None:
        self.entrance.change(now, impairment, files, restart)
        self.delay = impairment.delay

    def offer(self, now: int, frame: bytes) -> bool:
        if self.in_flight >= MANY:
            self.entrance.counters.blocked += 1
            return False
        self.enter(now, frame, self._rings.wait)
        return True

    def enter(self, now: int, frame: bytes, then: Callable[[int, Channel, bytes], None]) -> None:
        accepted = self.entrance.take(now, frame)
        accepted_frames = [] if accepted is None else [(now, accepted)]
        for when, one in accepted_frames + self.entrance.deferred:
            self.in_flight += 1
            self._rings.at(when + self.delay, then, self, one)
        self.entrance.deferred.clear()

    def leave(self) -> None:
        self.receive = discard
        self._rings.rings[self.port.switch].out.pop(self.port.port, None)


class Ring:
    def __init__(self) -> None:
        self.out: dict[int, Channel] = {}
        self.waiting: dict[int, deque[tuple[Channel, bytes]]] = defaultdict(deque)
        self.learned: dict[bytes, int] = {}
        self.holder, self.is_busy = 0, False
        self.counters = {NOBODY: 0}


class Rings:
    def __init__(self, slowed: int, on_drop: OnDrop | None) -> None:
        self.rings: dict[str, Ring] = {}
        self._slowed, self._on_drop, self._number = slowed, on_drop, 0
        self._heap: list[tuple[int, int, Callable[[int, Channel, bytes], None], Channel, bytes]] = []

    @property
    def deadline(self) -> int | None:
        return self._heap[0][0] if self._heap else None

    @property
    def switch_counters(self) -> Mapping[str, Mapping[str, int]]:
        return {name: ring.counters for name, ring in self.rings.items()}

    def set_switches(self, tables: Mapping[str, Table]) -> None:
        self.rings = {name: self.rings.get(name) or Ring() for name in tables}

    def join(
        self, link: str, direction: DirectionName, impairment: Impairment, options: FateOptions,
        start: SwitchPort | None = None, end: SwitchPort | None = None,
    ) -> Channel:  # fmt: skip
        if start and end:
            raise UnsupportedError(f"{link}: a ring has stations, and no cable to another ring")
        port = start or end or SwitchPort("", 0)
        entrance = Entrance(link, direction, impairment, options, RING)
        channel = Channel(self, entrance, impairment.delay, port)
        if start:
            self.rings.setdefault(start.switch, Ring()).out[start.port] = channel
        return channel

    def poll(self, now: int) -> None:
        while self._heap and self._heap[0][0] <= now:
            when, _, act, channel, frame = heappop(self._heap)
            act(when, channel, frame)

    def at(self, when: int, act: Callable[[int, Channel, bytes], None], channel: Channel, frame: bytes) -> None:
        self._number += 1
        heappush(self._heap, (when, self._number, act, channel, frame))

    def wait(self, now: int, channel: Channel, frame: bytes) -> None:
        """A frame waits at its station for the token."""
        ring = self.rings.setdefault(channel.port.switch, Ring())
        ring.waiting[channel.port.port].append((channel, frame))
        self._pass_on(now, ring)

    def _pass_on(self, now: int, ring: Ring) -> None:
        """The token passes to the next station with a frame."""
        asking_ports = [port for port, frames in ring.waiting.items() if frames]
        if ring.is_busy or not asking_ports:
            return
        size = max(ring.out.keys() | asking_ports)
        step_count = min((port - ring.holder - 1) % size + 1 for port in asking_ports)
        ring.holder, ring.is_busy = (ring.holder + step_count - 1) % size + 1, True
        channel, frame = ring.waiting[ring.holder].popleft()
        lasts = step_count * HOP + len(frame) * 8 * 10**9 // RATE
        self.at(now + lasts * self._slowed, self._go_round, channel, frame)

    def _go_round(self, now: int, channel: Channel, frame: bytes) -> None:
        """Deliver a sent frame to its destination, or to all other stations while its port is unknown."""
        ring, port = self.rings[channel.port.switch], channel.port.port
        ring.is_busy = False
        ring.learned[frame[6:12]] = port
        known_port = ring.learned.get(frame[:6])
        ports = (
            [known_port]
            if known_port in ring.out
            else [port_number for port_number in sorted(ring.out) if port_number != port]
        )
        for port_number in ports:
            ring.out[port_number].enter(now, frame, self._deliver)
        channel.in_flight -= 1
        channel.entrance.count_delivered(frame)
        if not ports:
            ring.counters[NOBODY] += 1
            if self._on_drop is not None:
                self._on_drop(now, channel.port.switch, port, "loses a frame", "nobody else is on the ring", frame)
        if channel.on_space is not None:
            channel.on_space(now)
        self._pass_on(now, ring)

    def _deliver(self, now: int, channel: Channel, frame: bytes) -> None:
        channel.in_flight -= 1
        channel.entrance.count_delivered(frame)
        channel.receive(now, frame)


class Fabric:
    kind = RING

    def network(self, slowed: int = 1, on_drop: OnDrop | None = None) -> Rings:
        return Rings(slowed, on_drop)

    def table(self, layout: Layout, switch: Switch) -> Table:  # noqa: ARG002
        return {}


FABRIC = Fabric()
