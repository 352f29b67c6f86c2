"""Commands ``machines run`` and ``capture``: a workload on a cluster spread over machines, and its frames in one file."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from testbed.cli.collector import imports_frozen
from testbed.cli.consoles import (
    echo,
    json_option,
    new_results_folder,
    print_json,
    seconds_of,
    stop_descriptor,
    to_seconds,
)
from testbed.cli.machine_group import file_argument, running_workers
from testbed.cli.progress_display import progress
from testbed.cli.run_command import RUNS, print_result, report_failure
from testbed.registry import DEFAULT_PROTOCOL

if TYPE_CHECKING:
    from testbed.controller.runs.run_options import PlainOptions
    from testbed.machines.spread import Workers


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
@click.option("--timeout", callback=to_seconds, default="60", show_default=True, metavar="SECONDS",
              help="Time limit of each repetition.")  # fmt: skip
@click.option("--scenario", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="A timeline of faults, each at the machines that it concerns.")  # fmt: skip
@click.option("--nics", type=click.Choice(["inline", "shared"]), default="inline", show_default=True,
              help="Where the firmware runs: in its host's process, or in an agent process.")  # fmt: skip
@click.option("--queues", type=click.IntRange(1, 64), default=1, metavar="N",
              help="Receive queues of each NIC, with --nics shared.  [default: 1]")  # fmt: skip
@click.option("--steering", default="", metavar="HASH",
              help="Distribution of frames to the queues: a hash of the protocol, or round-robin.")  # fmt: skip
@click.option("--bind/--no-bind", default=True, help="Give each queue, and its programs, a processor.  [default: bind]")
@click.option("--ranks-per-node", type=click.IntRange(1), default=1, metavar="N",
              help="Ranks on each node whose description does not set them.")  # fmt: skip
@click.option("--firmware", multiple=True, metavar="KEY=VALUE", help="A setting of the protocol's NICs.")
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
    firmware: tuple[str, ...],
    output: Path | None,
    as_json: bool,
    **options: Unpack[PlainOptions],
) -> None:
    """Run a workload on all nodes of a cluster on the machines of FILE, as 'testbed run' does on one.

    CLUSTER is one that is up there, which stays, or a description, which is spread for the run and taken down after it.
    A workload of your own is a file, which is sent to the machines. The results are in one folder here. Exit codes are those
    of 'testbed run'.
    """
    from testbed.controller.runs.runner import run
    from testbed.controller.runs.spread_execution import SpreadCluster
    from testbed.workloads.workload_settings import pairs

    description_name = Path(cluster).name.removesuffix(".toml")
    folder = output or new_results_folder(RUNS, f"{description_name}-{workload.rpartition('/')[2].removesuffix('.py')}")
    with (
        progress(folder, "live") as on_progress,
        report_failure(folder, made=output is None),
        imports_frozen(),
        running_workers(file) as running,
        _spread(running, cluster) as name,
    ):
        result = run(
            SpreadCluster(name, running), workload, settings=pairs(settings), firmware=pairs(firmware, "--firmware"),
            output=folder, on_progress=on_progress, **options,
        )  # fmt: skip
    ctx.exit(print_result(result, folder, as_json))


@contextmanager
def _spread(running: Workers, cluster: str) -> Iterator[str]:
    """Yield the name of a cluster that is up, or of a cluster that is spread for the duration of the block."""
    from testbed.machines import spread
    from testbed.machines.node_placement import Constraints
    from testbed.machines.remote_workers import call_each
    from testbed.spec.loader import load
    from testbed.spec.resolver import resolve

    if any(cluster in names for names in call_each(running, "clusters").values()):
        yield cluster
        return
    loaded = load(cluster)
    layout = resolve(loaded.description)
    with spread.brought_up(
        running, layout, f"{layout.name[:36]}-run-{os.getpid()}", Constraints(), loaded.origin
    ) as name:
        yield name


@click.command("top")
@file_argument
@click.argument("cluster")
@click.option("--interval", default="1s", show_default=True, metavar="TIME", help="Time between two snapshots.")
@click.option("--once", is_flag=True, help="Print one snapshot, with the rates of one interval.")
@click.option("--web", is_flag=True, help="Show it in a browser: print the address of the view, and serve it.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="Port of --web; default: a free one.")
@json_option
def top_command(
    file: Path, cluster: str, interval: str, once: bool, web: bool, port: int | None, as_json: bool
) -> None:
    """Watch a cluster on all machines in the terminal or a browser, as 'testbed top' does on one, with the same keys.

    Without a terminal, with --once or with --json one snapshot is printed. A machine that is lost is in the warning.
    """
    from testbed.cli.top import (
        check_web_options,
        is_terminal,
        print_snapshot,
        seconds_between,
        serve_view,
        watch_in_terminal,
    )
    from testbed.machines.spread import workers_with
    from testbed.observe.live.machine_snapshots import SpreadSampler

    check_web_options(web, once, as_json, port)
    seconds = seconds_between(interval)
    with running_workers(file) as running:
        sampler = SpreadSampler(workers_with(running, cluster), cluster)
        if web:
            serve_view(sampler, seconds, port or 0, str(file), cluster)
        elif once or as_json or not is_terminal():
            print_snapshot(sampler, seconds, as_json=as_json)
        else:
            watch_in_terminal(sampler, seconds, ("machines", str(file)))


@click.command("capture")
@file_argument
@click.argument("cluster")
@click.argument("target", metavar="LINK|NODE|all")
@click.option("-w", "--write", "path", metavar="FILE", required=True, type=click.Path(path_type=Path, dir_okay=False),
              help="Write pcapng to this file.")  # fmt: skip
@click.option("--for", "duration", metavar="TIME", help="End after this time, such as 10s.")
@json_option
def capture_command(file: Path, cluster: str, target: str, path: Path, duration: str | None, as_json: bool) -> None:
    """Capture the frames of a link, or of all links of a node, on all machines into one file, until Ctrl-C.

    Times are this machine's. Both ends of a link between machines are in the file as if it were within one: a frame enters
    the link when it comes out of the network between the machines.
    """
    from testbed.observe.machine_captures import capturing

    seconds = seconds_of(duration)
    stop = stop_descriptor()
    with running_workers(file) as running, capturing(running, cluster, target, path) as captured:
        if not seconds:
            echo(f"capturing {target} of {cluster}: Ctrl-C ends it", err=True)
        select.select([stop], [], [], seconds or None)
    totals = {"frames": captured.frames, "complete": captured.complete}
    if as_json:
        print_json("machines-capture", {"cluster": cluster, "target": target, "file": str(path), **totals})
        return
    by_end = ", ".join(f"{number} at {end}" for end, number in sorted(captured.frames.items()))
    echo(f"{sum(captured.frames.values())} frames" + (f": {by_end}" if by_end else ""), err=True)
    if not captured.complete:
        echo("warning: some frames or fates are missing: 'testbed capture' on each machine says which", err=True)
