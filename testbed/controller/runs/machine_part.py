"""One machine's part of a run on a spread cluster: its worker runs the workload on the machine's nodes.

The machines wait for each other twice: when all NICs are up, before any program begins; and when all programs have ended,
while the NICs still serve their peers. Files that the programs have written are sent to the controller with the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from testbed.errors import FirmwareError, TestbedError
from testbed.kernel.echo import round_trips
from testbed.machines import worker
from testbed.machines.program_streams import ATTACH, attach
from testbed.machines.worker import Dialogue

if TYPE_CHECKING:  # a worker imports modules only for the calls that need them, as bring-up waits for its start
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.controller.runs.execution import Execution
    from testbed.controller.scenarios.player import ScenarioPlayer
    from testbed.fates.rules import RuleSet
    from testbed.observe.live.machine_snapshots import PartSamplers
    from testbed.observe.machine_captures import OpenCaptures
    from testbed.runtime.nodes.node_run import Run
    from testbed.sim.simulation import Simulation
    from testbed.spec.layout import Layout

RUN: Final = "run"
"""Name of the joint call."""

READY, DONE = "ready", "done"
"""Stages of a machine's part of a run, at which it waits for the others."""

_CHECK_INTERVAL: Final = 250_000_000  # ns, of checks whether another machine has ended the run
_NOTICE_TIMEOUT: Final = 2.0  # s for the supervisor to notice that a machine is unreachable or reachable again
_ECHO_TIMEOUT: Final = 0.25  # s
_POLL_INTERVAL: Final = 0.05  # s


def main() -> None:
    """Run the worker of a machine, which can also run workloads, probe links and capture frames."""
    with ExitStack() as stack:

        @cache
        def captures() -> OpenCaptures:
            from testbed.observe.machine_captures import OpenCaptures

            return stack.enter_context(OpenCaptures())

        @cache
        def samplers() -> PartSamplers:
            from testbed.observe.live.machine_snapshots import PartSamplers

            return stack.enter_context(PartSamplers())

        calls: dict[str, Callable[..., object]] = {
            "capture": lambda **arguments: captures().begin(**arguments),
            "captured": lambda **arguments: captures().end(**arguments),
            "sample": lambda **arguments: samplers().sample(**arguments),
            "check": partial(_call_cluster_check, "check_links"),
            "look_back": partial(_call_cluster_check, "look_back"),
            "events": partial(_call_cluster_check, "events_since"),
        }
        worker.main({RUN: run_part, "probe": _probe_part, ATTACH: attach}, calls)


def _call_cluster_check(function: str, **arguments: Any) -> object:
    """Call a function of `cluster_check`. The module is imported on the first call."""
    from testbed.controller import cluster_check

    result: object = getattr(cluster_check, function)(**arguments)
    return result


def _probe_part(dialogue: Dialogue, **arguments: Any) -> object:
    from testbed.controller.probing.half_probes import probe_part

    return probe_part(dialogue, **arguments)


class _StageBarrier:
    """Companion that synchronizes the begin and end of a run with the other machines. Implements `execution.Companion`."""

    def __init__(self, dialogue: Dialogue) -> None:
        self._dialogue = dialogue

    def simulated(self, simulation: Simulation, rules: RuleSet) -> object:
        raise NotImplementedError("a machine's part of a run is in namespaces")

    def live(self, cluster: RunningCluster, run: Run) -> AbstractContextManager[object]:  # noqa: ARG002
        def check(when: int) -> None:
            self._dialogue.check()
            run.at(when + _CHECK_INTERVAL, lambda: check(when + _CHECK_INTERVAL))

        run.before_stop = lambda: self._dialogue.barrier(DONE)
        run.at(_CHECK_INTERVAL, lambda: check(_CHECK_INTERVAL))
        self._dialogue.barrier(READY)
        return nullcontext()


def run_part(
    dialogue: Dialogue,
    name: str,
    asked: Mapping[str, Any],
    seed: int,
    history: bool,
    ahead: int,
    ranks: Sequence[Mapping[str, Any]],
    queues: Mapping[str, Any],
    source: str = "",
    scenario: Mapping[str, Any] | None = None,
) -> object:
    """Run a workload on this machine's nodes of a cluster.

    asked: the run's request, as in its folder. seed: seed of the repetition. history: whether histories are written.
    ahead: nanoseconds by which the run's clock is ahead of this machine's. ranks: all ranks of the run, on all
    machines. queues: receive queues of shared NICs. source: text of the workload's file, if it has one. scenario: the
    scenario, of which this machine injects its share, see `SpreadScenario.request`. The reply has results, counters
    (also of switches) and the verdict, or the error that ended the run; the programs' rows; the text of their files, by
    path; the report of the scenario's player; and the cluster's events during the run.
    """
    from testbed.cluster.records.ownership import temporary_directory
    from testbed.cluster.records.state import Store
    from testbed.cluster.running_cluster import RunningCluster
    from testbed.controller.runs.execution import Plan
    from testbed.controller.runs.folders import RunFolder
    from testbed.controller.runs.live_execution import run_live
    from testbed.controller.runs.run_target import locked
    from testbed.controller.runs.runner import configured, protocol_of
    from testbed.controller.scenarios.machine_reports import report_of
    from testbed.runtime import event_log, journal
    from testbed.runtime.shared.workers import queues_from_json
    from testbed.spec.placement import Rank
    from testbed.workloads.lookup import choose

    store = Store()
    state = store.choose(name)
    started = time.monotonic_ns()
    running = RunningCluster(store, state)
    fault_events: list[Mapping[str, Any]] = []
    player = _player(scenario, seed, fault_events) if scenario is not None else None
    with locked(store, name), temporary_directory("run") as directory:
        companions = (_StageBarrier(dialogue),) if player is None else (player, _StageBarrier(dialogue))
        workload = choose(_write_workload(asked["form"], source, directory), asked["settings"])
        protocol = protocol_of(asked["protocol"], "live")
        protocol = configured(
            protocol, asked["protocol"], asked.get("firmware"), "generated", asked.get("nics", "inline")
        )
        plan = Plan(
            workload, protocol, seed, asked["timeout"], asked["patience"], history,
            companions=companions, ranks=tuple(Rank(**rank) for rank in ranks), ahead=ahead,
            shared=asked.get("nics") == "shared", queues=queues_from_json(queues),
        )  # fmt: skip
        folder = RunFolder(directory / "run", asked, "", {})
        repetition = folder.create_repetition(1, 1)
        outcome: dict[str, object]
        try:
            with player.prepared(running) if player is not None else nullcontext():
                outcome = _outcome(run_live(running, plan, repetition), player)
        except TestbedError as error:
            outcome = failure_reply(error)
        folder.close({})
        rows = list(journal.read(folder.path / "rows.jsonl"))
        files = {
            str(path.relative_to(folder.path)): path.read_text(errors="replace") for path in _program_files(folder.path)
        }
    await_watch(state.layout, store.directory(name))
    events = [event for event in event_log.read(store.directory(name)) if event["clock"] >= started]
    played = report_of(player, fault_events, ahead) if player is not None else None
    return {**outcome, "rows": rows, "files": files, "events": events, "scenario": played}


def _player(scenario: Mapping[str, Any], seed: int, events: list[Mapping[str, Any]]) -> ScenarioPlayer:
    """Return the player of this machine's part of a scenario. events: list to which the player appends the events that it
    records."""
    from testbed.controller.scenarios.player import MachinePart, ScenarioPlayer
    from testbed.spec.layout_json import from_json
    from testbed.spec.scenario import Scenario

    def record_event(event: str, **facts: object) -> None:
        events.append({"time": time.time_ns(), "clock": time.monotonic_ns(), "event": event, **facts})

    part = MachinePart(from_json(scenario["layout"]), scenario["number"])
    return ScenarioPlayer(
        Scenario.from_toml(scenario["toml"]),
        seed=seed,
        seconds=scenario["seconds"],
        record_event=record_event,
        part=part,
    )


def _write_workload(form: str, source: str, directory: Path) -> str:
    """Write the workload's file, if it has one, into a local directory; return the text that names the workload."""
    from testbed.workloads.lookup import file_of

    path = file_of(form)
    if path is None:
        return form
    folder = directory / "workload"
    folder.mkdir(parents=True)
    (folder / path.name).write_text(source, encoding="utf-8")
    return str(folder / path.name) + form.removeprefix(str(path))


def await_watch(layout: Layout, directory: Path) -> None:
    """Wait, for at most _NOTICE_TIMEOUT, until the supervisor has recorded which other machines answer now. directory: the
    cluster's."""
    from testbed.cluster.services.machine_watch import unreachable
    from testbed.runtime import event_log

    deadline = time.monotonic() + _NOTICE_TIMEOUT
    tunnels = layout.part.tunnels if layout.part is not None else ()
    for machine, local, remote in {(tunnel.machine, tunnel.local, tunnel.remote) for tunnel in tunnels}:
        while _answers(local, remote) == (machine in unreachable(event_log.read(directory))):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_INTERVAL)


def _answers(local: str, remote: str) -> bool:
    """Whether a machine answers an echo request."""
    try:
        return bool(round_trips(local, remote, 1, _ECHO_TIMEOUT))
    except OSError:
        return False


def _outcome(execution: Execution, player: ScenarioPlayer | None) -> dict[str, object]:
    from testbed.controller.runs.run_recorder import verdict_to_json

    verdict = execution.verdict
    if player is not None:
        verdict = replace(verdict, notes=tuple(note for note in verdict.notes if player.is_new_note(note)))
    return {
        "results": dict(execution.results),
        "counted": {rank: dict(counts) for rank, counts in execution.counters.items()},
        "verdict": verdict_to_json(verdict),
        "switches": {name: dict(counts) for name, counts in execution.switches.items()},
    }


def failure_reply(error: TestbedError) -> dict[str, object]:
    """Return the reply's keys for an error that ended the run, from which `spread_execution` raises the error again."""
    from testbed.runtime.nodes.node_run import NodeDiedError, StuckError

    outcome: dict[str, object] = {"error": str(error), "class": type(error).__name__}
    if isinstance(error, FirmwareError):
        outcome |= {"what": error.what, "when": error.when}
    elif isinstance(error, NodeDiedError):
        outcome["nodes"] = error.nodes
    elif isinstance(error, StuckError):
        outcome["waiting"] = error.waiting
    return outcome


def _program_files(folder: Path) -> list[Path]:
    """Return the files that programs have written, without rows."""
    from testbed.controller.runs.lost_messages import MESSAGE_COUNTS, UNDELIVERED

    patterns = ("history/*", "logs/*", UNDELIVERED, MESSAGE_COUNTS)
    return [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
