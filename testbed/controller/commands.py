"""Commands on nodes of a live cluster, as a run: all started, followed to the end, their output in files; and beside them
whatever a scenario lets go wrong."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from testbed.cluster import temporary
from testbed.cluster.running import RunningCluster
from testbed.controller.checking import baseline, verdict
from testbed.controller.executing import Follow
from testbed.controller.limits import problem_of_seed, problem_of_time
from testbed.controller.recording import kept
from testbed.controller.running_commands import LISTENING, Command, RunningCommands
from testbed.controller.verdicts import Verdict, verdict_of
from testbed.controller.whereabouts import Whereabouts, find
from testbed.errors import DescriptionError, UnsupportedError
from testbed.spec.selecting import nodes_of

if TYPE_CHECKING:
    from testbed.spec.model import Description
    from testbed.spec.scenario import Scenario

__all__ = ["LISTENING", "Command", "CommandsResult", "run_commands"]


@dataclass(frozen=True, slots=True)
class CommandsResult:
    """folder: None unless output was given; then the logs are gone."""

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
    """Run shell commands in nodes until all have ended: ``[("n1", "iperf3 -s -1"), ("n2", "iperf3 -c n1")]``; instead of a
    node a tag (``@client``) stands for all that have it.

    They are started in this order, each when the one before listens on a port, has ended, or has had LISTENING seconds for
    it. Raises CommandError as soon as one ends with another code than 0, CommandTimeoutError after timeout seconds; the
    others are ended then, with all that they have started. UnsupportedError in the simulation.

    seed: of the links' fates and of what a scenario draws; the description's if not said. scenario: what goes wrong beside
    them, or its file; its times count from when all have been started. A node that crashes is one whose commands are killed,
    which is no failure of theirs; where it returns they begin anew. Raises UnsupportedError before anything starts for what
    only a NIC's firmware has, DescriptionError for what the cluster does not have.
    """
    if mode != "live":
        raise UnsupportedError("commands run in namespaces: they belong to live; in sim only programs on NICs do")
    if problems := problem_of_seed(seed) + problem_of_time("timeout", timeout):
        raise DescriptionError("the run", problems)
    where = find(cluster, mode, seed)
    started_on = [(one, text) for node, text in commands for one in nodes_of(where.layout, [node])]
    faults, first = _scenario(scenario, where), where.layout.seed if seed is None else seed
    asked = {
        "kind": "commands", "cluster": where.name, "origin": where.origin, "mode": mode, "timeout": timeout,
        "workload": "commands", "protocol": "", "commands": [list(one) for one in commands],
        "seed": first, "scenario": faults.name if faults is not None else "",
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        place = output or stack.enter_context(temporary.directory("run"))
        folder = stack.enter_context(kept(Path(place), asked, where))
        with where.ready(follow, folder) as running, contextlib.ExitStack() as around:
            assert running is not None
            follow(f"{len(started_on)} commands on {where.name}")
            part = folder.part(1, 1)
            playing = None
            if faults is not None:
                from testbed.controller.scenarios.playing import Playing

                folder.scenario(faults.to_toml())
                playing = Playing(faults, seed=first, seconds=timeout, tell=folder.event)
                around.enter_context(playing.prepared(running))
            before = baseline(running)
            with RunningCommands(running, part.logs) as started:
                try:
                    started.start(started_on)
                    with playing.live(running, started) if playing is not None else contextlib.nullcontext():
                        started.wait(timeout)
                finally:
                    for one in started.commands:
                        folder.rows.write(_row(one))
            judged = verdict(running, before)
            if playing is not None:
                notes = dict.fromkeys([*playing.notes, *(note for note in judged.notes if playing.heeds(note))])
                judged = verdict_of(judged.findings, notes, judged.seconds)
        folder.done(verdict=judged, results=[], counted=[])
    kept_in = Path(output).absolute() if output is not None else None
    return CommandsResult(where.name, started.commands, judged, kept_in)


def _scenario(given: Scenario | str | Path | None, where: Whereabouts) -> Scenario | None:
    """After a look at whether it can be carried out there."""
    if given is None:
        return None
    from testbed.controller.scenarios.checking import check
    from testbed.controller.scenarios.playing import scenario_of

    scenario = scenario_of(given)
    check(scenario, where.layout, "live", commands=True, asked=where.up.state.asked if where.up is not None else "auto")
    return scenario


def _row(command: Command) -> dict[str, object]:
    took = (command.ended or time.monotonic_ns()) - command.begun
    crashed = {"crashed": command.crashed} if command.crashed else {}
    return {"node": command.node, "command": command.text, "code": command.code, "took_ns": took, **crashed}
