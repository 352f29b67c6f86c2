"""Cables that are pulled out of a running cluster, or plugged in again, while all else stays as it is.

A plan looks at every namespace and finds whatever differs from the description. A cable that flaps, perhaps beside a run
whose nodes want the processor, is not worth that: its ends are set up or down, and nothing else is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from testbed.cluster.injections import Injection
from testbed.cluster.operations import Operation, SetDown, SetUp
from testbed.cluster.treatments import UNTREATED, Treatments
from testbed.cluster.wiring import Wiring
from testbed.kernel.survey import Interface
from testbed.spec.layout import Layout


def moved(before: Sequence[Injection], after: Sequence[Injection]) -> set[str]:
    """The links that are down by one and not by the other; none where the two differ in anything else, too."""
    differing = [one for one in (*before, *after) if one not in before or one not in after]
    if any(one.places or one.rules or one.programs for one in differing):
        return set()
    return _down(before) ^ _down(after)


def _down(injected: Sequence[Injection]) -> set[str]:
    return {link for injection in injected for link in injection.down}


def operations(
    layout: Layout, treatments: Treatments, links: Collection[str], find: Callable[[str], Interface | None]
) -> list[Operation] | None:
    """What makes these links up or down, as a plan would. find: an interface of the wire namespace by its name.

    None where an end is not there, so that there is more to do than this.
    """
    wiring = Wiring(layout, [name for name, treatment in treatments.items() if treatment.spliced])
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
