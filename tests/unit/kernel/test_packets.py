"""Packet sockets in batches, on a veth pair of their own: every frame with its time, its tag and its place in the order."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

import pytest
from wire_frames import number_of, numbered, tagged

from testbed.kernel import messages, packets, syscalls
from testbed.kernel.children import in_child
from testbed.kernel.namespaces import open_path
from testbed.kernel.packets import BATCH, Arena, PacketSocket, Statistics

pytestmark = pytest.mark.requires("root")

BUFFER = 8 << 20
Ends = tuple[PacketSocket, PacketSocket]


def between(test: Callable[[PacketSocket, PacketSocket], None], mtu: int = 1500) -> None:
    """Run a test in a namespace of its own, with sockets on the two ends of a pair."""

    def inside() -> None:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        here = open_path("/proc/thread-self/ns/net")
        with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as setting:
            setting.write("1")
        here.route.execute([messages.make_veth("a", 101, mtu, here.descriptor, "b", 102, mtu)])
        here.route.execute([messages.set_up(101), messages.set_up(102)])
        arena = Arena()
        a, b = PacketSocket("a", arena, BUFFER), PacketSocket("b", arena, BUFFER)
        for sender, receiver in ((a, b), (b, a)):  # the kernel gives an interface its carrier some time after it is up
            while not select.select([receiver], [], [], 0.01)[0]:
                sender.send([numbered(0)])
            while select.select([receiver], [], [], 0.01)[0]:
                receiver.receive(0)
            sender.statistics = Statistics()
        test(a, b)

    in_child(inside)


def taken(found: PacketSocket, count: int, earliest: int = 0) -> list[tuple[int, bytes]]:
    """So many frames; the kernel may hand them over a little after they were sent."""
    got: list[tuple[int, bytes]] = []
    while len(got) < count:
        assert select.select([found], [], [], 30)[0], f"{count - len(got)} frames do not come"
        got += found.receive(earliest)
    return got


def contents(found: PacketSocket, count: int) -> list[bytes]:
    return [frame for _, frame in taken(found, count)]


def test_frames_come_in_batches_in_their_order_and_whole() -> None:
    def story(a: PacketSocket, b: PacketSocket) -> None:
        sent = [numbered(number, 64 + number * 7) for number in range(2 * BATCH + 10)]
        a.send(sent)
        got: list[bytes] = []
        while len(got) < len(sent):
            batch = taken(b, 1)
            assert b.filled is (len(batch) == BATCH)
            got += [frame for _, frame in batch]
        assert got == sent
        assert b.receive(0) == []
        assert not b.filled
        assert not b.look().lost
        assert a.receive(0) == [], "what it sends itself does not come back"

    between(story)


def test_every_frame_comes_with_the_time_at_which_it_came_not_that_at_which_it_was_read() -> None:
    def story(a: PacketSocket, b: PacketSocket) -> None:
        while True:  # the kernel begins to stamp some time after it was first asked to
            a.send([numbered(0)])
            assert select.select([b], [], [], 30)[0]
            reading = time.monotonic_ns()
            if all(when < reading for when, _ in b.receive(0)):
                break
        before = time.monotonic_ns()
        for number in range(10):
            a.send([numbered(number)])
        after = time.monotonic_ns()
        while time.monotonic_ns() < after + 5_000_000:
            pass
        times = [when for when, _ in taken(b, 10)]
        assert times == sorted(times)
        assert before - 10_000 <= times[0]
        assert times[0] <= after + 10_000

    between(story)


def test_no_frame_is_older_than_the_caller_says_nor_than_the_one_before_it() -> None:
    def story(a: PacketSocket, b: PacketSocket) -> None:
        a.send([numbered(number) for number in range(5)])
        later = time.monotonic_ns() + 10**9
        assert [when for when, _ in taken(b, 5, later)] == [later] * 5

    between(story)


def test_the_two_clocks_are_read_again_when_something_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = 10**18
    readings = iter([0, 5_000_000, 5_000_300])
    walls = iter([wall + 4_999_000, wall + 5_000_200])
    monkeypatch.setattr(packets.time, "monotonic_ns", lambda: next(readings))
    monkeypatch.setattr(packets.time, "time_ns", lambda: next(walls))
    now, behind = packets._clocks()
    assert now == 5_000_300
    assert behind == wall + 200


def test_tags_are_put_back_into_their_frames() -> None:
    def story(a: PacketSocket, b: PacketSocket) -> None:
        plain = numbered(1)
        sent = [tagged(plain, 7, 3), tagged(plain, 0), tagged(tagged(plain, 5), 6, tag=0x88A8), plain]
        a.send(sent)
        assert contents(b, 4) == sent

    between(story)


def test_frames_of_the_mtu_pass_with_a_tag_and_none_is_taken_for_too_long() -> None:
    def story(a: PacketSocket, b: PacketSocket) -> None:
        longest = [numbered(1, 9014), tagged(numbered(2, 9014), 5)]
        a.send(longest)
        assert contents(b, 2) == longest
        assert b.look().oversized == 0

    between(story, mtu=9000)


def test_what_cannot_be_sent_is_counted_by_its_reason() -> None:
    def story(a: PacketSocket, _: PacketSocket) -> None:
        a.send([numbered(1), numbered(2, 3000), numbered(3)])
        assert (a.statistics.unsent, a.statistics.down) == (1, 0)
        route = open_path("/proc/thread-self/ns/net").route
        route.execute([messages.set_down(101)])
        a.send([numbered(4), numbered(5)])
        assert a.statistics.down == 2
        assert a.statistics.unsent == 1

    between(story)


def test_frames_for_which_there_was_no_room_are_counted() -> None:
    def story(a: PacketSocket, b: PacketSocket) -> None:
        small = PacketSocket("b", Arena(), 4096)
        a.send([numbered(number) for number in range(200)])
        assert len(contents(b, 200)) == 200  # they are through
        got = 0
        while batch := small.receive(0):
            got += len(batch)
        assert got + small.look().overrun == 200
        assert small.look().overrun > 0
        assert small.look().lost == small.look().overrun

    between(story)


def test_a_socket_that_has_stopped_listening_gives_what_it_has_heard_and_still_sends() -> None:
    def story(a: PacketSocket, b: PacketSocket) -> None:
        other = PacketSocket("b", Arena(), BUFFER)
        a.send([numbered(1)])
        assert len(contents(other, 1)) == 1
        b.stop_listening()
        a.send([numbered(2)])
        assert len(contents(other, 1)) == 1
        assert [number_of(frame) for frame in contents(b, 1)] == [1]
        assert b.receive(0) == []
        b.send([numbered(3)])
        assert [number_of(frame) for frame in contents(a, 1)] == [3]

    between(story)


def test_an_interface_that_was_made_anew_is_not_the_one_that_was_opened() -> None:
    def story(a: PacketSocket, b: PacketSocket) -> None:
        assert a.still_there()
        here = open_path("/proc/thread-self/ns/net")
        here.route.execute([messages.remove_link(101)])
        assert not a.still_there()
        assert not b.still_there()
        here.route.execute([messages.make_veth("a", 103, 1500, here.descriptor, "b", 104, 1500)])
        assert not a.still_there()
        assert b.receive(0) == []

    between(story)


def test_where_there_is_no_such_interface_it_is_an_error() -> None:
    with pytest.raises(OSError, match="no interface"):
        PacketSocket("no-such-thing", Arena(), 4096)
    assert socket.if_nameindex()
