"""Splicing of links at run time, and its reversal: the operations, their order, and what stays unchanged.

After each operation the model of the kernel checks that no frame can loop or be duplicated.
"""

from __future__ import annotations

import copy
import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.draft import ExistingState
from testbed.cluster.plan.kernel_operations import (
    AddForwarding,
    AwaitCarrier,
    Divert,
    Drain,
    EndRedirect,
    Join,
    MakeCable,
    Operation,
    Part,
    Redirect,
    SetDevice,
    SetLoss,
    SetNetem,
    SetOffloads,
    SetShaper,
    SetUp,
)
from testbed.cluster.plan.link_services import LinkService, LinkServices
from testbed.cluster.plan.planner import plan
from testbed.cluster.plan.veth_wiring import Detour, Stage, Wiring
from testbed.errors import NotFoundError, UnsupportedError
from testbed.kernel.diversion import Diversion
from testbed.kernel.offloads import Offloads
from testbed.spec.layout import Impairment, Layout
from testbed.spec.model import Description, Link, Node, Switch
from testbed.spec.resolver import resolve
from tests.unit.cluster.kernel_model import Kernel, converged, interface_named, lines
from tests.unit.spec.cluster_strategies import descriptions, edits

LONG = bool(os.environ.get("TESTBED_LONG"))

LOSSY = Impairment(loss=0.01, rate=10**9)
JITTERY = Impairment(delay=1_000_000, jitter=100_000, distribution="normal")

RELAY = LinkService("relay", JITTERY, JITTERY)
DELAYED = Impairment(delay=1_000_000)
RELAY_GSO = LinkService("relay", DELAYED, DELAYED, gso=(True, True))
RELAY_GSO_FORWARD = LinkService("relay", DELAYED, JITTERY, gso=(True, False))
NETEM = LinkService("netem", JITTERY, LOSSY)
TC = LinkService("tc", LOSSY, LOSSY)
DIRECT = LinkService()

DIVERT_N1 = [
    "wait until port+n1.eth0 can send",
    "wait until free+n1.eth0 can send",
    "divert frames of n1.eth0 to the relay",
]

# The path between two nodes is closed while a qdisc of it is replaced.
CLOSED = ["stop redirecting n1.eth0", "stop redirecting n2.eth0", "drain bwd+n1.eth0", "drain fwd+n1.eth0"]
OPENED = ["redirect n1.eth0 to fwd+n1.eth0", "redirect n2.eth0 to bwd+n1.eth0"]

SHAPES = [
    Description.star(3),
    Description.line(3),
    Description.ring(3),
    Description.fat_tree(2),
    Description.full_mesh(3),
    Description.back_to_back(),
]


def link_between(layout: Layout, *owners: str) -> str:
    """Return the name of the first link between two elements."""
    return next(link.name for link in layout.links if {link.a.owner, link.b.owner} == set(owners))


def contents(kernel: Kernel) -> dict[str, object]:
    """Return the kernel's complete state, without the model's own records."""
    return {
        name: copy.deepcopy(value)
        for name, value in vars(kernel).items()
        if name not in ("link_services", "nics", "hooks")  # an unused hook does nothing
    }


# Operations and their order


def test_a_node_at_a_switch_stays_plugged_in_while_its_frames_are_diverted() -> None:
    layout = resolve(Description.star(2))
    kernel = converged(layout)
    name = link_between(layout, "n1", "s1")
    assert lines(kernel.converge(layout, {name: RELAY})) == [
        "make patch n1:eth0--s1:1",
        "set free+n1.eth0 in the wire namespace up",
        "set offloads of eth0 in n1 off",
        "set offloads of port+n1.eth0 in the wire namespace off",
        *DIVERT_N1,
    ]
    assert lines(kernel.converge(layout)) == [
        "stop diverting frames of n1.eth0",
        "set offloads of eth0 in n1 on",
        "remove port+n1.eth0",
        "remove free+n1.eth0",
    ]


def test_the_link_of_a_node_to_a_switch_is_spliced_with_a_patch_for_a_kernel_datapath() -> None:
    layout = resolve(Description.star(2))
    kernel = converged(layout)
    plan_lines = lines(kernel.converge(layout, {link_between(layout, "n1", "s1"): NETEM}))
    assert plan_lines == [
        "make patch n1:eth0--s1:1",
        "make patch n1:eth0--s1:1",
        "set port port+n1.eth0 not learning, not flooding",
        "set port+n1.eth0 in the wire namespace up",
        "set free+n1.eth0 in the wire namespace up",
        "set bwd+n1.eth0 in the wire namespace up",
        "set offloads of eth0 in n1 off",
        "set offloads of port+n1.eth0 in the wire namespace off",
        "let netem impair outgoing frames of fwd+n1.eth0: delay 1ms, jitter 100us normal",
        "let netem impair outgoing frames of bwd+n1.eth0: rate 1gbit, loss 1%",
        *(f"wait until {end}+n1.eth0 can send" for end in ("fwd", "bwd", "port", "free")),
        "redirect fwd+n1.eth0 to n1.eth0",
        "redirect bwd+n1.eth0 to free+n1.eth0",
        "redirect free+n1.eth0 to bwd+n1.eth0",
        "prepare to redirect n1.eth0",
        "prepare to redirect outgoing frames of n1.eth0",
        "redirect outgoing frames of n1.eth0 to port+n1.eth0",
        "redirect n1.eth0 to fwd+n1.eth0",
        "set port port+n1.eth0 learning, not flooding",
    ]
    assert lines(kernel.converge(layout)) == [
        "stop redirecting outgoing frames of n1.eth0 for now",
        "set port port+n1.eth0 not learning, not flooding",
        "stop redirecting n1.eth0 for now",
        "flush the addresses learned at port+n1.eth0",
        "drain bwd+n1.eth0",
        "drain fwd+n1.eth0",
        "set offloads of eth0 in n1 on",
        "stop redirecting outgoing frames of n1.eth0",
        "stop redirecting n1.eth0",
        *(f"remove {end}+n1.eth0" for end in ("port", "free", "fwd", "bwd")),
    ]


def test_two_nodes_stay_joined_while_their_frames_are_diverted() -> None:
    layout = resolve(Description.back_to_back())
    kernel = converged(layout)
    name = link_between(layout, "n1", "n2")
    assert lines(kernel.converge(layout, {name: RELAY})) == [
        "make patch n1:eth0--n2:eth0",
        "set free+n1.eth0 in the wire namespace up",
        "set offloads of eth0 in n1 off",
        "set offloads of eth0 in n2 off",
        "wait until port+n1.eth0 can send",
        "wait until free+n1.eth0 can send",
        "divert frames of n1.eth0 to the relay",
        "divert frames of n2.eth0 to the relay",
    ]
    assert lines(kernel.converge(layout)) == [
        "stop diverting frames of n1.eth0",
        "stop diverting frames of n2.eth0",
        "set offloads of eth0 in n1 on",
        "set offloads of eth0 in n2 on",
        "remove port+n1.eth0",
        "remove free+n1.eth0",
    ]


def test_offloads_are_disabled_before_the_new_path_is_opened_and_restored_at_the_end() -> None:
    """Only a direction that may carry GSO frames receives them."""
    layout = resolve(Description.star(2))
    kernel = converged(layout)
    name = link_between(layout, "n1", "s1")
    node, port = "offloads of eth0 in n1", "offloads of port+n1.eth0 in the wire namespace"
    assert lines(kernel.converge(layout, {name: RELAY_GSO_FORWARD})) == [
        "make patch n1:eth0--s1:1",
        "set free+n1.eth0 in the wire namespace up",
        f"set {node} on for TCP",
        f"set {port} off",
        *DIVERT_N1,
    ]
    assert lines(kernel.converge(layout, {name: RELAY_GSO})) == [f"set {port} on for TCP"]
    assert lines(kernel.converge(layout, {name: RELAY})) == [f"set {node} off", f"set {port} off"]
    assert lines(kernel.converge(layout, {name: RELAY_GSO})) == [f"set {node} on for TCP", f"set {port} on for TCP"]
    assert lines(kernel.converge(layout)) == [
        "stop diverting frames of n1.eth0",
        f"set {node} on",
        "remove port+n1.eth0",
        "remove free+n1.eth0",
    ]


@pytest.mark.parametrize("ends", [["n1", "s1"], ["s1", "n1"]], ids=" ".join)
def test_the_forward_sender_is_at_the_links_first_end(ends: list[str]) -> None:
    nodes = [Node(name="n1"), Node(name="n2")]
    links = [Link(ends=ends), Link(ends=["n2", "s1"])]
    layout = resolve(Description(name="x", nodes=nodes, switches=[Switch(name="s1")], links=links))
    kernel = converged(layout)
    link_services = {link_between(layout, "n1", "s1"): RELAY_GSO_FORWARD}
    kernel.converge(layout, link_services)
    assert_spliced(kernel, layout, link_services)
    receives_gso = kernel.offloads["n1"][interface_named(kernel, "n1", "eth0").index] is Offloads.TCP
    assert receives_gso == (ends[0] == "n1")


def test_two_nodes_that_netem_impairs_stay_joined() -> None:
    layout = resolve(Description.back_to_back())
    kernel = converged(layout)
    assert lines(kernel.converge(layout, {link_between(layout, "n1", "n2"): NETEM})) == [
        "make patch n1:eth0--n2:eth0",
        "set bwd+n1.eth0 in the wire namespace up",
        "set offloads of eth0 in n1 off",
        "set offloads of eth0 in n2 off",
        "let netem impair outgoing frames of fwd+n1.eth0: delay 1ms, jitter 100us normal",
        "let netem impair outgoing frames of bwd+n1.eth0: rate 1gbit, loss 1%",
        "wait until fwd+n1.eth0 can send",
        "wait until bwd+n1.eth0 can send",
        "redirect fwd+n1.eth0 to n1.eth0",
        "redirect bwd+n1.eth0 to n2.eth0",
        "redirect n1.eth0 to fwd+n1.eth0",
        "redirect n2.eth0 to bwd+n1.eth0",
    ]
    assert lines(kernel.converge(layout)) == [
        "stop redirecting n1.eth0",
        "stop redirecting n2.eth0",
        "drain bwd+n1.eth0",
        "drain fwd+n1.eth0",
        "set offloads of eth0 in n1 on",
        "set offloads of eth0 in n2 on",
        "remove fwd+n1.eth0",
        "remove bwd+n1.eth0",
    ]


def test_a_trunk_in_a_ring_is_cut_at_its_second_end() -> None:
    layout = resolve(Description.ring(3))
    kernel = converged(layout)
    operations = lines(kernel.converge(layout, {link_between(layout, "s1", "s2"): TC}))
    assert operations == [
        "make patch s1:2--s2:2",
        "make patch s1:2--s2:2",
        "set port port+s2.s1 not learning, not flooding",
        "set port+s2.s1 in the wire namespace up",
        "set free+s2.s1 in the wire namespace up",
        "set bwd+s2.s1 in the wire namespace up",
        "set offloads of s1.s2 in the wire namespace off",
        "set offloads of port+s2.s1 in the wire namespace off",
        "let a token bucket shape outgoing frames of fwd+s2.s1: rate 1gbit, loss 1%",
        "let a classifier lose incoming frames of s2.s1: rate 1gbit, loss 1%",
        "let a token bucket shape outgoing frames of bwd+s2.s1: rate 1gbit, loss 1%",
        "let a classifier lose incoming frames of free+s2.s1: rate 1gbit, loss 1%",
        *(f"wait until {end}+s2.s1 can send" for end in ("fwd", "bwd", "port", "free")),
        "redirect fwd+s2.s1 to s2.s1",
        "redirect bwd+s2.s1 to free+s2.s1",
        "redirect free+s2.s1 to bwd+s2.s1",
        "prepare to redirect s2.s1",
        "prepare to redirect outgoing frames of s2.s1",
        "redirect outgoing frames of s2.s1 to port+s2.s1",
        "redirect s2.s1 to fwd+s2.s1",
    ]
    assert lines(kernel.converge(layout))[:6] == [
        "stop redirecting outgoing frames of s2.s1 for now",
        "set port port+s2.s1 not learning, not flooding",
        "stop redirecting s2.s1 for now",
        "flush the addresses learned at port+s2.s1",
        "drain bwd+s2.s1",
        "drain fwd+s2.s1",
    ]


@pytest.mark.parametrize("ends", [["n1", "s1"], ["s1", "n1"]], ids=" ".join)
def test_forward_frames_leave_the_links_first_end(ends: list[str]) -> None:
    nodes = [Node(name="n1"), Node(name="n2")]
    links = [Link(ends=ends), Link(ends=["n2", "s1"])]
    layout = resolve(Description(name="x", nodes=nodes, switches=[Switch(name="s1")], links=links))
    forward, backward = Impairment(delay=1), Impairment(delay=2)
    operations = plan(
        layout, ExistingState(), {link_between(layout, "n1", "s1"): LinkService("netem", forward, backward)}
    )
    impairments = {
        operation.device: operation.impairment for operation in operations if isinstance(operation, SetNetem)
    }
    redirections = {
        (operation.device, operation.out_device) for operation in operations if isinstance(operation, Redirect)
    }
    assert ({("n1.eth0", "fwd+n1.eth0")} <= redirections) == (ends[0] == "n1")
    assert ({("n1.eth0", "bwd+n1.eth0")} <= redirections) == (ends[0] == "s1")
    assert impairments == {"fwd+n1.eth0": forward, "bwd+n1.eth0": backward}
    losing = plan(
        layout,
        ExistingState(),
        {link_between(layout, "n1", "s1"): LinkService("tc", Impairment(loss=0.5), Impairment())},
    )
    lost_at = [operation.device for operation in losing if isinstance(operation, SetLoss)]
    assert lost_at == ["n1.eth0" if ends[0] == "n1" else "free+n1.eth0"]


@pytest.mark.parametrize("datapath", ["netem", "tc"])
def test_a_new_path_is_opened_when_complete_and_closed_before_changes(datapath: str) -> None:
    link_service = {"netem": NETEM, "tc": TC}[datapath]
    other_datapath = {"netem": TC, "tc": NETEM}[datapath]
    layout = resolve(Description.ring(3))
    kernel = converged(layout)
    opening = kernel.converge(layout, {link.name: link_service for link in layout.links})
    changing = kernel.converge(layout, {link.name: other_datapath for link in layout.links})

    def positions(operations: list[Operation], *kinds: type[Operation]) -> list[int]:
        return [index for index, operation in enumerate(operations) if isinstance(operation, kinds)]

    def of_cables(operations: list[Operation], kind: type[EndRedirect] | type[Redirect]) -> list[int]:
        return [index for index in positions(operations, kind) if "+" not in operations[index].device]  # type: ignore[union-attr]

    prepared = positions(opening, MakeCable, SetUp, SetOffloads, SetNetem, SetShaper, SetLoss, AwaitCarrier)
    assert max(prepared) < min(positions(opening, Redirect))
    for operations in (opening, changing):
        assert positions(operations, SetDevice) == [], "no port leaves its switch"
    drained = positions(changing, Drain)
    disciplines = positions(changing, SetNetem, SetShaper)
    assert max(of_cables(changing, EndRedirect)) < min(drained)
    assert max(drained) < min(disciplines)
    assert max(disciplines) < min(of_cables(changing, Redirect))


def test_a_link_that_runs_is_diverted_last_and_a_new_one_before_a_nic_is_up() -> None:
    layout = resolve(Description.ring(3))
    link_services = {link.name: RELAY for link in layout.links}
    for kernel in (Kernel(), converged(layout)):
        was_running = bool(kernel.interfaces)
        operations = kernel.converge(layout, link_services)
        divert_indices = [index for index, operation in enumerate(operations) if isinstance(operation, Divert)]
        carrier_waits = [index for index, operation in enumerate(operations) if isinstance(operation, AwaitCarrier)]
        assert len(divert_indices) == len(layout.links)
        assert len(carrier_waits) == 2 * len(layout.links)
        if was_running:
            assert [*carrier_waits, *divert_indices] == list(range(carrier_waits[0], len(operations)))
        else:
            nodes = [
                index for index, operation in enumerate(operations) if isinstance(operation, SetUp) and operation.key
            ]
            assert divert_indices[-1] < nodes[0]


# Resulting state


@pytest.mark.parametrize("description", SHAPES, ids=lambda description: str(description.name))
@pytest.mark.parametrize(
    "path",
    [
        [RELAY],
        [NETEM],
        [TC],
        [RELAY_GSO],
        [RELAY, NETEM, TC, RELAY],
        [TC, NETEM, RELAY, TC],
        [RELAY_GSO, TC, RELAY_GSO_FORWARD, RELAY, RELAY_GSO],
    ],
)
def test_a_link_changes_between_datapaths_and_back(description: Description, path: list[LinkService]) -> None:
    layout = resolve(description)
    kernel = converged(layout)
    before = contents(kernel)
    for link_service in path:
        link_services = {link.name: link_service for link in layout.links}
        kernel.converge(layout, link_services)
        assert kernel.converge(layout, link_services) == []
        assert_spliced(kernel, layout, link_services)
    kernel.converge(layout)
    assert contents(kernel) == before
    assert kernel.converge(layout) == []


@pytest.mark.parametrize("description", SHAPES, ids=lambda description: str(description.name))
def test_links_can_come_up_spliced(description: Description) -> None:
    layout = resolve(description)
    link_services = {link.name: TC for link in layout.links}
    kernel = Kernel()
    kernel.converge(layout, link_services)
    assert kernel.converge(layout, link_services) == []
    assert_spliced(kernel, layout, link_services)
    kernel.converge(layout)
    assert contents(kernel) == contents(converged(layout))


def assert_spliced(kernel: Kernel, layout: Layout, link_services: LinkServices) -> None:
    wiring = Wiring.from_datapaths(
        layout, {name: link_service.datapath for name, link_service in link_services.items()}
    )
    for detour in wiring.detours.values():
        assert_diverted(kernel, detour)
    for name, splice in wiring.splices.items():
        link_service = link_services[name]
        a, b = interface_named(kernel, *splice.a), interface_named(kernel, *splice.b)
        assert a.up
        assert b.up
        if name in wiring.stages:
            assert_staged(kernel, layout, wiring.stages[name])
        for (key, device), gso in zip(splice.senders, link_service.gso, strict=True):
            expected_offloads = Offloads.TCP if gso else Offloads.NONE
            assert kernel.offloads[key][interface_named(kernel, key, device).index] is expected_offloads
        peers = [interface_named(kernel, *sender).peer for sender in splice.senders]
        assert peers == [a.index, b.index], "the senders towards A and B"
        expected = {"relay": "", "netem": "netem", "tc": "tbf"}[link_service.datapath]
        stage = wiring.stages.get(name)
        shaped = (
            (interface_named(kernel, *stage.forward), interface_named(kernel, *stage.backward))
            if stage is not None
            else (a, b)
        )
        qdisc_kinds = [kernel.qdiscs[end.index].kind if end.index in kernel.qdiscs else "" for end in shaped]
        assert qdisc_kinds == [expected] * 2
        assert ({a.index, b.index} <= kernel.classifiers.keys()) == (link_service.datapath == "tc")
    spliced_devices = {device for splice in wiring.splices.values() for device in splice.senders}
    for key, kernel_interface in kernel.interfaces.items():
        for interface in kernel_interface.values():
            if interface.kind == "veth" and (key, interface.name) not in spliced_devices:
                assert kernel.offloads[key][interface.index] is Offloads.ALL


def assert_staged(kernel: Kernel, layout: Layout, stage: Stage) -> None:
    redirections = {
        interface_named(kernel, *source).index: interface_named(kernel, *target).index
        for source, target in stage.redirections
    }
    assert redirections.items() <= kernel.staged.items()
    if stage.port is None:
        return
    port, patch = (
        interface_named(kernel, *stage.port),
        interface_named(kernel, "", namespace_names.patch(stage.port[1])[0]),
    )
    assert port.master == patch.master != 0
    assert kernel.redirected_egress[port.index] == patch.index
    learns = {interface_named(kernel, "", switch.name).index: switch.learns for switch in layout.switches}[port.master]
    assert (patch.learning, patch.flooding) == (learns, False)
    assert port.learning == learns
    assert port.flooding or not learns


def assert_diverted(kernel: Kernel, detour: Detour) -> None:
    near, far = interface_named(kernel, *detour.near), interface_named(kernel, *detour.far)
    assert near.up
    assert far.up
    assert near.master == far.master == 0
    first, *second = [interface_named(kernel, *end) for end in detour.ends]
    if second:
        assert kernel.diversions[first.index] == Diversion(near.index)
        assert kernel.diversions[second[0].index] == Diversion(far.index)
        assert kernel.redirections[first.index] == second[0].index
    else:
        assert kernel.diversions[first.index] == Diversion(near.index, near.index)
        assert kernel.diversions[near.index] == Diversion(first.index)
        assert first.master


def test_other_links_are_not_changed() -> None:
    layout = resolve(Description.fat_tree(4))
    kernel = converged(layout)
    trunk = next(
        link for link in layout.links if not {link.a.owner, link.b.owner} & {node.name for node in layout.nodes}
    )
    own_devices = set(Wiring(layout, [trunk.name]).link_devices[trunk.name])
    for link_services in ({trunk.name: NETEM}, {}):
        for operation in kernel.converge(layout, link_services):
            if not isinstance(operation, AddForwarding | Join):
                assert (namespace_names.WIRE, operation.device) in own_devices, operation  # type: ignore[union-attr]


def test_addresses_learned_at_other_ports_are_kept() -> None:
    layout = resolve(Description.line(3))
    kernel = converged(layout)
    link_services = {link.name: RELAY for link in layout.links}
    for step in (link_services, {}):
        assert not [
            line for line in lines(kernel.converge(layout, step)) if line.startswith(("flush", "stop forwarding"))
        ]


# Changes of impairments


def test_a_changed_impairment_is_set_in_place() -> None:
    layout = resolve(Description.back_to_back())
    kernel = converged(layout)
    (name,) = [link.name for link in layout.links]
    kernel.converge(layout, {name: LinkService("netem", JITTERY, JITTERY)})
    slower = replace(JITTERY, delay=2_000_000)
    assert lines(kernel.converge(layout, {name: LinkService("netem", slower, JITTERY)})) == [
        "let netem impair outgoing frames of fwd+n1.eth0: delay 2ms, jitter 100us normal"
    ]
    assert lines(kernel.converge(layout, {name: LinkService("netem", slower, Impairment())})) == [
        *CLOSED,
        "remove the queueing discipline of bwd+n1.eth0",
        *OPENED,
    ]


def test_a_changed_distribution_is_set_although_the_kernel_reports_none() -> None:
    layout = resolve(Description.back_to_back())
    kernel = converged(layout)
    (name,) = [link.name for link in layout.links]
    kernel.converge(layout, {name: LinkService("netem", JITTERY, JITTERY)})
    other_service = LinkService("netem", replace(JITTERY, distribution="pareto"), JITTERY)
    assert lines(kernel.converge(layout, {name: other_service})) == [
        "let netem impair outgoing frames of fwd+n1.eth0: delay 1ms, jitter 100us pareto"
    ]
    assert kernel.converge(layout, {name: other_service}) == []


def test_a_classifier_and_a_token_bucket_are_changed_and_removed_separately() -> None:
    layout = resolve(Description.back_to_back())
    kernel = converged(layout)
    (name,) = [link.name for link in layout.links]
    kernel.converge(layout, {name: LinkService("tc", LOSSY)})
    assert lines(kernel.converge(layout, {name: LinkService("tc", replace(LOSSY, loss=0.02))})) == [
        "let a classifier lose incoming frames of n1.eth0: rate 1gbit, loss 2%"
    ]
    assert lines(kernel.converge(layout, {name: LinkService("tc", Impairment(rate=10**8))})) == [
        "remove the classifier of n1.eth0",
        "let a token bucket shape outgoing frames of fwd+n1.eth0: rate 100mbit",
    ]
    assert lines(kernel.converge(layout, {name: LinkService("tc")})) == [
        "stop redirecting n1.eth0",
        "stop redirecting n2.eth0",
        "drain fwd+n1.eth0",
        "remove the queueing discipline of fwd+n1.eth0",
        *OPENED,
    ]


def test_a_distribution_table_is_read_from_the_given_files() -> None:
    layout = resolve(Description.back_to_back())
    (name,) = [link.name for link in layout.links]
    table = Impairment(delay=1000, jitter=100, distribution="table", jitter_file="/x.dist")
    operations = plan(layout, ExistingState(), {name: LinkService("netem", table)}, {"/x.dist": "-8192 0 8192"})
    (netem,) = [operation for operation in operations if isinstance(operation, SetNetem)]
    assert netem.options.table == (-8192, 0, 8192)
    with pytest.raises(NotFoundError, match=r"/x\.dist"):
        plan(layout, ExistingState(), {name: LinkService("netem", table)})


# Links that are down


def test_a_link_that_is_down_has_its_wire_end_down_until_it_is_up_again() -> None:
    layout = resolve(Description.line(2))
    kernel = converged(layout)
    down_links = {
        name: LinkService(down=True) for name in (link_between(layout, "n1", "s1"), link_between(layout, "s1", "s2"))
    }
    assert lines(kernel.converge(layout, down_links)) == [
        "set n1.eth0 in the wire namespace down",
        "set s1.s2 in the wire namespace down",
        "set s2.s1 in the wire namespace down",
    ]
    assert kernel.converge(layout, down_links) == []
    assert lines(kernel.converge(layout)) == [
        "set n1.eth0 in the wire namespace up",
        "set s1.s2 in the wire namespace up",
        "set s2.s1 in the wire namespace up",
    ]


@pytest.mark.parametrize("description", SHAPES, ids=lambda description: str(description.name))
def test_a_cluster_comes_up_with_links_down(description: Description) -> None:
    layout = resolve(description)
    for link_service in (LinkService(down=True), replace(RELAY, down=True), replace(NETEM, down=True)):
        kernel = Kernel()
        link_services = {link.name: link_service for link in layout.links}
        kernel.converge(layout, link_services)
        wire = [interface for interface in kernel.interfaces[""].values() if interface.kind == "veth"]
        assert not any(device.up for device in wire)
        assert kernel.converge(layout, link_services) == []
        kernel.converge(layout)
        assert all(interface.up for interface in kernel.interfaces[""].values())


def test_a_link_is_spliced_while_it_is_down() -> None:
    layout = resolve(Description.star(2))
    kernel = converged(layout)
    name = link_between(layout, "n1", "s1")
    kernel.converge(layout, {name: LinkService(down=True)})
    kernel.converge(layout, {name: replace(RELAY, down=True)})
    assert not any(
        interface.up
        for interface in kernel.interfaces[""].values()
        if interface.kind == "veth" and "n1" in interface.name
    )
    kernel.converge(layout)
    assert contents(kernel) == contents(converged(layout))


def test_a_spliced_link_is_removed_with_all_its_objects() -> None:
    kernel = converged(resolve(Description.star(2)))
    layout = resolve(Description(name="x", nodes=[Node(name="n1"), Node(name="n2")]))
    for link_service in (NETEM, TC, RELAY):
        star = resolve(Description.star(2))
        kernel.converge(star, {link.name: link_service for link in star.links})
        kernel.converge(layout)
        assert contents(kernel) == contents(converged(layout))


def test_a_direct_link_supports_no_impairment() -> None:
    links = [Link(ends=["n1", "n2"], datapath="direct")]
    layout = resolve(Description(name="x", nodes=[Node(name="n1"), Node(name="n2")], links=links))
    for link_service in (RELAY, LinkService(down=True)):
        with pytest.raises(ValueError, match="declared direct"):
            plan(layout, ExistingState(), {layout.links[0].name: link_service})


def test_the_datapath_of_an_unknown_link_is_none() -> None:
    layout = resolve(Description.star(2))
    assert converged(layout).converge(layout, {"n9:eth0--s1:9": RELAY}) == []


# Manual changes and interrupted plans


def test_offloads_enabled_by_another_process_are_disabled_again() -> None:
    layout = resolve(Description.star(2))
    kernel = converged(layout)
    link_services = {link_between(layout, "n1", "s1"): RELAY}
    kernel.converge(layout, link_services)
    kernel.offloads["n1"][interface_named(kernel, "n1", "eth0").index] = Offloads.ALL
    assert lines(kernel.converge(layout, link_services)) == ["set offloads of eth0 in n1 off"]


@pytest.mark.parametrize("link_service", [TC, RELAY])
def test_leftovers_of_a_killed_change_are_repaired(link_service: LinkService) -> None:
    """A plan interrupted after any operation is completed or reversed by the next; in CI, after every fourth."""
    layout = resolve(Description.ring(3))
    all_services = {link.name: link_service for link in layout.links}
    for before, after in ((all_services, {}), ({}, all_services)):
        kernel = Kernel()
        kernel.converge(layout, before)
        for count in range(0, len(plan(layout, kernel.existing(), after)), 1 if LONG else 4):
            halfway = copy.deepcopy(kernel)
            for operation in plan(layout, halfway.existing(), after)[:count]:
                halfway.execute(operation)
            for expected in (before, after):
                repaired = copy.deepcopy(halfway)
                repaired.converge(layout, expected)
                assert repaired.converge(layout, expected) == []
                assert_spliced(repaired, layout, expected)


def test_unneeded_hooks_are_removed() -> None:
    layout = resolve(Description.star(2))
    kernel = converged(layout)
    kernel.hooks.add(interface_named(kernel, "", "s1").index)
    operations = kernel.converge(layout)
    assert [type(operation) for operation in operations] == [Part]


def test_a_hook_removed_from_a_port_is_restored() -> None:
    layout = resolve(Description.star(2))
    kernel = converged(layout)
    kernel.hooks.remove(interface_named(kernel, "", "n1.eth0").index)
    assert lines(kernel.converge(layout)) == ["add a hook to n1.eth0"]


@pytest.mark.parametrize("part", ["filters", "patch", "return path"])
def test_parts_removed_from_a_diverted_link_are_restored(part: str) -> None:
    layout = resolve(Description.star(2))
    kernel = converged(layout)
    link_services = {link_between(layout, "n1", "s1"): RELAY}
    kernel.converge(layout, link_services)
    patch = interface_named(kernel, "", "port+n1.eth0").index
    match part:
        case "filters":
            del kernel.diversions[interface_named(kernel, "", "n1.eth0").index]
        case "patch":
            kernel.remove("", patch)
        case _:
            del kernel.diversions[patch]
    operations = kernel.converge(layout, link_services)
    assert lines(operations)[-1] == "divert frames of n1.eth0 to the relay"
    assert_spliced(kernel, layout, link_services)
    assert kernel.converge(layout, link_services) == []


@pytest.mark.parametrize("part", ["redirection", "patch", "stage", "cable", "port settings"])
def test_parts_removed_from_a_spliced_link_are_restored(part: str) -> None:
    layout = resolve(Description.star(2))
    kernel = converged(layout)
    link_services = {link_between(layout, "n1", "s1"): TC}
    kernel.converge(layout, link_services)
    match part:
        case "redirection":
            del kernel.staged[interface_named(kernel, "", "n1.eth0").index]
        case "patch":
            kernel.remove("", interface_named(kernel, "", "port+n1.eth0").index)
        case "stage":
            kernel.remove("", interface_named(kernel, "", "fwd+n1.eth0").index)
        case "cable":
            kernel.remove("", interface_named(kernel, "", "n1.eth0").index)
        case _:
            kernel.set_attributes("", interface_named(kernel, "", "n1.eth0").index, learning=True, flooding=True)
    kernel.converge(layout, link_services)
    assert_spliced(kernel, layout, link_services)
    assert kernel.converge(layout, link_services) == []


def test_more_ports_than_a_bridge_has_are_rejected() -> None:
    layout = resolve(Description.star(512))
    link_services = {link.name: TC for link in layout.links}
    with pytest.raises(UnsupportedError, match="1,024 ports"):
        plan(layout, ExistingState(), link_services)
    assert plan(layout, ExistingState(), {link.name: RELAY for link in layout.links})


def test_a_shaped_port_of_a_switch_becomes_an_end_of_a_shaped_link_between_nodes() -> None:
    kernel = Kernel()
    for links in ([["b", "s1"], ["x", "s1"]], [["b", "x"]]):
        layout = resolve(
            Description(
                name="moved", nodes=[Node(name="b"), Node(name="x")], switches=[Switch(name="s1")],
                links=[Link(ends=ends) for ends in links],
            )
        )  # fmt: skip
        link_services = {link.name: TC for link in layout.links}
        kernel.converge(layout, link_services)
        assert kernel.converge(layout, link_services) == []
        assert_spliced(kernel, layout, link_services)


@settings(max_examples=60)
@given(st.data())
def test_any_datapaths_of_any_cluster_converge_to_any_others(data: st.DataObject) -> None:
    """Random clusters, edits and link services."""
    kernel = Kernel()
    description = data.draw(descriptions())
    choices = [DIRECT, RELAY, NETEM, TC, LinkService(down=True), replace(TC, down=True)]
    for _ in range(3):
        layout = resolve(description)
        link_services = {
            link.name: data.draw(st.sampled_from(choices)) for link in layout.links if link.datapath != "direct"
        }
        kernel.converge(layout, link_services)
        assert kernel.converge(layout, link_services) == []
        if not any(link_service.down for link_service in link_services.values()):
            assert_spliced(kernel, layout, link_services)
        description = data.draw(st.one_of(edits(description), descriptions()))
