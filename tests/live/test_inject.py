"""Injection into a running cluster: in effect when the call returns, limited to the named links, and removed without
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
from tests.live.traffic import all_events, events_of, frames_between, relay_report, relayed_links

pytestmark = [pytest.mark.requires("root", "ip", "ping"), pytest.mark.usefixtures("machine")]

MS = 10**6
NAME = "injected"
SHAPES: dict[str, Callable[[], Cluster]] = {
    "back-to-back": Cluster.back_to_back,
    "star": lambda: Cluster.star(3),
    "ring": lambda: Cluster.ring(3),
    "dumbbell": lambda: Cluster.dumbbell(1, 1),
}
DATAPATHS = ["relay", pytest.param("tc", marks=pytest.mark.requires("bpf"))]


@pytest.fixture
def pair() -> Iterator[RunningCluster]:
    with Cluster.back_to_back().up() as cluster:
        yield cluster


def test_addresses_added_by_programs_survive_faults_but_not_another_up() -> None:
    """keepalived, for example, adds a virtual address."""
    store, layout = Store(), resolve(Description.line(2))
    state = bring_up(store, layout, name=NAME, origin="test", lasting=True).state
    cluster = RunningCluster.attach(state.name)

    def addresses() -> list[str]:
        shown = cluster["n1"].run(["ip", "-4", "-o", "addr", "show", "dev", "eth0"]).stdout
        return [line.split()[3] for line in shown.splitlines()]

    try:
        [declared_address] = addresses()
        cluster["n1"].run(["ip", "addr", "add", "10.0.0.100/16", "dev", "eth0"])
        with cluster.inject("n1", delay="1ms"), cluster.inject("n2", loss="1%"):
            assert addresses() == [declared_address, "10.0.0.100/16"]
        assert addresses() == [declared_address, "10.0.0.100/16"]
        bring_up(store, layout, name=NAME, origin="test", lasting=True)
        assert addresses() == [declared_address]
    finally:
        cluster.down()


# In force when the call returns


@pytest.mark.parametrize("datapath", DATAPATHS)
@pytest.mark.parametrize("shape", ["back-to-back", "star"])
def test_an_injection_affects_exactly_the_frames_between_inject_and_heal(
    datapath: ConfiguredDatapath, shape: str
) -> None:
    """Ten consecutive injections: exactly the frames sent outside of them arrive."""
    description = Cluster.back_to_back() if shape == "back-to-back" else Cluster.star(3)
    with description.up(datapath=datapath) as cluster, node_sockets.nic_sockets(cluster) as nics:
        macs = node_sockets.mac(cluster, "n2"), node_sockets.mac(cluster, "n1")
        nics["n2"].send(node_sockets.numbered_frame(node_sockets.BROADCAST, macs[0], 0))  # the switch learns n2's port
        expected: list[int] = []
        for round_number in range(10):
            with cluster.inject("n1", loss=1.0):
                for number in range(20):
                    nics["n1"].send(node_sockets.numbered_frame(*macs, 1000 * round_number + number))
            for number in range(500, 520):
                nics["n1"].send(node_sockets.numbered_frame(*macs, 1000 * round_number + number))
                expected.append(1000 * round_number + number)
        arrived: list[int] = []

        def has_last() -> bool:
            arrived.extend(node_sockets.frame_numbers(node_sockets.received(nics["n2"])))
            return expected[-1] in arrived

        eventually(has_last, "the last frame arrives")
        assert arrived == expected


def test_a_rule_counts_from_the_first_frame_after_the_call(pair: RunningCluster) -> None:
    with node_sockets.nic_sockets(pair) as nics:
        macs = node_sockets.mac(pair, "n2"), node_sockets.mac(pair, "n1")
        for round_number in range(5):
            with pair.inject("n1--n2", rules=["drop eth.type == 0x88b5 and nth(1)"]):
                for number in range(10):
                    nics["n1"].send(node_sockets.numbered_frame(*macs, 100 * round_number + number))
                arrived: list[int] = []

                def has_last(round_number: int = round_number, arrived: list[int] = arrived) -> bool:
                    arrived.extend(node_sockets.frame_numbers(node_sockets.received(nics["n2"])))
                    return 100 * round_number + 9 in arrived

                eventually(has_last, "the last frame arrives")
            assert arrived == [100 * round_number + number for number in range(1, 10)]


# Impairments set by an injection


DECLARED = {"delay": "2ms", "loss": "10%"}


def declared(**impairment: str) -> Description:
    links = [Link(ends=["n1", "s1"], **impairment), Link(ends=["n2", "s1"]), Link(ends=["n3", "s1"])]  # type: ignore[arg-type]
    return Description(
        name=NAME, nodes=[Node(name=f"n{n}") for n in (1, 2, 3)], switches=[Switch(name="s1")], links=links
    )


def up(description: Description, datapath: ConfiguredDatapath = "relay") -> RunningCluster:
    outcome = bring_up(Store(), resolve(description), name=NAME, origin="test", lasting=True, asked=datapath)
    return RunningCluster(Store(), outcome.state)


def impairments(cluster: RunningCluster, link: str = "n1:eth0--s1:1") -> tuple[Impairment, Impairment]:
    relayed = relayed_links(cluster)[link]
    return relayed.forward.impairment, relayed.backward.impairment


def test_only_the_given_keys_are_set_in_the_given_directions() -> None:
    with up(declared(**DECLARED)) as cluster:
        assert impairments(cluster) == (Impairment(delay=2 * MS, loss=0.1),) * 2
        with cluster.inject("n1", delay="7ms"):
            assert impairments(cluster) == (Impairment(delay=7 * MS, loss=0.1),) * 2
            with cluster.inject("n1", jitter="1ms", distribution="normal", direction="out"):
                assert impairments(cluster) == (
                    Impairment(delay=7 * MS, loss=0.1, jitter=MS, distribution="normal"),
                    Impairment(delay=7 * MS, loss=0.1),
                ), "direction out"
        with cluster.inject("n1", loss=0, direction="s1-n1"):
            assert impairments(cluster) == (Impairment(delay=2 * MS, loss=0.1), Impairment(delay=2 * MS))
        assert impairments(cluster) == (Impairment(delay=2 * MS, loss=0.1),) * 2
        assert relayed_links(cluster).keys() == {"n1:eth0--s1:1"}


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_overlapping_injections_can_be_lifted_in_any_order(pair: RunningCluster, order: tuple[int, ...]) -> None:
    """For each key, the latest injection in force applies."""
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
    in_force = [0, 1, 2]
    for lifted in order:
        keys: dict[str, Any] = {}
        for number in in_force:
            keys |= expected[number]
        assert impairments(pair, link) == (Impairment(**keys),) * 2
        faults[lifted].lift()
        in_force.remove(lifted)
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


def kernel_state(cluster: RunningCluster) -> dict[str, object]:
    """Return the kernel's state of a cluster, as ip, bridge and tc print it."""
    wire = wire_path(cluster.state)
    state: dict[str, object] = {"ports": ports(wire), "forwarding": static_forwarding(wire)}
    for key, path in cluster.state.namespaces.items():
        state[f"{key} links"] = namespace_contents(path)
        state[f"{key} qdiscs"] = query(path, "tc", "qdisc", "show")
        if key != namespace_names.WIRE:
            state[f"{key} offloads"] = subprocess.run(
                ["nsenter", f"--net={path}", "ip", "-d", "link", "show", "eth0"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
    for device in namespace_contents(wire).links:
        state[f"{device} redirections"] = redirections(wire, device)
    return state


@pytest.mark.parametrize("datapath", DATAPATHS)
@pytest.mark.parametrize("shape", ["star", "back-to-back", "ring"])
def test_healing_restores_the_previous_state(datapath: ConfiguredDatapath, shape: str) -> None:
    with SHAPES[shape]().up(datapath=datapath) as cluster:
        before = kernel_state(cluster)
        processes = snapshot().processes
        with cluster.inject("all", loss="5%"):
            assert set(cluster.state.datapaths.values()) == {datapath}
        assert kernel_state(cluster) == before
        eventually(lambda: snapshot().processes == processes, "the relay and the supervisor have ended")
        ping(cluster, "n1", "n2")


def test_an_untouched_link_loses_no_frame_while_others_are_replugged() -> None:
    """The interfaces and the datapath stay unchanged, too."""
    with Cluster.star(4).up() as cluster, frames_between(cluster, ("n2", "n3"), ("n3", "n2")) as traffic:
        before = {node: namespace_contents(cluster[node].namespace) for node in ("n2", "n3")}
        for _ in range(3):
            with cluster.inject("n1", delay="1ms"), cluster.inject("n4", loss="3%"):
                traffic.wait(50)
            traffic.wait(50)
        assert {node: namespace_contents(cluster[node].namespace) for node in ("n2", "n3")} == before
        flows = traffic.stop()
        eventually(lambda: all(len(flow.arrived) >= flow.sent for flow in traffic.update()), "every frame arrives")
        for flow in flows:
            assert flow.arrived == list(range(1, flow.sent + 1))


@pytest.mark.parametrize("shape", ["back-to-back", "star", "dumbbell"])
@pytest.mark.parametrize("datapath", DATAPATHS)
def test_frames_lost_during_replugging_are_counted(shape: str, datapath: ConfiguredDatapath) -> None:
    """Frames sent equal frames received plus those reported as lost in events."""
    shapes = {
        "back-to-back": Cluster.back_to_back,
        "star": lambda: Cluster.star(2),
        "dumbbell": lambda: Cluster.dumbbell(1, 1),
    }
    with (
        shapes[shape]().up(datapath=datapath) as cluster,
        frames_between(cluster, ("n1", "n2"), ("n2", "n1")) as traffic,
    ):
        uncounted = []  # by replugging
        reported_before = 0
        missing_before = [flow.arrived[-1] - len(flow.arrived) for flow in traffic.update()]

        def check_counts() -> None:
            """Record the difference between missing frames and reported losses since the last check."""
            nonlocal reported_before
            traffic.wait(50)
            reported = sum(event["lost"] for event in events_of(cluster, "replugged"))
            lost = 0
            for index, flow in enumerate(traffic.flows):
                missing = flow.arrived[-1] - len(flow.arrived)
                lost += missing - missing_before[index]
                missing_before[index] = missing
            uncounted.append(lost - (reported - reported_before))
            reported_before = reported

        for _ in range(5):
            with cluster.inject("all", **({"delay": "1ms"} if datapath == "relay" else {"loss_pattern": "999999"})):  # type: ignore[arg-type]
                check_counts()
            check_counts()
        for flow in traffic.flows:
            assert len(flow.arrived) == len(set(flow.arrived)), "no frame arrives twice"
            reordered = [index for index, (first, second) in enumerate(pairwise(flow.arrived)) if first > second]
            times = sum(second - first > 100 for first, second in pairwise([-1000, *reordered]))
            # When a link leaves the relay, its queued frames are overtaken by those on the direct path.
            assert times <= (5 if datapath == "relay" else 0)
        if datapath == "relay":
            assert reported_before == 0, all_events(cluster)
        assert uncounted == [0] * 10, all_events(cluster)


# Cuts, partitions, timed injections


def has_carrier(cluster: RunningCluster, node: str) -> bool:
    (entry,) = query(cluster[node].namespace, "ip", "link", "show", "eth0")
    return "LOWER_UP" in entry["flags"]


@pytest.mark.parametrize("impaired", [False, True])
def test_a_cut_link_has_no_carrier_until_it_is_healed(impaired: bool) -> None:
    with Cluster.star(3).up() as cluster:
        if impaired:
            cluster.inject("n1", delay="1ms")
        ping(cluster, "n1", "n2")
        with cluster.cut("n1"):
            assert not has_carrier(cluster, "n1")
            assert has_carrier(cluster, "n2")
            assert cluster["n1"].run(["ping", "-n", "-q", "-c1", "-W1", "n2"], check=False).returncode != 0
            ping(cluster, "n2", "n3")
        assert has_carrier(cluster, "n1")
        ping(cluster, "n1", "n2")
        cluster.heal()


def test_cutting_and_healing_a_link_does_not_scan_the_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scans of all nodes would occupy most of a core while a link of a hundred-node cluster flaps."""

    def contents(_self: NetlinkExecutor, keys: object) -> dict[str, Contents]:
        raise AssertionError(f"scan of {keys}")

    with Cluster.star(3, loss="10%").up() as cluster:
        monkeypatch.setattr(NetlinkExecutor, "contents", contents)
        with cluster.cut("n2"):
            assert [has_carrier(cluster, f"n{n}") for n in (1, 2, 3)] == [True, False, True]
        assert has_carrier(cluster, "n2")


def test_a_partition_drops_frames_between_its_groups_and_forwards_those_within() -> None:
    with Cluster.star(5).up() as cluster, node_sockets.nic_sockets(cluster) as nics:
        with cluster.partition(["n1", "n2"], ["n3", "n4"]):
            nics["n1"].send(node_sockets.numbered_frame(node_sockets.BROADCAST, node_sockets.mac(cluster, "n1"), 1))
            node_sockets.wait_until_readable(nics["n2"])
            nics["n5"].send(node_sockets.numbered_frame(node_sockets.BROADCAST, node_sockets.mac(cluster, "n5"), 2))
            for node, expected in (("n2", [1, 2]), ("n3", [2]), ("n4", [2]), ("n1", [2])):
                arrived: list[int] = []
                while 2 not in arrived:
                    node_sockets.wait_until_readable(nics[node])
                    arrived += node_sockets.frame_numbers(node_sockets.received(nics[node]))
                assert arrived == expected, node
            ping(cluster, "n1", "n2")
            ping(cluster, "n3", "n4")
            ping(cluster, "n5", "n1")
        ping(cluster, "n1", "n3")
        assert relayed_links(cluster) == {}


def test_a_timed_injection_heals_itself(pair: RunningCluster) -> None:
    before = kernel_state(pair)
    pair.inject("all", delay="1ms", seconds=0.2)
    pair.cut("all", seconds=0.3)
    lasting = pair.inject("all", duplicate="10%")
    eventually(lambda: len(pair.state.injected) == 1, "two of three injections have been lifted")
    eventually(lambda: len(events_of(pair, "heal")) == 2, "both are logged")
    assert [event["number"] for event in events_of(pair, "heal")] == [1, 2]
    assert impairments(pair, "n1:eth0--n2:eth0") == (Impairment(duplicate=0.1),) * 2
    lasting.lift()
    assert kernel_state(pair) == before


# Declared and injected impairments


def test_up_changes_declared_impairments_and_keeps_injected_ones() -> None:
    with up(declared(delay="2ms")) as cluster:
        fault = cluster.inject("n1", corrupt="1%")
        lasting = cluster.inject("n2", delay="5ms")
        up(declared(delay="3ms", loss="1%"))
        assert impairments(cluster) == (Impairment(delay=3 * MS, loss=0.01, corrupt=0.01),) * 2
        assert impairments(cluster, "n2:eth0--s1:2") == (Impairment(delay=5 * MS),) * 2
        assert up(declared(delay="3ms", loss="1%")).state.injected == cluster.state.injected
        fault.lift()
        assert impairments(cluster) == (Impairment(delay=3 * MS, loss=0.01),) * 2
        up(declared())
        assert relayed_links(cluster).keys() == {"n2:eth0--s1:2"}
        lasting.lift()
        assert relayed_links(cluster) == {}


def test_state_and_events_show_the_impairments_in_force(pair: RunningCluster) -> None:
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
    assert pair.state.injected[0].number == 2, "numbers are not reused"
    pair.heal()


# Rejected injections, without effect


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
    before = kernel_state(pair)
    with pytest.raises(error) as caught:
        pair.inject(target, **impairment)
    assert message in str(caught.value)
    assert pair.state.injected == ()
    assert kernel_state(pair) == before
    assert events_of(pair, "inject") == []


@pytest.mark.parametrize(
    ("key", "text", "line"), [("rate_trace", "1\n2\nthree\n", 3), ("jitter_file", "1ms\n\n2ms\n", 2)]
)
def test_a_malformed_file_is_reported_with_its_line(
    pair: RunningCluster, tmp_path: Path, key: str, text: str, line: int
) -> None:
    file = tmp_path / "broken.txt"
    file.write_text(text)
    more: dict[str, Any] = {"distribution": "trace"} if key == "jitter_file" else {}
    with pytest.raises(BrokenFileError) as caught:
        pair.inject("all", **{key: str(file)}, **more)  # type: ignore[arg-type]
    assert f"{file}, line {line}" in str(caught.value)
    assert pair.state.injected == ()


def test_an_injection_that_contradicts_the_impairment_in_force_is_rejected(pair: RunningCluster) -> None:
    pair.inject("all", delay="1ms", jitter="100us")
    with pytest.raises(DescriptionError, match="jitter without a delay"):
        pair.inject("all", delay=0)
    assert impairments(pair, "n1:eth0--n2:eth0") == (Impairment(delay=MS, jitter=100_000),) * 2
    ping(pair, "n1", "n2")
    pair.heal()


def test_a_rule_that_never_matched_is_reported_as_idle(pair: RunningCluster) -> None:
    with pair.inject("all", rules=["drop udp.dport == 7", "delay 1ms icmp or eth.type == 0x0806"]):
        ping(pair, "n1", "n2")
        idle = relay_report(pair)["idle_rules"]
    assert any("'drop udp.dport == 7' has never matched a frame" in sentence for sentence in idle)
    assert not any("delay 1ms" in sentence for sentence in idle)


def test_healing_an_unknown_injection_is_rejected(pair: RunningCluster) -> None:
    with pytest.raises(NotFoundError, match="no injection 3; none is in force"):
        fault_injection.heal(Store(), pair.name, [3])
    assert fault_injection.heal(Store(), pair.name) == ()
