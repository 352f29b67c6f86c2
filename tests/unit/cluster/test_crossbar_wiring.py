"""Clusters with Myrinet switches: their kernel objects and the relay's orders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from testbed.cluster.faults.injections import Injection
from testbed.cluster.plan.draft import ExistingState
from testbed.cluster.plan.kernel_operations import MakeCable, MakeSwitch, SetDown, SetOffloads
from testbed.cluster.plan.link_decisions import Decisions, decide
from testbed.cluster.plan.planner import plan
from testbed.cluster.plan.veth_wiring import Wiring, free_ends
from testbed.errors import UnsupportedError
from testbed.kernel import capabilities
from testbed.kernel.datapaths import Capabilities
from testbed.kernel.offloads import Offloads
from testbed.runtime.relay.orders import Orders, SwitchPort
from testbed.spec.dilation import slow_layout
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.layout import ConfiguredDatapath, Layout
from testbed.spec.layout_json import from_json, to_json
from testbed.spec.model import Description
from testbed.spec.resolver import resolve

TRUNK = "s1:3--s2:2"


def layout() -> Layout:
    """Return a layout with n1 and n2 at two Myrinet switches, and n3 and n4 at an Ethernet switch."""
    kinds = {"s1": "myrinet", "s2": "myrinet", "s3": "ethernet"}
    return resolve(
        Description(
            name="mixed",
            nodes=[Node(name=f"n{number}") for number in range(1, 5)],
            switches=[
                Switch(name=name, kind="ethernet" if kind == "ethernet" else "myrinet") for name, kind in kinds.items()
            ],
            links=[Link(ends=pair.split()) for pair in ("n1 s1:1", "n2 s2:1", "s1:3 s2:2", "n3 s3", "n4 s3")],
        )
    )


@pytest.fixture(autouse=True)
def _relay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on a machine with a relay."""
    monkeypatch.setattr(capabilities, "probe_capabilities", lambda: Capabilities(relay=True))


def decide_datapaths(full_layout: Layout, *injections: Injection, configured: ConfiguredDatapath = "auto") -> Decisions:
    return decide(full_layout, injections, configured, Path())


def test_crossbars_and_their_cables_are_not_kernel_objects() -> None:
    operations = plan(layout(), ExistingState(), decide_datapaths(layout()).link_services)
    assert [operation.name for operation in operations if isinstance(operation, MakeSwitch)] == ["s3"]
    cables = {operation.label: operation for operation in operations if isinstance(operation, MakeCable)}
    assert set(cables) == {"n1:eth0--s1:1", "n2:eth0--s2:1", "n3:eth0--s3:1", "n4:eth0--s3:2"}
    assert not cables["n1:eth0--s1:1"].switch
    assert free_ends(layout(), "n1:eth0--s1:1") == ("n1.eth0", "")
    assert free_ends(layout(), TRUNK) == ("", "")
    without_offloads = [
        (operation.key, operation.device)
        for operation in operations
        if isinstance(operation, SetOffloads) and operation.accepted is Offloads.NONE
    ]
    assert sorted(without_offloads) == [("n1", "eth0"), ("n2", "eth0")]
    assert set(Wiring(layout()).ports) == {"s3"}


def test_the_relay_gets_the_ports_of_its_links_and_one_process_forwards_all_of_them() -> None:
    orders = decide_datapaths(layout()).orders
    assert {link.name: (link.a, link.b, link.switch_ports) for link in orders.links} == {
        "n1:eth0--s1:1": ("n1.eth0", "", (None, SwitchPort("s1", 1))),
        "n2:eth0--s2:1": ("n2.eth0", "", (None, SwitchPort("s2", 1))),
        TRUNK: ("", "", (SwitchPort("s1", 3), SwitchPort("s2", 2))),
    }
    for processes in range(1, 9):
        assert len(set(replace(orders, processes=processes).processes_of().values())) == 1
    assert Orders.from_json(orders.to_json()) == orders


def test_a_cut_cable_between_switches_is_cut_in_the_relay() -> None:
    cut = Injection(1, "down", down=(TRUNK, "n1:eth0--s1:1"))
    decisions = decide_datapaths(layout(), cut)
    assert {link.name: link.is_cut for link in decisions.orders.links} == {
        "n1:eth0--s1:1": True, "n2:eth0--s2:1": False, TRUNK: True,
    }  # fmt: skip
    assert Orders.from_json(decisions.orders.to_json()) == decisions.orders
    operations = plan(layout(), ExistingState(), decisions.link_services)
    assert not [operation for operation in operations if isinstance(operation, SetDown)], (
        "a cable created down needs no operation"
    )
    (first,) = [
        operation for operation in operations if isinstance(operation, MakeCable) and operation.label == "n1:eth0--s1:1"
    ]
    assert not first.up


@pytest.mark.parametrize("configured", ["direct", "netem", "tc"])
def test_only_the_relay_forwards_links_of_crossbars(configured: ConfiguredDatapath) -> None:
    with pytest.raises(
        UnsupportedError, match=r"n1:eth0--s1:1: the datapath .* cannot carry this: links of kind myrinet"
    ):
        decide_datapaths(layout(), configured=configured)


def test_routed_nodes_and_ordered_links_follow_from_the_layout() -> None:
    cluster = layout()
    assert cluster.source_routed_nodes().keys() == {"n1", "n2"}
    assert cluster.keeps_order()
    for link in (
        Link(ends=["n1", "n2"], delay="1ms", reorder="1%"),
        Link(ends=["n1", "n2"], rules=["delay 1ms nth(3)"]),
    ):
        pair = resolve(Description(name="pair", nodes=[Node(name="n1"), Node(name="n2")], links=[link]))
        assert not pair.keeps_order()
        assert not pair.source_routed_nodes()


def test_the_relay_gets_the_dilation_factor() -> None:
    slowed = slow_layout(layout(), 20)
    assert decide_datapaths(slowed).orders.slowed == 20
    assert from_json(to_json(slowed)) == slowed
