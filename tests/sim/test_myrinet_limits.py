"""Impairments and traffic that Myrinet links do not support, in descriptions and scenarios."""

from __future__ import annotations

import pytest

from testbed import Cluster, Scenario
from testbed.controller.scenarios.feasibility import check
from testbed.errors import DescriptionError, UnsupportedError
from testbed.spec.elements import Link, Node, Switch
from testbed.spec.fault_models import Fault, Impair, Incast, Traffic
from testbed.spec.resolver import resolve


def pair(**impairment: object) -> Cluster:
    """Return two nodes at a Myrinet switch; n2's link is impaired."""
    return Cluster(
        name="pair",
        nodes=[Node(name="n1"), Node(name="n2")],
        switches=[Switch(name="s1", kind="myrinet")],
        links=[Link(ends=["n1", "s1"]), Link(ends=["n2", "s1"], **impairment)],  # type: ignore[arg-type]  # keys of a link
    )


@pytest.mark.parametrize(
    "keys", [{"delay": "1ms", "jitter": "10us"}, {"queue": "64KiB"}, {"delay": "1ms", "reorder": "5%"}]
)
def test_a_description_with_jitter_queue_or_reordering_on_myrinet_is_rejected(keys: dict[str, object]) -> None:
    key = [*keys][-1]
    with pytest.raises(DescriptionError, match=rf"{key} on a link of kind myrinet(.|\n)*keeps the order"):
        resolve(pair(**keys))
    resolve(pair(delay="1ms", loss="5%", corrupt="1%", duplicate="2%", rate="100mbit"))


@pytest.mark.parametrize("mode", ["sim", "live"])
def test_a_scenario_with_reordering_on_myrinet_is_rejected_before_the_run(mode: str) -> None:
    layout = resolve(pair(delay="1ms"))
    reordering = Scenario(name="late", faults=(Impair(on=("n2",), at="1s", reorder="5%"),))
    with pytest.raises(UnsupportedError, match=r"fault.*n2:eth0--s1:\d.*keeps the order"):
        check(reordering, layout, mode)
    check(Scenario(name="late", faults=(Impair(on=("n2",), at="1s", loss="5%"),)), layout, mode)


@pytest.mark.parametrize("mode", ["sim", "live"])
@pytest.mark.parametrize(
    "fault",
    [Incast(receiver="n1", at="1s", rate="1mbit"), Traffic(senders=("n1",), receiver="n2", at="1s", rate="1mbit")],
)
def test_background_traffic_of_the_kernel_is_rejected_on_myrinet(fault: Fault, mode: str) -> None:
    with pytest.raises(UnsupportedError, match=r"n[12], n[12]: the kernel's datagrams have no source routes"):
        check(Scenario(name="load", faults=(fault,)), resolve(pair()), mode)


def test_a_scenario_with_reordering_on_ethernet_is_accepted() -> None:
    layout = resolve(Cluster.star(2, delay="1ms"))
    check(Scenario(name="late", faults=(Impair(on=("n2",), at="1s", reorder="5%"),)), layout, "sim")
