"""A link switches between its cables, the kernel's qdiscs and the relay under traffic, and loses nothing. TESTBED_LONG=1: in
all shapes, not only in some."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.records.state import Store
from testbed.runtime import event_log
from tests.live import node_sockets
from tests.live.machine_state import eventually
from tests.live.ordinary_user import as_user, wait_for_success

LONG = bool(os.environ.get("TESTBED_LONG"))
COUNT = """
import json, socket, struct, sys, time
own, peer, rate, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
line.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
line.bind((own, 5000))
line.setblocking(False)
print("ready", flush=True)
sys.stdin.readline()
sent, got, begun = 0, [], time.monotonic()
while (now := time.monotonic()) < begun + seconds + 1.5:
    for _ in range(20):
        if now < begun + seconds and sent < (now - begun) * rate:
            line.sendto(struct.pack("I", sent), (peer, 5000))
            sent += 1
    try:
        while True:
            got.append(struct.unpack("I", line.recv(100))[0])
    except BlockingIOError:
        time.sleep(0.0005)
print(json.dumps({"sent": sent, "got": len(got), "different": len(set(got))}))
"""


def counting(cluster: RunningCluster, seconds: float, meanwhile: Callable[[], object]) -> list[Mapping[str, int]]:
    """n1 and n2 send each other numbered datagrams; what each of them counted."""
    programs = []
    for own, peer in (("n1", "n2"), ("n2", "n1")):
        addresses = [cluster[node].address or "" for node in (own, peer)]
        command = [sys.executable, "-I", "-S", "-c", COUNT, *addresses, "2100", str(seconds)]
        programs.append(cluster[own].popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("go\n")
        program.stdin.flush()
    meanwhile()
    actual = []
    for program in programs:
        output, _ = program.communicate(timeout=60)
        actual.append(json.loads(output))
    return actual


SHAPES: dict[str, tuple[Callable[[], Cluster], str]] = {
    "star": (lambda: Cluster.star(2), "n1"),
    "back-to-back": (Cluster.back_to_back, "n1"),
    "trunk": (lambda: Cluster.dumbbell(1, 1), "s1--s2"),
    "dumbbell": (lambda: Cluster.dumbbell(1, 1), "all"),
}


def by_the_relay(cluster: RunningCluster, target: str) -> None:
    """Inject and heal."""
    with cluster.inject(target, delay="1ms"):
        pass


def by_tc(cluster: RunningCluster, target: str) -> None:
    """Inject a rate, another, and heal."""
    with cluster.inject(target, rate="100mbit"), cluster.inject(target, rate="50mbit"):
        pass


def by_another_discipline(cluster: RunningCluster, target: str) -> None:
    """A queue that is counted in frames is another one than a queue in bytes; one direction gets none at all."""
    with cluster.inject(target, rate="100mbit"), cluster.inject(target, queue_frames=2000):
        pass
    with cluster.inject(target, loss_pattern="999999", direction="forward"), cluster.inject(target, rate="100mbit"):
        pass


def by_both(cluster: RunningCluster, target: str) -> None:
    """Change the datapath from tc, which is chosen where no frame waits, to the relay and back."""
    with cluster.inject(target, loss_pattern="999999"), cluster.inject(target, delay="1ms"):
        pass


def under_traffic(shape: str, act: Callable[[RunningCluster, str], object], datapaths: set[str]) -> tuple[int, int]:
    """Change links' datapaths twice under traffic; return how many datagrams are missing and how many are reported
    lost."""
    make, target = SHAPES[shape]
    with make().up("replugged", datapath=min(datapaths) if len(datapaths) == 1 else "auto") as cluster:
        cluster["n1"].run(["ping", "-c1", cluster["n2"].address or ""])

        def twice() -> None:
            for _ in range(2):
                act(cluster, target)

        first, second = counting(cluster, 3, twice)
        events = [event for event in event_log.read(Store().directory("replugged")) if event["event"] == "replugged"]
        links = {event["link"] for event in events}
        assert len(events) >= 4 * len(links) > 0
        assert {event["after"] for event in events} == {*datapaths, "direct"}
        assert min(first["sent"], second["sent"]) >= 2000 * 3
        assert (first["got"], second["got"]) == (first["different"], second["different"]), "no datagram twice"
        missing = first["sent"] - second["got"] + second["sent"] - first["got"]
        return missing, sum(event["lost"] for event in events)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("shape", SHAPES if LONG else ["star", "trunk"])
def test_a_link_switches_between_cables_and_relay_without_losing_a_frame(shape: str) -> None:
    assert under_traffic(shape, by_the_relay, {"relay"}) == (0, 0)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("shape", SHAPES if LONG else ["back-to-back", "dumbbell"])
def test_a_link_switches_between_cables_and_tc_without_losing_a_frame(shape: str) -> None:
    assert under_traffic(shape, by_tc, {"tc"}) == (0, 0)


@pytest.mark.usefixtures("machine")
@pytest.mark.requires("bpf")
@pytest.mark.parametrize("shape", ["star", "back-to-back"] if LONG else ["star"])
def test_a_link_gets_other_disciplines_without_losing_a_frame(shape: str) -> None:
    assert under_traffic(shape, by_another_discipline, {"tc"}) == (0, 0)


@pytest.mark.usefixtures("machine")
@pytest.mark.requires("bpf")
@pytest.mark.parametrize("shape", ["star", "back-to-back", "trunk"] if LONG else ["back-to-back", "trunk"])
def test_a_link_switches_between_tc_and_the_relay_without_losing_a_frame(shape: str) -> None:
    assert under_traffic(shape, by_both, {"tc", "relay"}) == (0, 0)


@pytest.mark.requires("userns")
@pytest.mark.parametrize("shape", ["star", "back-to-back"] if LONG else ["star"])
def test_an_ordinary_users_link_switches_between_cables_and_tc_without_losing_a_frame(home: Path, shape: str) -> None:
    def body() -> None:
        make, target = SHAPES[shape]
        with make().up("replugged", datapath="tc") as cluster:
            echoes = ["ping", "-n", "-q", "-i0.002", "-c1000", cluster["n2"].address or ""]
            program = cluster["n1"].popen(echoes, stdout=subprocess.PIPE)
            for _ in range(3):
                by_tc(cluster, target)
            output, _ = program.communicate(timeout=60)
            assert "1000 packets transmitted, 1000 received" in output, output

    wait_for_success(as_user(home, body))


@pytest.mark.usefixtures("machine")
def test_frames_that_wait_in_a_queue_are_early_when_their_link_is_healed_and_none_is_lost() -> None:
    """Frames of a third of a second wait in a token bucket; the event counts those that left early."""
    with Cluster.back_to_back().up("replugged", datapath="tc") as cluster, node_sockets.nic_sockets(cluster) as nics:
        fault = cluster.inject("all", rate="200kbit", queue="1MiB")
        for number in range(150):
            nics["n1"].send(
                node_sockets.numbered_frame(node_sockets.mac(cluster, "n2"), node_sockets.mac(cluster, "n1"), number)
            )
        fault.lift()
        actual: list[int] = []
        eventually(lambda: bool(actual.extend(numbers_in(nics["n2"])) or len(actual) >= 150), "all have come")
        assert actual == list(range(150))
        *_, events = [
            event for event in event_log.read(Store().directory("replugged")) if event["event"] == "replugged"
        ]
        assert events["lost"] == 0
        assert 0 < events["early"] < 150


def numbers_in(nic: socket.socket) -> list[int]:
    return node_sockets.frame_numbers(node_sockets.received(nic))
