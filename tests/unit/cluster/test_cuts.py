"""Cuts without a scan of the cluster need the same operations as a plan."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from testbed.cluster.faults import cuts
from testbed.cluster.faults.injections import Injection
from testbed.cluster.plan import namespace_names
from testbed.cluster.plan.kernel_operations import SetDown, SetUp
from testbed.cluster.plan.link_services import LinkService, LinkServices
from testbed.cluster.plan.planner import plan
from testbed.kernel.rtnl_dump import Interface
from testbed.spec.layout import Impairment
from testbed.spec.model import Description
from testbed.spec.resolver import resolve
from tests.unit.cluster.kernel_model import Kernel

LOSSY = Impairment(loss=0.01)
CUT = Injection(1, "down: n1", down=("n1--s1",))

SHAPES = [Description.star(3), Description.line(3), Description.ring(3), Description.fat_tree(2)]


def wire_interfaces(kernel: Kernel) -> dict[str, Interface]:
    return {interface.name: interface for interface in kernel.interfaces[namespace_names.WIRE].values()}


@given(shape=st.sampled_from(SHAPES), data=st.data())
def test_the_operations_are_those_of_a_plan(shape: Description, data: st.DataObject) -> None:
    layout = resolve(shape)
    links = [link.name for link in layout.links]
    choices = [LinkService(), LinkService("tc", LOSSY, LOSSY), LinkService("relay", LOSSY, LOSSY)]
    services = {name: data.draw(st.sampled_from(choices)) for name in links}

    def with_down(down: set[str]) -> LinkServices:
        return {
            name: LinkService(service.datapath, service.forward, service.backward, name in down)
            for name, service in services.items()
            if not service.is_direct or name in down
        }

    before, after = (data.draw(st.sets(st.sampled_from(links))) for _ in range(2))
    kernel = Kernel()
    kernel.converge(layout, with_down(before))
    desired = with_down(after)
    planned = plan(layout, copy.deepcopy(kernel).existing(), desired)
    operations = cuts.cut_operations(layout, desired, before ^ after, wire_interfaces(kernel).get)
    assert operations is not None
    assert set(operations) == set(planned)


def test_a_missing_end_needs_a_plan() -> None:
    layout = resolve(Description.star(2))
    kernel = Kernel()
    kernel.converge(layout)
    interfaces = wire_interfaces(kernel)
    link = layout.links[0].name
    link_services = {link: LinkService(down=True)}
    operations = cuts.cut_operations(layout, link_services, {link}, interfaces.get)
    assert operations is not None
    assert [type(operation) for operation in operations] == [SetDown]
    del interfaces[operations[0].device]  # type: ignore[union-attr]  # SetDown has a device
    assert cuts.cut_operations(layout, link_services, {link}, interfaces.get) is None


def test_an_end_that_is_up_needs_no_operation() -> None:
    layout = resolve(Description.star(2))
    kernel = Kernel()
    kernel.converge(layout)
    link = layout.links[0].name
    assert cuts.cut_operations(layout, {}, {link}, wire_interfaces(kernel).get) == []
    kernel.converge(layout, {link: LinkService(down=True)})
    (operation,) = cuts.cut_operations(layout, {}, {link}, wire_interfaces(kernel).get) or []
    assert isinstance(operation, SetUp)


def test_a_cut_and_its_heal_change_the_links_of_the_cut() -> None:
    assert cuts.changed_cuts((), (CUT,)) == {"n1--s1"}
    assert cuts.changed_cuts((CUT,), ()) == {"n1--s1"}


def test_a_link_that_another_cut_keeps_down_does_not_change() -> None:
    other_cut = Injection(2, "down: all", down=("n1--s1", "n2--s1"))
    assert cuts.changed_cuts((other_cut,), (other_cut, CUT)) == set()
    assert cuts.changed_cuts((CUT, other_cut), (CUT,)) == {"n2--s1"}


def test_a_cut_with_another_change_needs_a_plan() -> None:
    lossy = Injection(2, "loss", places=(("n2--s1", "forward"),), keys={"loss": 0.5})
    ruled = Injection(3, "rule", rules=((("n2--s1", "forward"), "drop"),))
    for change in (lossy, ruled):
        assert cuts.changed_cuts((), (CUT, change)) == set()
        assert cuts.changed_cuts((change,), (change, CUT)) == {"n1--s1"}
