"""``scenario check``: what a scenario comes to on a cluster, without starting anything."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from testbed.cli.options import json_option, print_json

_SHOWN = 100  # moments; --json has all


@click.group("scenario", short_help="Check scenarios of faults.")
def scenario_command() -> None:
    """What goes wrong beside a run: testbed run CLUSTER WORKLOAD --scenario FILE

    'testbed schema scenario' has all keys.
    """


@scenario_command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("cluster", metavar="CLUSTER")
@click.option(
    "--mode", type=click.Choice(["sim", "live"]), default="live", show_default=True, help="Where it is to be."
)
@click.option("--seed", type=click.IntRange(0), default=None, help="The run's; the description's if not said.")
@click.option("--seconds", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True,
              help="How long the run may take: its --timeout.")  # fmt: skip
@json_option
def check_command(
    file: Path, cluster: str, mode: Literal["sim", "live"], seed: int | None, seconds: float, as_json: bool
) -> None:
    """Say what happens when; all that is wrong at once: names that the cluster does not have, what this machine cannot do.

    \b
    testbed scenario check storm.toml star-4
    """
    from testbed.controller.limits import problem_of_seed, problem_of_time
    from testbed.controller.scenarios.checking import check, texts_of
    from testbed.controller.scenarios.timeline import moments, occurrences
    from testbed.controller.whereabouts import find
    from testbed.errors import DescriptionError
    from testbed.spec.scenario import load
    from testbed.spec.units import format_duration

    if problems := problem_of_seed(seed) + problem_of_time("seconds", seconds):
        raise DescriptionError("the run", problems)
    scenario = load(file)
    layout = find(cluster, mode, seed).layout
    check(scenario, layout, mode)
    texts_of(scenario.faults)
    found = moments(occurrences(scenario, layout, layout.seed if seed is None else seed, round(seconds * 1e9)))
    if as_json:
        shown = [
            {"at": one.when, "begins": one.begins, "fault": one.occurrence.name, "kind": one.occurrence.fault.kind,
             "what": one.occurrence.fault.what}
            for one in found
        ]  # fmt: skip
        print_json("scenario-check", {"name": scenario.name, "cluster": layout.name, "moments": shown})
        return
    for one in found[:_SHOWN]:
        word = "begins" if one.begins else "ends"
        click.echo(f"{format_duration(one.when):>12}  {word:6}  {one.occurrence.name}: {one.occurrence.fault.what}")
    if len(found) > _SHOWN:
        click.echo(f"and {len(found) - _SHOWN:,} more; --json has all")
