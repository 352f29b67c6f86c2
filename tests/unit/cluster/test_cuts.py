"""Cables pulled out and plugged in without a scan of the cluster have the effect of a plan."""

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


def finder(kernel: Kernel) -> dict[str, Interface]:
    return {one.name: one for one in kernel.interfaces[namespace_names.WIRE].values()}


@given(shape=st.sampled_from(SHAPES), data=st.data())
def test_what_is_done_is_what_a_plan_would_do(shape: Description, data: st.DataObject) -> None:
    layout = resolve(shape)
    links = [link.name for link in layout.links]
    carriers = [LinkService(), LinkService("tc", LOSSY, LOSSY), LinkService("relay", LOSSY, LOSSY)]
    treated = {name: data.draw(st.sampled_from(carriers)) for name in links}

    def with_down(down: set[str]) -> LinkServices:
        return {
            name: LinkService(one.datapath, one.forward, one.backward, name in down)
            for name, one in treated.items()
            if one.spliced or name in down
        }

    down, later = (data.draw(st.sets(st.sampled_from(links))) for _ in range(2))
    kernel = Kernel()
    kernel.converge(layout, with_down(down))
    wanted = with_down(later)
    planned = plan(layout, copy.deepcopy(kernel).existing(), wanted)
    done = cuts.operations(layout, wanted, down ^ later, finder(kernel).get)
    assert done is not None
    assert set(done) == set(planned)


def test_an_end_that_somebody_has_taken_away_is_left_to_a_plan() -> None:
    layout = resolve(Description.star(2))
    kernel = Kernel()
    kernel.converge(layout)
    there = finder(kernel)
    link = layout.links[0].name
    link_services = {link: LinkService(down=True)}
    found = cuts.operations(layout, link_services, {link}, there.get)
    assert found is not None
    assert [type(one) for one in found] == [SetDown]
    del there[found[0].device]  # type: ignore[union-attr]  # of a SetDown
    assert cuts.operations(layout, link_services, {link}, there.get) is None


def test_an_end_that_is_up_already_stays() -> None:
    layout = resolve(Description.star(2))
    kernel = Kernel()
    kernel.converge(layout)
    link = layout.links[0].name
    assert cuts.operations(layout, {}, {link}, finder(kernel).get) == []
    kernel.converge(layout, {link: LinkService(down=True)})
    (back,) = cuts.operations(layout, {}, {link}, finder(kernel).get) or []
    assert isinstance(back, SetUp)


def test_a_cut_and_its_end_move_its_links() -> None:
    assert cuts.changed_cuts((), (CUT,)) == {"n1--s1"}
    assert cuts.changed_cuts((CUT,), ()) == {"n1--s1"}


def test_a_link_that_another_cut_keeps_down_does_not_move() -> None:
    other = Injection(2, "down: all", down=("n1--s1", "n2--s1"))
    assert cuts.changed_cuts((other,), (other, CUT)) == set()
    assert cuts.changed_cuts((CUT, other), (CUT,)) == {"n2--s1"}


def test_a_cut_together_with_anything_else_is_left_to_a_plan() -> None:
    lossy = Injection(2, "loss", places=(("n2--s1", "forward"),), keys={"loss": 0.5})
    ruled = Injection(3, "rule", rules=((("n2--s1", "forward"), "drop"),))
    for more in (lossy, ruled):
        assert cuts.changed_cuts((), (CUT, more)) == set()
        assert cuts.changed_cuts((more,), (more, CUT)) == {"n1--s1"}
