"""Myrinet in the relay, with the test's interfaces and clock: offers, STOP and GO, and changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from testbed.engine.loop import Loop
from testbed.fabric.interface import Plug
from testbed.fabric.myrinet.network import Network
from testbed.fabric.myrinet.route import append_crc, is_intact, route_byte
from testbed.fabric.myrinet.settings import Settings
from testbed.fabric.stop_go import ASK, GO, STOP, ControlFrame, decode, encode
from testbed.fates.headers import standard_fields
from testbed.kernel.packet_socket import Arena
from testbed.runtime.relay import relay_network
from testbed.runtime.relay.direction_orders import LinkOptions
from testbed.runtime.relay.orders import RelayedDirection, RelayedLink
from testbed.runtime.relay.relay_network import Driver, ModelledLink
from testbed.spec.layout import Impairment

pytestmark = pytest.mark.requires("interpreted")

HEAD = bytes.fromhex("020000000001 88b6")
MILLISECOND = 1_000_000
SLOW = Impairment(rate=8_000_000)  # a byte takes a microsecond


class Clock:
    """A loop's: watched interfaces and timers, by hand."""

    def __init__(self) -> None:
        self.time = 0
        self.watched: dict[int, Callable[[int], object]] = {}
        self.due: list[Timer] = []

    def now(self) -> int:
        return self.time

    def watch(self, descriptor: int, callback: Callable[[int], object]) -> None:
        self.watched[descriptor] = callback

    def unwatch(self, descriptor: int) -> None:
        del self.watched[descriptor]

    def timer(self, callback: Callable[[int], object]) -> Timer:
        self.due.append(Timer(callback))
        return self.due[-1]

    def run(self, until: int) -> None:
        """Advance the clock to `until`, running timers; interfaces are read at once."""
        while True:
            for callback in list(self.watched.values()):
                callback(self.time)
            timer = min(self.due, key=lambda one: until + 1 if one.when is None else one.when)
            if timer.when is None or timer.when > until:
                self.time = until
                return
            self.time, timer.when = max(self.time, timer.when), None
            timer.callback(self.time)


class Timer:
    def __init__(self, callback: Callable[[int], object]) -> None:
        self.callback = callback
        self.when: int | None = None

    def set(self, when: int | None) -> None:
        self.when = when


class Interface:
    """Replacement of a packet socket."""

    made: dict[str, Interface] = {}  # noqa: RUF012  of one test

    def __init__(self, device: str, _arena: object, _buffer: int) -> None:
        self.made[device] = self
        self.come: list[tuple[int, bytes]] = []
        self.sent: list[bytes] = []
        self.has_offloaded = self.is_full = False
        self.capacity = 100

    def fileno(self) -> int:
        return 100 + list(self.made.values()).index(self)

    def receive(self, _earliest: int) -> list[tuple[int, bytes]]:
        found, self.come = self.come[:64], self.come[64:]
        self.is_full = len(found) == 64
        return found

    def send(self, frames: list[bytes]) -> None:
        self.sent += frames

    def words(self) -> list[ControlFrame]:
        return [word for word in map(decode, self.sent) if word is not None]

    def frames(self) -> list[bytes]:
        return [frame for frame in self.sent if decode(frame) is None]


class Pair:
    """n1 at port 1 of s1, n2 at port 2."""

    def __init__(self, impairment: Impairment | None = None) -> None:
        self.clock = Clock()
        self.loop = cast("Loop", self.clock)
        self.driver = Driver(self.loop, Network(Settings()))
        treated = RelayedDirection(impairment or Impairment())
        self.links = [
            self.carry(
                RelayedLink(f"n{number}--s1:{number}", f"n{number}", "", treated, plugs=(None, Plug("s1", number)))
            )
            for number in (1, 2)
        ]
        self.n1, self.n2 = (Interface.made[name] for name in ("n1", "n2"))

    def carry(self, carried: RelayedLink) -> ModelledLink:
        options = LinkOptions(self.loop, cast("Arena", None), standard_fields(), seed=0, files={})
        return ModelledLink(carried, self.driver, options)

    def send(self, *numbers: int, delta: int = 1, size: int = 100) -> None:
        """Send frames from n1 and deliver all of them."""
        for number in numbers:
            packet = bytes([route_byte(delta)]) + b"\0\4" + number.to_bytes(2, "big")
            self.n1.come.append((self.clock.time, append_crc(bytes(6) + HEAD, packet.ljust(size, b"\x55"))))

    def ask(self, count: int) -> None:
        self.n1.come.append((self.clock.time, encode(ControlFrame(ASK, count), HEAD)))

    def came(self) -> list[int]:
        """The numbers of the frames that have left for n2."""
        assert all(map(is_intact, self.n2.frames()))
        return [int.from_bytes(frame[16:18], "big") for frame in self.n2.frames()]


@pytest.fixture(autouse=True)
def _interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    Interface.made.clear()
    monkeypatch.setattr(relay_network, "PacketSocket", Interface)


def test_frames_go_through_in_order_and_nobody_hears_a_word_who_has_not_asked() -> None:
    pair = Pair(SLOW)
    pair.send(*range(50))
    pair.clock.run(100 * MILLISECOND)
    assert pair.came() == list(range(50))
    assert not pair.n1.words()
    assert pair.links[0].uplinks["forward"].waited > 16
    assert pair.links[0].uplinks["forward"].stops == 0


def test_a_question_is_answered_when_all_before_it_has_entered() -> None:
    pair = Pair(SLOW)
    pair.ask(0)
    pair.clock.run(0)
    assert pair.n1.words() == [ControlFrame(GO, 0, 100)]
    pair.send(1, 2, 3)
    pair.ask(3)
    pair.clock.run(MILLISECOND // 20)
    assert pair.n1.words() == [ControlFrame(GO, 0, 100)], "two of them wait behind the first"
    pair.clock.run(MILLISECOND)
    assert pair.n1.words() == [ControlFrame(GO, 0, 100), ControlFrame(GO, 3, 100)]


def test_when_many_wait_it_says_stop_and_reads_no_more_until_few_do() -> None:
    pair = Pair(SLOW)
    pair.ask(0)
    pair.send(*range(1, 31))
    pair.clock.run(0)
    assert pair.n1.words() == [ControlFrame(GO, 0, 100), ControlFrame(STOP, 0, 100)]
    assert pair.links[0].uplinks["forward"].stops == 1
    assert pair.links[0].uplinks["forward"].waiting[1] == 29
    pair.send(31)
    pair.clock.run(MILLISECOND)
    assert len(pair.n1.come) == 1, "it waits in the interface's buffer"
    pair.clock.run(10 * MILLISECOND)
    assert pair.n1.words() == [ControlFrame(GO, 0, 100), ControlFrame(STOP, 0, 100), ControlFrame(GO, 0, 100)]
    assert pair.came() == list(range(1, 32))


def test_a_frame_has_entered_when_the_kernel_got_it_unless_the_network_is_further() -> None:
    pair = Pair()
    pair.send(1)
    pair.clock.time = MILLISECOND  # so late it is read
    pair.clock.run(MILLISECOND)
    assert pair.came() == [1]
    assert pair.links[1].directions["backward"].lateness.worst > MILLISECOND * 9 // 10


def test_a_frame_that_is_read_when_the_network_is_further_is_late_by_that() -> None:
    pair = Pair()
    pair.clock.time = MILLISECOND
    pair.send(1)
    pair.clock.time = 5 * MILLISECOND
    frame = append_crc(bytes(6) + HEAD, (bytes([route_byte(-1)]) + b"\0\4").ljust(100, b"\x55"))
    pair.n2.come.append((5 * MILLISECOND, frame))
    pair.links[1].uplinks["forward"].read(5 * MILLISECOND)
    pair.clock.run(6 * MILLISECOND)
    assert pair.links[0].directions["forward"].lateness.worst == 4 * MILLISECOND
    assert pair.links[1].directions["forward"].lateness.worst == 0
    assert pair.came() == [1]


def test_a_frame_that_waits_behind_others_enters_no_earlier_than_it_came() -> None:
    """All three are read at once, so late that the third has come long after the way of the others is free."""
    pair = Pair(SLOW)
    pair.send(1, 2)
    pair.clock.time = 50 * MILLISECOND
    pair.send(3)
    pair.clock.run(50 * MILLISECOND)
    assert pair.came() == [1, 2]
    pair.clock.run(51 * MILLISECOND)
    assert pair.came() == [1, 2, 3]


def test_a_cable_that_is_cut_loses_frames_and_holds_nobody_up() -> None:
    pair = Pair(SLOW)
    pair.links[0].change(replace(pair.links[0].carried, is_cut=True), {})
    pair.send(*range(40))
    pair.clock.run(MILLISECOND)
    assert pair.came() == []
    assert pair.links[0].directions["forward"].channel.entrance.lost == 40
    pair.links[0].change(replace(pair.links[0].carried, is_cut=False), {})
    pair.send(41)
    pair.clock.run(2 * MILLISECOND)
    assert pair.came() == [41]


def test_another_rate_is_in_force_for_frames_that_come_after_the_change() -> None:
    pair = Pair(SLOW)
    pair.send(1)
    pair.clock.run(0)
    fast = RelayedDirection(Impairment(rate=800_000_000))
    for link in pair.links:
        link.change(replace(link.carried, forward=fast), {})
    pair.clock.run(MILLISECOND)
    pair.send(*range(2, 12), size=1000)
    pair.clock.run(MILLISECOND + 11 * 10_000 + 1_000)
    assert pair.came() == list(range(1, 12))


def test_a_link_that_is_released_is_a_port_without_a_cable_until_another_is_plugged_in() -> None:
    pair = Pair()
    pair.links[1].release()
    pair.send(1)
    pair.clock.run(MILLISECOND)
    assert pair.driver.network.switches["s1"]["no_cable"] == 1
    pair.carry(RelayedLink("n3--s1:2", "n3", "", plugs=(None, Plug("s1", 2))))
    pair.send(2)
    pair.clock.run(2 * MILLISECOND)
    assert [int.from_bytes(frame[16:18], "big") for frame in Interface.made["n3"].frames()] == [2]
    pair.driver.network.keep({})
    assert not pair.driver.network.switches


def test_a_switch_has_as_many_ports_as_its_cables_ask_for_and_eight_at_least() -> None:
    pair = Pair()
    pair.send(1, delta=7)
    pair.send(2, delta=8)
    pair.clock.run(MILLISECOND)
    counters = pair.driver.network.switches["s1"]
    assert (counters["no_cable"], counters["no_port"]) == (1, 1)
    pair.carry(RelayedLink("n9--s1:9", "n9", "", plugs=(None, Plug("s1", 9))))
    pair.send(3, delta=8)
    pair.clock.run(2 * MILLISECOND)
    assert len(Interface.made["n9"].frames()) == 1
