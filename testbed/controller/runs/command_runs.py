"""Runs of shell commands on nodes of a live cluster: start the commands, wait for their end, and keep their output in
files. A scenario may inject faults meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cluster.records.ownership import temporary_directory
from testbed.cluster.running_cluster import RunningCluster
from testbed.controller.cluster_check import baseline, verdict
from testbed.controller.runs.execution import ProgressCallback
from testbed.controller.runs.run_options import check_seconds, check_seed
from testbed.controller.runs.run_recorder import record_run
from testbed.controller.runs.run_target import RunTarget, find_target
from testbed.controller.runs.running_commands import LISTEN_TIMEOUT, Command, RunningCommands
from testbed.controller.verdict.outages import ProcessOutages
from testbed.controller.verdict.verdicts import Verdict, verdict_of
from testbed.errors import DescriptionError, UnsupportedError
from testbed.spec.selection import nodes_of

if TYPE_CHECKING:
    from testbed.controller.runs.spread_execution import SpreadCluster
    from testbed.spec.model import Description
    from testbed.spec.scenario import Scenario

__all__ = ["LISTEN_TIMEOUT", "Command", "CommandsResult", "run_commands"]


@dataclass(frozen=True, slots=True)
class CommandsResult:
    """Result of a run of commands. folder: None if no output folder was given, in which case the logs are removed."""

    cluster: str
    commands: Sequence[Command]
    verdict: Verdict
    folder: Path | None


def run_commands(
    cluster: str | Path | Description | RunningCluster | SpreadCluster,
    commands: Sequence[tuple[str, str]],
    *,
    mode: str = "live",
    seed: int | None = None,
    output: str | Path | None = None,
    timeout: float = 60.0,
    scenario: Scenario | str | Path | None = None,
    on_progress: ProgressCallback = lambda _: None,
) -> CommandsResult:
    """Run shell commands in nodes until all have ended: ``[("n1", "iperf3 -s -1"), ("n2", "iperf3 -c n1")]``. A tag
    (``@client``) in place of a node stands for all nodes that have it.

    Commands start in this order. Each waits until the previous one listens on a port or has ended, for at most
    LISTEN_TIMEOUT seconds. Raises CommandError when a command exits with a code other than 0, and CommandTimeoutError
    after `timeout` seconds; either ends the other commands with all processes that they started. Raises UnsupportedError
    in the simulation and on several machines.

    seed: seed of random faults and of the links' fates, unless the cluster is up already; by default the description's.
    scenario: faults to inject, or the file that describes them; its times count from the start of the last command. A
    crash of a node kills its commands; this does not count as their failure, and they start again when the node
    returns. Before anything starts, raises UnsupportedError for a fault that requires a NIC's firmware,
    DescriptionError for a target that the cluster lacks.
    """
    if mode != "live":
        raise UnsupportedError("commands run in namespaces and need --mode live; only workloads run in the simulation")
    if problems := check_seed(seed) + check_seconds("timeout", timeout):
        raise DescriptionError("the run", problems)
    target = find_target(cluster, mode, seed)
    if target.spread is not None:
        raise UnsupportedError(
            f"{target.name} is on several machines, where commands cannot run with a scenario: use a workload, or "
            "'testbed machines exec'"
        )
    node_commands = [(name, text) for node, text in commands for name in nodes_of(target.layout, [node])]
    loaded_scenario, first_seed = _load_scenario(scenario, target), target.layout.seed if seed is None else seed
    request = {
        "kind": "commands", "cluster": target.name, "origin": target.origin, "mode": mode, "timeout": timeout,
        "workload": "commands", "protocol": "", "commands": [list(command) for command in commands],
        "seed": first_seed, "scenario": loaded_scenario.name if loaded_scenario is not None else "",
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        directory = output or stack.enter_context(temporary_directory("run"))
        recorder = stack.enter_context(record_run(Path(directory), request, target))
        with target.ready(on_progress, recorder) as running, contextlib.ExitStack() as preparations:
            assert running is not None
            on_progress(f"{len(node_commands)} commands on {target.name}")
            files = recorder.create_repetition(1, 1)
            player = None
            if loaded_scenario is not None:
                from testbed.controller.scenarios.player import ScenarioPlayer

                recorder.write_scenario(loaded_scenario.to_toml())
                player = ScenarioPlayer(
                    loaded_scenario, seed=first_seed, seconds=timeout, record_event=recorder.add_event
                )
                preparations.enter_context(player.prepared(running))
            before = baseline(running)
            outages = ProcessOutages(running.name, before.clock)
            with outages.judge_errors(recorder), RunningCommands(running, files.logs) as running_commands:
                try:
                    with player.live(running, running_commands) if player is not None else contextlib.nullcontext():
                        running_commands.start(node_commands)
                        running_commands.wait(timeout)
                finally:
                    for command in running_commands.commands:
                        recorder.rows.write(_row(command))
            run_verdict = verdict(running, before)
            if player is not None:
                notes = dict.fromkeys(
                    [*player.notes, *(note for note in run_verdict.notes if player.is_new_note(note))]
                )
                run_verdict = verdict_of(run_verdict.findings, notes, run_verdict.seconds)
        recorder.record_success(verdict=run_verdict, results=[], counted=[])
    output_folder = Path(output).absolute() if output is not None else None
    return CommandsResult(target.name, running_commands.commands, run_verdict, output_folder)


def _load_scenario(given: Scenario | str | Path | None, target: RunTarget) -> Scenario | None:
    """Load a scenario, and check that it is feasible on the target."""
    if given is None:
        return None
    from testbed.controller.scenarios.feasibility import check
    from testbed.controller.scenarios.player import scenario_of

    scenario = scenario_of(given)
    datapath = target.running.state.asked if target.running is not None else "auto"
    check(scenario, target.layout, "live", commands=True, datapath=datapath)
    return scenario


def _row(command: Command) -> dict[str, object]:
    elapsed = (command.ended or time.monotonic_ns()) - command.started
    crashed = {"crashed": command.crashed} if command.crashed else {}
    return {"node": command.node, "command": command.text, "code": command.code, "took_ns": elapsed, **crashed}
