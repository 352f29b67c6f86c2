"""Timeline of a scenario: occurrences of its faults in the order of time, with random parts drawn."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from testbed.controller.scenarios.random_faults import draw_faults, draw_restarts, pick_targets
from testbed.errors import DescriptionError, Problem
from testbed.spec.fault_models import Churn, Fault, OnLinks, OnNodes
from testbed.spec.layout import Layout
from testbed.spec.problems import MismatchError, item
from testbed.spec.scenario import Scenario


@dataclass(frozen=True, slots=True, eq=False)
class Occurrence:
    """One occurrence of a fault. name: name of the fault's entry in the scenario, as in errors. begin, end: nanoseconds
    since the programs began; end equals begin for an instantaneous fault, and is None for one that lasts until the run's
    end. is_unbounded: whether the fault repeats for as long as the run lasts."""

    name: str
    fault: Fault
    begin: int
    end: int | None
    is_unbounded: bool = False


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """The beginning or end of an occurrence. when: nanoseconds since the programs began."""

    when: int
    occurrence: Occurrence
    is_begin: bool


def occurrences_of(scenario: Scenario, layout: Layout, seed: int, horizon: int) -> list[Occurrence]:
    """Return all occurrences by begin; those of equal begin in the order of the scenario, random faults last. seed: for
    random parts without a seed of their own. horizon: maximum duration of the run, nanoseconds. Raises DescriptionError for
    too many occurrences or a `pick` above the number of targets, NotFoundError for an unknown name or random faults
    without a target."""
    result: list[Occurrence] = []
    for number, fault in enumerate(scenario.faults):
        name = item("fault", number)
        try:
            if isinstance(fault, Churn):
                is_unbounded = fault.to is None and fault.for_ is None
                result += [
                    Occurrence(name, *restart, is_unbounded)
                    for restart in draw_restarts(fault, layout, seed, number, horizon)
                ]
            else:
                is_unbounded = fault.every is not None and fault.to is None
                times = fault.times(horizon)
                faults = pick_targets(fault, layout, seed, number, len(times))
                result += [
                    Occurrence(name, picked, *span, is_unbounded) for picked, span in zip(faults, times, strict=True)
                ]
        except MismatchError as error:
            raise DescriptionError(scenario.name, [Problem(name, "", error.expected)]) from None
    if scenario.random is not None:
        try:
            drawn = draw_faults(scenario.random, layout, seed, horizon)
        except MismatchError as error:
            raise DescriptionError(scenario.name, [Problem("random", "", error.expected)]) from None
        for number, fault in enumerate(drawn):
            is_unbounded = scenario.random.to is None
            result += [
                Occurrence(item("random", number), fault, *times, is_unbounded) for times in fault.times(horizon)
            ]
    return sorted(result, key=lambda occurrence: occurrence.begin)


def resolve_draws(scenario: Scenario, layout: Layout, seed: int, horizon: int) -> list[Fault]:
    """Return the faults of a scenario with all random parts drawn, so that each keeps its times and targets when others are
    left out. A churn, a fault with `pick` and the random faults become one fault for each occurrence; the others stay. The
    arguments and errors are those of `occurrences_of`."""
    drawn: defaultdict[str, list[Fault]] = defaultdict(list)
    for occurrence in occurrences_of(scenario, layout, seed, horizon):
        drawn[occurrence.name].append(_single(occurrence))
    faults: list[Fault] = []
    for number, fault in enumerate(scenario.faults):
        occurrences = drawn.pop(item("fault", number), [])
        is_drawn = isinstance(fault, Churn) or (isinstance(fault, OnNodes | OnLinks) and fault.pick is not None)
        faults += occurrences if is_drawn else [fault]
    return [*faults, *itertools.chain.from_iterable(drawn.values())]


def _single(occurrence: Occurrence) -> Fault:
    """Return a fault that occurs once, as in the occurrence."""
    duration = None if occurrence.end is None else occurrence.end - occurrence.begin
    single_times = {"at": occurrence.begin, "from_": None, "to": None, "every": None, "for_": duration or None}
    return occurrence.fault.model_copy(update=single_times)


def timeline_events(occurrences: Iterable[Occurrence]) -> list[TimelineEvent]:
    """Return the begins and ends of occurrences in the order of time. At equal times, ends precede begins, except those
    of the same occurrence."""
    entries: list[tuple[int, int, int, TimelineEvent]] = []
    for order, occurrence in enumerate(occurrences):
        entries.append((occurrence.begin, 1, order, TimelineEvent(occurrence.begin, occurrence, True)))
        if occurrence.end is not None:
            is_instantaneous = occurrence.end == occurrence.begin
            entries.append(
                (occurrence.end, 2 if is_instantaneous else 0, order, TimelineEvent(occurrence.end, occurrence, False))
            )
    return [event for *_, event in sorted(entries, key=lambda entry: entry[:3])]
