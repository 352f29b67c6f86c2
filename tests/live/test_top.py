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
SHOWN, HIDDEN = "\x1b[?1049h", "\x1b[?1049l"  # the other screen, and back
CURSOR = "\x1b[?25h"


@pytest.fixture
def star(machine: object) -> Iterator[RunningCluster]:  # noqa: ARG001  (compares the machine before and after)
    with Cluster.star(3).up("star", keep=True) as cluster:
        yield cluster


def top(*arguments: str, size: tuple[int, int] = (80, 24), **more: str) -> Terminal:
    return Terminal([TESTBED, "top", "--interval", "200ms", *arguments], size, **more)


def testbed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TESTBED, *arguments], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


testbed.__test__ = False  # type: ignore[attr-defined]


def impairments() -> dict[str, Any]:
    """Return each link's impairments, (forward, backward), as `testbed status` reports them."""
    (cluster,) = json.loads(testbed("status", "--json").stdout)["clusters"]
    return {link["name"]: (link["forward"]["impairment"], link["backward"]["impairment"]) for link in cluster["links"]}


# At the keys


@pytest.mark.usefixtures("star")
def test_a_link_is_selected_impaired_healed_and_the_terminal_is_as_before() -> None:
    with top() as screen:
        screen.shows("3 nodes, 1 switch, 3 links")
        screen.press("\t")
        screen.shows("n1:eth0 → s1:1")
        screen.press("jj")  # both directions of n1's link are rows
        screen.press("i")
        screen.shows("inject n2:eth0--s1:2")
        screen.press("--loss 5% --delay 2ms\r")
        screen.shows("1: delay 2ms, loss 5% on n2:eth0--s1:2")
        assert impairments()["n2:eth0--s1:2"] == ({"delay": 2_000_000, "loss": 0.05},) * 2
        assert impairments()["n1:eth0--s1:1"] == ({}, {})
        screen.shows("1 injected")
        screen.press("h")
        screen.shows("healed 1: delay 2ms, loss 5%")
        assert not any(any(both_directions) for both_directions in impairments().values())
        screen.press("q")
        assert screen.ends() == 0
        assert screen.raw.index(SHOWN) < screen.raw.rindex(HIDDEN)
        assert screen.raw.rindex(CURSOR) > screen.raw.index(SHOWN)


@pytest.mark.usefixtures("star")
def test_a_refused_injection_is_reported_and_the_input_stays_editable() -> None:
    with top() as screen:
        screen.shows("n1")
        screen.press("i")
        screen.press("--los 5%\r")
        screen.shows("No such option")
        screen.press("i")
        screen.shows("inject n1 --los 5%")
        screen.press("\x1b[D" * 3 + "s\r")  # the letter that lacked
        screen.shows("1: loss 5% on n1")
        screen.press("i")
        screen.press("--delay 'oops\r")
        screen.shows("No closing quotation")
        screen.press("\x03")
        assert screen.ends() == 0
    assert impairments()["n1:eth0--s1:1"] == ({"loss": 0.05},) * 2


@pytest.mark.usefixtures("star")
def test_a_link_is_taken_down_and_up_and_a_fault_is_healed_by_its_row() -> None:
    with top(size=(120, 30)) as screen:
        screen.shows("n1")
        screen.press("d")
        screen.shows("1: down: n1")
        screen.press("2")
        screen.shows("down   ")
        screen.press("1u")
        screen.shows("healed 1: down: n1")
        screen.press("f")
        screen.shows("2: down: n1")
        screen.press("4")
        screen.shows("down: n1")
        screen.press("h")
        screen.shows("heal")
        screen.press("q")
        assert screen.ends() == 0


@pytest.mark.usefixtures("star")
def test_a_command_in_progress_when_the_user_quits_is_completed() -> None:
    with top() as screen:
        screen.shows("n1")
        screen.press("dq")
        assert screen.ends() == 0
    (cluster,) = json.loads(testbed("status", "--json").stdout)["clusters"]
    assert [injection["what"] for injection in cluster["injected"]] == ["down: n1"]


# The terminal


@pytest.mark.usefixtures("star")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 0)])
def test_any_signal_restores_the_terminal(number: signal.Signals, code: int) -> None:
    with top() as screen:
        screen.shows("3 nodes")
        os.kill(screen.process.pid, number)
        assert screen.ends() == code
        assert HIDDEN in screen.raw
        assert "Traceback" not in screen.raw


def test_an_error_of_its_own_leaves_the_terminal_as_before(star: RunningCluster) -> None:
    broken = (
        "import sys; sys.argv[1:] = ['top', 'star', '--interval', '200ms']\n"
        "import testbed.cli.screen.live_view as watching\n"
        "def frame(*_): raise RuntimeError('a mistake of ours')\n"
        "watching.frame = frame\n"
        "from testbed.cli.main import main; main()"
    )
    assert star.name == "star"
    with Terminal([sys.executable, "-c", broken]) as screen:
        assert screen.ends() == 1
        assert screen.raw.rindex("a mistake of ours") > screen.raw.rindex(HIDDEN)


@pytest.mark.usefixtures("star")
def test_it_follows_the_size_of_its_terminal() -> None:
    with top(size=(80, 24)) as screen:
        screen.shows("out bit/s")
        screen.press("")
        screen.resize(200, 50)
        screen.shows("memory")
        screen.press("")
        screen.resize(24, 5)
        screen.shows("n1")
        screen.press("q")
        assert screen.ends() == 0


def test_without_colours_no_escape_sequence_is_printed(star: RunningCluster) -> None:
    star.inject("n1", loss="1%")
    with top(NO_COLOR="1") as screen:
        screen.shows("1 injected")
        screen.press("q")
        assert screen.ends() == 0
    assert "\x1b[7m" in screen.raw  # the selection is reversed
    assert not re.search(r"\x1b\[([0-9;]*;)?[34][0-7]m", screen.raw)


def test_a_cluster_is_replaced_by_another_one_while_it_is_watched() -> None:
    with top() as screen:
        screen.shows("no cluster is up; 'testbed up star-4' brings one up")
        with Cluster.star(2).up("first", keep=True):
            screen.shows("first  2 nodes")
        screen.shows("first has been taken down")
        with Cluster.star(3).up("second", keep=True):
            screen.shows("second  3 nodes")
        screen.press("q")
        assert screen.ends() == 0


# Without a terminal


def test_without_a_terminal_one_snapshot_is_printed_with_its_rates(star: RunningCluster) -> None:
    star.inject("n1", delay="1ms")
    pinging = star["n1"].popen(["ping", "-q", "-i0.05", "n2"])
    shown = testbed("top", "--interval", "500ms")
    document = json.loads(testbed("top", "--json", "--interval", "500ms", "star").stdout)
    pinging.kill()
    pinging.wait()
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
        screen.shows("several clusters are up (other, star)")
        assert screen.ends() == 4
    assert HIDDEN not in screen.raw
    assert star.name == "star"


def test_the_absence_of_a_cluster_is_reported() -> None:
    done = testbed("top")
    assert done.returncode == 4
    assert "no cluster is up" in done.stderr


# What is gathered


def sample_once(gathering: SnapshotSampler) -> Snapshot:
    snapshot = gathering.sample()
    assert isinstance(snapshot, Snapshot)
    return snapshot


def both_directions(snapshot: Snapshot, link: str) -> tuple[Direction, Direction]:
    (one,) = [each for each in snapshot.links if each.name == link]
    return one.forward, one.backward


@pytest.mark.parametrize(("datapath", "cause"), [("relay", "loss"), ("tc", "loss")])
def test_losses_are_counted_by_cause(star: RunningCluster, datapath: str, cause: str) -> None:
    if datapath == "relay":
        star.inject("n1--s1", loss="100%", delay="1ms", direction="n1-s1")
    else:
        star.inject("n1--s1", loss="100%", direction="n1-s1")
    gathering = SnapshotSampler(Store(), "star")
    try:
        before = sample_once(gathering)
        assert before.links[0].datapath == datapath
        star["n1"].popen(["ping", "-c5", "-i0.01", "-W1", "n2"]).wait()
        after = sample_once(gathering)
    finally:
        gathering.close()
    lost = both_directions(after, "n1:eth0--s1:1")[0].dropped
    assert set(lost) == {cause}
    assert lost[cause] >= 1  # n1 asks for the address of n2 again and again, or pings
    assert both_directions(after, "n1:eth0--s1:1")[0].drop_rate > 0
    assert not both_directions(after, "n1:eth0--s1:1")[1].dropped


FLOOD = """
import socket
to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(400):
    to.sendto(bytes(1400), ("n2", 9))
"""


@pytest.mark.parametrize("datapath", ["relay", "tc"])
def test_frames_dropped_by_a_full_queue_are_counted_as_the_queues(datapath: Literal["relay", "tc"]) -> None:
    with Cluster.star(2).up("narrow", keep=True, datapath=datapath) as cluster:
        cluster.inject("n1--s1", rate="5mbit", queue="8KiB", direction="n1-s1")
        gathering = SnapshotSampler(Store(), "narrow")
        cluster["n1"].run([sys.executable, "-c", FLOOD])
        forward, backward = both_directions(sample_once(gathering), "n1:eth0--s1:1")
        gathering.close()
    assert set(forward.dropped) == {"queue"}
    assert forward.dropped["queue"] > 100  # 5 Mbit/s is 90 of these frames in 200 ms
    assert not backward.dropped


def test_counts_are_those_of_status(star: RunningCluster) -> None:
    star.cut("n3")
    star["n1"].run(["ping", "-c3", "-i0.01", "n2"])
    gathering = SnapshotSampler(Store())
    snapshot = sample_once(gathering)
    gathering.close()
    (cluster,) = json.loads(testbed("status", "--json").stdout)["clusters"]
    assert cluster["links"][2]["up"] is False
    for ours, theirs in zip(snapshot.links, cluster["links"], strict=True):
        assert (ours.name, ours.state == "up", ours.datapath) == (theirs["name"], theirs["up"], theirs["datapath"])
        for direction in ("forward", "backward"):
            one = getattr(ours, direction)
            assert (one.frames, one.bytes) == (theirs[direction]["frames"], theirs[direction]["bytes"])
    assert snapshot.links[0].forward.frames >= 3


def test_links_between_nodes_and_direct_ones_are_counted_too() -> None:
    pair = Cluster.back_to_back()
    with pair.up("joined", keep=True) as joined:
        joined["n1"].run(["ping", "-c2", "-i0.01", "n2"])
        gathering = SnapshotSampler(Store(), "joined")
        (link,) = sample_once(gathering).links
        gathering.close()
        assert link.forward.frames >= 2
        assert link.backward.frames >= 2


def test_a_cluster_recreated_under_its_name_is_read_anew() -> None:
    gathering = SnapshotSampler(Store(), "again")
    assert isinstance(gathering.sample(), Absent)
    for nodes in (2, 3):
        with Cluster.star(nodes).up("again", keep=True):
            assert len(sample_once(gathering).nodes) == nodes
    assert gathering.sample() == Absent("again has been taken down")
    gathering.close()


def test_a_cluster_recreated_between_two_samples_is_a_different_one() -> None:
    gathering = SnapshotSampler(Store())
    with Cluster.star(2).up("again", keep=True) as cluster:
        cluster.inject("n1", loss="1%")
        cluster["n1"].popen(["ping", "-c9", "-i0.01", "-W1", "n2"]).wait()
        first = sample_once(gathering)
    with Cluster.star(2).up("again", keep=True) as cluster:
        second = sample_once(gathering)
        cluster["n1"].run(["ping", "-c1", "n2"])
        third = sample_once(gathering)
    gathering.close()
    assert first.links[0].forward.frames > 5
    assert first.events
    assert second.links[0].forward.frames < 5
    assert second.links[0].forward.rate == 0
    assert not second.events
    assert third.links[0].forward.frames > second.links[0].forward.frames


def test_events_are_printed_as_they_happen(star: RunningCluster) -> None:
    gathering = SnapshotSampler(Store(), "star")
    assert [event.kind for event in sample_once(gathering).events] == []
    star.inject("n1", loss="1%")
    assert "inject" in [event.kind for event in sample_once(gathering).events]
    eventually(lambda: sample_once(gathering).faults[0].what == "loss 1% on n1", "the fault is shown")
    gathering.close()


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
    input()  # its counters end with the host process
"""


def test_agents_of_shared_nics_report_their_firmwares_counters(star: RunningCluster) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with share_nics(star):
        hosts = [star[name].popen([sys.executable, "-c", GREET], **pipes) for name in ("n1", "n2", "n3")]
        for host in hosts:
            assert host.stdout is not None
            assert host.stdout.readline() == "greeted\n"
        gathering = SnapshotSampler(Store(), "star")
        snapshot, quiet = sample_once(gathering), without(gathering)
        gathering.close()
        for host in hosts:
            host.communicate("\n")
    agents = {node.name: node.nics[0].agent for node in snapshot.nodes}
    assert agents["n1"]["frames_sent"] >= 1
    assert agents["n2"]["frames_received"] >= 1
    assert "nic n1" in [program.name for program in snapshot.nodes[0].programs]
    assert not any(nic.agent for node in quiet.nodes for nic in node.nics)


def without(gathering: SnapshotSampler) -> Snapshot:
    """A look that leaves agents in peace."""
    snapshot = gathering.sample(agents=False)
    assert isinstance(snapshot, Snapshot)
    return snapshot
