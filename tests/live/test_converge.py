"""``up`` converges: afterwards the kernel's state matches the description, and correct objects are untouched.

iproute2 reads the kernel's state, independent of the product's own dump.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from testbed import Cluster, RunningCluster
from testbed.cluster.lifecycle import ApplyResult
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.veth_wiring import Wiring
from testbed.cluster.records.state import Store
from testbed.cluster.startup import bring_up
from testbed.errors import ConflictError, DescriptionError, NotFoundError
from testbed.kernel import rtnl_dump
from testbed.kernel.namespaces import open_path
from testbed.spec.layout import Layout
from testbed.spec.model import Defaults, Description, Link, Nic, Node, Switch
from testbed.spec.resolver import resolve
from tests.live.forked_children import LONG
from tests.live.iproute2 import (
    NamespaceContents,
    namespace_contents,
    ping,
    ports,
    query,
    redirections,
    static_forwarding,
    wire_path,
)
from tests.live.machine_state import Machine
from tests.unit.spec.cluster_strategies import descriptions, edits

pytestmark = [pytest.mark.requires("root", "ip"), pytest.mark.usefixtures("machine")]

NAME = "converge"


def up(description: Description, origin: str = "a test", **options: bool) -> ApplyResult:
    layout = resolve(description)
    return bring_up(Store(), layout, name=NAME, origin=origin, lasting=True, **options)


@pytest.fixture
def down_at_the_end(machine: Machine) -> Iterator[None]:  # noqa: ARG001  (its check runs after this fixture's end)
    """Take the cluster down at the end."""
    yield
    take_down()


def take_down() -> None:
    if Store().read(NAME) is not None:
        RunningCluster.attach(NAME).down()


def contents(outcome: ApplyResult) -> dict[str, NamespaceContents]:
    return {key: namespace_contents(path) for key, path in outcome.state.namespaces.items()}


def assert_equal(outcome: ApplyResult, layout: Layout) -> dict[str, NamespaceContents]:
    """Assert that the kernel has exactly this layout; return the namespaces' contents."""
    actual = contents(outcome)
    assert actual.keys() == {namespace_names.WIRE, *(node.name for node in layout.nodes)}
    for node in layout.nodes:
        remote = actual[node.name]
        assert remote.links.keys() == {nic.name for nic in node.nics}
        for nic in node.nics:
            link = remote.links[nic.name]
            assert (link.kind, link.mac, link.mtu, link.up) == ("veth", nic.mac, nic.mtu, True)
            assert {text for text in link.addresses if not text.startswith("fe80:")} == set(nic.addresses)
        assert remote.routes == {(route.destination, route.via) for route in node.routes}
        ip_forward = Path("/proc/sys/net/ipv4/ip_forward")
        if len(node.nics) > 1:
            path = outcome.state.namespaces[node.name]
            result = subprocess.run(["nsenter", f"--net={path}", "cat", ip_forward], capture_output=True, check=True)
            assert result.stdout == (b"1\n" if node.forwards else b"0\n")
    assert_wire_equals(outcome, layout, actual)
    return actual


def assert_wire_equals(outcome: ApplyResult, layout: Layout, found: Mapping[str, NamespaceContents]) -> None:
    wiring = Wiring(layout)
    wire = wire_path(outcome.state)
    links = found[namespace_names.WIRE].links
    switches = {namespace_names.switch(switch.name): switch for switch in layout.switches}
    assert links.keys() == switches.keys() | {device for _, device in wiring.wire_devices}
    for device in switches:
        assert (links[device].kind, links[device].up) == ("bridge", True)
        (bridge,) = query(wire, "ip", "-d", "link", "show", device)
        settings = bridge["linkinfo"]["info_data"]
        assert (settings["stp_state"], settings["mcast_snooping"]) == (0, 0)
    for cable in wiring.cables:
        near, far = (found[key].links[device] for key, device in (cable.near, cable.far))
        assert (near.peer, far.peer) == (far.index, near.index)
        assert near.mtu == far.mtu == cable.mtu
        assert near.up
        assert far.up
    settings_of = ports(wire)
    for switch in layout.switches:
        for number, device in wiring.ports[switch.name].items():
            port = settings_of[device[1]]
            floods = switch.learns or number in switch.tree
            assert port["master"] == namespace_names.switch(switch.name)
            assert (port["learning"], port["flood"], port["mcast_flood"], port["bcast_flood"]) == (
                switch.learns, floods, floods, floods,
            )  # fmt: skip
    entries = {
        (namespace_names.switch(switch.name), mac): wiring.ports[switch.name][number][1]
        for switch in layout.switches
        for mac, number in switch.forwarding.items()
    }
    assert static_forwarding(wire) == entries
    for _, (_, first), (_, second) in wiring.joins:
        assert links[first].master == links[second].master == ""
        assert redirections(wire, first) == [second]
        assert redirections(wire, second) == [first]


def common_nics(before: Layout, after: Layout) -> list[tuple[str, str]]:
    """Return the NICs that both layouts have."""
    nics = {(node.name, nic.name) for node in before.nodes for nic in node.nics}
    return sorted(nics & {(node.name, nic.name) for node in after.nodes for nic in node.nics})


@settings(max_examples=200 if LONG else 12)
@given(st.data())
def test_the_kernels_state_equals_the_description_before_and_after_an_edit(data: st.DataObject) -> None:
    first = data.draw(descriptions(max_nodes=5), label="first")
    second = data.draw(edits(first), label="second")
    before, after = resolve(first), resolve(second)
    try:
        contents_before = assert_equal(up(first), before)
        assert up(first).operations == ()
        changed = up(second)
        event(f"{min(len(changed.operations), 20)} operations")
        contents_after = assert_equal(changed, after)
        assert up(second).operations == ()
        touched = {getattr(operation, "device", "") for operation in changed.operations}
        for node, nic in common_nics(before, after):
            assert contents_after[node].links[nic].index == contents_before[node].links[nic].index
            if not {namespace_names.far_end(node, nic), nic} & touched:
                assert contents_after[node].links[nic] == contents_before[node].links[nic]
    finally:
        take_down()


# Untouched links


def counters(outcome: ApplyResult, key: str, device: str) -> tuple[int, rtnl_dump.Counters]:
    namespace = open_path(outcome.state.namespaces[key])
    try:
        actual = rtnl_dump.by_name(rtnl_dump.interfaces(namespace.route))[device]
    finally:
        namespace.close()
    return actual.index, actual.counters


@pytest.mark.requires("ping")
def test_an_untouched_link_carries_traffic_through_every_change(down_at_the_end: None) -> None:  # noqa: ARG001
    """No ping between two nodes is lost while other nodes are added, removed and moved."""
    changes = [
        Description.dumbbell(2, 2),
        Description.dumbbell(3, 2),
        Description.dumbbell(2, 4),
        Description.dumbbell(2, 2),
    ]
    outcome = up(changes[0])
    cluster = RunningCluster.attach(NAME)
    ping_process = cluster["n1"].popen(["ping", "-n", "-q", "-i0.002", "n2"], stdout=subprocess.PIPE)
    index, before = counters(outcome, "n1", "eth0")
    for change in changes[1:]:
        outcome = up(change)
    ping_process.send_signal(2)  # SIGINT: ping then prints its statistics
    output, _ = ping_process.communicate(timeout=20)
    assert " 0% packet loss" in output, output
    index_after, after = counters(outcome, "n1", "eth0")
    assert index_after == index
    assert after.tx_packets > before.tx_packets


@pytest.mark.requires("ping")
def test_a_link_moved_to_another_switch_works_at_once(down_at_the_end: None) -> None:  # noqa: ARG001
    """The switches forget the port at which they learned the node's address."""

    def line(switch: str) -> Description:
        links = [["n1", switch], ["n2", "s2"], ["n3", "s3"], ["s1", "s2"], ["s2", "s3"]]
        return Description(
            name="line",
            nodes=[Node(name=f"n{n}") for n in (1, 2, 3)],
            switches=[Switch(name=f"s{n}") for n in (1, 2, 3)],
            links=[Link(ends=ends) for ends in links],
        )

    before = contents(up(line("s1")))
    cluster = RunningCluster.attach(NAME)
    for source in ("n2", "n3"):
        ping(cluster, source, "n1")
    for switch in ("s3", "s2", "s1"):
        after = contents(up(line(switch)))
        assert after["n1"] == before["n1"]
        cluster["n2"].run(["ping", "-n", "-c1", "-W1", "n1"])
        cluster["n3"].run(["ping", "-n", "-c1", "-W1", "n1"])


@pytest.mark.requires("ping")
def test_a_cable_between_nodes_moves_to_a_switch_to_another_node_and_back(down_at_the_end: None) -> None:  # noqa: ARG001
    def describe(*pairs: str, datapath: str = "auto") -> Description:
        links = [Link(ends=pair.split(), datapath=datapath) for pair in pairs]
        nodes = [Node(name=f"n{n}", nics=[Nic(name="eth0")]) for n in range(1, 5)]
        return Description(name="pairs", nodes=nodes, switches=[Switch(name="s1")], links=links)

    def ping_pairs(*pairs: str) -> None:
        for pair in pairs:
            first, second = (end.partition(":")[0] for end in pair.split())
            ping(RunningCluster.attach(NAME), first, second)

    steps = [
        ["n1:eth0 n2:eth0", "n3:eth0 n4:eth0"],
        ["n1:eth0 n3:eth0", "n2:eth0 n4:eth0"],
        ["n1:eth0 s1", "n2:eth0 s1", "n3:eth0 n4:eth0"],
        ["n1:eth0 n2:eth0", "n3:eth0 n4:eth0"],
    ]
    indexes = set()
    for step in steps:
        description = describe(*step)
        kernel_contents = assert_equal(up(description), resolve(description))
        indexes.add(kernel_contents["n1"].links["eth0"].index)
        ping_pairs(*(pair for pair in step if "s1" not in pair))
    assert len(indexes) == 1
    for step in (steps[0], steps[1], steps[0]):
        description = describe(*step, datapath="direct")
        assert_equal(up(description), resolve(description))
        ping_pairs(*step)
        assert up(description).operations == ()


# Changes by users


def run_in_namespace(outcome: ApplyResult, key: str, *command: str) -> None:
    subprocess.run(["nsenter", f"--net={outcome.state.namespaces[key]}", *command], check=True)


def test_users_additions_to_a_node_survive(down_at_the_end: None) -> None:  # noqa: ARG001
    outcome = up(Description.star(2))
    run_in_namespace(outcome, "n1", "ip", "link", "add", "mine0", "type", "veth", "peer", "name", "mine1")
    run_in_namespace(outcome, "n1", "ip", "address", "add", "192.168.7.1/24", "dev", "mine0")
    run_in_namespace(outcome, "n1", "ip", "link", "set", "mine0", "up")
    run_in_namespace(outcome, "n1", "ip", "link", "add", "link", "eth0", "name", "mac0", "type", "macvlan")
    run_in_namespace(outcome, "n1", "ip", "route", "add", "10.99.0.0/16", "via", "10.0.0.2")
    run_in_namespace(
        outcome, "n1", "ip", "route", "add", "10.98.0.0/16", "via", "10.0.0.2", "proto", "static", "table", "77"
    )
    before = query(outcome.state.namespaces["n1"], "ip", "address")
    assert up(Description.star(2)).operations == ()
    up(Description.star(3))
    up(Description.star(2))
    after = query(outcome.state.namespaces["n1"], "ip", "address")
    assert after == before
    routes = {entry["dst"] for entry in query(outcome.state.namespaces["n1"], "ip", "route", "show", "table", "all")}
    assert {"10.99.0.0/16", "10.98.0.0/16"} <= routes


DAMAGE = {
    "a NIC deleted": ("n1", "ip link del eth0"),
    "a wire end deleted": ("", "ip link del n1.eth0"),
    "a trunk deleted": ("", "ip link del s1.s2"),
    "a switch deleted": ("", "ip link del s1"),
    "a NIC set down": ("r1", "ip link set eth0 down"),
    "a wire end set down": ("", "ip link set r1.eth1 down"),
    "a switch set down": ("", "ip link set s2 down"),
    "a trunk end set down": ("", "ip link set s2.s1 down"),
    "a port taken out of its switch": ("", "ip link set n1.eth0 nomaster"),
    "another MTU": ("n1", "ip link set eth0 mtu 1300"),
    "another MAC": ("n1", "ip link set eth0 address 02:00:00:00:00:99"),
    "a NIC renamed": ("n1", "ip link set eth0 name other"),
    "an address deleted": ("n2", "ip address del 10.0.0.2/16 dev eth0"),
    "another address added": ("n2", "ip address add 10.0.0.99/16 dev eth0"),
    "all addresses deleted": ("n1", "ip address flush dev eth0"),
    "the routes deleted": ("n1", "ip route flush proto static"),
    "another static route": ("n1", "ip route add 10.77.0.0/16 via 10.0.0.2 proto static"),
    "routing switched off": ("r1", "sysctl -qw net.ipv4.ip_forward=0"),
    "a redirection deleted": ("", "tc filter del dev r1.eth1 ingress"),
    "a hook for redirection deleted": ("", "tc qdisc del dev n3.eth0 clsact"),
    "a foreign link in the wire namespace": ("", "ip link add odd0 type veth peer name odd1"),
}


@pytest.fixture
def damaged(machine: Machine) -> Iterator[Description]:  # noqa: ARG001  (its check runs after this fixture's end)
    """Two switches, a router and a cable between nodes: one of each kind of element."""
    description = Description(
        name="damage",
        network6="fd00:5::/48",
        nodes=[Node(name=name) for name in ("n1", "n2", "r1", "n3")],
        switches=[Switch(name="s1"), Switch(name="s2")],
        links=[Link(ends=ends) for ends in (["n1", "s1"], ["n2", "s2"], ["s1", "s2"], ["r1", "s2"], ["r1", "n3"])],
    )
    up(description)
    yield description
    take_down()


class TestRepair:
    pytestmark = pytest.mark.requires("ip", "ping", "ipv6")

    @pytest.mark.parametrize(("key", "command"), DAMAGE.values(), ids=DAMAGE)
    def test_up_repairs(self, damaged: Description, key: str, command: str) -> None:
        run_in_namespace(up(damaged), key, *command.split())
        repaired = up(damaged)
        assert repaired.operations != ()
        if "name other" in command:  # the renamed NIC must be gone
            assert "other" not in namespace_contents(repaired.state.namespaces["n1"]).links
        assert_equal(repaired, resolve(damaged))
        assert up(damaged).operations == ()
        cluster = RunningCluster.attach(NAME)
        ping(cluster, "n1", "n3")
        ping(cluster, "n2", "n1")

    def test_up_restores_a_deleted_namespace(self, damaged: Description) -> None:
        for node in ("r1", "n1", "n3"):
            subprocess.run(["ip", "netns", "del", f"{NAME}.{node}"], check=True)
            assert_equal(up(damaged), resolve(damaged))
            assert up(damaged).operations == ()
        ping(RunningCluster.attach(NAME), "n1", "n3")

    def test_restoring_a_deleted_namespace_ends_its_old_programs(self, damaged: Description) -> None:
        with RunningCluster.attach(NAME)["n1"].popen(["sleep", "1000"]) as program:
            subprocess.run(["ip", "netns", "del", f"{NAME}.n1"], check=True)
            up(damaged)
            assert program.wait(10) < 0

    def test_up_restores_the_wire_namespace(self, damaged: Description) -> None:
        subprocess.run(["ip", "netns", "del", NAME], check=True)
        assert_equal(up(damaged), resolve(damaged))
        ping(RunningCluster.attach(NAME), "n1", "n3")


# Dry runs and rejected calls


def test_a_dry_run_lists_the_operations_and_changes_nothing(machine: Machine) -> None:
    outcome = up(Description.star(2), dry_run=True)
    assert [str(operation) for operation in outcome.operations][:2] == ["make the wire namespace", "make node n1"]
    machine.assert_unchanged()
    try:
        first = up(Description.star(2))
        with_cluster = Machine()
        before = contents(first)
        outcome = up(Description.star(3), dry_run=True)
        assert "make node n3" in [str(operation) for operation in outcome.operations]
        with_cluster.assert_unchanged()
        assert contents(first) == before
        assert Store().read(NAME) == first.state
    finally:
        take_down()


def test_a_cluster_of_another_origin_is_a_conflict_that_names_both(down_at_the_end: None) -> None:  # noqa: ARG001
    before = contents(up(Description.star(2), origin="/one/star.toml"))
    with pytest.raises(ConflictError) as caught:
        up(Description.star(3), origin="/other/star.toml")
    for part in (NAME, "/one/star.toml", "/other/star.toml", "--replace"):
        assert part in str(caught.value)
    state = Store().read(NAME)
    assert state is not None
    assert state.origin == "/one/star.toml"
    replaced = up(Description.line(3), origin="/other/star.toml", replace_other=True)
    actual = assert_equal(replaced, resolve(Description.line(3)))
    assert actual["n1"] != before["n1"]
    assert up(Description.line(3), origin="/other/star.toml").operations == ()


def test_a_description_that_cannot_be_brought_up_replaces_nothing(down_at_the_end: None) -> None:  # noqa: ARG001
    first = up(Description.star(2), origin="/one/star.toml")
    invalid = Description.star(2, delay="1ms", jitter="1ms", distribution="table", jitter_file="/missing")
    with pytest.raises(NotFoundError, match="missing"):
        up(invalid, origin="/other/star.toml", replace_other=True)
    assert Store().read(NAME) == first.state
    assert up(Description.star(2), origin="/one/star.toml").operations == ()


def test_an_unknown_datapath_is_rejected_before_anything_is_made() -> None:
    with pytest.raises(DescriptionError, match="datapath: found 'rely', expected auto, direct, netem, tc, relay"):
        Cluster.star(2, loss="1%").up(name=NAME, datapath="rely")  # type: ignore[arg-type]


def test_up_on_a_cluster_of_a_running_program_is_a_conflict() -> None:
    with Cluster.star(2).up(name=NAME), pytest.raises(ConflictError, match="belongs to the running process"):
        up(Description.star(3))


def test_a_cluster_converges_between_different_shapes(down_at_the_end: None) -> None:  # noqa: ARG001
    """The shapes have only names in common."""
    shapes: list[Description] = [
        Description.star(4),
        Description.ring(4),
        Description.back_to_back(),
        Description.full_mesh(4),
        Description.line(3),
        Description.fat_tree(2),
        Description(name="big", nodes=[Node(name="n1")], defaults=Defaults(mtu=9000)),
        Description.dumbbell(2, 1),
    ]
    for description in shapes:
        assert_equal(up(description), resolve(description))
        assert up(description).operations == ()
