"""Commands on nodes of a live cluster, as a run: start all, follow them to their end, keep their output in files; with
a scenario of faults beside them."""

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
from testbed.controller.runs.execution import Follow
from testbed.controller.runs.run_options import problem_of_seed, problem_of_time
from testbed.controller.runs.run_recorder import open_folder
from testbed.controller.runs.run_target import RunTarget, find_target
from testbed.controller.runs.running_commands import LISTENING, Command, RunningCommands
from testbed.controller.verdict.outages import Watched
from testbed.controller.verdict.verdicts import Verdict, verdict_of
from testbed.errors import DescriptionError, UnsupportedError
from testbed.spec.selection import nodes_of

if TYPE_CHECKING:
    from testbed.spec.model import Description
    from testbed.spec.scenario import Scenario

__all__ = ["LISTENING", "Command", "CommandsResult", "run_commands"]


@dataclass(frozen=True, slots=True)
class CommandsResult:
    """folder: None if no output folder was asked for; then the logs are removed."""

    cluster: str
    commands: Sequence[Command]
    verdict: Verdict
    folder: Path | None


def run_commands(
    cluster: str | Path | Description | RunningCluster,
    commands: Sequence[tuple[str, str]],
    *,
    mode: str = "live",
    seed: int | None = None,
    output: str | Path | None = None,
    timeout: float = 60.0,
    scenario: Scenario | str | Path | None = None,
    follow: Follow = lambda _: None,
) -> CommandsResult:
    """Run shell commands in nodes until all have ended: ``[("n1", "iperf3 -s -1"), ("n2", "iperf3 -c n1")]``. A tag
    (``@client``) in place of a node stands for all nodes that have it.

    They are started in this order, each once the one before listens on a port, has ended, or has had LISTENING seconds
    to do so. Raises CommandError as soon as one ends with a code other than 0, CommandTimeoutError after timeout
    seconds; the others are then ended with all processes that they started. Raises UnsupportedError in the simulation.

    seed: of the links' fates and a scenario's random draws; by default the description's. scenario: faults beside the
    commands, or its file; its times count from the start of the last command. A crash of a node kills its commands,
    which is no failure of theirs; when it returns they begin anew. Raises UnsupportedError before anything starts for a
    fault that only a NIC's firmware has, DescriptionError for a target that the cluster does not have.
    """
    if mode != "live":
        raise UnsupportedError("commands run in namespaces: they belong to live; in sim only programs on NICs do")
    if problems := problem_of_seed(seed) + problem_of_time("timeout", timeout):
        raise DescriptionError("the run", problems)
    target = find_target(cluster, mode, seed)
    started_on = [(name, text) for node, text in commands for name in nodes_of(target.layout, [node])]
    faults, first = _scenario(scenario, target), target.layout.seed if seed is None else seed
    request = {
        "kind": "commands", "cluster": target.name, "origin": target.origin, "mode": mode, "timeout": timeout,
        "workload": "commands", "protocol": "", "commands": [list(command) for command in commands],
        "seed": first, "scenario": faults.name if faults is not None else "",
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        place = output or stack.enter_context(temporary_directory("run"))
        folder = stack.enter_context(open_folder(Path(place), request, target))
        with target.ready(follow, folder) as running, contextlib.ExitStack() as around:
            assert running is not None
            follow(f"{len(started_on)} commands on {target.name}")
            part = folder.part(1, 1)
            playing = None
            if faults is not None:
                from testbed.controller.scenarios.player import ScenarioPlayer

                folder.scenario(faults.to_toml())
                playing = ScenarioPlayer(faults, seed=first, seconds=timeout, tell=folder.event)
                around.enter_context(playing.prepared(running))
            before = baseline(running)
            watched = Watched(running.name, before.clock)
            with watched.judging(folder), RunningCommands(running, part.logs) as started:
                try:
                    with playing.live(running, started) if playing is not None else contextlib.nullcontext():
                        started.start(started_on)
                        started.wait(timeout)
                finally:
                    for command in started.commands:
                        folder.rows.write(_row(command))
            judged = verdict(running, before)
            if playing is not None:
                notes = dict.fromkeys([*playing.notes, *(note for note in judged.notes if playing.heeds(note))])
                judged = verdict_of(judged.findings, notes, judged.seconds)
        folder.done(verdict=judged, results=[], counted=[])
    kept_in = Path(output).absolute() if output is not None else None
    return CommandsResult(target.name, started.commands, judged, kept_in)


def _scenario(given: Scenario | str | Path | None, target: RunTarget) -> Scenario | None:
    """Load a scenario and check that it is feasible there."""
    if given is None:
        return None
    from testbed.controller.scenarios.feasibility import check
    from testbed.controller.scenarios.player import scenario_of

    scenario = scenario_of(given)
    check(
        scenario, target.layout, "live", commands=True, asked=target.up.state.asked if target.up is not None else "auto"
    )
    return scenario


def _row(command: Command) -> dict[str, object]:
    took = (command.ended or time.monotonic_ns()) - command.begun
    crashed = {"crashed": command.crashed} if command.crashed else {}
    return {"node": command.node, "command": command.text, "code": command.code, "took_ns": took, **crashed}
