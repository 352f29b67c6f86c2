"""Myrinet in the relay on fake interfaces and a manual clock: frames, STOP/GO flow control, and changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from testbed.engine.loop import Loop
from testbed.fabric.interface import SwitchPort
from testbed.fabric.myrinet.network import Network
from testbed.fabric.myrinet.route import append_crc, is_intact, route_byte
from testbed.fabric.myrinet.settings import Settings
from testbed.fabric.stop_go import ASK, GO, STOP, ControlFrame, decode, encode
from testbed.fates.headers import standard_fields
from testbed.kernel.packet_socket import Arena
from testbed.runtime.relay import relay_network
from testbed.runtime.relay.forwarded_link import LinkOptions
from testbed.runtime.relay.orders import RelayedDirection, RelayedLink
from testbed.runtime.relay.relay_network import ModelledLink, NetworkDriver
from testbed.spec.layout import Impairment

pytestmark = pytest.mark.requires("interpreted")

HEADER = bytes.fromhex("020000000001 88b6")
MILLISECOND = 1_000_000
SLOW = Impairment(rate=8_000_000)  # a byte takes a microsecond


class Clock:
    """Stand-in for the loop: clock, watched descriptors and timers, advanced by the test."""

    def __init__(self) -> None:
        self.time = 0
        self.watched: dict[int, Callable[[int], object]] = {}
        self.timers: list[Timer] = []

    def now(self) -> int:
        return self.time

    def watch(self, descriptor: int, callback: Callable[[int], object]) -> None:
        self.watched[descriptor] = callback

    def unwatch(self, descriptor: int) -> None:
        del self.watched[descriptor]

    def timer(self, callback: Callable[[int], object]) -> Timer:
        self.timers.append(Timer(callback))
        return self.timers[-1]

    def run(self, until: int) -> None:
        """Advance the clock to `until`, running timers; interfaces are read at once."""
        while True:
            for callback in list(self.watched.values()):
                callback(self.time)
            timer = min(self.timers, key=lambda candidate: until + 1 if candidate.when is None else candidate.when)
            if timer.when is None or timer.when > until:
                self.time = until
                return
            self.time, timer.when = max(self.time, timer.when), None
            timer.callback(self.time)


class Timer:
    def __init__(self, callback: Callable[[int], object]) -> None:
        self.callback = callback
        self.when: int | None = None

    def set(self, time: int | None) -> None:
        self.when = time


class Interface:
    """Stand-in for a packet socket."""

    instances: dict[str, Interface] = {}  # noqa: RUF012  cleared for each test

    def __init__(self, device: str, _arena: object, _buffer: int) -> None:
        self.instances[device] = self
        self.received: list[tuple[int, bytes]] = []
        self.sent: list[bytes] = []
        self.has_offloaded = self.is_full = False
        self.capacity = 100

    def fileno(self) -> int:
        return 100 + list(self.instances.values()).index(self)

    def receive(self, _earliest: int) -> list[tuple[int, bytes]]:
        batch, self.received = self.received[:64], self.received[64:]
        self.is_full = len(batch) == 64
        return batch

    def send(self, frames: list[bytes]) -> None:
        self.sent += frames

    def control_frames(self) -> list[ControlFrame]:
        return [control for control in map(decode, self.sent) if control is not None]

    def frames(self) -> list[bytes]:
        return [frame for frame in self.sent if decode(frame) is None]


class Pair:
    """Switch s1 with n1 at port 1 and n2 at port 2."""

    def __init__(self, impairment: Impairment | None = None) -> None:
        self.clock = Clock()
        self.loop = cast("Loop", self.clock)
        self.driver = NetworkDriver(self.loop, Network(Settings()))
        relayed = RelayedDirection(impairment or Impairment())
        self.links = [
            self.forward(
                RelayedLink(
                    f"n{number}--s1:{number}", f"n{number}", "", relayed, switch_ports=(None, SwitchPort("s1", number))
                )
            )
            for number in (1, 2)
        ]
        self.n1, self.n2 = (Interface.instances[name] for name in ("n1", "n2"))

    def forward(self, link: RelayedLink) -> ModelledLink:
        options = LinkOptions(self.loop, cast("Arena", None), standard_fields(), seed=0, files={})
        return ModelledLink(link, self.driver, options)

    def send(self, *numbers: int, delta: int = 1, size: int = 100) -> None:
        """Put frames into the receive buffer of n1's interface."""
        for number in numbers:
            packet = bytes([route_byte(delta)]) + b"\0\4" + number.to_bytes(2, "big")
            self.n1.received.append((self.clock.time, append_crc(bytes(6) + HEADER, packet.ljust(size, b"\x55"))))

    def ask(self, count: int) -> None:
        self.n1.received.append((self.clock.time, encode(ControlFrame(ASK, count), HEADER)))

    def delivered(self) -> list[int]:
        """Return the numbers of the frames that n2 has received."""
        assert all(map(is_intact, self.n2.frames()))
        return [int.from_bytes(frame[16:18], "big") for frame in self.n2.frames()]


@pytest.fixture(autouse=True)
def _interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    Interface.instances.clear()
    monkeypatch.setattr(relay_network, "PacketSocket", Interface)


def test_frames_arrive_in_order_and_a_nic_without_ask_gets_no_control_frame() -> None:
    pair = Pair(SLOW)
    pair.send(*range(50))
    pair.clock.run(100 * MILLISECOND)
    assert pair.delivered() == list(range(50))
    assert not pair.n1.control_frames()
    assert pair.links[0].uplinks["forward"].waited > 16
    assert pair.links[0].uplinks["forward"].stops == 0


def test_an_ask_is_answered_when_all_frames_before_it_have_entered() -> None:
    pair = Pair(SLOW)
    pair.ask(0)
    pair.clock.run(0)
    assert pair.n1.control_frames() == [ControlFrame(GO, 0, 100)]
    pair.send(1, 2, 3)
    pair.ask(3)
    pair.clock.run(MILLISECOND // 20)
    assert pair.n1.control_frames() == [ControlFrame(GO, 0, 100)], "two frames wait behind the first"
    pair.clock.run(MILLISECOND)
    assert pair.n1.control_frames() == [ControlFrame(GO, 0, 100), ControlFrame(GO, 3, 100)]


def test_with_many_waiting_frames_the_nic_gets_stop_and_its_socket_is_not_read_until_few_wait() -> None:
    pair = Pair(SLOW)
    pair.ask(0)
    pair.send(*range(1, 31))
    pair.clock.run(0)
    assert pair.n1.control_frames() == [ControlFrame(GO, 0, 100), ControlFrame(STOP, 0, 100)]
    assert pair.links[0].uplinks["forward"].stops == 1
    assert pair.links[0].uplinks["forward"].queued[1] == 29
    pair.send(31)
    pair.clock.run(MILLISECOND)
    assert len(pair.n1.received) == 1, "the frame waits in the buffer of the socket"
    pair.clock.run(10 * MILLISECOND)
    assert pair.n1.control_frames() == [ControlFrame(GO, 0, 100), ControlFrame(STOP, 0, 100), ControlFrame(GO, 0, 100)]
    assert pair.delivered() == list(range(1, 32))


def test_a_frame_enters_at_its_receive_timestamp_unless_the_network_has_passed_it() -> None:
    pair = Pair()
    pair.send(1)
    pair.clock.time = MILLISECOND  # time at which the frame is read
    pair.clock.run(MILLISECOND)
    assert pair.delivered() == [1]
    assert pair.links[1].directions["backward"].lateness.worst > MILLISECOND * 9 // 10


def test_a_frame_read_after_the_network_passed_its_timestamp_is_late_by_the_difference() -> None:
    pair = Pair()
    pair.clock.time = MILLISECOND
    pair.send(1)
    pair.clock.time = 5 * MILLISECOND
    frame = append_crc(bytes(6) + HEADER, (bytes([route_byte(-1)]) + b"\0\4").ljust(100, b"\x55"))
    pair.n2.received.append((5 * MILLISECOND, frame))
    pair.links[1].uplinks["forward"].read(5 * MILLISECOND)
    pair.clock.run(6 * MILLISECOND)
    assert pair.links[0].directions["forward"].lateness.worst == 4 * MILLISECOND
    assert pair.links[1].directions["forward"].lateness.worst == 0
    assert pair.delivered() == [1]


def test_a_frame_that_waits_behind_others_enters_no_earlier_than_its_timestamp() -> None:
    """All three are read together; the third has a timestamp long after the others left the link."""
    pair = Pair(SLOW)
    pair.send(1, 2)
    pair.clock.time = 50 * MILLISECOND
    pair.send(3)
    pair.clock.run(50 * MILLISECOND)
    assert pair.delivered() == [1, 2]
    pair.clock.run(51 * MILLISECOND)
    assert pair.delivered() == [1, 2, 3]


def test_a_cut_cable_loses_frames_and_causes_no_back_pressure() -> None:
    pair = Pair(SLOW)
    pair.links[0].change(replace(pair.links[0].link, is_cut=True), {})
    pair.send(*range(40))
    pair.clock.run(MILLISECOND)
    assert pair.delivered() == []
    assert pair.links[0].directions["forward"].channel.entrance.lost == 40
    pair.links[0].change(replace(pair.links[0].link, is_cut=False), {})
    pair.send(41)
    pair.clock.run(2 * MILLISECOND)
    assert pair.delivered() == [41]


def test_a_changed_rate_applies_to_frames_after_the_change() -> None:
    pair = Pair(SLOW)
    pair.send(1)
    pair.clock.run(0)
    fast_direction = RelayedDirection(Impairment(rate=800_000_000))
    for link in pair.links:
        link.change(replace(link.link, forward=fast_direction), {})
    pair.clock.run(MILLISECOND)
    pair.send(*range(2, 12), size=1000)
    pair.clock.run(MILLISECOND + 11 * 10_000 + 1_000)
    assert pair.delivered() == list(range(1, 12))


def test_a_released_link_leaves_a_port_without_a_cable_until_another_is_plugged_in() -> None:
    pair = Pair()
    pair.links[1].release()
    pair.send(1)
    pair.clock.run(MILLISECOND)
    assert pair.driver.network.switch_counters["s1"]["no_cable"] == 1
    pair.forward(RelayedLink("n3--s1:2", "n3", "", switch_ports=(None, SwitchPort("s1", 2))))
    pair.send(2)
    pair.clock.run(2 * MILLISECOND)
    assert [int.from_bytes(frame[16:18], "big") for frame in Interface.instances["n3"].frames()] == [2]
    pair.driver.network.set_switches({})
    assert not pair.driver.network.switch_counters


def test_a_switch_has_the_ports_that_its_cables_need_and_at_least_eight() -> None:
    pair = Pair()
    pair.send(1, delta=7)
    pair.send(2, delta=8)
    pair.clock.run(MILLISECOND)
    counters = pair.driver.network.switch_counters["s1"]
    assert (counters["no_cable"], counters["no_port"]) == (1, 1)
    pair.forward(RelayedLink("n9--s1:9", "n9", "", switch_ports=(None, SwitchPort("s1", 9))))
    pair.send(3, delta=8)
    pair.clock.run(2 * MILLISECOND)
    assert len(Interface.instances["n9"].frames()) == 1
