"""Splicing and restoring links of a running cluster: their traffic, other links, and the final state.

Instead of the relay, a thread of the test copies frames from one free end to the other and inspects them.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import ExistingState
from testbed.cluster.plan.kernel_operations import Operation
from testbed.cluster.plan.link_services import LinkService, LinkServices
from testbed.cluster.plan.netlink_executor import NetlinkExecutor
from testbed.cluster.plan.planner import plan
from testbed.cluster.plan.veth_wiring import free_ends, taps
from testbed.kernel import offloads, rtnl_dump
from testbed.kernel.diversion import filter_by_mark
from testbed.kernel.namespaces import open_path
from testbed.kernel.packet_options import attach_filter
from testbed.runtime.relay.orders import RelayedLink
from testbed.spec.layout import Impairment
from testbed.spec.model import Link, Node, Switch
from tests.live import node_sockets
from tests.live.iproute2 import namespace_contents, ping, ports, query, static_forwarding, wire_path
from tests.live.machine_state import Machine, eventually

pytestmark = [pytest.mark.requires("root", "ip", "ping"), pytest.mark.usefixtures("machine")]

NAME = "splices"
RELAY = LinkService("relay")
RATE = Impairment(rate=10**9)


def change_services(
    cluster: RunningCluster, link_services: LinkServices, before: LinkServices | None = None
) -> list[Operation]:
    """Change links of a running cluster to these services; return the operations, and assert that a second plan is empty."""

    def change() -> list[Operation]:
        with NetlinkExecutor(NAME, lambda _: "", named=False) as executor:
            executor.paths = dict(cluster.state.namespaces)
            nics = frozenset((node.name, nic.name) for node in layout.nodes for nic in node.nics)
            existing = ExistingState(executor.contents(list(executor.paths)), {}, nics, {}, before or {})
            operations = plan(layout, existing, link_services)
            executor.apply(operations, lambda _: None)
            return operations

    layout = cluster.state.layout
    operations = change()
    before = link_services
    assert change() == []
    return operations


def link_of(cluster: RunningCluster, *owners: str) -> str:
    return next(link.name for link in cluster.state.layout.links if {link.a.owner, link.b.owner} == set(owners))


def features(namespace: str) -> dict[str, frozenset[str]]:
    opened = open_path(namespace)
    try:
        interfaces = rtnl_dump.interfaces(opened.route)
        return {
            interface.name: offloads.active(opened.route.fileno(), interface.name)
            for interface in interfaces
            if interface.kind == "veth"
        }
    finally:
        opened.close()


def counters(namespace: str, device: str) -> rtnl_dump.Counters:
    opened = open_path(namespace)
    try:
        return rtnl_dump.by_name(rtnl_dump.interfaces(opened.route))[device].counters
    finally:
        opened.close()


def kernel_state(cluster: RunningCluster) -> dict[str, object]:
    """Return the part of a cluster's kernel state that does not change with traffic."""
    wire = wire_path(cluster.state)
    return {
        "namespaces": {key: namespace_contents(path) for key, path in cluster.state.namespaces.items()},
        "ports": ports(wire),
        "forwarding": static_forwarding(wire),
        "disciplines": {
            key: [
                (qdisc["kind"], qdisc["dev"])
                for qdisc in query(path, "tc", "qdisc", "show")
                if qdisc["kind"] != "clsact"
            ]
            for key, path in cluster.state.namespaces.items()
        },
        "features": {key: features(path) for key, path in cluster.state.namespaces.items()},
    }


@pytest.fixture(params=["node and switch", "switch and node", "two nodes", "two switches", "a ring's trunk"])
def spliceable(request: pytest.FixtureRequest, machine: Machine) -> Iterator[tuple[RunningCluster, str]]:  # noqa: ARG001
    """Bring up a cluster whose nodes n1 and n2 communicate over a link; yield both."""
    nodes = [Node(name=name) for name in ("n1", "n2", "n3")]
    switches = [Switch(name=name) for name in ("s1", "s2", "s3")]
    wires, owners = {
        "node and switch": (["n1 s1", "n2 s1", "n3 s1"], ("n1", "s1")),
        "switch and node": (["s1 n1", "n2 s1", "n3 s1"], ("n1", "s1")),
        "two nodes": (["n1 n2", "n3 s1"], ("n1", "n2")),
        "two switches": (["n1 s1", "n2 s2", "n3 s1", "s1 s2"], ("s1", "s2")),
        "a ring's trunk": (["n1 s1", "n2 s2", "n3 s3", "s1 s2", "s2 s3", "s3 s1"], ("s1", "s2")),
    }[request.param]
    links = [Link(ends=wire.split()) for wire in wires]
    with Cluster(name=NAME, nodes=nodes, switches=switches, links=links, network6="fd00::/48").up(name=NAME) as cluster:
        yield cluster, link_of(cluster, *owners)


class Copier:
    """Copies frames from one end of a link to the other, as the relay does, and records TCP and UDP frames."""

    def __init__(self, a: socket.socket, b: socket.socket, relayed: RelayedLink) -> None:
        self.ends = (a, b)
        self.relayed = relayed
        self.sizes: Counter[str] = Counter()  # protocol -> size of the largest frame
        self.wrong: Counter[str] = Counter()  # protocol -> frames with a wrong checksum
        self.counts: Counter[str] = Counter()
        self._stop, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Copier:
        for end in self.ends:
            end.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
            end.setsockopt(263, 23, 1)  # PACKET_IGNORE_OUTGOING
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._stop_writer)
        self._thread.join()
        os.close(self._stop)

    def _run(self) -> None:
        a, b = self.ends
        while True:
            ready, _, _ = select.select([self._stop, a, b], [], [])
            if self._stop in ready:
                return
            for end in ready:
                destination, device = (b, self.relayed.b) if end is a else (a, self.relayed.a)
                for frame in node_sockets.received(end):
                    self._inspect(frame)
                    destination.sendto(frame, (device, 0))

    def _inspect(self, frame: bytes) -> None:
        ethertype, network = frame[12:14], frame[14:]
        if ethertype == b"\x08\x00":
            size, protocol = (network[0] & 15) * 4, network[9]
            segment, ends = network[size : int.from_bytes(network[2:4], "big")], network[12:20]
            is_complete = not int.from_bytes(network[6:8], "big") & 0x3FFF  # no fragment
        elif ethertype == b"\x86\xdd":
            segment, ends, protocol, is_complete = network[40:], network[8:40], network[6], True
        else:
            return
        if protocol not in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
            return
        name = ("TCP" if protocol == socket.IPPROTO_TCP else "UDP") + str(network[0] >> 4)
        self.counts[name] += 1
        self.sizes[name] = max(self.sizes[name], len(frame))
        if is_complete and _checksum(ends + struct.pack("!HH", protocol, len(segment)) + segment) != 0xFFFF:
            self.wrong[name] += 1


def _checksum(data: bytes) -> int:
    """Return the sum of RFC 1071."""
    padded = data + bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@contextmanager
def copy_frames(cluster: RunningCluster, link: str) -> Iterator[Copier]:
    a, b = free_ends(cluster.state.layout, link)
    wire = wire_path(cluster.state)
    relayed = RelayedLink(link, a, b, taps=taps(a, b))
    with (
        node_sockets.open_socket(wire, relayed.receive_interfaces[0], 3) as end_a,
        node_sockets.open_socket(wire, relayed.receive_interfaces[1], 3) as end_b,
    ):
        for end in (end_a, end_b) if relayed.mark else ():
            mark = namespace_contents(wire).links[relayed.mark].index
            attach_filter(end, filter_by_mark(mark, if_marked=0, otherwise=0xFFFF_FFFF))
            end.setsockopt(socket.SOL_SOCKET, 36, mark)  # SO_MARK
        with Copier(end_a, end_b, relayed) as copier:
            yield copier


AMOUNT = 2 << 20

_SERVER = """
import socket, sys
kind, address = sys.argv[1:]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
if kind == "tcp":
    with socket.create_server((address, 5001), family=family) as listening:
        print("ready", flush=True)
        with listening.accept()[0] as peer:
            count = 0
            while data := peer.recv(1 << 20):
                count += len(data)
            peer.send(b"x")
else:
    with socket.socket(family, socket.SOCK_DGRAM) as receiver:
        receiver.bind((address, 5001))
        print("ready", flush=True)
        count = 0
        while (data := receiver.recv(1 << 16)) != b"end":
            count += len(data)
print(count)
"""

_CLIENT = """
import socket, sys
kind, address, amount = sys.argv[1:]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
if kind == "tcp":
    with socket.create_connection((address, 5001)) as peer:
        peer.sendall(bytes(int(amount)))
        peer.shutdown(socket.SHUT_WR)
        peer.recv(1)
else:
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.connect((address, 5001))
        for size in (100, 1400, 4000):  # the last in fragments
            sender.send(bytes(size))
        try:
            sender.setsockopt(socket.IPPROTO_UDP, 103, 1200)  # UDP_SEGMENT
            sender.send(bytes(12000))
            sender.setsockopt(socket.IPPROTO_UDP, 103, 0)
        except OSError:  # a kernel without it, or before 6.11
            sender.setsockopt(socket.IPPROTO_UDP, 103, 0)
            sender.send(bytes(12000))
        sender.send(b"end")
"""


def transfer(cluster: RunningCluster, kind: str, source: str, target: str, address: str) -> int:
    """Transfer data between two nodes; return the received bytes."""
    server = cluster[target].popen([sys.executable, "-c", _SERVER, kind, address], stdout=subprocess.PIPE)
    with server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            cluster[source].run([sys.executable, "-c", _CLIENT, kind, address, str(AMOUNT)], timeout=30)
            return int(server.stdout.readline())
        finally:
            server.kill()


def addresses(cluster: RunningCluster, node: str) -> list[str]:
    """Return a node's IPv4 and IPv6 addresses."""
    return [address.partition("/")[0] for address in cluster[node].layout.nics[0].addresses]


def test_a_spliced_link_passes_icmp_tcp_and_udp_unchanged(
    spliceable: tuple[RunningCluster, str],
) -> None:
    cluster, link = spliceable
    before = kernel_state(cluster)
    ping(cluster, "n1", "n2")
    change_services(cluster, {link: RELAY})
    with copy_frames(cluster, link) as copier:
        for address in addresses(cluster, "n2"):
            cluster["n1"].run(["ping", "-n", "-q", "-c3", "-i0.2", "-W5", address])
            assert transfer(cluster, "tcp", "n1", "n2", address) == AMOUNT
            assert transfer(cluster, "udp", "n1", "n2", address) == 100 + 1400 + 4000 + 12000
    assert copier.counts.keys() == {"TCP4", "TCP6", "UDP4", "UDP6"}
    assert copier.counts["TCP4"] > AMOUNT // 1500
    assert not copier.wrong
    assert max(copier.sizes.values()) <= 1514
    change_services(cluster, {})
    assert kernel_state(cluster) == before
    ping(cluster, "n1", "n2")
    assert transfer(cluster, "tcp", "n1", "n2", addresses(cluster, "n2")[0]) == AMOUNT


def test_frames_of_unspliced_links_are_segmented_at_the_switch() -> None:
    """n2's link is not spliced and its offloads are on: the patch veth at the switch segments its frames."""
    with Cluster.star(2).up(name=NAME) as cluster:
        link = link_of(cluster, "n1", "s1")
        change_services(cluster, {link: RELAY})
        with copy_frames(cluster, link) as copier:
            assert transfer(cluster, "tcp", "n2", "n1", addresses(cluster, "n1")[0]) == AMOUNT
        assert not copier.wrong
        assert copier.sizes["TCP4"] == 1514


@pytest.mark.parametrize(
    "datapath",
    [pytest.param("tc", marks=pytest.mark.requires("bpf")), pytest.param("netem", marks=pytest.mark.requires("netem"))],
)
def test_a_kernel_datapath_forwards_a_spliced_link(spliceable: tuple[RunningCluster, str], datapath: Any) -> None:
    cluster, link = spliceable
    before = kernel_state(cluster)
    rated = LinkService(datapath, RATE, RATE)
    change_services(cluster, {link: rated})
    for address in addresses(cluster, "n2"):
        cluster["n1"].run(["ping", "-n", "-q", "-c1", "-W5", address])
    assert transfer(cluster, "tcp", "n1", "n2", addresses(cluster, "n2")[0]) == AMOUNT
    losing = LinkService(datapath, Impairment(rate=10**9, loss=1.0), RATE)
    change_services(cluster, {link: losing}, {link: rated})
    # The forward direction loses all frames, so no ping succeeds from either side.
    for source, target in (("n1", "n2"), ("n2", "n1")):
        lost = ["ping", "-n", "-q", "-c1", "-W1", addresses(cluster, target)[0]]
        assert cluster[source].run(lost, check=False).returncode == 1
    change_services(cluster, {link: rated}, {link: losing})
    ping(cluster, "n1", "n2")
    change_services(cluster, {link: RELAY}, {link: rated})
    with copy_frames(cluster, link):
        ping(cluster, "n1", "n2")
    change_services(cluster, {link: rated}, {link: RELAY})
    ping(cluster, "n2", "n1")
    change_services(cluster, {}, {link: rated})
    assert kernel_state(cluster) == before
    ping(cluster, "n1", "n2")


@pytest.mark.parametrize("datapath", ["direct", pytest.param("tc", marks=pytest.mark.requires("bpf"))])
def test_frames_below_ethernets_minimum_pass_unchanged(spliceable: tuple[RunningCluster, str], datapath: str) -> None:
    """A veth pair neither pads short frames nor drops them: every filter must match a frame that has no payload."""
    cluster, link = spliceable
    change_services(cluster, {link: LinkService("tc", RATE, RATE)} if datapath == "tc" else {})
    with node_sockets.nic_sockets(cluster) as nics:
        for source, target in (("n1", "n2"), ("n2", "n1")):
            header = node_sockets.mac(cluster, target) + node_sockets.mac(cluster, source) + b"\x88\xb5"
            frames = [header + bytes(range(size)) for size in (0, 1, 2, 3, 4, 46)]
            for frame in frames:
                assert nics[source].send(frame) == len(frame)
            arrived: list[bytes] = []
            while len(arrived) < len(frames) and select.select([nics[target]], [], [], 1)[0]:
                arrived += node_sockets.received(nics[target])
            assert arrived == frames


@pytest.mark.requires("bpf")
def test_broadcasts_in_a_ring_of_spliced_links_arrive_once(machine: Machine) -> None:  # noqa: ARG001
    """A broadcast reaches every node exactly once."""
    with Cluster.ring(3).up(name=NAME) as cluster:
        rated = LinkService("tc", RATE, RATE)
        change_services(cluster, {link.name: rated for link in cluster.state.layout.links})
        with node_sockets.nic_sockets(cluster) as nics:
            for number in range(3):
                nics["n1"].send(
                    node_sockets.numbered_frame(node_sockets.BROADCAST, node_sockets.mac(cluster, "n1"), number)
                )
            for node in ("n2", "n3"):
                assert all_received(nics[node], 2) == [0, 1, 2]
            assert node_sockets.received(nics["n1"]) == []
        ping(cluster, "n1", "n3")


# Traffic during changes


@contextmanager
def stream(
    cluster: RunningCluster, source: str, destination: bytes, nics: Mapping[str, socket.socket]
) -> Iterator[list[int]]:
    """Send numbered frames, one every 100 us, during the block; the yielded list receives their numbers."""
    sent: list[int] = []
    done = threading.Event()
    own = node_sockets.mac(cluster, source)

    def send() -> None:
        number = 0
        while not done.is_set():
            nics[source].send(node_sockets.numbered_frame(destination, own, number))
            sent.append(number)
            number += 1
            time.sleep(0.0001)  # pacing

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        done.set()
        thread.join()


def wait_for_more(sent: list[int], count: int, deadline: float = 30) -> None:
    expected = len(sent) + count
    eventually(lambda: len(sent) >= expected, f"{count} more frames are sent", deadline)


def all_received(end: socket.socket, last: int) -> list[int]:
    """Return the numbers of received frames, up to `last` or until none arrives any more."""
    numbers: list[int] = []
    while not numbers or numbers[-1] < last:
        if not select.select([end], [], [], 1)[0]:
            break
        numbers += node_sockets.frame_numbers(node_sockets.received(end))
    return numbers


@pytest.mark.parametrize("shape", [Cluster.star(3), Cluster.ring(3)], ids=["star", "ring"])
def test_other_links_lose_nothing_while_a_link_is_spliced_and_restored(shape: Cluster) -> None:
    with shape.up(name=NAME) as cluster, node_sockets.nic_sockets(cluster) as nics:
        nics["n3"].setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        link = link_of(cluster, "n1", "s1")
        indexes = {
            key: {link.name: link.index for link in namespace_contents(path).links.values()}
            for key, path in _paths(cluster)
        }
        with stream(cluster, "n2", node_sockets.mac(cluster, "n3"), nics) as sent:
            for _ in range(5):
                change_services(cluster, {link: RELAY})
                change_services(cluster, {})
        assert all_received(nics["n3"], sent[-1]) == sent
        assert indexes == {
            key: {link.name: link.index for link in namespace_contents(path).links.values()}
            for key, path in _paths(cluster)
        }


def _paths(cluster: RunningCluster) -> list[tuple[str, str]]:
    return list(cluster.state.namespaces.items())


@pytest.mark.parametrize("datapath", ["relay", pytest.param("tc", marks=pytest.mark.requires("bpf"))])
def test_no_frame_is_duplicated_while_the_links_of_a_ring_are_spliced_and_restored(datapath: Any) -> None:
    """All links of a ring at once, with broadcasts, which would circulate in a loop. No relay is running."""
    link_service = RELAY if datapath == "relay" else LinkService("tc", RATE, RATE)
    with Cluster.ring(3).up(name=NAME) as cluster, node_sockets.nic_sockets(cluster) as nics:
        for end in nics.values():
            end.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        first = node_sockets.numbered_frame(node_sockets.BROADCAST, node_sockets.mac(cluster, "n1"), 0)
        for node in ("n2", "n3"):
            node_sockets.received(nics[node])
            send_until_received(nics["n1"], first, nics[node])
        for node in ("n2", "n3"):
            node_sockets.received(nics[node])
        with stream(cluster, "n1", node_sockets.BROADCAST, nics) as sent:
            for _ in range(5):
                change_services(cluster, {link.name: link_service for link in cluster.state.layout.links})
                change_services(cluster, {})
        for node in ("n2", "n3"):
            actual = all_received(nics[node], sent[-1])
            assert actual == sorted(set(actual))
            if datapath == "tc":
                assert actual == sent
        assert node_sockets.received(nics["n1"]) == []


def send_until_received(sender: socket.socket, frame: bytes, receiver: socket.socket) -> None:
    """Send a frame that the kernel may drop: a new link forwards frames once the kernel has noticed its carrier."""
    for _ in range(20):
        sender.send(frame)
        if select.select([receiver], [], [], 1)[0]:
            assert len(node_sockets.received(receiver)) == 1
            return
    raise AssertionError("no frame within 20 s")


def test_frames_lost_by_a_splice_without_a_relay_are_counted() -> None:
    """No process reads the taps: each diverted frame is lost and counted by the tap's interface."""
    with Cluster.star(2).up(name=NAME) as cluster, node_sockets.nic_sockets(cluster) as nics:
        link = link_of(cluster, "n1", "s1")
        wire = wire_path(cluster.state)
        tap, back = taps(*free_ends(cluster.state.layout, link))
        for source, target, received in (("n1", "n2", tap), ("n2", "n1", back)):
            for end in nics.values():
                end.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
                node_sockets.received(end)
            # The switch has learned both addresses, so it does not flood.
            for first, second in ((source, target), (target, source)):
                frame = node_sockets.numbered_frame(
                    node_sockets.mac(cluster, second), node_sockets.mac(cluster, first), 0
                )
                send_until_received(nics[first], frame, nics[second])
            with stream(cluster, source, node_sockets.mac(cluster, target), nics) as sent:
                change_services(cluster, {link: RELAY})
                wait_for_more(sent, 50)
            lost = counters(wire, received).rx_unclaimed
            arrived = all_received(nics[target], sent[-1])
            assert lost >= 48
            assert len(sent) - len(arrived) == lost
            change_services(cluster, {})


# Down


@pytest.mark.parametrize("spliced", [False, True])
def test_a_link_that_is_down_forwards_nothing_and_its_nics_have_no_carrier(
    spliceable: tuple[RunningCluster, str], spliced: bool
) -> None:
    cluster, link = spliceable
    before = kernel_state(cluster)
    service = RELAY if spliced else LinkService()
    change_services(cluster, {link: LinkService(service.datapath, down=True)})
    owners = {end.split(":")[0] for end in link.split("--")}
    for node in owners & {"n1", "n2"}:
        (nic,) = query(cluster.state.namespaces[node], "ip", "link", "show", "eth0")
        assert "NO-CARRIER" in nic["flags"]
    if "s2" not in owners or len(cluster.state.layout.links) < 6:  # in a ring there is another path
        lost = ["ping", "-n", "-q", "-c1", "-W1", addresses(cluster, "n2")[0]]
        assert cluster["n1"].run(lost, check=False).returncode == 1
    change_services(cluster, {})
    assert kernel_state(cluster) == before
    ping(cluster, "n1", "n2")


def test_free_ends_and_taps_have_their_planned_names(spliceable: tuple[RunningCluster, str]) -> None:
    cluster, link = spliceable
    change_services(cluster, {link: RELAY})
    links = namespace_contents(cluster.state.namespaces[namespace_names.WIRE]).links
    ends = free_ends(cluster.state.layout, link)
    for end in (*ends, *taps(*ends)):
        assert links[end].up
    for tap in taps(*ends):
        assert links[tap].master == ""
    change_services(cluster, {})
