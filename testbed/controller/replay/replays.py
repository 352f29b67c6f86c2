"""Replay a run with its recorded fates, in the simulation or in namespaces, or find a minimal set of fates that makes it
fail in the same way.

    result = testbed.replay("results/runs/...", "live")
    result.reproduced, result.failed  # whether a check failed again, and which checks failed

A simulation logs every fate that is not a pass. A run in namespaces does so, too, up to the size limit of the log and
except for fates that the kernel decides. If the log is incomplete, the fates are computed from the seed again, and cannot
be minimized. They are equal, flow by flow, to those of a simulation, and to those of the first repetition in namespaces on
a cluster that was brought up for the run. Otherwise they differ: a cluster's links keep their seed, and count frames on,
from one repetition to the next.

A scenario changes fates at given times. Therefore a run with a scenario is replayed with the scenario instead of the log,
and its faults are minimized. Effects that depend on time, such as a queue overflow, repeat exactly only in the simulation.
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
from testbed.controller.replay.delta_debugging import Cause, ShrinkResult, shrink
from testbed.controller.runs.run_options import Mode, Nics
from testbed.controller.runs.runner import run
from testbed.controller.scenarios.timeline import resolve_draws
from testbed.errors import NotFoundError, TestbedError, UnsupportedError, errors_naming
from testbed.fates.records import Record, Replay, without_chance
from testbed.observe.recorded import FATES, RecordedRun, read_layout, read_run
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

MINIMAL_FATES: Final = "fates-few.jsonl"
MINIMAL_FAULTS: Final = "scenario-few.toml"
"""Files in a repetition's folder with the fates, or the scenario's faults, to which `minimize` has reduced a failing run."""

RUN_ERROR: Final = "it ended with an error"
"""Symptom of a run that ended with an error and without a failed check."""

PROGRESS_TIMEOUT: Final = 5.0
"""Seconds without progress after which a replay in namespaces fails, unless the run has its own `patience`."""

SCENARIO_PROGRESS_TIMEOUT: Final = 15.0
"""Seconds without progress for a run with a scenario: programs that wait for a crashed node make none until their
protocol gives the node up, AM-II by default after 6 s."""

_numbers: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay. failed_originally: checks that failed in the recorded repetition, or RUN_ERROR. failed: those of
    the replay. error: the error that ended the replay, or empty. fates: number of fates in the log; -1: they were computed
    from the seed. applied: number of frames to which a logged fate was applied; -1: unknown."""

    mode: Mode
    failed_originally: frozenset[str]
    failed: frozenset[str]
    error: str
    fates: int
    applied: int

    @property
    def reproduced(self) -> bool:
        """Whether a check failed, or the run ended with an error, both times; or neither happened at either time."""
        return bool(self.failed_originally & self.failed) or self.failed_originally == self.failed


@dataclass(frozen=True, slots=True)
class Repetition:
    """One repetition of a run, from its folder. layout: the cluster, with the seed of its links. failed: checks that failed,
    or RUN_ERROR. form: the workload, by name or as a function. seed: seed of the programs and of the scenario. scenario: the
    faults that were injected during it."""

    run: RecordedRun
    folder: Path
    number: int
    layout: Layout
    failed: frozenset[str]
    form: Form
    seed: int
    scenario: Scenario | None = None

    @property
    def log(self) -> Path | None:
        """The log of fates; None if they are computed from the seed."""
        if self.scenario is not None or self.log_gaps or not (self.folder / FATES).exists():
            return None
        return self.folder / FATES

    @property
    def log_gaps(self) -> Sequence[str]:
        """Reasons why the repetition has no complete log of its own, as text."""
        reasons = [*self.run.result.get("fates", {}).get("untold", ())]
        if self.run.parameters["mode"] != "sim" and self.folder != self.run.folder:
            reasons.append(f"{self.run.folder / FATES} has the fates of all repetitions together")
        return reasons

    @property
    def minimal_file(self) -> Path:
        """The file to which `minimize` writes the fates or faults."""
        return self.folder / (MINIMAL_FATES if self.scenario is None else MINIMAL_FAULTS)


def read_repetition(folder: Path, number: int = 0, workload: Form | None = None) -> Repetition:
    """Read a repetition. number: counted from 1; 0: the last one, with which a failing run ended. workload: required if
    the run's workload had no name. Raises NotFoundError if there is no such run or repetition, UnsupportedError if it cannot
    be run again, TestbedError for a broken file."""
    recorded_run = read_run(folder)
    request = recorded_run.parameters
    if request.get("kind") != "workload":
        raise UnsupportedError(f"{folder} is not a run of a workload: runs of commands cannot be replayed")
    form = workload or request.get("form")
    if not form:
        raise UnsupportedError(f"the workload of {folder} came from Python and has no name: give it to testbed.replay")
    numbers = [int(path.name[7:]) for path in folder.glob("repeat-[0-9]*") if path.name[7:].isdigit()]
    last = max(numbers, default=1)
    if number > last:
        raise NotFoundError(f"{folder} has no repetition {number}: the last one is {last}")
    number = number or last
    checks = recorded_run.result.get("checks") or []
    failed = frozenset(checks[number - 1]["failed"]) if number <= len(checks) else frozenset[str]()
    if not failed and recorded_run.status == "failed" and number == last:
        failed = frozenset({RUN_ERROR})
    layout = _resolve_files(read_layout(folder), _base_directory(str(request.get("origin", ""))))
    seed = int(request["seed"]) + number - 1
    if request["mode"] == "sim":  # in namespaces, links keep their seed for all repetitions
        layout = replace(layout, seed=layout.seed + number - 1)
    scenario = load(folder / "scenario.toml") if request.get("scenario") else None
    repetition_folder = folder / f"repeat-{number}" if numbers else folder
    return Repetition(recorded_run, repetition_folder, number, layout, failed, form, seed, scenario)


def replay(
    folder: str | Path,
    mode: Mode,
    *,
    number: int = 0,
    workload: Form | None = None,
    replacement: str | Path | None = None,
    output: str | Path | None = None,
) -> ReplayResult:
    """Replay a run from its folder; for the arguments see `read_repetition` and `replay_repetition`."""
    repetition = read_repetition(Path(folder), number, workload)
    return replay_repetition(
        repetition, mode, Path(replacement) if replacement else None, Path(output) if output else None
    )


def replay_repetition(
    repetition: Repetition, mode: Mode, replacement: Path | None = None, output: Path | None = None
) -> ReplayResult:
    """Replay a repetition. mode: "sim" or "live". replacement: file of a fate log, or of a scenario, that replaces the
    recorded one. output: folder of the new run; None: it is not kept. Raises UnsupportedError for another mode, the errors
    of reading a log or scenario and of bringing up a cluster, and those that `run` raises before programs begin."""
    if mode not in ("sim", "live"):
        raise UnsupportedError(f"a replay in mode {mode} is not supported: use sim or live")
    if repetition.scenario is not None:
        if replacement is not None:
            repetition = replace(repetition, scenario=load(replacement))
        return _run_again(repetition, mode, None, None, output)
    log = replacement or repetition.log
    records = read_log(log) if log is not None else None
    return _run_again(repetition, mode, records, log, output)


def minimize(repetition: Repetition, max_runs: int) -> ShrinkResult[str]:
    """Find a minimal set of fates, or of the scenario's faults, with which the simulation fails in the same way, in at
    most `max_runs` runs (1 or more). After that many, the set found so far need not be minimal. Return it as text, and write
    it to `minimal_file`. Raises NotFoundError without a complete log, UnsupportedError if nothing failed in the repetition
    or the simulation does not fail in the same way."""
    if not repetition.failed:
        raise UnsupportedError(
            f"nothing failed in repetition {repetition.number} of {repetition.run.folder}: only a failure can be minimized"
        )
    if repetition.scenario is not None:
        return _minimize_faults(repetition, repetition.scenario, max_runs)
    if repetition.log is None and repetition.run.parameters["mode"] != "sim":
        reason = "; ".join(repetition.log_gaps) or "no link was impaired"
        raise NotFoundError(f"{repetition.folder} has no complete {FATES}: {reason}")
    # A simulation without fates writes no file.
    records = read_log(repetition.log) if repetition.log is not None else []

    def fails(subset: Sequence[Record]) -> bool:
        return bool(_run_again(repetition, "sim", subset, None, None).failed & repetition.failed)

    result = _shrink_reproduced(repetition, records, fails, max_runs)
    with errors_naming(repetition.minimal_file):
        repetition.minimal_file.write_text(
            "".join(record.to_line() + "\n" for record in result.causes), encoding="utf-8"
        )
    return _describe_causes(result, lambda record: f"{record.link} {record.direction}: {record.describe()}")


def _minimize_faults(repetition: Repetition, scenario: Scenario, max_runs: int) -> ShrinkResult[str]:
    horizon = round(repetition.run.parameters["timeout"] * 1e9)
    faults = resolve_draws(scenario, repetition.layout, repetition.seed, horizon)

    def with_only(subset: Sequence[Fault]) -> Scenario:
        return scenario.model_copy(update={"faults": tuple(subset), "random": None})

    def fails(subset: Sequence[Fault]) -> bool:
        replayed = _run_again(replace(repetition, scenario=with_only(subset)), "sim", None, None, None)
        return bool(replayed.failed & repetition.failed)

    result = _shrink_reproduced(repetition, faults, fails, max_runs)
    with errors_naming(repetition.minimal_file):
        repetition.minimal_file.write_text(with_only(result.causes).to_toml(), encoding="utf-8")
    return _describe_causes(result, lambda fault: f"at {format_duration(fault.begin)}: {fault.what}")


def _describe_causes(result: ShrinkResult[Cause], describe: Callable[[Cause], str]) -> ShrinkResult[str]:
    return ShrinkResult([describe(cause) for cause in result.causes], result.trials, result.minimal)


def _shrink_reproduced(
    repetition: Repetition, causes: Sequence[Cause], fails: Callable[[Sequence[Cause]], bool], max_runs: int
) -> ShrinkResult[Cause]:
    """Reduce causes in at most `max_runs` runs, after the first has shown that the simulation fails with all of them. Raises
    UnsupportedError if it does not."""
    if not fails(causes):
        failed = ", ".join(sorted(repetition.failed))
        raise UnsupportedError(f"the simulation does not reproduce the failure ({failed}): it cannot be minimized")
    result = shrink(causes, fails, max_runs - 1)
    return replace(result, trials=result.trials + 1)


def _run_again(
    repetition: Repetition, mode: Mode, records: Sequence[Record] | None, log: Path | None, output: Path | None
) -> ReplayResult:
    """Run a repetition again. records: fates; None: they are computed from the seed. log: file of the records, which mode
    live needs."""
    request = repetition.run.parameters
    progress_timeout = PROGRESS_TIMEOUT if repetition.scenario is None else SCENARIO_PROGRESS_TIMEOUT
    error = ""
    in_namespaces = mode == "live" == request["mode"]  # otherwise queues are a profile's, if any
    recorded_fates = _RecordedFates(records or ())
    with contextlib.ExitStack() as stack:
        folder = output or stack.enter_context(temporary_directory("replay")) / "run"
        target: Layout | RunningCluster = repetition.layout
        if mode == "live":
            target = stack.enter_context(_bring_up(repetition.layout, log if records is not None else None))
        else:
            target = _without_profiles(repetition.layout)  # those of the run are given
            if records is not None:
                target = _layout_without_chance(target)
        try:
            run(
                target, repetition.form, protocol=request["protocol"], codec=request.get("codec", "generated"), mode=mode,
                nics=_nics_of(request) if in_namespaces else "inline",
                queues=request.get("queues", 1) if in_namespaces else 1,
                steering=request.get("steering", "") if in_namespaces else "",
                settings=request["settings"] if isinstance(repetition.form, str) else None, seed=repetition.seed,
                link_seed=repetition.layout.seed, output=folder,
                timeout=request["timeout"], check=True,
                patience=(request["patience"] or progress_timeout) if mode == "live" else None,
                scenario=repetition.scenario, profile=request.get("profile", "ideal") if mode == "sim" else "ideal",
                profiles=request.get("profiles", {}) if mode == "sim" else {},
                firmware=request.get("firmware"),
                companions=[recorded_fates] if mode == "sim" and records is not None else (),
            )  # fmt: skip
        except TestbedError as raised:
            if not (folder / "result.json").exists():
                raise
            error = str(raised)
        checks: list[Mapping[str, Any]] = read_run(folder).result.get("checks") or []
    failed = frozenset(name for check in checks for name in check["failed"])
    if error and not failed:
        if not checks:
            raise TestbedError(f"the replay did not start: {error}")
        failed = frozenset({RUN_ERROR})
    applied = recorded_fates.applied if mode == "sim" and records is not None else -1
    return ReplayResult(mode, repetition.failed, failed, error, -1 if records is None else len(records), applied)


def _nics_of(request: Mapping[str, Any]) -> Nics:
    """Return how the NICs of a run in mode live ran. Several ranks on a node share its NIC, even if the others are inline;
    several queues need shared NICs."""
    return "shared" if request.get("queues", 1) > 1 or request.get("nics") == "shared" else "inline"


class _RecordedFates:
    """Companion of a simulation that applies recorded fates."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._replay = Replay(records)

    @property
    def applied(self) -> int:
        return self._replay.applied

    def simulated(self, simulation: Simulation, rules: RuleSet) -> None:
        rules.add(simulation.now(), self._replay)

    def live(self, cluster: RunningCluster, run: Run) -> contextlib.AbstractContextManager[object]:  # noqa: ARG002
        raise AssertionError("in namespaces the log is injected before programs begin")


@contextlib.contextmanager
def _bring_up(layout: Layout, log: Path | None) -> Iterator[RunningCluster]:
    from testbed.cluster.records.state import Store
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.cluster.startup import bring_up

    store, name = Store(), f"{layout.name[:30]}-replay-{os.getpid()}-{next(_numbers)}"
    outcome = bring_up(store, layout, name=name, origin="python", lasting=False)
    with RunningCluster(store, outcome.state) as cluster:
        if log is not None:
            cluster.inject("all", replay=log)
        yield cluster


def _layout_without_chance(layout: Layout) -> Layout:
    links = [
        replace(link, forward=without_chance(link.forward), backward=without_chance(link.backward))
        for link in layout.links
    ]
    return replace(layout, links=tuple(links))


def _without_profiles(layout: Layout) -> Layout:
    return replace(layout, nodes=tuple([replace(node, profile="") for node in layout.nodes]))


def _resolve_files(layout: Layout, base: Path) -> Layout:
    """Return the layout with the paths of tables and traces resolved against `base`."""

    def resolved(impairment: Impairment) -> Impairment:
        jitter_file, rate_trace = (
            path and str(base / path) for path in (impairment.jitter_file, impairment.rate_trace)
        )
        return replace(impairment, jitter_file=jitter_file, rate_trace=rate_trace)

    links = [replace(link, forward=resolved(link.forward), backward=resolved(link.backward)) for link in layout.links]
    return replace(layout, links=tuple(links))


def _base_directory(origin: str) -> Path:
    return Path(origin).parent if os.path.isfile(origin) else Path.cwd()
