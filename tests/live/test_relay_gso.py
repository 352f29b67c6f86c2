"""GSO frames through the relay: forwarded unsegmented on links without random fates; otherwise each segment has its own
fate, even before the sender's offloads are off.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.plan import namespace_names
from testbed.controller.cluster_check import baseline, verdict
from testbed.controller.verdict.verdicts import Grade
from testbed.fates.records import Record
from testbed.kernel import namespaces, offloads, syscalls
from testbed.kernel.offloads import Offloads
from testbed.runtime.logs import read_log
from testbed.spec.layout import Impairment
from tests.live.forked_children import background
from tests.live.iproute2 import wire_path
from tests.live.machine_state import eventually
from tests.live.node_sockets import socket_in
from tests.live.ordinary_user import as_user, wait_for_success
from tests.live.traffic import relay_report
from tests.unit.fates.wire_frames import fates_of, tcp

pytestmark = [pytest.mark.requires("root", "ip", "ping"), pytest.mark.usefixtures("machine")]

LINK = "n1:eth0--n2:eth0"
MTU = 1500
UDP_SEGMENT = 103  # include/uapi/linux/udp.h
MiB = 1 << 20
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


SERVER = """
import socket
listener = socket.create_server(("", 5001))
peer, _ = listener.accept()
received = b""
while len(received) < 4 << 20:
    received += peer.recv(1 << 20)
peer.sendall(received)
peer.recv(1)
"""
CLIENT = """
import os, socket, sys, time
deadline = time.monotonic() + 30
while True:
    try:
        peer = socket.create_connection((sys.argv[1], 5001))
        break
    except ConnectionRefusedError:
        assert time.monotonic() < deadline
        time.sleep(0.01)  # between two attempts
data, received = os.urandom(4 << 20), b""
peer.sendall(data)
while len(received) < len(data):
    received += peer.recv(1 << 20)
print("equal" if received == data else "different")
"""


def directions(cluster: RunningCluster) -> list[Mapping[str, Any]]:
    """Return the relay's report of each forwarded direction."""
    return [reported for link in relay_report(cluster)["links"].values() for reported in link.values()]


def idle_directions(cluster: RunningCluster) -> list[Mapping[str, Any]]:
    """Wait until no frame is in flight; return `directions`. An acknowledgement may still follow."""
    reports: list[Mapping[str, Any]] = []

    def are_idle() -> bool:
        reports[:] = directions(cluster)
        return not any(reported["held"] for reported in reports)

    eventually(are_idle, "no frame is in flight")
    return reports


def total(cluster: RunningCluster, group: str, name: str) -> int:
    return sum(direction[group][name] for direction in directions(cluster))


def gso_frames(cluster: RunningCluster) -> int:
    return sum(direction["pieces"] for direction in directions(cluster))


def address(cluster: RunningCluster, node: str, version: int) -> str:
    addresses = [address.partition("/")[0] for nic in cluster[node].layout.nics for address in nic.addresses]
    return next(entry for entry in addresses if (":" in entry) == (version == 6))


def accepted_offloads(cluster: RunningCluster, key: str, device: str) -> Offloads | None:
    """Return the offloads that an interface in a node or in the wire namespace accepts."""
    path = wire_path(cluster.state) if key == namespace_names.WIRE else cluster[key].namespace
    opened = namespaces.open_path(path)
    try:
        return offloads.accepted(opened.route.fileno(), device)
    finally:
        opened.close()


def allow_offloads(cluster: RunningCluster, node: str, expected: Offloads) -> None:
    handle = os.open(cluster[node].namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with namespaces.restore_namespace():
            syscalls.setns(handle, syscalls.CLONE_NEWNET)
            offloads.allow("eth0", expected)
    finally:
        os.close(handle)


class Stream:
    """A TCP connection between two nodes that checks its content."""

    def __init__(self, sender: socket.socket, receiver: socket.socket) -> None:
        self._sender, self._receiver = sender, receiver
        self._unit = os.urandom(MiB)
        self._sent = self._received = 0
        sender.setblocking(False)
        receiver.setblocking(False)

    def run(self, count: int) -> None:
        """Send `count` more bytes and check that they arrive unchanged."""
        end = self._sent + count
        while self._received < end:
            has_more = self._sent < end
            readable, writable, _ = select.select([self._receiver], [self._sender] if has_more else [], [], 60)
            assert readable or writable, f"no progress for 60 s after {self._received} of {end} bytes"
            if writable:
                start = self._sent % MiB
                self._sent += self._sender.send(self._unit[start : start + min(end - self._sent, 1 << 18)])
            if readable:
                data = self._receiver.recv(1 << 18)
                start = self._received % MiB
                assert data == (self._unit[start:] + self._unit)[: len(data)]
                self._received += len(data)


@contextmanager
def stream(cluster: RunningCluster, client: str, server: str, version: int = 4) -> Iterator[Stream]:
    def new_socket() -> socket.socket:
        return socket.socket(FAMILIES[version], socket.SOCK_STREAM)

    with ExitStack() as stack:
        listener = stack.enter_context(socket_in(cluster[server].namespace, new_socket))
        listener.bind((address(cluster, server, version), 5001))
        listener.listen()
        sender = stack.enter_context(socket_in(cluster[client].namespace, new_socket))
        sender.connect((address(cluster, server, version), 5001))
        receiver, _ = listener.accept()
        yield Stream(sender, stack.enter_context(receiver))


def with_ipv6(cluster: Cluster) -> Cluster:
    return Cluster(**{**cluster.model_dump(exclude_defaults=True), "network6": "fd00:5::/48"})


SHAPES: dict[str, Callable[[], Cluster]] = {
    "back-to-back": lambda: with_ipv6(Cluster.back_to_back()),
    "star": lambda: with_ipv6(Cluster.star(2)),
    "dumbbell": lambda: with_ipv6(Cluster.dumbbell(1, 1)),
}


@pytest.mark.requires("ipv6")
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("shape", SHAPES)
def test_tcp_in_gso_frames_arrives_unchanged(shape: str, version: int) -> None:
    with SHAPES[shape]().up() as cluster, cluster.inject("all", delay="1ms"):
        links = len(cluster.state.layout.links)
        with stream(cluster, "n1", "n2", version) as forth, stream(cluster, "n2", "n1", version) as back:
            forth.run(16 * MiB)
            back.run(16 * MiB)
        assert gso_frames(cluster) >= 2 * links * 16 * MiB // (1 << 16)
        for reported in idle_directions(cluster):
            counted = reported["counters"]
            assert counted["delivered"] == counted["offered"]
            assert counted["delivered"] > 16 * MiB // MTU, "segments are counted, not GSO frames"
            assert counted["delivered_bytes"] > 16 * MiB + 16 * MiB // MTU * 66
            assert not any(reported["emulator"].values())


@pytest.mark.requires("ipv6")
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("segment", [0, 1000])
def test_large_datagrams_arrive_unchanged(version: int, segment: int) -> None:
    def new_socket() -> socket.socket:
        udp = socket.socket(FAMILIES[version], socket.SOCK_DGRAM)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MiB)
        return udp

    with with_ipv6(Cluster.star(2)).up() as cluster, cluster.inject("n1", delay="1ms"), ExitStack() as stack:
        receiver = stack.enter_context(socket_in(cluster["n2"].namespace, new_socket))
        receiver.bind((address(cluster, "n2", version), 5001))
        receiver.settimeout(30)
        sender = stack.enter_context(socket_in(cluster["n1"].namespace, new_socket))
        sender.connect((address(cluster, "n2", version), 5001))
        if segment:
            sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, segment)
        data = os.urandom(10_500)
        for _ in range(10):
            sender.send(data)
            received = receiver.recv(1 << 16)
            while len(received) < len(data):  # without UDP_SEGMENT the receiver's kernel reassembles IP fragments
                assert segment
                received += receiver.recv(1 << 16)
            assert received == data
        assert not any(any(direction["emulator"].values()) for direction in directions(cluster))


def lost_numbers(records: Iterable[Record]) -> list[int]:
    """Return the numbers of the lost frames of n1's TCP flow."""
    return [record.n for record in records if record.flow.key == (socket.IPPROTO_TCP, 5001) and record.cause == "loss"]


def test_loss_on_a_link_with_gso_frames_has_the_models_fates(tmp_path: Path) -> None:
    """After the heal the link forwards GSO frames again."""
    log = tmp_path / "fates.jsonl"
    with Cluster.back_to_back().up(fates=log) as cluster, cluster.inject("all", delay="1ms"):
        with stream(cluster, "n1", "n2") as transfer:
            transfer.run(8 * MiB)
            gso_count = gso_frames(cluster)
            assert gso_count
            assert accepted_offloads(cluster, "n1", "eth0") is Offloads.TCP
            fault = cluster.inject("all", loss="1%", direction="forward")
            assert accepted_offloads(cluster, "n1", "eth0") is Offloads.NONE
            assert accepted_offloads(cluster, "n2", "eth0") is Offloads.TCP, "n2's direction may use GSO frames"
            transfer.run(16 * MiB)
            frames_lost = lost_numbers(read_log(log))
            assert gso_frames(cluster) == gso_count, "no GSO frame on a direction with loss"
            fault.lift()
            assert accepted_offloads(cluster, "n1", "eth0") is Offloads.TCP
            transfer.run(8 * MiB)
            assert gso_frames(cluster) > gso_count
        assert not any(total(cluster, "emulator", name) for name in ("overrun", "oversized", "unsent", "down"))
        macs = [int(cluster[node].layout.nics[0].mac.replace(":", ""), 16) for node in ("n1", "n2")]
    frame, seed = tcp(macs=(macs[0], macs[1])), cluster.state.layout.seed
    _, expected = fates_of(Impairment(delay=10**6, loss=0.01), [(0, frame)] * frames_lost[-1], link=LINK, seed=seed)
    assert frames_lost == lost_numbers(expected)
    assert frames_lost[-1] > 16 * MiB // MTU, "segments are counted"


def test_faults_during_a_transfer_lose_only_the_requested_frames() -> None:
    with Cluster.star(2).up() as cluster, cluster.inject("all", delay="1ms"):

        def send_until_stopped(report: Callable[[object], None]) -> None:
            with stream(cluster, "n1", "n2") as transfer:
                transfer.run(8 * MiB)
                report("started")
                while not os.path.exists(stop_file):
                    transfer.run(8 * MiB)
                report("complete")

        with TemporaryDirectory() as directory:
            stop_file = os.path.join(directory, "stop")
            with background(send_until_stopped) as transfer:
                assert transfer.next_report() == "started"
                for _ in range(10):
                    before = gso_frames(cluster)
                    with cluster.inject("n1", loss="1%"):
                        eventually(lambda: total(cluster, "counters", "loss") > 0, "frames are lost")
                    eventually(lambda before=before: gso_frames(cluster) > before, "GSO frames are forwarded again")  # type: ignore[misc]
                Path(stop_file).touch()
                assert transfer.next_report() == "complete"
        assert not any(total(cluster, "emulator", name) for name in ("overrun", "oversized", "unsent", "down"))


def test_gso_frames_on_a_link_with_fates_are_segmented_without_loss() -> None:
    """The sender's offloads are enabled on a link whose frames have individual fates."""
    with Cluster.back_to_back().up() as cluster, cluster.inject("all", delay="1ms", loss_pattern="99999999"):
        before = baseline(cluster)
        allow_offloads(cluster, "n1", Offloads.ALL)
        with stream(cluster, "n1", "n2") as transfer:
            transfer.run(4 * MiB)
        (reported,) = [link["forward"] for link in relay_report(cluster)["links"].values()]
        assert reported["pieces"] == 0
        assert reported["emulator"]["finished"] > 4 * MiB // (1 << 16)
        assert reported["counters"]["offered"] > 4 * MiB // MTU
        assert not any(reported["emulator"][name] for name in ("overrun", "oversized", "unsent", "down"))
        run_verdict = verdict(cluster, since=before).findings
        assert {finding.grade for finding in run_verdict if finding.what == "relay finished"} == {Grade.TRUSTED}
        allow_offloads(cluster, "n1", Offloads.NONE)


@pytest.mark.requires("userns")
def test_an_ordinary_users_relay_forwards_gso_frames(home: os.PathLike[str]) -> None:
    def body() -> None:
        with Cluster.star(2).up() as cluster:
            cluster.inject("all", delay="1ms")
            server = cluster["n2"].popen(["python3", "-c", SERVER])
            client = cluster["n1"].run(["python3", "-c", CLIENT, cluster["n2"].address])
            assert client.stdout.strip() == "equal"
            server.wait(30)
            assert gso_frames(cluster)
            assert not any(any(direction["emulator"].values()) for direction in directions(cluster))

    wait_for_success(as_user(home, body))  # type: ignore[arg-type]
