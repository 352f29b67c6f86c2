"""Command ``machines run``: a workload on the nodes of a cluster spread over machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from testbed.cli.collector import imports_frozen
from testbed.cli.consoles import json_option, new_results_folder
from testbed.cli.machine_group import file_argument, running_workers
from testbed.cli.progress_display import progress
from testbed.cli.run_command import RUNS, print_result, report_failure
from testbed.registry import DEFAULT_PROTOCOL

if TYPE_CHECKING:
    from testbed.controller.runs.run_options import PlainOptions


@click.command("run")
@file_argument
@click.argument("cluster")
@click.argument("workload")
@click.option("--protocol", default=DEFAULT_PROTOCOL, show_default=True, metavar="NAME", help="Protocol of the NICs.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of the workload.")
@click.option("--repeat", type=click.IntRange(1), default=1, metavar="N", help="Repetitions, each with the next seed.")
@click.option("--seed", type=click.IntRange(0), default=None, help="Seed of the workload; default: the description's.")
@click.option("--output", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="The run's folder; by default a new one in results/runs.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, metavar="SECONDS",
              help="How long each repetition may take.")  # fmt: skip
@click.option("--history", is_flag=True, help="Record each program's sends, receives and completions.")
@click.option("--check/--no-check", default=None,
              help="Check the history for lost, duplicated or changed messages; default if useful.")  # fmt: skip
@json_option
@click.pass_context
def run_command(
    ctx: click.Context,
    file: Path,
    cluster: str,
    workload: str,
    settings: tuple[str, ...],
    output: Path | None,
    as_json: bool,
    **options: Unpack[PlainOptions],
) -> None:
    """Run a workload on all nodes of a cluster that is up on the machines of FILE, as 'testbed run' does on one.

    A workload of your own is a file that is at the same path on all machines. The results are in one folder here. Exit codes
    are those of 'testbed run'.
    """
    from testbed.controller.runs.runner import run
    from testbed.controller.runs.spread_execution import SpreadCluster
    from testbed.workloads.workload_settings import pairs

    place = output or new_results_folder(RUNS, f"{cluster}-{workload.rpartition('/')[2].removesuffix('.py')}")
    with (
        progress(place, "live") as follow,
        report_failure(place, made=output is None),
        imports_frozen(),
        running_workers(file) as running,
    ):
        result = run(
            SpreadCluster(cluster, running), workload, settings=pairs(settings), output=place, follow=follow, **options,
        )  # fmt: skip
    ctx.exit(print_result(result, place, as_json))
