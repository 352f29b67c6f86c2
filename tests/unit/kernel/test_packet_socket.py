"""Packet sockets on a veth pair: batches of frames with time stamps, VLAN tags and offloads, in order."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, Raw

from testbed.kernel import gso, interpreted_frames, netlink_messages, offloads, syscalls
from testbed.kernel.children import in_child
from testbed.kernel.gso import GsoFrame
from testbed.kernel.interpreted_frames import BATCH
from testbed.kernel.namespaces import open_path
from testbed.kernel.offloads import Offloads
from testbed.kernel.packet_socket import GSO_BATCH, Arena, PacketSocket, Statistics
from tests.unit.fates.wire_frames import number_of, numbered, tagged
from tests.unit.kernel.frame_paths import frame_paths

pytestmark = pytest.mark.requires("root", "compiler", "python-headers")

BUFFER = 8 << 20
Ends = tuple[PacketSocket, PacketSocket]


def run_between(test: Callable[[PacketSocket, PacketSocket], None], mtu: int = 1500) -> None:
    """Run a test on each frame path, in a new namespace, with sockets on both ends of a veth pair."""

    def in_namespace(path: ModuleType) -> None:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        namespace = open_path("/proc/thread-self/ns/net")
        with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as setting:
            setting.write("1")
        namespace.route.execute([netlink_messages.make_veth("a", 101, mtu, namespace.descriptor, "b", 102)])
        namespace.route.execute([netlink_messages.set_up(101), netlink_messages.set_up(102)])
        arena = path.Arena()
        a, b = PacketSocket("a", arena, BUFFER), PacketSocket("b", arena, BUFFER)
        for sender, receiver in ((a, b), (b, a)):  # the carrier comes some time after `up`
            while not select.select([receiver], [], [], 0.01)[0]:
                sender.send([numbered(0)])
            while select.select([receiver], [], [], 0.01)[0]:
                receiver.receive(0)
            sender.statistics = Statistics()
        test(a, b)

    for path in frame_paths():
        in_child(partial(in_namespace, path))


def receive_frames(packet_socket: PacketSocket, count: int, earliest: int = 0) -> list[tuple[int, bytes]]:
    """Receive `count` frames, waiting for the kernel to deliver them."""
    received: list[tuple[int, bytes]] = []
    while len(received) < count:
        assert select.select([packet_socket], [], [], 30)[0], f"{count - len(received)} frames do not come"
        received += packet_socket.receive(earliest)
    return received


def contents(packet_socket: PacketSocket, count: int) -> list[bytes]:
    return [frame for _, frame in receive_frames(packet_socket, count)]


def test_frames_arrive_in_batches_in_order_and_complete() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        sent = [numbered(number, 64 + number * 7) for number in range(2 * BATCH + 10)]
        a.send(sent)
        received: list[bytes] = []
        while len(received) < len(sent):
            batch = receive_frames(b, 1)
            assert b.is_full is (len(batch) == BATCH)
            received += [frame for _, frame in batch]
        assert received == sent
        assert b.receive(0) == []
        assert not b.is_full
        assert not b.update_statistics().lost
        assert a.receive(0) == [], "a socket does not receive its own frames"

    run_between(scenario)


def test_frames_have_the_time_stamp_of_their_arrival() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        while True:  # the kernel starts to stamp some time after the first request
            a.send([numbered(0)])
            assert select.select([b], [], [], 30)[0]
            reading = time.monotonic_ns()
            if all(timestamp < reading for timestamp, _ in b.receive(0)):
                break
        before = time.monotonic_ns()
        for number in range(10):
            a.send([numbered(number)])
        after = time.monotonic_ns()
        while time.monotonic_ns() < after + 5_000_000:
            pass
        timestamps = [timestamp for timestamp, _ in receive_frames(b, 10)]
        assert timestamps == sorted(timestamps)
        assert before - 10_000 <= timestamps[0]
        assert timestamps[0] <= after + 10_000

    run_between(scenario)


def test_time_stamps_are_raised_to_the_given_minimum_and_never_decrease() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        a.send([numbered(number) for number in range(5)])
        later = time.monotonic_ns() + 10**9
        assert [timestamp for timestamp, _ in receive_frames(b, 5, later)] == [later] * 5

    run_between(scenario)


def test_the_clock_offset_is_measured_again_after_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    wall = 10**18
    monotonic_times = iter([0, 5_000_000, 5_000_300])
    wall_times = iter([wall + 4_999_000, wall + 5_000_200])
    monkeypatch.setattr(interpreted_frames.time, "monotonic_ns", lambda: next(monotonic_times))
    monkeypatch.setattr(interpreted_frames.time, "time_ns", lambda: next(wall_times))
    now, clock_before = interpreted_frames._clocks()
    assert now == 5_000_300
    assert clock_before == wall + 200


def test_vlan_tags_are_reinserted_into_frames() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        untagged = numbered(1)
        sent = [tagged(untagged, 7, 3), tagged(untagged, 0), tagged(tagged(untagged, 5), 6, tag=0x88A8), untagged]
        a.send(sent)
        assert contents(b, 4) == sent

    run_between(scenario)


def test_tagged_frames_of_the_mtu_are_not_oversized() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        longest = [numbered(1, 9014), tagged(numbered(2, 9014), 5)]
        a.send(longest)
        assert contents(b, 2) == longest
        assert b.update_statistics().oversized == 0

    run_between(scenario, mtu=9000)


# Offloads

TAG = b"\x81\x00\x60\x07"
NETWORKS = {4: IP(src="10.0.0.1", dst="10.0.0.2", id=7), 6: IPv6(src="fd00::1", dst="fd00::2")}


def gso_frame(version: int, size: int, segment: int = 1400, flags: str = "PA", tag: bytes = b"") -> GsoFrame:
    """Return a GSO frame of `size` bytes of TCP in segments of `segment`; a single segment has no checksum."""
    head: Packet = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02") / NETWORKS[version]
    options = [("NOP", None), ("NOP", None), ("Timestamp", (1, 2))]
    data = (bytes(range(256)) * 256)[:size]
    frame = bytearray(bytes(head / TCP(sport=1, dport=2, seq=3, flags=flags, options=options) / Raw(data)))
    transport_offset = 34 if version == 4 else 54
    addresses = frame[26:34] if version == 4 else frame[22:54]
    pseudo = int.from_bytes(addresses, "big") + 6 + len(frame) - transport_offset
    frame[transport_offset + 16 : transport_offset + 18] = (pseudo % 0xFFFF).to_bytes(2, "big")
    kind = (gso.TCP_OVER_IPV4 if version == 4 else gso.TCP_OVER_IPV6) if size > segment else 0
    header = gso.HEADER.pack(
        gso.NEEDS_CHECKSUM, kind, transport_offset + 32, segment if kind else 0, transport_offset, 16
    )
    offloaded = gso.gso_frame(header, bytes(frame), tag)
    assert offloaded is not None
    return offloaded


@pytest.mark.parametrize("version", [4, 6])
def test_gso_frames_are_forwarded_unsegmented(version: int) -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        sent = [gso_frame(version, 60_000), numbered(1), gso_frame(version, 100), gso_frame(version, 1401), numbered(2)]
        a.send_offloaded(list(sent))
        received = contents(b, len(sent))
        assert received == sent
        assert [type(frame) for frame in received] == [GsoFrame, bytes, GsoFrame, GsoFrame, bytes]
        assert [frame.segments for frame in received if isinstance(frame, GsoFrame)] == [43, 1, 2]
        b.send_offloaded(received)
        returned = contents(a, len(sent))
        assert returned == sent
        assert [frame.segment() for frame in returned if isinstance(frame, GsoFrame)] == [
            frame.segment() for frame in sent if isinstance(frame, GsoFrame)
        ]
        assert (a.update_statistics().lost, b.update_statistics().lost) == (0, 0)

    run_between(scenario)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("flags", ["A", "FPA", "PACE"])
@pytest.mark.parametrize("tag", [b"", TAG], ids=["plain", "tagged"])
def test_the_kernel_segments_frames_as_the_testbed_does(version: int, flags: str, tag: bytes) -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        offloads.allow("a", Offloads.NONE)
        sent = [
            gso_frame(version, 60_000, flags=flags, tag=tag),
            gso_frame(version, 100, flags=flags, tag=tag),
            gso_frame(version, 1401, 1000, flags, tag),
        ]
        a.send_offloaded(list(sent))
        expected = [frame for entry in sent for frame in entry.segment()]
        assert contents(b, len(expected)) == expected
        assert not b.has_offloaded

    run_between(scenario)


def test_batches_of_gso_segments_are_small_and_later_ones_are_large_again() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        gso_frames = [gso_frame(4, 60_000)] * (2 * GSO_BATCH)
        small_frames = [numbered(number) for number in range(2 * BATCH)]
        for frames in (gso_frames, gso_frames, small_frames, small_frames):
            a.send_offloaded(list(frames))
        other_socket = PacketSocket("b", a.arena, BUFFER)
        a.send([numbered(0)])
        assert contents(other_socket, 1) == [numbered(0)]  # earlier frames have arrived, too
        received = []
        while batch := b.receive(0):
            received.append(len(batch))
        assert received[:3] == [
            BATCH,  # before the first GSO frame was seen
            GSO_BATCH,
            BATCH,
        ]

    run_between(scenario)


def test_a_gso_frames_vlan_tag_is_reinserted() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        sent = [gso_frame(4, 60_000, tag=TAG), gso_frame(4, 100, tag=TAG)]
        a.send_offloaded(list(sent))
        received = contents(b, 2)
        assert received == sent
        assert [frame.segment() for frame in received if isinstance(frame, GsoFrame)] == [
            frame.segment() for frame in sent
        ]

    run_between(scenario)


def test_each_oversized_gso_segment_is_counted() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        a.send_offloaded([gso_frame(4, 20_000, 2000), numbered(1)])
        assert contents(b, 1) == [numbered(1)]
        assert b.update_statistics().oversized == 10
        assert b.update_statistics().lost == 10

    run_between(scenario)


def test_a_socket_may_send_by_another_interface_than_it_listens_on() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        other_socket = PacketSocket("b", a.arena, BUFFER, out="a")
        other_socket.send([numbered(1)])
        assert contents(b, 1) == [numbered(1)]
        open_path("/proc/thread-self/ns/net").route.execute([netlink_messages.remove_link(101)])
        assert not other_socket.is_current()
        other_socket.send([numbered(2)])
        assert other_socket.statistics.down == 1

    run_between(scenario)


def test_a_socket_does_not_receive_frames_with_its_own_mark() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        marked_socket, other_socket = (
            PacketSocket("a", a.arena, BUFFER, mark=7),
            PacketSocket("b", a.arena, BUFFER, mark=7),
        )
        marked_socket.send([numbered(1)])
        a.send([numbered(2)])
        assert [number_of(frame) for frame in contents(b, 2)] == [1, 2]
        assert [number_of(frame) for frame in contents(other_socket, 1)] == [2]
        assert other_socket.receive(0) == []

    run_between(scenario)


def test_offloads_are_limited_and_restored() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        default_offloads = offloads.active(a.fileno(), "a")
        for expected in (Offloads.NONE, Offloads.TCP, Offloads.ALL, Offloads.TCP, Offloads.NONE):
            offloads.allow("a", expected)
            assert offloads.accepted(a.fileno(), "a") is expected
            assert offloads.accepted(b.fileno(), "b") is Offloads.ALL
        assert not offloads.accepts_gso(a.fileno(), "a")
        offloads.allow("a", Offloads.ALL)
        assert offloads.active(a.fileno(), "a") == default_offloads
        offloads.allow("a", Offloads.TCP)
        offloads_on = offloads.active(a.fileno(), "a") & {name for name in default_offloads if name.startswith("tx-")}
        assert {"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-checksum-ip-generic"} <= offloads_on
        assert not [
            name for name in offloads_on if "udp" in name or "sctp" in name or "gre" in name or name == "tx-gso-list"
        ]

    run_between(scenario)


# Errors


def test_unsent_frames_are_counted_by_reason() -> None:
    def scenario(a: PacketSocket, _: PacketSocket) -> None:
        a.send([numbered(1), numbered(2, 3000), numbered(3)])
        assert (a.statistics.unsent, a.statistics.down) == (1, 0)
        route = open_path("/proc/thread-self/ns/net").route
        route.execute([netlink_messages.set_down(101)])
        a.send([numbered(4), numbered(5)])
        assert a.statistics.down == 2
        assert a.statistics.unsent == 1

    run_between(scenario)


def test_frames_to_a_port_whose_peer_is_down_do_not_count_as_lost_in_the_emulator() -> None:
    """The kernel returns ENOBUFS only until its link watch notices that the peer is down."""

    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        route = open_path("/proc/thread-self/ns/net").route
        deadline = time.monotonic() + 30
        while not a.statistics.down and time.monotonic() < deadline:
            while not select.select([b], [], [], 0.01)[0]:  # until the peer is up
                a.send([numbered(1)])
            while select.select([b], [], [], 0)[0]:
                b.receive(0)
            route.execute(
                [netlink_messages.set_down(102), netlink_messages.set_up(102), netlink_messages.set_down(102)]
            )
            a.send([numbered(2), numbered(3)])
            route.execute([netlink_messages.set_up(102)])
        assert a.statistics.unsent == 0
        assert a.statistics.down > 0

    run_between(scenario)


def test_frames_dropped_by_a_full_buffer_are_counted() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        small_socket = PacketSocket("b", a.arena, 4096)
        a.send([numbered(number) for number in range(200)])
        assert len(contents(b, 200)) == 200  # all have been delivered
        received_count = 0
        while batch := small_socket.receive(0):
            received_count += len(batch)
        assert received_count + small_socket.update_statistics().overrun == 200
        assert small_socket.update_statistics().overrun > 0
        assert small_socket.update_statistics().lost == small_socket.update_statistics().overrun

    run_between(scenario)


def test_a_socket_that_has_stopped_receiving_returns_its_pending_frames_and_still_sends() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        other_socket = PacketSocket("b", a.arena, BUFFER)
        a.send([numbered(1)])
        assert len(contents(other_socket, 1)) == 1
        b.stop_receiving()
        a.send([numbered(2)])
        assert len(contents(other_socket, 1)) == 1
        assert [number_of(frame) for frame in contents(b, 1)] == [1]
        assert b.receive(0) == []
        b.send([numbered(3)])
        assert [number_of(frame) for frame in contents(a, 1)] == [3]

    run_between(scenario)


def test_a_socket_is_not_current_after_its_interface_was_recreated() -> None:
    def scenario(a: PacketSocket, b: PacketSocket) -> None:
        assert a.is_current()
        namespace = open_path("/proc/thread-self/ns/net")
        namespace.route.execute([netlink_messages.remove_link(101)])
        assert not a.is_current()
        assert not b.is_current()
        namespace.route.execute([netlink_messages.make_veth("a", 103, 1500, namespace.descriptor, "b", 104)])
        assert not a.is_current()
        assert b.receive(0) == []

    run_between(scenario)


def test_an_unknown_interface_is_an_error() -> None:
    with pytest.raises(OSError, match=r"no interface|No such device"):  # the latter from Python 3.14 on
        PacketSocket("no-such-thing", Arena(), 4096)
    assert socket.if_nameindex()
