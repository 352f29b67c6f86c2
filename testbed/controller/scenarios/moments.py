"""Timeline of a scenario: its faults with random parts drawn, in the order of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from testbed.controller.scenarios.random_faults import draw_faults, draw_restarts, pick_targets
from testbed.errors import DescriptionError, Problem
from testbed.spec.fault_models import Churn, Fault
from testbed.spec.layout import Layout
from testbed.spec.problems import MismatchError, item
from testbed.spec.scenario import Scenario


@dataclass(frozen=True, slots=True, eq=False)
class Occurrence:
    """One occurrence of a fault. name: its place in the scenario, as in errors. begin, end: nanoseconds since the
    programs began; end is None for a fault that lasts until the run's end, or is instantaneous. goes_on: one of a
    series that lasts as long as the run."""

    name: str
    fault: Fault
    begin: int
    end: int | None
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """The beginning or end of an occurrence."""

    when: int
    occurrence: Occurrence
    begins: bool


def occurrences(scenario: Scenario, layout: Layout, seed: int, horizon: int) -> list[Occurrence]:
    """Return all occurrences by beginning; those of equal beginning in the scenario's order. seed: for random parts
    without a seed of their own. horizon: the run's maximum duration, nanoseconds. Raises DescriptionError for too many
    occurrences."""
    result: list[Occurrence] = []
    for number, fault in enumerate(scenario.faults):
        name = item("fault", number)
        try:
            if isinstance(fault, Churn):
                goes_on = fault.to is None and fault.for_ is None
                result += [
                    Occurrence(name, *restart, goes_on)
                    for restart in draw_restarts(fault, layout, seed, number, horizon)
                ]
            else:
                goes_on = fault.every is not None and fault.to is None
                times = fault.times(horizon)
                drawn_on = pick_targets(fault, layout, seed, number, len(times))
                result += [Occurrence(name, each, *when, goes_on) for each, when in zip(drawn_on, times, strict=True)]
        except MismatchError as error:
            raise DescriptionError(scenario.name, [Problem(name, "", error.expected)]) from None
    if scenario.random is not None:
        try:
            chosen = draw_faults(scenario.random, layout, seed, horizon)
        except MismatchError as error:
            raise DescriptionError(scenario.name, [Problem("random", "", error.expected)]) from None
        for number, fault in enumerate(chosen):
            goes_on = scenario.random.to is None
            result += [Occurrence(item("random", number), fault, *times, goes_on) for times in fault.times(horizon)]
    return sorted(result, key=lambda occurrence: occurrence.begin)


def moments(of: Iterable[Occurrence]) -> list[Moment]:
    """Sort by time; at equal times ends precede beginnings, except of the same occurrence."""
    entries: list[tuple[int, int, int, Moment]] = []
    for order, occurrence in enumerate(of):
        entries.append((occurrence.begin, 1, order, Moment(occurrence.begin, occurrence, True)))
        if occurrence.end is not None:
            at_once = occurrence.end == occurrence.begin
            entries.append((occurrence.end, 2 if at_once else 0, order, Moment(occurrence.end, occurrence, False)))
    return [moment for *_, moment in sorted(entries, key=lambda entry: entry[:3])]
