"""Command ``scenario check``: the timeline of a scenario on a cluster, without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from testbed.cli.consoles import echo, json_option, print_json, to_seconds

_MAX_SHOWN = 100  # events; --json has all


@click.group("scenario", short_help="Check scenarios of faults.")
def scenario_command() -> None:
    """Scenarios of faults during a run: testbed run CLUSTER WORKLOAD --scenario FILE

    'testbed schema scenario' has all keys.
    """


@scenario_command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("cluster", metavar="CLUSTER")
@click.option("--mode", type=click.Choice(["sim", "live"]), default="live", show_default=True, help="Mode of the run.")
@click.option("--seed", type=click.IntRange(0), default=None, help="Seed of the run; default: the description's.")
@click.option("--seconds", callback=to_seconds, default="60", show_default=True,
              help="Time limit of the run: its --timeout.")  # fmt: skip
@json_option
def check_command(
    file: Path, cluster: str, mode: Literal["sim", "live"], seed: int | None, seconds: float, as_json: bool
) -> None:
    """Print the timeline of faults, or all errors at once: unknown names, and what this machine does not support.

    \b
    testbed scenario check storm.toml star-4
    """
    from testbed.controller.runs.run_options import check_seconds, check_seed
    from testbed.controller.runs.run_target import find_target
    from testbed.controller.scenarios.feasibility import check, texts_of
    from testbed.controller.scenarios.timeline import occurrences, timeline_events
    from testbed.errors import DescriptionError
    from testbed.spec.scenario import load
    from testbed.spec.units import format_duration

    if problems := check_seed(seed) + check_seconds("seconds", seconds):
        raise DescriptionError("the run", problems)
    scenario = load(file)
    layout = find_target(cluster, mode, seed).layout
    check(scenario, layout, mode)
    texts_of(scenario.faults)
    timeline = timeline_events(
        occurrences(scenario, layout, layout.seed if seed is None else seed, round(seconds * 1e9))
    )
    if as_json:
        shown = [
            {"at": event.when, "begins": event.begins, "fault": event.occurrence.name,
             "kind": event.occurrence.fault.kind, "what": event.occurrence.fault.what}
            for event in timeline
        ]  # fmt: skip
        print_json("scenario-check", {"name": scenario.name, "cluster": layout.name, "moments": shown})
        return
    for event in timeline[:_MAX_SHOWN]:
        word = "begins" if event.begins else "ends"
        echo(f"{format_duration(event.when):>12}  {word:6}  {event.occurrence.name}: {event.occurrence.fault.what}")
    if len(timeline) > _MAX_SHOWN:
        echo(f"and {len(timeline) - _MAX_SHOWN:,} more; --json has all")
