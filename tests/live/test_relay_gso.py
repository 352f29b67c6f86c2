"""TCP as GSO frames through the relay: they stay unsegmented on links without random fates; otherwise each segment has a
fate of its own.

This holds from the first frame on, even before the sender's offloads are off.
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
got = b""
while len(got) < 4 << 20:
    got += peer.recv(1 << 20)
peer.sendall(got)
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
data, got = os.urandom(4 << 20), b""
peer.sendall(data)
while len(got) < len(data):
    got += peer.recv(1 << 20)
print("the same" if got == data else "not the same")
"""


def directions(cluster: RunningCluster) -> list[Mapping[str, Any]]:
    """Return the relay's report of each direction that it carries."""
    return [reported for link in relay_report(cluster)["links"].values() for reported in link.values()]


def idle_directions(cluster: RunningCluster) -> list[Mapping[str, Any]]:
    """Return `directions` of a moment when no frame is in flight; an acknowledgement may follow it."""
    events: list[Mapping[str, Any]] = []

    def are_idle() -> bool:
        events[:] = directions(cluster)
        return not any(reported["held"] for reported in events)

    eventually(are_idle, "every frame has left")
    return events


def total(cluster: RunningCluster, group: str, name: str) -> int:
    return sum(direction[group][name] for direction in directions(cluster))


def gso_frames(cluster: RunningCluster) -> int:
    return sum(direction["pieces"] for direction in directions(cluster))


def address(cluster: RunningCluster, node: str, version: int) -> str:
    actual = [address.partition("/")[0] for nic in cluster[node].layout.nics for address in nic.addresses]
    return next(entry for entry in actual if (":" in entry) == (version == 6))


def accepted_offloads(cluster: RunningCluster, key: str, device: str) -> Offloads | None:
    """The offloads of an interface in a node, or in the wire namespace."""
    path = wire_path(cluster.state) if key == namespace_names.WIRE else cluster[key].namespace
    opened = namespaces.open_path(path)
    try:
        return offloads.accepted(opened.route.fileno(), device)
    finally:
        opened.close()


def allow(cluster: RunningCluster, node: str, expected: Offloads) -> None:
    handle = os.open(cluster[node].namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with namespaces.restore_namespace():
            syscalls.setns(handle, syscalls.CLONE_NEWNET)
            offloads.allow("eth0", expected)
    finally:
        os.close(handle)


class Stream:
    """A TCP connection from one node to another, whose content is checked."""

    def __init__(self, sender: socket.socket, receiver: socket.socket) -> None:
        self._sender, self._receiver = sender, receiver
        self._unit = os.urandom(MiB)
        self._sent = self._got = 0
        sender.setblocking(False)
        receiver.setblocking(False)

    def run(self, count: int) -> None:
        """Send `count` more bytes and check that they arrive unchanged."""
        end = self._sent + count
        while self._got < end:
            more = self._sent < end
            readable, writable, _ = select.select([self._receiver], [self._sender] if more else [], [], 60)
            assert readable or writable, f"nothing came for a minute, {self._got} of {end} bytes had"
            if writable:
                begin = self._sent % MiB
                self._sent += self._sender.send(self._unit[begin : begin + min(end - self._sent, 1 << 18)])
            if readable:
                data = self._receiver.recv(1 << 18)
                begin = self._got % MiB
                assert data == (self._unit[begin:] + self._unit)[: len(data)]
                self._got += len(data)


@contextmanager
def stream(cluster: RunningCluster, one: str, other: str, version: int = 4) -> Iterator[Stream]:
    def made() -> socket.socket:
        return socket.socket(FAMILIES[version], socket.SOCK_STREAM)

    with ExitStack() as stack:
        listener = stack.enter_context(socket_in(cluster[other].namespace, made))
        listener.bind((address(cluster, other, version), 5001))
        listener.listen()
        sender = stack.enter_context(socket_in(cluster[one].namespace, made))
        sender.connect((address(cluster, other, version), 5001))
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
def test_tcp_in_pieces_arrives_as_it_was_sent(shape: str, version: int) -> None:
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
def test_datagrams_arrive_as_they_were_sent(version: int, segment: int) -> None:
    def made() -> socket.socket:
        actual = socket.socket(FAMILIES[version], socket.SOCK_DGRAM)
        actual.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * MiB)
        return actual

    with with_ipv6(Cluster.star(2)).up() as cluster, cluster.inject("n1", delay="1ms"), ExitStack() as stack:
        receiver = stack.enter_context(socket_in(cluster["n2"].namespace, made))
        receiver.bind((address(cluster, "n2", version), 5001))
        receiver.settimeout(30)
        sender = stack.enter_context(socket_in(cluster["n1"].namespace, made))
        sender.connect((address(cluster, "n2", version), 5001))
        if segment:
            sender.setsockopt(socket.SOL_UDP, UDP_SEGMENT, segment)
        data = os.urandom(10_500)
        for _ in range(10):
            sender.send(data)
            got = receiver.recv(1 << 16)
            while len(got) < len(data):  # else as IP's fragments, which the receiver's kernel puts together
                assert segment
                got += receiver.recv(1 << 16)
            assert got == data
        assert not any(any(direction["emulator"].values()) for direction in directions(cluster))


def lost_numbers(records: Iterable[Record]) -> list[int]:
    """Return the numbers of the lost frames of n1's TCP flow."""
    return [record.n for record in records if record.flow.key == (socket.IPPROTO_TCP, 5001) and record.cause == "loss"]


def test_loss_injected_between_gso_frames_applies_to_the_specified_frames(tmp_path: Path) -> None:
    """After the heal the link carries GSO frames again."""
    log = tmp_path / "fates.jsonl"
    with Cluster.back_to_back().up(fates=log) as cluster, cluster.inject("all", delay="1ms"):
        with stream(cluster, "n1", "n2") as transfer:
            transfer.run(8 * MiB)
            whole = gso_frames(cluster)
            assert whole
            assert accepted_offloads(cluster, "n1", "eth0") is Offloads.TCP
            fault = cluster.inject("all", loss="1%", direction="forward")
            assert accepted_offloads(cluster, "n1", "eth0") is Offloads.NONE
            assert accepted_offloads(cluster, "n2", "eth0") is Offloads.TCP, "it may send GSO frames"
            transfer.run(16 * MiB)
            frames_lost = lost_numbers(read_log(log))
            assert gso_frames(cluster) == whole, "no GSO frame passes a direction that loses frames"
            fault.lift()
            assert accepted_offloads(cluster, "n1", "eth0") is Offloads.TCP
            transfer.run(8 * MiB)
            assert gso_frames(cluster) > whole
        assert not any(total(cluster, "emulator", name) for name in ("overrun", "oversized", "unsent", "down"))
        macs = [int(cluster[node].layout.nics[0].mac.replace(":", ""), 16) for node in ("n1", "n2")]
    frame, seed = tcp(macs=(macs[0], macs[1])), cluster.state.layout.seed
    _, expected = fates_of(Impairment(delay=10**6, loss=0.01), [(0, frame)] * frames_lost[-1], link=LINK, seed=seed)
    assert frames_lost == lost_numbers(expected)
    assert frames_lost[-1] > 16 * MiB // MTU, "counted frame by frame"


def test_faults_during_a_transfer_lose_only_the_requested_frames() -> None:
    with Cluster.star(2).up() as cluster, cluster.inject("all", delay="1ms"):

        def transferring(report: Callable[[object], None]) -> None:
            with stream(cluster, "n1", "n2") as transfer:
                transfer.run(8 * MiB)
                report("begun")
                while not os.path.exists(enough):
                    transfer.run(8 * MiB)
                report("complete")

        with TemporaryDirectory() as directory:
            enough = os.path.join(directory, "enough")
            with background(transferring) as transfer:
                assert transfer.next_report() == "begun"
                for _ in range(10):
                    before = gso_frames(cluster)
                    with cluster.inject("n1", loss="1%"):
                        eventually(lambda: total(cluster, "counters", "loss") > 0, "frames are lost")
                    eventually(lambda before=before: gso_frames(cluster) > before, "GSO frames pass again")  # type: ignore[misc]
                Path(enough).touch()
                assert transfer.next_report() == "complete"
        assert not any(total(cluster, "emulator", name) for name in ("overrun", "oversized", "unsent", "down"))


def test_gso_frames_on_a_link_with_fates_are_segmented_without_loss() -> None:
    """The sender's offloads are switched on although frames have fates of their own."""
    with Cluster.back_to_back().up() as cluster, cluster.inject("all", delay="1ms", loss_pattern="99999999"):
        before = baseline(cluster)
        allow(cluster, "n1", Offloads.ALL)
        with stream(cluster, "n1", "n2") as transfer:
            transfer.run(4 * MiB)
        (reported,) = [link["forward"] for link in relay_report(cluster)["links"].values()]
        assert reported["pieces"] == 0
        assert reported["emulator"]["finished"] > 4 * MiB // (1 << 16)
        assert reported["counters"]["offered"] > 4 * MiB // MTU
        assert not any(reported["emulator"][name] for name in ("overrun", "oversized", "unsent", "down"))
        run_verdict = verdict(cluster, since=before).findings
        assert {finding.grade for finding in run_verdict if finding.what == "relay finished"} == {Grade.TRUSTED}
        allow(cluster, "n1", Offloads.NONE)


@pytest.mark.requires("userns")
def test_an_ordinary_users_relay_carries_pieces_too(home: os.PathLike[str]) -> None:
    def body() -> None:
        with Cluster.star(2).up() as cluster:
            cluster.inject("all", delay="1ms")
            server = cluster["n2"].popen(["python3", "-c", SERVER])
            client = cluster["n1"].run(["python3", "-c", CLIENT, cluster["n2"].address])
            assert client.stdout.strip() == "the same"
            server.wait(30)
            assert gso_frames(cluster)
            assert not any(any(direction["emulator"].values()) for direction in directions(cluster))

    wait_for_success(as_user(home, body))  # type: ignore[arg-type]
