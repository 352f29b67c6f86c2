"""Pull cables out of a running cluster, or plug them in again, without a complete plan.

A plan inspects every namespace. A flapping cable, perhaps during a run whose nodes need the processor, must not cost
that: only its ends are set up or down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from testbed.cluster.faults.injections import Injection
from testbed.cluster.plan.operations import Operation, SetDown, SetUp
from testbed.cluster.plan.treatments import UNTREATED, Treatments
from testbed.cluster.plan.veth_wiring import Wiring
from testbed.kernel.rtnl_dump import Interface
from testbed.spec.layout import Layout


def moved(before: Sequence[Injection], after: Sequence[Injection]) -> set[str]:
    """The links that are down in one of the two states but not in the other; none if anything else differs as well."""
    differing = [one for one in (*before, *after) if one not in before or one not in after]
    if any(one.places or one.rules or one.programs for one in differing):
        return set()
    return _down(before) ^ _down(after)


def _down(injected: Sequence[Injection]) -> set[str]:
    return {link for injection in injected for link in injection.down}


def operations(
    layout: Layout, treatments: Treatments, links: Collection[str], find: Callable[[str], Interface | None]
) -> list[Operation] | None:
    """The operations that set these links up or down, as in a plan; None if an end is missing and more has to be done.

    find: looks up an interface of the wire namespace by name.
    """
    wiring = Wiring.of(layout, {name: treatment.datapath for name, treatment in treatments.items()})
    found: list[Operation] = []
    for link in sorted(links):
        down = treatments.get(link, UNTREATED).down
        for key, device in wiring.of_link[link]:
            end = find(device)
            if end is None:
                return None
            if end.up == down:
                found.append(SetDown(key, device, end.index) if down else SetUp(key, device, end.index))
    return found
