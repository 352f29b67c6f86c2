"""Commands ``machines run``, ``capture`` and ``top``: a workload on a cluster spread over machines, its frames in one file,
and a view of it."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

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

_CHECK_INTERVAL: Final = 1.0  # s between two checks whether a captured cluster is still up


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
              help="A timeline of faults, each injected on the machines that it concerns.")  # fmt: skip
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

    CLUSTER: a running cluster, which stays up, or a description, which is brought up for the run and taken down afterwards.
    WORKLOAD: a registered one, or a file, which is sent to the machines. The results are in one folder on this machine. Exit
    codes are those of 'testbed run'.
    """
    from testbed.controller.runs.runner import run
    from testbed.controller.runs.spread_execution import SpreadCluster
    from testbed.workloads.workload_settings import split_settings

    description_name = Path(cluster).name.removesuffix(".toml")
    folder = output or new_results_folder(RUNS, f"{description_name}-{workload.rpartition('/')[2].removesuffix('.py')}")
    with (
        progress(folder, "live") as on_progress,
        report_failure(folder, is_new=output is None),
        imports_frozen(),
        running_workers(file) as running,
        _cluster_up(running, cluster, options["seed"]) as name,
    ):
        result = run(
            SpreadCluster(name, running), workload, settings=split_settings(settings),
            firmware=split_settings(firmware, "--firmware"), output=folder, on_progress=on_progress, **options,
        )  # fmt: skip
    ctx.exit(print_result(result, folder, as_json))


@contextmanager
def _cluster_up(running: Workers, cluster: str, seed: int | None) -> Iterator[str]:
    """Context manager for the name of a cluster that is up. A cluster that is not up is brought up for the block, with
    `seed` as the seed of its links' fates; None: the description's seed."""
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
    if seed is not None:
        layout = replace(layout, seed=seed)
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

    Without a terminal, with --once or with --json one snapshot is printed. If a machine is lost, a warning names it.
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
@click.argument("target", metavar="LINK|NODE|SWITCH|all")
@click.option("-w", "--write", "path", metavar="FILE", required=True,
              type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
              help="Write pcapng to this file; '-' is standard output.")  # fmt: skip
@click.option("--for", "duration", metavar="TIME", help="End after this time, such as 10s.")
@json_option
def capture_command(file: Path, cluster: str, target: str, path: Path, duration: str | None, as_json: bool) -> None:
    """Capture the frames of a link, of all links of a node or switch, or of all links, on all machines into one file.

    The capture ends at Ctrl-C, after --for, or when the cluster or one of its machines is gone. Only then the file is
    written. The frames of a lost machine are missing in it.

    Times are those of this machine's clock. A link between machines has two ends in the file, as a link within a machine
    has: a frame enters it when it arrives from the network between the machines.
    """
    to_stdout = str(path) == "-"
    if as_json and to_stdout:
        raise click.UsageError("--json cannot go with -w -: standard output is the capture")
    from testbed.cluster.records.ownership import temporary_directory
    from testbed.observe.machine_captures import capturing

    seconds = seconds_of(duration)
    with ExitStack() as stack:
        running = stack.enter_context(running_workers(file))
        capture_path = stack.enter_context(temporary_directory("capture")) / "capture.pcapng" if to_stdout else path
        with capturing(running, cluster, target, capture_path) as captured:
            stack.callback(os.close, _open_for_writing(capture_path))
            stop = stop_descriptor()  # not earlier, so that Ctrl-C ends the command while it connects
            if not seconds:
                echo(f"capturing {target} of {cluster}: Ctrl-C ends it", err=True)
            machines_gone = _await_end(running, cluster, stop, seconds)
        if to_stdout:
            with click.open_file("-", "wb") as stdout:
                stdout.write(capture_path.read_bytes())
    is_complete = captured.complete and not machines_gone
    if as_json:
        totals = {"frames": captured.frames, "complete": is_complete}
        print_json("machines-capture", {"cluster": cluster, "target": target, "file": str(path), **totals})
        return
    by_end = ", ".join(f"{number} at {end}" for end, number in sorted(captured.frames.items()))
    echo(f"{sum(captured.frames.values())} frames" + (f": {by_end}" if by_end else ""), err=True)
    for error in captured.lost.values():
        echo(f"warning: {error}; its frames are missing", err=True)
    if taken_down := [machine for machine in machines_gone if machine not in captured.lost]:
        echo(f"warning: the cluster was taken down on machine {', '.join(taken_down)}", err=True)
    if not is_complete:
        echo("warning: the capture is incomplete: some frames or fates are missing", err=True)


def _open_for_writing(path: Path) -> int:
    """Open the file of a capture, which shows early whether it can be written. It is not truncated: an earlier capture stays
    until the new one is written. Raises TestbedError."""
    from testbed.errors import TestbedError, reason_of

    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise TestbedError(f"the capture cannot be written: {reason_of(error)}") from error


def _await_end(running: Workers, cluster: str, stop: int, seconds: float) -> list[str]:
    """Wait until `stop` is readable, the time is over, or the cluster or a machine is gone; return the machines on which the
    cluster is gone, or which are lost. seconds: 0: no limit."""
    deadline = time.monotonic() + seconds if seconds else float("inf")
    machines = _machines_with(running, cluster)
    while True:
        remaining = max(0.0, deadline - time.monotonic())
        stopped, _, _ = select.select([stop], [], [], min(_CHECK_INTERVAL, remaining))
        present = _machines_with(running, cluster)
        gone = [machine for machine in machines if machine not in present]
        if gone or stopped or time.monotonic() >= deadline:
            return gone


def _machines_with(running: Workers, cluster: str) -> list[str]:
    """Return the machines on which a part of a cluster is up, without those that are lost."""
    from testbed.errors import TestbedError
    from testbed.machines.remote_workers import WorkerLostError, try_call_each

    parts = try_call_each(running, "present", name=dict.fromkeys(running, cluster))
    for part in parts.values():
        if isinstance(part, TestbedError) and not isinstance(part, WorkerLostError):
            raise part
    return [machine for machine, part in parts.items() if not isinstance(part, TestbedError) and part["owners"]]
