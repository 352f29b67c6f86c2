"""Command ``scenario check``: print the timeline of a scenario on a cluster, without a run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from testbed.cli.consoles import echo, json_option, print_json, print_warnings, to_seconds

if TYPE_CHECKING:
    from testbed.controller.scenarios.timeline import TimelineEvent

_MAX_SHOWN = 100  # events; --json has all


@click.group("scenario", short_help="Check scenarios of faults.")
def scenario_command() -> None:
    """Scenarios of faults during a run: testbed run CLUSTER WORKLOAD --scenario FILE

    'testbed schema scenario' has all keys.
    """


@scenario_command.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("cluster", metavar="CLUSTER")
@click.option("--mode", type=click.Choice(["sim", "live", "dilated"]), default="live", show_default=True,
              help="Mode of the run; in a dilated run the scenario's times are model time.")  # fmt: skip
@click.option("--dilate", type=click.IntRange(1), default=None, metavar="K",
              help="Factor by which model time is slowed in a dilated run; default: 200.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=None, help="Seed of the run; default: the description's.")
@click.option("--seconds", callback=to_seconds, default="60", show_default=True,
              help="Time limit of the run: its --timeout.")  # fmt: skip
@json_option
def check_command(
    file: Path,
    cluster: str,
    mode: Literal["sim", "live", "dilated"],
    dilate: int | None,
    seed: int | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Print the timeline of a scenario's faults, or its errors. Faults that a protocol or workload does not support are
    reported only by 'testbed run'.

    \b
    testbed scenario check storm.toml star-4
    """
    if dilate is not None and mode != "dilated":
        raise click.UsageError(f"--dilate needs --mode dilated, got --mode {mode}")
    from testbed.controller.runs.run_options import DILATE, check_seconds, check_seed
    from testbed.controller.runs.run_target import find_target
    from testbed.controller.scenarios.feasibility import check, texts_of
    from testbed.controller.scenarios.timeline import occurrences_of, timeline_events
    from testbed.errors import DescriptionError
    from testbed.spec.scenario import load
    from testbed.spec.units import format_duration

    if problems := check_seed(seed) + check_seconds("seconds", seconds):
        raise DescriptionError("the run", problems)
    scenario = load(file)
    target = find_target(cluster, mode, seed)
    layout = target.layout
    factor = (dilate or DILATE) if mode == "dilated" else 0
    datapath = target.running.state.asked if target.running is not None else "auto"
    check(scenario, layout, mode, datapath=datapath, factor=factor)
    texts_of(scenario.faults)  # raises if a file of a fault cannot be read
    horizon = round(seconds * 1e9) // max(factor, 1)
    timeline = timeline_events(occurrences_of(scenario, layout, layout.seed if seed is None else seed, horizon))
    limit = format_duration(horizon) + (" of model time" if factor else "")
    print_warnings(_unreached(timeline, horizon, limit))
    if as_json:
        shown = [
            {"at": event.when, "begins": event.is_begin, "fault": event.occurrence.name,
             "kind": event.occurrence.fault.kind, "what": event.occurrence.fault.what}
            for event in timeline
        ]  # fmt: skip
        print_json("scenario-check", {"name": scenario.name, "cluster": layout.name, "moments": shown})
        return
    for event in timeline[:_MAX_SHOWN]:
        word = "begins" if event.is_begin else "ends"
        echo(f"{format_duration(event.when):>12}  {word:6}  {event.occurrence.name}: {event.occurrence.fault.what}")
    if len(timeline) > _MAX_SHOWN:
        echo(f"and {len(timeline) - _MAX_SHOWN:,} more; --json has all")
    if not timeline:
        echo(f"no fault begins within {limit}")


def _unreached(timeline: Iterable[TimelineEvent], horizon: int, limit: str) -> list[str]:
    """Return a warning if faults begin after the time limit of the run. horizon: the limit in nanoseconds. limit: the limit
    as text."""
    late = dict.fromkeys(event.occurrence.name for event in timeline if event.is_begin and event.when >= horizon)
    if not late:
        return []
    return [
        f"not reached within the time limit of {limit}: {', '.join(late)}: raise --seconds here and --timeout of the run"
    ]
