"""Replay a run with the same fates: in the other mode, or with the fewest fates that make it fail in the same way.

    again = testbed.replay("results/runs/...", "live")
    again.same, again.now          # whether the same check failed again, and which checks failed

A simulation logs every fate that is not a pass, and so does a run in namespaces, except those that the kernel decides,
and up to the log's limit. Where the log is incomplete, the seed gives the fates again: equal, flow by flow, but they
cannot be shrunk. A scenario changes fates at its times, so it is carried out again instead of a log, and its faults are
shrunk. Effects that depend on time, such as a queue overflow, repeat exactly only in the simulation.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.cluster.records.ownership import temporary_directory
from testbed.controller.replay.delta_debugging import Cause, Shrunk, shrink
from testbed.controller.runs.run_options import Mode
from testbed.controller.runs.runner import run
from testbed.controller.scenarios.random_faults import draw_faults
from testbed.errors import NotFoundError, TestbedError, UnsupportedError
from testbed.fates.records import Record, Replay, without_chance
from testbed.observe.recorded import FATES, Recorded, read_layout, recorded
from testbed.runtime.logs import read_log
from testbed.spec.layout import Impairment, Layout
from testbed.spec.scenario import load
from testbed.spec.units import format_duration
from testbed.workloads.lookup import Form

if TYPE_CHECKING:
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.fates.rules import RuleSet
    from testbed.runtime.nodes.node_run import Run
    from testbed.sim.simulation import Simulation
    from testbed.spec.fault_models import Fault
    from testbed.spec.scenario import Scenario

FEW: Final = "fates-few.jsonl"
FEW_FAULTS: Final = "scenario-few.toml"
"""Files in a repetition's folder: the fates, or the scenario's faults, to which a failing run was shrunk."""

ENDED_BADLY: Final = "it ended with an error"
"""Symptom of a run that ended with an error and without a failed check."""

STUCK: Final = 5.0
"""Seconds without progress that are allowed in namespaces, where the run had no patience of its own."""

_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a replay. before, now: the checks that failed then and now. error: with which it ended, or empty.
    fates: how many the log has; -1: there was no log, and the seed gave them. given: how many frames got theirs; -1:
    not known."""

    mode: Mode
    before: frozenset[str]
    now: frozenset[str]
    error: str
    fates: int
    given: int

    @property
    def same(self) -> bool:
        """Whether a check failed both times; where none had failed, whether none has now."""
        return bool(self.before & self.now) or self.before == self.now


@dataclass(frozen=True, slots=True)
class Repetition:
    """One repetition of a run, from its folder. failed: its symptoms. form: the workload's, if not the recorded one.
    scenario: the faults beside it."""

    run: Recorded
    folder: Path
    number: int
    layout: Layout
    failed: frozenset[str]
    form: Form
    scenario: Scenario | None = None

    @property
    def log(self) -> Path | None:
        """The log of fates; None where the seed gives them."""
        if self.scenario is not None or self.untold or not (self.folder / FATES).exists():
            return None
        return self.folder / FATES

    @property
    def untold(self) -> Sequence[str]:
        """Reasons for missing fates in its log, in sentences."""
        found: Sequence[str] = self.run.result.get("fates", {}).get("untold", ())
        return found

    @property
    def few(self) -> Path:
        """The file of the fewest fates or faults that make it fail."""
        return self.folder / (FEW if self.scenario is None else FEW_FAULTS)


def read_repetition(folder: Path, number: int = 0, workload: Form | None = None) -> Repetition:
    """Read a repetition. number: from 1 on; 0: the last one, with which a failing run ended. workload: needed where the
    run's workload had no name. Raises NotFoundError, UnsupportedError where it cannot be run again, TestbedError for a
    broken file."""
    recorded_run = recorded(folder)
    request = recorded_run.asked
    if request.get("kind") != "workload":
        raise UnsupportedError(f"{folder} is no run of a workload: commands cannot be run again with the same fates")
    form = workload or request.get("form")
    if not form:
        raise UnsupportedError(f"the workload of {folder} came from Python and has no name: give it to testbed.replay")
    parts = sorted(int(part.name[7:]) for part in folder.glob("repeat-[0-9]*") if part.name[7:].isdigit())
    if number > max(parts, default=1):
        raise NotFoundError(f"{folder} has no repetition {number}")
    number = number or max(parts, default=1)
    checks = recorded_run.result.get("checks") or []
    failed = frozenset(checks[number - 1]["failed"]) if number <= len(checks) else frozenset[str]()
    if not failed and recorded_run.status == "failed" and number == max(parts, default=1):
        failed = frozenset({ENDED_BADLY})
    layout = read_layout(folder)
    layout = _with_files(replace(layout, seed=int(request["seed"]) + number - 1), _base(str(request.get("origin", ""))))
    part = folder / f"repeat-{number}" if parts else folder
    return Repetition(
        recorded_run, part, number, layout, failed, form, _scenario(folder) if request.get("scenario") else None
    )


def replay(
    folder: str | Path,
    mode: Mode,
    *,
    number: int = 0,
    workload: Form | None = None,
    given: str | Path | None = None,
    output: str | Path | None = None,
) -> Replayed:
    """Run again what a run's folder records; for the arguments see `read_repetition` and `replay_repetition`."""
    repetition = read_repetition(Path(folder), number, workload)
    return replay_repetition(repetition, mode, Path(given) if given else None, Path(output) if output else None)


def replay_repetition(
    repetition: Repetition, mode: Mode, given: Path | None = None, output: Path | None = None
) -> Replayed:
    """Run a repetition again. given: another log of fates or, for a scenario, another scenario. output: a folder for
    the new run; without one it is not kept. Raises what `run` raises before programs begin."""
    if repetition.scenario is not None:
        if given is not None:
            repetition = replace(repetition, scenario=load(given))
        return _run_again(repetition, mode, None, None, output)
    log = given or repetition.log
    records = read_log(log) if log is not None else None
    return _run_again(repetition, mode, records, log, output)


def find_fewest(repetition: Repetition, most: int) -> Shrunk[str]:
    """Find the fewest fates, or faults of its scenario, with which the simulation fails in the same way, in at most
    `most` runs; return them in words and write them to `few`. Raises NotFoundError without a log, UnsupportedError
    where the simulation does not fail in the same way."""
    if repetition.scenario is not None:
        return _fewest_faults(repetition, repetition.scenario, most)
    if repetition.log is None and repetition.run.asked["mode"] == "live":
        why = "; ".join(repetition.untold) or "no link was impaired"
        raise NotFoundError(f"{repetition.folder} has no {FATES} that is whole: {why}")
    # A simulation without fates writes no file.
    records = read_log(repetition.log) if repetition.log is not None else []

    def fails(some: Sequence[Record]) -> bool:
        return bool(_run_again(repetition, "sim", some, None, None).now & repetition.failed)

    if not fails(records):
        raise _no_failure(repetition)
    result = shrink(records, fails, most)
    repetition.few.write_text("".join(record.to_line() + "\n" for record in result.causes), encoding="utf-8")
    return _in_words(result, lambda record: f"{record.link} {record.direction}: {record.in_words()}")


def _fewest_faults(repetition: Repetition, scenario: Scenario, most: int) -> Shrunk[str]:

    faults = list(scenario.faults)
    if scenario.random is not None:  # drawn faults are shrunk like listed ones
        faults += draw_faults(
            scenario.random, repetition.layout, repetition.layout.seed, round(repetition.run.asked["timeout"] * 1e9)
        )

    def with_only(some: Sequence[Fault]) -> Scenario:
        return scenario.model_copy(update={"faults": tuple(some), "random": None})

    def fails(some: Sequence[Fault]) -> bool:
        return bool(
            _run_again(replace(repetition, scenario=with_only(some)), "sim", None, None, None).now & repetition.failed
        )

    if not fails(faults):
        raise _no_failure(repetition)
    result = shrink(faults, fails, most)
    repetition.few.write_text(with_only(result.causes).to_toml(), encoding="utf-8")
    return _in_words(result, lambda fault: f"at {format_duration(fault.begin)}: {fault.what}")


def _in_words(result: Shrunk[Cause], say: Callable[[Cause], str]) -> Shrunk[str]:
    return Shrunk([say(cause) for cause in result.causes], result.trials, result.minimal)


def _no_failure(repetition: Repetition) -> TestbedError:
    failed = ", ".join(sorted(repetition.failed)) or "nothing failed"
    return UnsupportedError(f"the run does not fail so in the simulation ({failed}): there is nothing to shrink")


def _run_again(
    repetition: Repetition, mode: Mode, records: Sequence[Record] | None, log: Path | None, output: Path | None
) -> Replayed:
    """records: None where the seed gives the fates. log: the file that contains them, for namespaces."""
    request = repetition.run.asked
    error = ""
    giving = _RecordedFates(records or ())
    with contextlib.ExitStack() as stack:
        folder = output or stack.enter_context(temporary_directory("replay")) / "run"
        where: Layout | RunningCluster = repetition.layout
        if mode == "live":
            where = stack.enter_context(_bring_up(repetition.layout, log if records is not None else None))
        elif records is not None:
            where = _without_chance(repetition.layout)
        try:
            run(
                where, repetition.form, protocol=request["protocol"], codec=request.get("codec", "generated"), mode=mode,
                nics=request.get("nics", "inline") if mode == "live" else "inline",
                queues=request.get("queues", 1) if mode == "live" else 1,
                steering=request.get("steering", "") if mode == "live" else "",
                settings=request["settings"] if isinstance(repetition.form, str) else None, seed=repetition.layout.seed,
                output=folder,
                timeout=request["timeout"], patience=(request["patience"] or STUCK) if mode == "live" else None, check=True,
                scenario=repetition.scenario, profile=request.get("profile", "ideal") if mode == "sim" else "ideal",
                firmware=request.get("firmware"),
                beside=[giving] if mode == "sim" and records is not None else (),
            )  # fmt: skip
        except TestbedError as raised:
            if not (folder / "result.json").exists():
                raise
            error = str(raised)
        checks: list[Mapping[str, Any]] = recorded(folder).result.get("checks") or []
    now = frozenset(name for check in checks for name in check["failed"])
    if error and not now:
        if not checks:
            raise TestbedError(f"the run has not begun again: {error}")
        now = frozenset({ENDED_BADLY})
    given = giving.given if mode == "sim" and records is not None else -1
    return Replayed(mode, repetition.failed, now, error, -1 if records is None else len(records), given)


class _RecordedFates:
    """Companion of a simulation that applies recorded fates."""

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
def _bring_up(layout: Layout, log: Path | None) -> Iterator[RunningCluster]:
    from testbed.cluster.bringing_up import bring_up
    from testbed.cluster.records.state import Store
    from testbed.cluster.running_cluster import RunningCluster

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
    """Resolve the paths of tables and traces against base."""

    def placed(impairment: Impairment) -> Impairment:
        jitter_file, rate_trace = (
            path and str(base / path) for path in (impairment.jitter_file, impairment.rate_trace)
        )
        return replace(impairment, jitter_file=jitter_file, rate_trace=rate_trace)

    links = [replace(link, forward=placed(link.forward), backward=placed(link.backward)) for link in layout.links]
    return replace(layout, links=tuple(links))


def _scenario(folder: Path) -> Scenario:

    return load(folder / "scenario.toml")


def _base(origin: str) -> Path:
    return Path(origin).parent if os.path.isfile(origin) else Path.cwd()
