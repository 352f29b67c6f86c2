"""When what happens: a scenario with its random parts drawn, as one list in the order of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from testbed.controller.scenarios.drawing import drawn, picked, restarts
from testbed.errors import DescriptionError, Problem
from testbed.spec.faults import Churn, Fault
from testbed.spec.layout import Layout
from testbed.spec.problems import MismatchError, item
from testbed.spec.scenario import Scenario


@dataclass(frozen=True, slots=True, eq=False)
class Occurrence:
    """A fault, once. name: its place in the scenario, as errors call it. begin, end: nanoseconds since the programs go; end
    is None for what lasts until the run's end, or not at all. goes_on: it is one of those that come for as long as the run
    lasts."""

    name: str
    fault: Fault
    begin: int
    end: int | None
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Moment:
    """Something begins, or ends."""

    when: int
    occurrence: Occurrence
    begins: bool


def occurrences(scenario: Scenario, layout: Layout, seed: int, horizon: int) -> list[Occurrence]:
    """By beginning; of those that begin at one time in the scenario's order. seed: for what is drawn by no seed of its own.
    horizon: how long a run can take, in nanoseconds. Raises DescriptionError for what would come too often."""
    found: list[Occurrence] = []
    for number, fault in enumerate(scenario.faults):
        name = item("fault", number)
        try:
            if isinstance(fault, Churn):
                goes_on = fault.to is None and fault.for_ is None
                found += [Occurrence(name, *one, goes_on) for one in restarts(fault, layout, seed, number, horizon)]
            else:
                goes_on = fault.every is not None and fault.to is None
                times = fault.times(horizon)
                drawn_on = picked(fault, layout, seed, number, len(times))
                found += [Occurrence(name, one, *when, goes_on) for one, when in zip(drawn_on, times, strict=True)]
        except MismatchError as error:
            raise DescriptionError(scenario.name, [Problem(name, "", error.expected)]) from None
    if scenario.random is not None:
        try:
            chosen = drawn(scenario.random, layout, seed, horizon)
        except MismatchError as error:
            raise DescriptionError(scenario.name, [Problem("random", "", error.expected)]) from None
        for number, fault in enumerate(chosen):
            goes_on = scenario.random.to is None
            found += [Occurrence(item("random", number), fault, *times, goes_on) for times in fault.times(horizon)]
    return sorted(found, key=lambda one: one.begin)


def moments(of: Iterable[Occurrence]) -> list[Moment]:
    """In the order of time; at one time what ends goes before what begins, except of one and the same."""
    found: list[tuple[int, int, int, Moment]] = []
    for order, one in enumerate(of):
        found.append((one.begin, 1, order, Moment(one.begin, one, True)))
        if one.end is not None:
            at_once = one.end == one.begin
            found.append((one.end, 2 if at_once else 0, order, Moment(one.end, one, False)))
    return [moment for *_, moment in sorted(found, key=lambda entry: entry[:3])]
