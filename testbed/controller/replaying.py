"""A run once more, with the same fates: in the other mode, or with as few of them as make it fail in the same way.

    again = testbed.replay("results/runs/...", "live")
    again.same, again.now          # whether the same check has failed again, and which have

A simulation writes every fate that was not a pass, and so does a run in namespaces, but for those that the kernel decided,
and up to the log's bound. Where the log is not whole the seed gives the fates again: they are the same, flow by flow, but
cannot be shrunk. So it is beside a scenario, which changes at its times what decides fates: it is carried out again, and it
is its faults that are shrunk. What follows from time, such as a queue that overflows, is the same only in the simulation.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.cluster import temporary
from testbed.controller.running import Mode, run
from testbed.controller.shrinking import Cause, Shrunk, shrunk
from testbed.errors import NotFoundError, TestbedError, UnsupportedError
from testbed.observe.recorded import FATES, Recorded, recorded
from testbed.runtime.logs import read_log
from testbed.spec.layout import Impairment, Layout
from testbed.spec.layout_json import from_json
from testbed.wire.fates import Record, Replay, without_chance
from testbed.workloads.finding import Form

if TYPE_CHECKING:
    from testbed.cluster.running import RunningCluster
    from testbed.runtime.nodes.run import Run
    from testbed.sim.simulation import Simulation
    from testbed.spec.faults import Fault
    from testbed.spec.scenario import Scenario
    from testbed.wire.rules import RuleSet

FEW: Final = "fates-few.jsonl"
FEW_FAULTS: Final = "scenario-few.toml"
"""In a repetition's folder: the fates, or the faults of a scenario, to which a failing run was shrunk."""

ENDED_BADLY: Final = "it ended with an error"
"""The symptom of a run that did not come to its end, and of which no check failed."""

STUCK: Final = 5.0
"""Seconds for which nothing may get any further in namespaces, where the run had not said another patience."""

_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Replayed:
    """before, now: the checks that had failed, and that have. error: with which it has ended, or empty. fates: how many the
    log has; -1: there was none, and the seed has given them. given: to how many frames; -1: it is not known."""

    mode: Mode
    before: frozenset[str]
    now: frozenset[str]
    error: str
    fates: int
    given: int

    @property
    def same(self) -> bool:
        """Whether one that had failed has failed again; where none had, whether none has."""
        return bool(self.before & self.now) or self.before == self.now


@dataclass(frozen=True, slots=True)
class Repetition:
    """One repetition of a run, from its folder. failed: its symptoms. form: the workload's, if not what is recorded.
    scenario: what went wrong beside it."""

    run: Recorded
    folder: Path
    number: int
    layout: Layout
    failed: frozenset[str]
    form: Form
    scenario: Scenario | None = None

    @property
    def log(self) -> Path | None:
        """None where the seed gives the fates."""
        if self.scenario is not None or self.untold or not (self.folder / FATES).exists():
            return None
        return self.folder / FATES

    @property
    def untold(self) -> Sequence[str]:
        """Why its log lacks fates."""
        found: Sequence[str] = self.run.result.get("fates", {}).get("untold", ())
        return found

    @property
    def few(self) -> Path:
        """Where those are that are enough to make it fail."""
        return self.folder / (FEW if self.scenario is None else FEW_FAULTS)


def repetition(folder: Path, number: int = 0, workload: Form | None = None) -> Repetition:
    """number: from 1 on; 0: the last one that was begun, with which a failing run has ended. workload: needed where the run
    had a workload without a name.

    Raises NotFoundError, UnsupportedError where it cannot be run again, TestbedError for a broken file."""
    found = recorded(folder)
    asked = found.asked
    if asked.get("kind") != "workload":
        raise UnsupportedError(f"{folder} is no run of a workload: commands cannot be run again with the same fates")
    form = workload or asked.get("form")
    if not form:
        raise UnsupportedError(f"the workload of {folder} came from Python and has no name: give it to testbed.replay")
    parts = sorted(int(one.name[7:]) for one in folder.glob("repeat-*"))
    if number > max(parts, default=1):
        raise NotFoundError(f"{folder} has no repetition {number}")
    number = number or max(parts, default=1)
    checks = found.result.get("checks") or []
    failed = frozenset(checks[number - 1]["failed"]) if number <= len(checks) else frozenset[str]()
    if not failed and found.status == "failed" and number == max(parts, default=1):
        failed = frozenset({ENDED_BADLY})
    try:
        layout = from_json(json.loads((folder / "cluster.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TestbedError(f"{folder / 'cluster.json'} cannot be understood: {error}") from error
    layout = _with_files(replace(layout, seed=int(asked["seed"]) + number - 1), _base(str(asked.get("origin", ""))))
    part = folder / f"repeat-{number}" if parts else folder
    return Repetition(found, part, number, layout, failed, form, _scenario(folder) if asked.get("scenario") else None)


def replay(
    folder: str | Path,
    mode: Mode,
    *,
    number: int = 0,
    workload: Form | None = None,
    given: str | Path | None = None,
    output: str | Path | None = None,
) -> Replayed:
    """Run what is in a run's folder again; as for `repetition` and `replayed`."""
    one = repetition(Path(folder), number, workload)
    return replayed(one, mode, Path(given) if given else None, Path(output) if output else None)


def replayed(one: Repetition, mode: Mode, given: Path | None = None, output: Path | None = None) -> Replayed:
    """Run it again. given: a log of fates, or beside a scenario another one, if not its own. output: a folder for the new
    run, which is not kept otherwise. Raises what `run` does before programs begin."""
    if one.scenario is not None:
        if given is not None:
            from testbed.spec.scenario import load

            one = replace(one, scenario=load(given))
        return _again(one, mode, None, None, output)
    log = given or one.log
    records = read_log(log) if log is not None else None
    return _again(one, mode, records, log, output)


def fewest(one: Repetition, most: int) -> Shrunk[str]:
    """The few fates, or faults of its scenario, with which the simulation fails in the same way, after so many runs at
    most, in words; they are written to `few`. Raises NotFoundError without a log, UnsupportedError where the simulation
    does not fail so."""
    if one.scenario is not None:
        return _fewest_faults(one, one.scenario, most)
    if one.log is None and one.run.asked["mode"] == "live":
        why = "; ".join(one.untold) or "no link was impaired"
        raise NotFoundError(f"{one.folder} has no {FATES} that is whole: {why}")
    records = read_log(one.log) if one.log is not None else []  # a simulation without fates writes no file

    def fails(some: Sequence[Record]) -> bool:
        return bool(_again(one, "sim", some, None, None).now & one.failed)

    if not fails(records):
        raise _no_failure(one)
    result = shrunk(records, fails, most)
    one.few.write_text("".join(record.to_line() + "\n" for record in result.causes), encoding="utf-8")
    return _in_words(result, lambda record: f"{record.link} {record.direction}: {record.in_words()}")


def _fewest_faults(one: Repetition, scenario: Scenario, most: int) -> Shrunk[str]:
    from testbed.controller.scenarios.drawing import drawn
    from testbed.spec.units import format_duration

    faults = list(scenario.faults)
    if scenario.random is not None:  # what was drawn is faults like others
        faults += drawn(scenario.random, one.layout, one.layout.seed, round(one.run.asked["timeout"] * 1e9))

    def with_only(some: Sequence[Fault]) -> Scenario:
        return scenario.model_copy(update={"faults": tuple(some), "random": None})

    def fails(some: Sequence[Fault]) -> bool:
        return bool(_again(replace(one, scenario=with_only(some)), "sim", None, None, None).now & one.failed)

    if not fails(faults):
        raise _no_failure(one)
    result = shrunk(faults, fails, most)
    one.few.write_text(with_only(result.causes).to_toml(), encoding="utf-8")
    return _in_words(result, lambda fault: f"at {format_duration(fault.begin)}: {fault.what}")


def _in_words(result: Shrunk[Cause], say: Callable[[Cause], str]) -> Shrunk[str]:
    return Shrunk([say(cause) for cause in result.causes], result.trials, result.minimal)


def _no_failure(one: Repetition) -> TestbedError:
    failed = ", ".join(sorted(one.failed)) or "nothing failed"
    return UnsupportedError(f"the run does not fail so in the simulation ({failed}): there is nothing to shrink")


def _again(
    one: Repetition, mode: Mode, records: Sequence[Record] | None, log: Path | None, output: Path | None
) -> Replayed:
    """records: None where the seed gives the fates. log: the file in which they are, for namespaces."""
    asked = one.run.asked
    error = ""
    giving = _Giving(records or ())
    with contextlib.ExitStack() as stack:
        place = output or stack.enter_context(temporary.directory("replay")) / "run"
        where: Layout | RunningCluster = one.layout
        if mode == "live":
            where = stack.enter_context(_up(one.layout, log if records is not None else None))
        elif records is not None:
            where = _without_chance(one.layout)
        try:
            run(
                where, one.form, protocol=asked["protocol"], codec=asked.get("codec", "generated"), mode=mode,
                nics=asked.get("nics", "inline") if mode == "live" else "inline",
                settings=asked["settings"] if isinstance(one.form, str) else None, seed=one.layout.seed, output=place,
                timeout=asked["timeout"], patience=(asked["patience"] or STUCK) if mode == "live" else None, check=True,
                scenario=one.scenario, profile=asked.get("profile", "ideal") if mode == "sim" else "ideal",
                firmware=asked.get("firmware"),
                beside=[giving] if mode == "sim" and records is not None else (),
            )  # fmt: skip
        except TestbedError as raised:
            if not (place / "result.json").exists():
                raise
            error = str(raised)
        checks: list[Mapping[str, Any]] = recorded(place).result.get("checks") or []
    now = frozenset(name for check in checks for name in check["failed"])
    if error and not now:
        if not checks:
            raise TestbedError(f"the run has not begun again: {error}")
        now = frozenset({ENDED_BADLY})
    given = giving.given if mode == "sim" and records is not None else -1
    return Replayed(mode, one.failed, now, error, -1 if records is None else len(records), given)


class _Giving:
    """Gives fates in the simulation."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._replay = Replay(records)

    @property
    def given(self) -> int:
        return self._replay.given

    def simulated(self, simulation: Simulation, rules: RuleSet) -> None:
        rules.add(simulation.now(), self._replay)

    def live(self, cluster: RunningCluster, run: Run) -> contextlib.AbstractContextManager[object]:  # noqa: ARG002
        raise AssertionError("in namespaces fates are given before programs begin")


@contextlib.contextmanager
def _up(layout: Layout, log: Path | None) -> Iterator[RunningCluster]:
    from testbed.cluster.bringing_up import bring_up
    from testbed.cluster.running import RunningCluster
    from testbed.cluster.state import Store

    store, name = Store(), f"{layout.name[:30]}-replay-{os.getpid()}-{next(_numbers)}"
    outcome = bring_up(store, layout, name=name, origin="python", lasting=False)
    with RunningCluster(store, outcome.state) as cluster:
        if log is not None:
            cluster.inject("all", replay=log)
        yield cluster


def _without_chance(layout: Layout) -> Layout:
    return replace(
        layout,
        links=tuple(
            [
                replace(link, forward=without_chance(link.forward), backward=without_chance(link.backward))
                for link in layout.links
            ]
        ),
    )


def _with_files(layout: Layout, base: Path) -> Layout:
    """With whole paths of tables and traces."""

    def placed(impairment: Impairment) -> Impairment:
        jitter_file, rate_trace = (
            path and str(base / path) for path in (impairment.jitter_file, impairment.rate_trace)
        )
        return replace(impairment, jitter_file=jitter_file, rate_trace=rate_trace)

    links = [replace(link, forward=placed(link.forward), backward=placed(link.backward)) for link in layout.links]
    return replace(layout, links=tuple(links))


def _scenario(folder: Path) -> Scenario:
    from testbed.spec.scenario import load

    return load(folder / "scenario.toml")


def _base(origin: str) -> Path:
    return Path(origin).parent if os.path.isfile(origin) else Path.cwd()
