"""Frames are diverted, and no longer diverted, as soon as the request returns."""

from __future__ import annotations

import errno
import select
from collections.abc import Callable

import pytest

from testbed.kernel import diversion, netlink_messages, rtnl_dump, syscalls
from testbed.kernel.children import in_child
from testbed.kernel.diversion import EGRESS, INGRESS, Diversion
from testbed.kernel.namespaces import open_path
from testbed.kernel.netlink import JOIN_PRIORITY, STAGE_PRIORITY, RequestError, RouteSocket
from testbed.kernel.packet_socket import Arena, PacketSocket
from testbed.kernel.taps import Tap, pass_any
from testbed.kernel.tpacket import Ring

pytestmark = pytest.mark.requires("root")

SENDER, PORT, TAP, BACK = 101, 102, 103, 104
MARK = 7
HERE = "/proc/thread-self/ns/net"
BUFFER = 1 << 20


def run_in_namespace(test: Callable[[RouteSocket], None]) -> None:
    """Run a test in a new namespace with veth pairs sender-port and tap-back, and clsact on port and tap."""

    def in_namespace() -> None:
        syscalls.unshare(syscalls.CLONE_NEWNET)
        namespace = open_path(HERE)
        with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as setting:
            setting.write("1")
        namespace.route.execute(
            [
                netlink_messages.make_veth("sender", SENDER, 1500, namespace.descriptor, "port", PORT),
                netlink_messages.make_veth("tap", TAP, 1500, namespace.descriptor, "back", BACK),
                netlink_messages.add_clsact(PORT),
                netlink_messages.add_clsact(TAP),
                *[netlink_messages.set_up(index) for index in (SENDER, PORT, TAP, BACK)],
            ]
        )
        while not all(
            rtnl_dump.interface(namespace.route, index).is_operational for index in (SENDER, PORT, TAP, BACK)
        ):
            pass
        test(namespace.route)

    in_child(in_namespace)


def open_socket(device: str, mark: int = 0) -> PacketSocket:
    return PacketSocket(device, Arena(), BUFFER, mark=mark)


def frame(number: int) -> bytes:
    return bytes.fromhex("ffffffffffff 020000000001 88b5") + number.to_bytes(4, "big") + bytes(46)


def numbers(packet_socket: PacketSocket) -> list[int]:
    """Return the numbers of received frames; veth delivers before the send returns."""
    return [int.from_bytes(raw[14:18], "big") for _, raw in packet_socket.receive(0)]


def test_incoming_frames_are_diverted_between_divert_and_remove() -> None:
    def test(route: RouteSocket) -> None:
        sender, tap = open_socket("sender"), open_socket("tap")
        sender.send([frame(1)])
        route.execute([diversion.divert(PORT, INGRESS, TAP, MARK)])
        sender.send([frame(2)])
        route.execute([diversion.remove(PORT, INGRESS)])
        sender.send([frame(3)])
        assert numbers(tap) == [2]

    run_in_namespace(test)


def test_outgoing_frames_are_diverted_except_those_with_the_mark() -> None:
    def test(route: RouteSocket) -> None:
        sender, reinjector, port, marked_socket = (
            open_socket("sender"),
            open_socket("back"),
            open_socket("port"),
            open_socket("port", MARK),
        )
        route.execute([diversion.divert(PORT, EGRESS, TAP, MARK, as_outgoing=True)])
        port.send([frame(1)])
        marked_socket.send([frame(2)])
        assert numbers(reinjector) == [1]
        assert numbers(sender) == [2]

    run_in_namespace(test)


def test_marked_frames_that_enter_the_tap_are_received_on_the_port() -> None:
    """Frames with the mark are not diverted a second time."""

    def test(route: RouteSocket) -> None:
        port, tap, reinjector, marked_socket = (
            open_socket("port"),
            open_socket("tap", MARK),
            open_socket("back"),
            open_socket("back", MARK),
        )
        route.execute([diversion.put_back(TAP, PORT, MARK), diversion.divert(PORT, INGRESS, TAP, MARK)])
        reinjector.send([frame(1)])
        marked_socket.send([frame(2)])
        assert numbers(port) == [2]
        assert numbers(tap) == [1]

    run_in_namespace(test)


def test_a_capture_records_reinjected_frames_once_and_outgoing_frames() -> None:
    def test(route: RouteSocket) -> None:
        ring = Ring(HERE, "port", 1 << 20)
        sender, reinjector, port = open_socket("sender"), open_socket("back", PORT), open_socket("port", PORT)
        tap = open_socket("tap", PORT)
        route.execute([diversion.put_back(TAP, PORT, PORT), diversion.divert(PORT, INGRESS, TAP, PORT)])
        sender.send([frame(1)])
        reinjector.send([frame for _, frame in tap.receive(0)])
        port.send([frame(2)])
        captured: list[tuple[bool, int]] = []
        while len(captured) < 2:
            assert select.select([ring], [], [], 30)[0]
            captured += [(is_outgoing, int.from_bytes(raw[14:18], "big")) for _, is_outgoing, raw in ring.read()]
        assert captured == [(False, 1), (True, 2)]

    run_in_namespace(test)


def test_a_listener_at_the_tap_receives_reinjected_frames_and_those_of_the_switch() -> None:
    def test(route: RouteSocket) -> None:
        tap_reader = Tap(HERE, "tap", pass_any([(12, 2, 0x88B5)]), BUFFER, "port")
        sender, reinjector, port = open_socket("sender"), open_socket("back", PORT), open_socket("port")
        route.execute(
            [
                diversion.put_back(TAP, PORT, PORT),
                diversion.divert(PORT, INGRESS, TAP, PORT),
                diversion.divert(PORT, EGRESS, TAP, PORT, as_outgoing=True),
            ]
        )
        sender.send([frame(1)])
        reinjector.send([frame(2)])
        port.send([frame(3)])
        assert [(is_outgoing, int.from_bytes(head[14:18], "big")) for is_outgoing, _, _, head in tap_reader.read(10)] == [
            (False, 2), (True, 3),
        ]  # fmt: skip

    run_in_namespace(test)


def test_diversions_are_read_back() -> None:
    def test(route: RouteSocket) -> None:
        assert rtnl_dump.wire_contents(route).diversions == {}
        route.execute([diversion.divert(PORT, INGRESS, TAP, MARK)])
        assert rtnl_dump.wire_contents(route).diversions == {PORT: Diversion(TAP)}
        route.execute(
            [diversion.divert(PORT, EGRESS, TAP, MARK, as_outgoing=True), diversion.put_back(TAP, PORT, MARK)]
        )
        assert rtnl_dump.wire_contents(route).diversions == {PORT: Diversion(TAP, TAP), TAP: Diversion(PORT)}
        route.execute([netlink_messages.remove_link(TAP)])
        assert rtnl_dump.wire_contents(route).diversions == {PORT: Diversion(-1, -1)}

    run_in_namespace(test)


def test_other_filters_are_no_diversions() -> None:
    def test(route: RouteSocket) -> None:
        route.execute([netlink_messages.redirect_ingress(PORT, TAP)])
        assert rtnl_dump.wire_contents(route).diversions == {}
        assert rtnl_dump.wire_contents(route).redirections == {PORT: TAP}

    run_in_namespace(test)


def test_a_prepared_redirection_redirects_no_frames() -> None:
    """Try frames with different first words, since the filter compares the lowest bit."""

    def test(route: RouteSocket) -> None:
        sender, back = open_socket("sender"), open_socket("back")
        route.execute(
            [
                netlink_messages.prepare_redirection(PORT, STAGE_PRIORITY),
                netlink_messages.redirect_ingress(PORT, TAP, JOIN_PRIORITY),
            ]
        )
        for number in range(4):
            sender.send([frame(number)])
        assert numbers(back) == [0, 1, 2, 3]

    run_in_namespace(test)


@pytest.mark.parametrize(("index", "reason"), [(PORT, errno.ENOENT), (SENDER, errno.EINVAL)])
def test_a_missing_diversion_cannot_be_removed(index: int, reason: int) -> None:
    def test(route: RouteSocket) -> None:
        with pytest.raises(RequestError) as raised:
            route.execute([diversion.remove(index, INGRESS)])
        assert [refusal.errno for refusal in raised.value.refusals] == [reason]

    run_in_namespace(test)
