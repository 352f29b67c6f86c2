"""Injection into a running cluster: in effect when the call returns, limited to the named links, and removed without a
trace."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import pytest

from testbed import Cluster, RunningCluster
from testbed.cluster.faults import fault_injection
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.netlink_executor import NetlinkExecutor
from testbed.cluster.records.state import Store
from testbed.cluster.startup import bring_up
from testbed.errors import DescriptionError, NotFoundError, TestbedError
from testbed.fates.text_files import BrokenFileError
from testbed.fates.tokens import RuleError
from testbed.kernel.rtnl_dump import Contents
from testbed.spec.layout import ConfiguredDatapath, Impairment
from testbed.spec.model import Description, Link, Node, Switch
from testbed.spec.resolver import resolve
from tests.live import node_sockets
from tests.live.iproute2 import namespace_contents, ping, ports, query, redirections, static_forwarding, wire_path
from tests.live.machine_state import eventually, snapshot
from tests.live.traffic import all_events, between, events_of, relay_report, relayed_links

pytestmark = [pytest.mark.requires("root", "ip", "ping"), pytest.mark.usefixtures("machine")]

MS = 10**6
NAME = "injected"
SHAPES: dict[str, Callable[[], Cluster]] = {
    "back-to-back": Cluster.back_to_back,
    "star": lambda: Cluster.star(3),
    "ring": lambda: Cluster.ring(3),
    "dumbbell": lambda: Cluster.dumbbell(1, 1),
}
CARRIERS = ["relay", pytest.param("tc", marks=pytest.mark.requires("bpf"))]


@pytest.fixture
def pair() -> Iterator[RunningCluster]:
    with Cluster.back_to_back().up() as cluster:
        yield cluster


def test_addresses_that_programs_have_set_outlive_faults_but_not_another_up() -> None:
    """keepalived adds such an address, its virtual one."""
    store, layout = Store(), resolve(Description.line(2))
    state = bring_up(store, layout, name=NAME, origin="test", lasting=True).state
    cluster = RunningCluster.attach(state.name)

    def own_addresses() -> list[str]:
        shown = cluster["n1"].run(["ip", "-4", "-o", "addr", "show", "dev", "eth0"]).stdout
        return [line.split()[3] for line in shown.splitlines()]

    try:
        [described] = own_addresses()
        cluster["n1"].run(["ip", "addr", "add", "10.0.0.100/16", "dev", "eth0"])
        with cluster.inject("n1", delay="1ms"), cluster.inject("n2", loss="1%"):
            assert own_addresses() == [described, "10.0.0.100/16"]
        assert own_addresses() == [described, "10.0.0.100/16"]
        bring_up(store, layout, name=NAME, origin="test", lasting=True)
        assert own_addresses() == [described]
    finally:
        cluster.down()


# In force when it returns


@pytest.mark.parametrize("datapath", CARRIERS)
@pytest.mark.parametrize("shape", ["back-to-back", "star"])
def test_the_first_frame_after_the_call_sees_it_and_the_first_after_healing_does_not(
    datapath: ConfiguredDatapath, shape: str
) -> None:
    """Ten injections in a row: exactly the frames sent outside of them arrive."""
    made = Cluster.back_to_back() if shape == "back-to-back" else Cluster.star(3)
    with made.up(datapath=datapath) as cluster, node_sockets.nic_sockets(cluster) as nics:
        macs = node_sockets.mac(cluster, "n2"), node_sockets.mac(cluster, "n1")
        nics["n2"].send(
            node_sockets.numbered_frame(node_sockets.BROADCAST, macs[0], 0)
        )  # the switch learns where n2 is
        expected: list[int] = []
        for turn in range(10):
            with cluster.inject("n1", loss=1.0):
                for number in range(20):
                    nics["n1"].send(node_sockets.numbered_frame(*macs, 1000 * turn + number))
            for number in range(500, 520):
                nics["n1"].send(node_sockets.numbered_frame(*macs, 1000 * turn + number))
                expected.append(1000 * turn + number)
        got: list[int] = []

        def all_there() -> bool:
            got.extend(node_sockets.frame_numbers(node_sockets.received(nics["n2"])))
            return expected[-1] in got

        eventually(all_there, "the last frame arrives")
        assert got == expected


def test_the_first_frame_that_a_rule_sees_is_the_first_after_the_call(pair: RunningCluster) -> None:
    with node_sockets.nic_sockets(pair) as nics:
        macs = node_sockets.mac(pair, "n2"), node_sockets.mac(pair, "n1")
        for turn in range(5):
            with pair.inject("n1--n2", rules=["drop eth.type == 0x88b5 and nth(1)"]):
                for number in range(10):
                    nics["n1"].send(node_sockets.numbered_frame(*macs, 100 * turn + number))
                got: list[int] = []

                def all_there(turn: int = turn, got: list[int] = got) -> bool:
                    got.extend(node_sockets.frame_numbers(node_sockets.received(nics["n2"])))
                    return 100 * turn + 9 in got

                eventually(all_there, "the last frame arrives")
            assert got == [100 * turn + number for number in range(1, 10)]


# What it sets


DECLARED = {"delay": "2ms", "loss": "10%"}


def declared(**impairment: str) -> Description:
    links = [Link(ends=["n1", "s1"], **impairment), Link(ends=["n2", "s1"]), Link(ends=["n3", "s1"])]  # type: ignore[arg-type]
    return Description(
        name=NAME, nodes=[Node(name=f"n{n}") for n in (1, 2, 3)], switches=[Switch(name="s1")], links=links
    )


def up(description: Description, datapath: ConfiguredDatapath = "relay") -> RunningCluster:
    outcome = bring_up(Store(), resolve(description), name=NAME, origin="test", lasting=True, asked=datapath)
    return RunningCluster(Store(), outcome.state)


def both_impairments(cluster: RunningCluster, link: str = "n1:eth0--s1:1") -> tuple[Impairment, Impairment]:
    actual = relayed_links(cluster)[link]
    return actual.forward.impairment, actual.backward.impairment


def test_only_the_named_keys_are_set_in_both_directions() -> None:
    with up(declared(**DECLARED)) as cluster:
        assert both_impairments(cluster) == (Impairment(delay=2 * MS, loss=0.1),) * 2
        with cluster.inject("n1", delay="7ms"):
            assert both_impairments(cluster) == (Impairment(delay=7 * MS, loss=0.1),) * 2
            with cluster.inject("n1", jitter="1ms", distribution="normal", direction="out"):
                assert both_impairments(cluster) == (
                    Impairment(delay=7 * MS, loss=0.1, jitter=MS, distribution="normal"),
                    Impairment(delay=7 * MS, loss=0.1),
                ), "direction out"
        with cluster.inject("n1", loss=0, direction="s1-n1"):
            assert both_impairments(cluster) == (Impairment(delay=2 * MS, loss=0.1), Impairment(delay=2 * MS))
        assert both_impairments(cluster) == (Impairment(delay=2 * MS, loss=0.1),) * 2
        assert relayed_links(cluster).keys() == {"n1:eth0--s1:1"}


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_injections_that_overlap_are_lifted_in_any_order(pair: RunningCluster, order: tuple[int, ...]) -> None:
    """The latest of those in force counts, key by key."""
    expected: list[dict[str, Any]] = [
        {"delay": 1 * MS, "corrupt": 0.1},
        {"delay": 2 * MS},
        {"delay": 3 * MS, "duplicate": 0.2},
    ]
    link = "n1:eth0--n2:eth0"
    faults = [
        pair.inject("all", delay="1ms", corrupt="10%"),
        pair.inject("all", delay="2ms"),
        pair.inject("all", delay="3ms", duplicate="20%"),
    ]
    left = [0, 1, 2]
    for lifted in order:
        keys: dict[str, Any] = {}
        for number in left:
            keys |= expected[number]
        assert both_impairments(pair, link) == (Impairment(**keys),) * 2
        faults[lifted].lift()
        left.remove(lifted)
    assert relayed_links(pair) == {}
    assert pair.state.injected == ()


def test_a_nodes_name_selects_all_its_links_and_all_selects_every_link() -> None:
    with Cluster.dumbbell(2, 2).up() as cluster:
        links = {link.name for link in cluster.state.layout.links}
        with cluster.inject("n1", delay="1ms"):
            assert relayed_links(cluster).keys() == {name for name in links if name.startswith("n1:")}
        with cluster.inject("s1", delay="1ms"):
            assert relayed_links(cluster).keys() == {name for name in links if "s1:" in name}
        with cluster.inject("all", delay="1ms"):
            assert relayed_links(cluster).keys() == links
            ping(cluster, "n1", "n4")


# Healing


def everything(cluster: RunningCluster) -> dict[str, object]:
    """Return the kernel's state of a cluster, as ip, bridge and tc print it."""
    wire = wire_path(cluster.state)
    actual: dict[str, object] = {"ports": ports(wire), "forwarding": static_forwarding(wire)}
    for key, path in cluster.state.namespaces.items():
        actual[f"{key} links"] = namespace_contents(path)
        actual[f"{key} qdiscs"] = query(path, "tc", "qdisc", "show")
        if key != namespace_names.WIRE:
            actual[f"{key} offloads"] = subprocess.run(
                ["nsenter", f"--net={path}", "ip", "-d", "link", "show", "eth0"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
    for device in namespace_contents(wire).links:
        actual[f"{device} redirections"] = redirections(wire, device)
    return actual


@pytest.mark.parametrize("datapath", CARRIERS)
@pytest.mark.parametrize("shape", ["star", "back-to-back", "ring"])
def test_healing_restores_the_previous_state(datapath: ConfiguredDatapath, shape: str) -> None:
    with SHAPES[shape]().up(datapath=datapath) as cluster:
        before = everything(cluster)
        processes = snapshot().processes
        with cluster.inject("all", loss="5%"):
            assert set(cluster.state.datapaths.values()) == {datapath}
        assert everything(cluster) == before
        eventually(lambda: snapshot().processes == processes, "what carried it has ended")
        ping(cluster, "n1", "n2")


def test_an_untouched_link_carries_its_traffic_while_others_are_replugged() -> None:
    """The untouched link loses no frame, and its interfaces and datapath stay as they are."""
    with Cluster.star(4).up() as cluster, between(cluster, ("n2", "n3"), ("n3", "n2")) as traffic:
        before = {node: namespace_contents(cluster[node].namespace) for node in ("n2", "n3")}
        for _ in range(3):
            with cluster.inject("n1", delay="1ms"), cluster.inject("n4", loss="3%"):
                traffic.wait(50)
            traffic.wait(50)
        assert {node: namespace_contents(cluster[node].namespace) for node in ("n2", "n3")} == before
        flows = traffic.stop()
        eventually(lambda: all(len(flow.arrived) >= flow.sent for flow in traffic.look()), "every frame arrives")
        for flow in flows:
            assert flow.arrived == list(range(1, flow.sent + 1))


@pytest.mark.parametrize("shape", ["back-to-back", "star", "dumbbell"])
@pytest.mark.parametrize("datapath", CARRIERS)
def test_frames_lost_in_replugging_are_counted(shape: str, datapath: ConfiguredDatapath) -> None:
    """Frames sent equal frames received plus those that events report as lost."""
    shapes = {
        "back-to-back": Cluster.back_to_back,
        "star": lambda: Cluster.star(2),
        "dumbbell": lambda: Cluster.dumbbell(1, 1),
    }
    with shapes[shape]().up(datapath=datapath) as cluster, between(cluster, ("n1", "n2"), ("n2", "n1")) as traffic:
        uncounted = []  # of each replugging
        told_before = 0
        gone = [flow.arrived[-1] - len(flow.arrived) for flow in traffic.look()]

        def look() -> None:
            """Record the difference between missing frames and reported losses since the last look."""
            nonlocal told_before
            traffic.wait(50)
            told_lost = sum(event["lost"] for event in events_of(cluster, "replugged"))
            lost = 0
            for place, flow in enumerate(traffic.flows):
                missing = flow.arrived[-1] - len(flow.arrived)
                lost += missing - gone[place]
                gone[place] = missing
            uncounted.append(lost - (told_lost - told_before))
            told_before = told_lost

        for _ in range(5):
            with cluster.inject("all", **({"delay": "1ms"} if datapath == "relay" else {"loss_pattern": "999999"})):  # type: ignore[arg-type]
                look()
            look()
        for flow in traffic.flows:
            assert len(flow.arrived) == len(set(flow.arrived)), "no frame arrives twice"
            late = [place for place, (one, other) in enumerate(pairwise(flow.arrived)) if one > other]
            times = sum(second - first > 100 for first, second in pairwise([-1000, *late]))
            # Frames in the relay when links are taken from it are overtaken by those on the direct path.
            assert times <= (5 if datapath == "relay" else 0)
        if datapath == "relay":
            assert told_before == 0, all_events(cluster)
        assert uncounted == [0] * 10, all_events(cluster)


# Cuts, partitions, times


def carrier(cluster: RunningCluster, node: str) -> bool:
    (entry,) = query(cluster[node].namespace, "ip", "link", "show", "eth0")
    return "LOWER_UP" in entry["flags"]


@pytest.mark.parametrize("impaired", [False, True])
def test_a_link_that_is_cut_has_no_carrier_and_comes_back(impaired: bool) -> None:
    with Cluster.star(3).up() as cluster:
        if impaired:
            cluster.inject("n1", delay="1ms")
        ping(cluster, "n1", "n2")
        with cluster.cut("n1"):
            assert not carrier(cluster, "n1")
            assert carrier(cluster, "n2")
            assert cluster["n1"].run(["ping", "-n", "-q", "-c1", "-W1", "n2"], check=False).returncode != 0
            ping(cluster, "n2", "n3")
        assert carrier(cluster, "n1")
        ping(cluster, "n1", "n2")
        cluster.heal()


def test_a_cable_is_unplugged_and_plugged_in_again_without_changing_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A scan of all nodes would take most of a processor while a cable of a hundred-node cluster flaps."""

    def look(_self: NetlinkExecutor, keys: object) -> dict[str, Contents]:
        raise AssertionError(f"a look at {keys}")

    with Cluster.star(3, loss="10%").up() as cluster:
        monkeypatch.setattr(NetlinkExecutor, "contents", look)
        with cluster.cut("n2"):
            assert [carrier(cluster, f"n{n}") for n in (1, 2, 3)] == [True, False, True]
        assert carrier(cluster, "n2")


def test_a_partition_lets_nothing_pass_between_its_groups_and_everything_within() -> None:
    with Cluster.star(5).up() as cluster, node_sockets.nic_sockets(cluster) as nics:
        with cluster.partition(["n1", "n2"], ["n3", "n4"]):
            nics["n1"].send(node_sockets.numbered_frame(node_sockets.BROADCAST, node_sockets.mac(cluster, "n1"), 1))
            node_sockets.wait_until_readable(nics["n2"])
            nics["n5"].send(node_sockets.numbered_frame(node_sockets.BROADCAST, node_sockets.mac(cluster, "n5"), 2))
            for node, expected in (("n2", [1, 2]), ("n3", [2]), ("n4", [2]), ("n1", [2])):
                got: list[int] = []
                while 2 not in got:
                    node_sockets.wait_until_readable(nics[node])
                    got += node_sockets.frame_numbers(node_sockets.received(nics[node]))
                assert got == expected, node
            ping(cluster, "n1", "n2")
            ping(cluster, "n3", "n4")
            ping(cluster, "n5", "n1")
        ping(cluster, "n1", "n3")
        assert relayed_links(cluster) == {}


def test_a_timed_injection_heals_itself(pair: RunningCluster) -> None:
    before = everything(pair)
    pair.inject("all", delay="1ms", seconds=0.2)
    pair.cut("all", seconds=0.3)
    stays = pair.inject("all", duplicate="10%")
    eventually(lambda: len(pair.state.injected) == 1, "two of three have healed")
    eventually(lambda: len(events_of(pair, "heal")) == 2, "it is an event")
    assert [event["number"] for event in events_of(pair, "heal")] == [1, 2]
    assert both_impairments(pair, "n1:eth0--n2:eth0") == (Impairment(duplicate=0.1),) * 2
    stays.lift()
    assert everything(pair) == before


# Beside what is declared


def test_up_changes_declared_impairments_and_keeps_injected_ones() -> None:
    with up(declared(delay="2ms")) as cluster:
        fault = cluster.inject("n1", corrupt="1%")
        stays = cluster.inject("n2", delay="5ms")
        up(declared(delay="3ms", loss="1%"))
        assert both_impairments(cluster) == (Impairment(delay=3 * MS, loss=0.01, corrupt=0.01),) * 2
        assert both_impairments(cluster, "n2:eth0--s1:2") == (Impairment(delay=5 * MS),) * 2
        assert up(declared(delay="3ms", loss="1%")).state.injected == cluster.state.injected
        fault.lift()
        assert both_impairments(cluster) == (Impairment(delay=3 * MS, loss=0.01),) * 2
        up(declared())
        assert relayed_links(cluster).keys() == {"n2:eth0--s1:2"}
        stays.lift()
        assert relayed_links(cluster) == {}


def test_state_and_events_show_the_present_impairments(pair: RunningCluster) -> None:
    fault = pair.inject("n1--n2", delay="1ms", direction="n1-n2")
    (injection,) = pair.state.injected
    assert (injection.what, injection.keys) == ("delay 1ms on n1--n2 (n1-n2)", {"delay": MS})
    assert injection.places == (("n1:eth0--n2:eth0", "forward"),)
    assert pair.state.datapaths == {"n1:eth0--n2:eth0": "relay"}
    (event,) = events_of(pair, "inject")
    assert (event["number"], event["links"]) == (1, ["n1:eth0--n2:eth0"])
    assert event["took"] > 0
    fault.lift()
    assert [event["number"] for event in events_of(pair, "heal")] == [1]
    assert [(event["before"], event["after"]) for event in events_of(pair, "replugged")] == [
        ("direct", "relay"),
        ("relay", "direct"),
    ]
    pair.inject("all", delay="1ms")
    assert pair.state.injected[0].number == 2, "numbers are not given twice"
    pair.heal()


# What is refused, and leaves everything as it was


@pytest.mark.parametrize(
    ("target", "impairment", "error", "message"),
    [
        ("n1--n3", {"loss": "1%"}, NotFoundError, "did you mean 'n1--n2'?"),
        ("n9", {"loss": "1%"}, NotFoundError, "no link, node or switch 'n9'"),
        ("n1", {"loss": "1%", "direction": "n2-n3"}, NotFoundError, "no direction 'n2-n3'"),
        ("n1", {}, DescriptionError, "nothing to inject"),
        ("n1", {"reorder": "1%"}, DescriptionError, "reorder without a delay"),
        ("n1", {"jitter": "1ms"}, DescriptionError, "jitter without a delay"),
        ("n1", {"delay": "1ms", "distribution": "normal"}, DescriptionError, "a distribution without jitter"),
        ("n1", {"rules": ["drop tcp.dprot == 1"]}, RuleError, "did you mean 'tcp.dport'?"),
        ("n1", {"rate_trace": "/nowhere/at.all"}, NotFoundError, "/nowhere/at.all"),
    ],
)
def test_invalid_arguments_are_rejected_without_effect(
    pair: RunningCluster, target: str, impairment: dict[str, Any], error: type[TestbedError], message: str
) -> None:
    before = everything(pair)
    with pytest.raises(error) as caught:
        pair.inject(target, **impairment)
    assert message in str(caught.value)
    assert pair.state.injected == ()
    assert everything(pair) == before
    assert events_of(pair, "inject") == []


@pytest.mark.parametrize(
    ("key", "text", "line"), [("rate_trace", "1\n2\nthree\n", 3), ("jitter_file", "1ms\n\n2ms\n", 2)]
)
def test_a_broken_file_is_named_with_its_line(
    pair: RunningCluster, tmp_path: Path, key: str, text: str, line: int
) -> None:
    file = tmp_path / "broken.txt"
    file.write_text(text)
    more: dict[str, Any] = {"distribution": "trace"} if key == "jitter_file" else {}
    with pytest.raises(BrokenFileError) as caught:
        pair.inject("all", **{key: str(file)}, **more)  # type: ignore[arg-type]
    assert f"{file}, line {line}" in str(caught.value)
    assert pair.state.injected == ()


def test_a_contradiction_to_the_present_impairment_is_refused_and_changes_nothing(pair: RunningCluster) -> None:
    pair.inject("all", delay="1ms", jitter="100us")
    with pytest.raises(DescriptionError, match="jitter without a delay"):
        pair.inject("all", delay=0)
    assert both_impairments(pair, "n1:eth0--n2:eth0") == (Impairment(delay=MS, jitter=100_000),) * 2
    ping(pair, "n1", "n2")
    pair.heal()


def test_a_rule_that_never_matched_is_named_in_the_end(pair: RunningCluster) -> None:
    with pair.inject("all", rules=["drop udp.dport == 7", "delay 1ms icmp or eth.type == 0x0806"]):
        ping(pair, "n1", "n2")
        idle = relay_report(pair)["idle_rules"]
    assert any("'drop udp.dport == 7' has never matched a frame" in sentence for sentence in idle)
    assert not any("delay 1ms" in sentence for sentence in idle)


def test_healing_an_absent_fault_is_refused(pair: RunningCluster) -> None:
    with pytest.raises(NotFoundError, match="no injection 3 in force; nothing is"):
        fault_injection.heal(Store(), pair.name, [3])
    assert fault_injection.heal(Store(), pair.name) == ()
