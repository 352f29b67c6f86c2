"""Changes of a link's datapath (direct, tc, relay) under traffic lose no frame. TESTBED_LONG=1 runs all topologies."""

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
EXCHANGE = """
import json, socket, struct, sys, time
own, peer, rate, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
udp.bind((own, 5000))
udp.setblocking(False)
print("ready", flush=True)
sys.stdin.readline()
sent, received, start = 0, [], time.monotonic()
end = start + seconds
while (now := time.monotonic()) < end + 1.5:
    for _ in range(20):
        if sent < min(now - start, seconds) * rate:
            udp.sendto(struct.pack("I", sent), (peer, 5000))
            sent, end = sent + 1, max(end, now)  # on a busy machine the last datagrams are late
    try:
        while True:
            received.append(struct.unpack("I", udp.recv(100))[0])
    except BlockingIOError:
        time.sleep(0.0005)
print(json.dumps({"sent": sent, "received": len(received), "distinct": len(set(received))}))
"""


def exchange_datagrams(
    cluster: RunningCluster, seconds: float, action: Callable[[], object]
) -> list[Mapping[str, int]]:
    """Exchange numbered datagrams between n1 and n2 during the action; return both nodes' counts."""
    programs = []
    for own, peer in (("n1", "n2"), ("n2", "n1")):
        addresses = [cluster[node].address or "" for node in (own, peer)]
        command = [sys.executable, "-I", "-S", "-c", EXCHANGE, *addresses, "2100", str(seconds)]
        programs.append(cluster[own].popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        assert program.stdin is not None
        program.stdin.write("go\n")
        program.stdin.flush()
    action()
    counts = []
    for program in programs:
        output, _ = program.communicate(timeout=60)
        counts.append(json.loads(output))
    return counts


SHAPES: dict[str, tuple[Callable[[], Cluster], str]] = {
    "star": (lambda: Cluster.star(2), "n1"),
    "back-to-back": (Cluster.back_to_back, "n1"),
    "trunk": (lambda: Cluster.dumbbell(1, 1), "s1--s2"),
    "dumbbell": (lambda: Cluster.dumbbell(1, 1), "all"),
}


def inject_delay(cluster: RunningCluster, target: str) -> None:
    """Inject a delay, which the relay implements, and heal."""
    with cluster.inject(target, delay="1ms"):
        pass


def inject_rates(cluster: RunningCluster, target: str) -> None:
    """Inject two rates, which tc implements, and heal."""
    with cluster.inject(target, rate="100mbit"), cluster.inject(target, rate="50mbit"):
        pass


def change_disciplines(cluster: RunningCluster, target: str) -> None:
    """Inject impairments that need different qdiscs, also in one direction only, and heal."""
    with cluster.inject(target, rate="100mbit"), cluster.inject(target, queue_frames=2000):
        pass
    with cluster.inject(target, loss_pattern="999999", direction="forward"), cluster.inject(target, rate="100mbit"):
        pass


def inject_loss_and_delay(cluster: RunningCluster, target: str) -> None:
    """Change the datapath from tc, selected for loss without delay, to the relay and back."""
    with cluster.inject(target, loss_pattern="999999"), cluster.inject(target, delay="1ms"):
        pass


def change_under_traffic(
    shape: str, change: Callable[[RunningCluster, str], object], datapaths: set[str]
) -> tuple[int, int]:
    """Change links' datapaths twice under traffic; return the numbers of missing datagrams and of reported losses."""
    make, target = SHAPES[shape]
    with make().up("replugged", datapath=min(datapaths) if len(datapaths) == 1 else "auto") as cluster:
        cluster["n1"].run(["ping", "-c1", cluster["n2"].address or ""])

        def change_twice() -> None:
            for _ in range(2):
                change(cluster, target)

        first, second = exchange_datagrams(cluster, 3, change_twice)
        events = [event for event in event_log.read(Store().directory("replugged")) if event["event"] == "replugged"]
        links = {event["link"] for event in events}
        assert len(events) >= 4 * len(links) > 0
        assert {event["after"] for event in events} == {*datapaths, "direct"}
        assert min(first["sent"], second["sent"]) >= 2000 * 3
        assert (first["received"], second["received"]) == (first["distinct"], second["distinct"]), (
            "no datagram arrives twice"
        )
        missing = first["sent"] - second["received"] + second["sent"] - first["received"]
        return missing, sum(event["lost"] for event in events)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("shape", SHAPES if LONG else ["star", "trunk"])
def test_changes_between_direct_and_relay_lose_no_frame(shape: str) -> None:
    assert change_under_traffic(shape, inject_delay, {"relay"}) == (0, 0)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("shape", SHAPES if LONG else ["back-to-back", "dumbbell"])
def test_changes_between_direct_and_tc_lose_no_frame(shape: str) -> None:
    assert change_under_traffic(shape, inject_rates, {"tc"}) == (0, 0)


@pytest.mark.usefixtures("machine")
@pytest.mark.requires("bpf")
@pytest.mark.parametrize("shape", ["star", "back-to-back"] if LONG else ["star"])
def test_changes_of_the_qdisc_lose_no_frame(shape: str) -> None:
    assert change_under_traffic(shape, change_disciplines, {"tc"}) == (0, 0)


@pytest.mark.usefixtures("machine")
@pytest.mark.requires("bpf")
@pytest.mark.parametrize("shape", ["star", "back-to-back", "trunk"] if LONG else ["back-to-back", "trunk"])
def test_changes_between_tc_and_relay_lose_no_frame(shape: str) -> None:
    assert change_under_traffic(shape, inject_loss_and_delay, {"tc", "relay"}) == (0, 0)


@pytest.mark.requires("userns")
@pytest.mark.parametrize("shape", ["star", "back-to-back"] if LONG else ["star"])
def test_an_ordinary_users_changes_between_direct_and_tc_lose_no_frame(home: Path, shape: str) -> None:
    def body() -> None:
        make, target = SHAPES[shape]
        with make().up("replugged", datapath="tc") as cluster:
            ping = ["ping", "-n", "-q", "-i0.002", "-c1000", cluster["n2"].address or ""]
            program = cluster["n1"].popen(ping, stdout=subprocess.PIPE)
            for _ in range(3):
                inject_rates(cluster, target)
            output, _ = program.communicate(timeout=60)
            assert "1000 packets transmitted, 1000 received" in output, output

    wait_for_success(as_user(home, body))


@pytest.mark.usefixtures("machine")
def test_healing_a_rate_releases_the_queued_frames_early_and_loses_none() -> None:
    """A token bucket queues frames for a third of a second; the event counts those that left early."""
    with Cluster.back_to_back().up("replugged", datapath="tc") as cluster, node_sockets.nic_sockets(cluster) as nics:
        fault = cluster.inject("all", rate="200kbit", queue="1MiB")
        for number in range(150):
            nics["n1"].send(
                node_sockets.numbered_frame(node_sockets.mac(cluster, "n2"), node_sockets.mac(cluster, "n1"), number)
            )
        fault.lift()
        arrived: list[int] = []
        eventually(lambda: bool(arrived.extend(numbers_in(nics["n2"])) or len(arrived) >= 150), "all frames arrive")
        assert arrived == list(range(150))
        *_, events = [
            event for event in event_log.read(Store().directory("replugged")) if event["event"] == "replugged"
        ]
        assert events["lost"] == 0
        assert 0 < events["early"] < 150


def numbers_in(nic: socket.socket) -> list[int]:
    return node_sockets.frame_numbers(node_sockets.received(nic))
