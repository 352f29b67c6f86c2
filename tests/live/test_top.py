"""`testbed top` in a terminal, on a running cluster."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest

from testbed import Cluster, share_nics
from testbed.cli.documents import schema_of
from testbed.cluster.records.state import Store
from testbed.cluster.running_cluster import RunningCluster
from testbed.observe.live.snapshot import Absent, Direction, Snapshot
from testbed.observe.live.snapshots import SnapshotSampler
from tests.live.machine_state import eventually
from tests.live.terminals import Terminal

pytestmark = [
    pytest.mark.alone,
    pytest.mark.requires("root", "ping"),
    pytest.mark.usefixtures("machine"),
    pytest.mark.timeout(180),
]

TESTBED = str(Path(sys.executable).with_name("testbed"))
ENTER_ALTERNATE, LEAVE_ALTERNATE = "\x1b[?1049h", "\x1b[?1049l"  # alternate screen buffer
SHOW_CURSOR = "\x1b[?25h"


@pytest.fixture
def star(machine: object) -> Iterator[RunningCluster]:  # noqa: ARG001  (checks the machine's state at the end)
    with Cluster.star(3).up("star", keep=True) as cluster:
        yield cluster


def top(*arguments: str, size: tuple[int, int] = (80, 24), **environment: str) -> Terminal:
    return Terminal([TESTBED, "top", "--interval", "200ms", *arguments], size, **environment)


def testbed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TESTBED, *arguments], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


testbed.__test__ = False  # type: ignore[attr-defined]


def impairments() -> dict[str, Any]:
    """Return each link's impairments, (forward, backward), as `testbed status` reports them."""
    (cluster,) = json.loads(testbed("status", "--json").stdout)["clusters"]
    return {link["name"]: (link["forward"]["impairment"], link["backward"]["impairment"]) for link in cluster["links"]}


# Keys


@pytest.mark.usefixtures("star")
def test_keys_select_impair_and_heal_a_link_and_the_terminal_is_restored() -> None:
    with top() as screen:
        screen.wait_for("3 nodes, 1 switch, 3 links")
        screen.press("\t")
        screen.wait_for("n1:eth0 → s1:1")
        screen.press("jj")  # both directions of n1's link are rows
        screen.press("i")
        screen.wait_for("inject n2:eth0--s1:2")
        screen.press("--loss 5% --delay 2ms\r")
        screen.wait_for("1: delay 2ms, loss 5% on n2:eth0--s1:2")
        assert impairments()["n2:eth0--s1:2"] == ({"delay": 2_000_000, "loss": 0.05},) * 2
        assert impairments()["n1:eth0--s1:1"] == ({}, {})
        screen.wait_for("1 injected")
        screen.press("h")
        screen.wait_for("healed 1: delay 2ms, loss 5%")
        assert not any(any(both_directions) for both_directions in impairments().values())
        screen.press("q")
        assert screen.wait_for_exit() == 0
        assert screen.raw.index(ENTER_ALTERNATE) < screen.raw.rindex(LEAVE_ALTERNATE)
        assert screen.raw.rindex(SHOW_CURSOR) > screen.raw.index(ENTER_ALTERNATE)


@pytest.mark.usefixtures("star")
def test_a_rejected_injection_is_reported_and_stays_editable() -> None:
    with top() as screen:
        screen.wait_for("n1")
        screen.press("i")
        screen.press("--los 5%\r")
        screen.wait_for("No such option")
        screen.press("i")
        screen.wait_for("inject n1 --los 5%")
        screen.press("\x1b[D" * 3 + "s\r")  # insert the missing letter
        screen.wait_for("1: loss 5% on n1")
        screen.press("i")
        screen.press("--delay 'oops\r")
        screen.wait_for("No closing quotation")
        screen.press("\x03")
        assert screen.wait_for_exit() == 0
    assert impairments()["n1:eth0--s1:1"] == ({"loss": 0.05},) * 2


@pytest.mark.usefixtures("star")
def test_keys_take_a_link_down_and_up_and_heal_a_selected_fault() -> None:
    with top(size=(120, 30)) as screen:
        screen.wait_for("n1")
        screen.press("d")
        screen.wait_for("1: down: n1")
        screen.press("2")
        screen.wait_for("down   ")
        screen.press("1u")
        screen.wait_for("healed 1: down: n1")
        screen.press("f")
        screen.wait_for("2: down: n1")
        screen.press("4")
        screen.wait_for("down: n1")
        screen.press("h")
        screen.wait_for("heal")
        screen.press("q")
        assert screen.wait_for_exit() == 0


@pytest.mark.usefixtures("star")
def test_a_command_in_progress_when_the_user_quits_is_completed() -> None:
    with top() as screen:
        screen.wait_for("n1")
        screen.press("dq")
        assert screen.wait_for_exit() == 0
    (cluster,) = json.loads(testbed("status", "--json").stdout)["clusters"]
    assert [injection["what"] for injection in cluster["injected"]] == ["down: n1"]


# The terminal


@pytest.mark.usefixtures("star")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)])
def test_any_signal_restores_the_terminal(number: signal.Signals, code: int) -> None:
    with top() as screen:
        screen.wait_for("3 nodes")
        os.kill(screen.process.pid, number)
        assert screen.wait_for_exit() == code
        assert LEAVE_ALTERNATE in screen.raw
        assert "Traceback" not in screen.raw


def test_an_internal_error_restores_the_terminal(star: RunningCluster) -> None:
    program = (
        "import sys; sys.argv[1:] = ['top', 'star', '--interval', '200ms']\n"
        "import testbed.cli.screen.live_view as watching\n"
        "def frame(*_): raise RuntimeError('injected failure')\n"
        "watching.frame = frame\n"
        "from testbed.cli.main import main; main()"
    )
    assert star.name == "star"
    with Terminal([sys.executable, "-c", program]) as screen:
        assert screen.wait_for_exit() == 1
        assert screen.raw.rindex("injected failure") > screen.raw.rindex(LEAVE_ALTERNATE)


@pytest.mark.usefixtures("star")
def test_the_view_follows_the_terminals_size() -> None:
    with top(size=(80, 24)) as screen:
        screen.wait_for("out bit/s")
        screen.press("")
        screen.resize(200, 50)
        screen.wait_for("memory")
        screen.press("")
        screen.resize(24, 5)
        screen.wait_for("n1")
        screen.press("q")
        assert screen.wait_for_exit() == 0


def test_no_color_disables_colours(star: RunningCluster) -> None:
    star.inject("n1", loss="1%")
    with top(NO_COLOR="1") as screen:
        screen.wait_for("1 injected")
        screen.press("q")
        assert screen.wait_for_exit() == 0
    assert "\x1b[7m" in screen.raw  # the selection is reversed
    assert not re.search(r"\x1b\[([0-9;]*;)?[34][0-7]m", screen.raw)


def test_the_view_changes_to_another_cluster_when_the_first_is_taken_down() -> None:
    with top() as screen:
        screen.wait_for("no cluster is up; 'testbed up star-4' brings one up")
        with Cluster.star(2).up("first", keep=True):
            screen.wait_for("first  2 nodes")
        screen.wait_for("first has been taken down")
        with Cluster.star(3).up("second", keep=True):
            screen.wait_for("second  3 nodes")
        screen.press("q")
        assert screen.wait_for_exit() == 0


# Without a terminal


def test_without_a_terminal_one_snapshot_is_printed_with_its_rates(star: RunningCluster) -> None:
    star.inject("n1", delay="1ms")
    ping = star["n1"].popen(["ping", "-q", "-i0.05", "n2"])
    shown = testbed("top", "--interval", "500ms")
    document = json.loads(testbed("top", "--json", "--interval", "500ms", "star").stdout)
    ping.kill()
    ping.wait()
    assert "\x1b" not in shown.stdout
    assert "star  3 nodes, 1 switch, 3 links" in shown.stdout
    assert "n1:eth0 → s1:1" in shown.stdout
    jsonschema.validate(document, schema_of("top"))
    link = document["links"][0]
    assert link["datapath"] == "relay"
    assert 5 < link["forward"]["rate"] < 100  # 20 a second
    assert link["forward"]["injected"] == "delay 1ms"
    assert [program["name"] for program in document["nodes"][0]["programs"]] == ["ping"]
    assert document["nodes"][0]["programs"][0]["memory"] > 100_000


@pytest.mark.usefixtures("star")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("nobody",), 4, "no cluster is named nobody"),
        (("star", "--name", "other"), 2, "two clusters are named"),
        (("--interval", "soon"), 2, "--interval"),
        (("--interval", "1ms"), 2, "at least 100ms"),
    ],
)
def test_rejected_input_is_an_error_of_one_line(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = testbed("top", *arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_with_several_clusters_up_the_name_is_required(star: RunningCluster) -> None:
    with Cluster.star(2).up("other", keep=True), top() as screen:
        screen.wait_for("several clusters are up (other, star)")
        assert screen.wait_for_exit() == 4
    assert LEAVE_ALTERNATE not in screen.raw
    assert star.name == "star"


def test_top_without_a_cluster_is_an_error() -> None:
    done = testbed("top")
    assert done.returncode == 4
    assert "no cluster is up" in done.stderr


# Snapshots


def sample_once(sampler: SnapshotSampler) -> Snapshot:
    snapshot = sampler.sample()
    assert isinstance(snapshot, Snapshot)
    return snapshot


def both_directions(snapshot: Snapshot, link: str) -> tuple[Direction, Direction]:
    (selected,) = [each for each in snapshot.links if each.name == link]
    return selected.forward, selected.backward


@pytest.mark.parametrize(("datapath", "cause"), [("relay", "loss"), ("tc", "loss")])
def test_losses_are_counted_by_cause(star: RunningCluster, datapath: str, cause: str) -> None:
    if datapath == "relay":
        star.inject("n1--s1", loss="100%", delay="1ms", direction="n1-s1")
    else:
        star.inject("n1--s1", loss="100%", direction="n1-s1")
    sampler = SnapshotSampler(Store(), "star")
    try:
        before = sample_once(sampler)
        assert before.links[0].datapath == datapath
        star["n1"].popen(["ping", "-c5", "-i0.01", "-W1", "n2"]).wait()
        after = sample_once(sampler)
    finally:
        sampler.close()
    lost = both_directions(after, "n1:eth0--s1:1")[0].dropped
    assert set(lost) == {cause}
    assert lost[cause] >= 1  # repeated ARP requests, or pings
    assert both_directions(after, "n1:eth0--s1:1")[0].drop_rate > 0
    assert not both_directions(after, "n1:eth0--s1:1")[1].dropped


FLOOD = """
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(400):
    udp.sendto(bytes(1400), ("n2", 9))
"""


@pytest.mark.parametrize("datapath", ["relay", "tc"])
def test_frames_dropped_by_a_full_queue_are_counted_as_queue_drops(datapath: Literal["relay", "tc"]) -> None:
    with Cluster.star(2).up("narrow", keep=True, datapath=datapath) as cluster:
        cluster.inject("n1--s1", rate="5mbit", queue="8KiB", direction="n1-s1")
        sampler = SnapshotSampler(Store(), "narrow")
        cluster["n1"].run([sys.executable, "-c", FLOOD])
        forward, backward = both_directions(sample_once(sampler), "n1:eth0--s1:1")
        sampler.close()
    assert set(forward.dropped) == {"queue"}
    assert forward.dropped["queue"] > 100  # 5 Mbit/s is 90 of these frames in 200 ms
    assert not backward.dropped


def test_counters_equal_those_of_status(star: RunningCluster) -> None:
    star.cut("n3")
    star["n1"].run(["ping", "-c3", "-i0.01", "n2"])
    sampler = SnapshotSampler(Store())
    snapshot = sample_once(sampler)
    sampler.close()
    (cluster,) = json.loads(testbed("status", "--json").stdout)["clusters"]
    assert cluster["links"][2]["up"] is False
    for link, expected in zip(snapshot.links, cluster["links"], strict=True):
        assert (link.name, link.state == "up", link.datapath) == (
            expected["name"],
            expected["up"],
            expected["datapath"],
        )
        for direction in ("forward", "backward"):
            counters = getattr(link, direction)
            assert (counters.frames, counters.bytes) == (expected[direction]["frames"], expected[direction]["bytes"])
    assert snapshot.links[0].forward.frames >= 3


def test_direct_links_between_nodes_are_counted() -> None:
    pair = Cluster.back_to_back()
    with pair.up("cluster", keep=True) as cluster:
        cluster["n1"].run(["ping", "-c2", "-i0.01", "n2"])
        sampler = SnapshotSampler(Store(), "cluster")
        (link,) = sample_once(sampler).links
        sampler.close()
        assert link.forward.frames >= 2
        assert link.backward.frames >= 2


def test_a_recreated_cluster_is_sampled_with_its_new_nodes() -> None:
    sampler = SnapshotSampler(Store(), "again")
    assert isinstance(sampler.sample(), Absent)
    for nodes in (2, 3):
        with Cluster.star(nodes).up("again", keep=True):
            assert len(sample_once(sampler).nodes) == nodes
    assert sampler.sample() == Absent("again has been taken down")
    sampler.close()


def test_counters_restart_for_a_cluster_recreated_between_two_samples() -> None:
    sampler = SnapshotSampler(Store())
    with Cluster.star(2).up("again", keep=True) as cluster:
        cluster.inject("n1", loss="1%")
        cluster["n1"].popen(["ping", "-c9", "-i0.01", "-W1", "n2"]).wait()
        first = sample_once(sampler)
    with Cluster.star(2).up("again", keep=True) as cluster:
        second = sample_once(sampler)
        cluster["n1"].run(["ping", "-c1", "n2"])
        third = sample_once(sampler)
    sampler.close()
    assert first.links[0].forward.frames > 5
    assert first.events
    assert second.links[0].forward.frames < 5
    assert second.links[0].forward.rate == 0
    assert not second.events
    assert third.links[0].forward.frames > second.links[0].forward.frames


def test_events_are_printed_as_they_happen(star: RunningCluster) -> None:
    sampler = SnapshotSampler(Store(), "star")
    assert [event.kind for event in sample_once(sampler).events] == []
    star.inject("n1", loss="1%")
    assert "inject" in [event.kind for event in sample_once(sampler).events]
    eventually(lambda: sample_once(sampler).faults[0].what == "loss 1% on n1", "the snapshot has the fault")
    sampler.close()


GREET = """
from testbed import attach

async def greet(comm, node):
    if comm.rank == 0:
        await comm.send("hello", 1, tag=7)
    if comm.rank == 1:
        assert await comm.recv(source=0, tag=7) == "hello"

with attach("emp") as nic:
    nic.run(greet)
    print("greeted", flush=True)
    input()  # the counters exist as long as the host process
"""


def test_snapshots_have_the_firmware_counters_of_shared_nics(star: RunningCluster) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with share_nics(star):
        hosts = [star[name].popen([sys.executable, "-c", GREET], **pipes) for name in ("n1", "n2", "n3")]
        for host in hosts:
            assert host.stdout is not None
            assert host.stdout.readline() == "greeted\n"
        sampler = SnapshotSampler(Store(), "star")
        snapshot, quiet = sample_once(sampler), sample_without_agents(sampler)
        sampler.close()
        for host in hosts:
            host.communicate("\n")
    agents = {node.name: node.nics[0].agent for node in snapshot.nodes}
    assert agents["n1"]["frames_sent"] >= 1
    assert agents["n2"]["frames_received"] >= 1
    assert "nic n1" in [program.name for program in snapshot.nodes[0].programs]
    assert not any(nic.agent for node in quiet.nodes for nic in node.nics)


def sample_without_agents(sampler: SnapshotSampler) -> Snapshot:
    """Sample without queries to the agents."""
    snapshot = sampler.sample(agents=False)
    assert isinstance(snapshot, Snapshot)
    return snapshot
