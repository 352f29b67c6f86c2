"""Commands ``replay`` and ``check-run``: repeat a run's fates, or check its history again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from testbed.cli.consoles import echo, is_given, json_option, print_json, require_given
from testbed.errors import UnsupportedError

if TYPE_CHECKING:
    from testbed.controller.checkers.check_report import Report
    from testbed.controller.replay.delta_debugging import ShrinkResult
    from testbed.controller.replay.replays import Repetition, ReplayResult

_FAILED = 10
_MAX_SHOWN = 20  # fates or faults


@click.command("replay", short_help="Run a failed run again with the same fates, in either mode.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--mode", type=click.Choice(["sim", "live"]), default=None,
              help="Mode of the replay; default: live for a simulation, else sim.")  # fmt: skip
@click.option("--repetition", "number", type=click.IntRange(1), default=None, metavar="N",
              help="Repetition to replay; default: the last one that began.")  # fmt: skip
@click.option("--with", "schedule_file", type=click.Path(path_type=Path, exists=True, dir_okay=False), default=None,
              metavar="FILE", help="Log of fates, or scenario, to use instead of the run's own.")  # fmt: skip
@click.option(
    "--shrink",
    is_flag=True,
    help="First find, in the simulation, a minimal set of fates or faults that makes the run fail.",
)
@click.option("--runs", type=click.IntRange(1), default=200, show_default=True, metavar="N",
              help="Maximum number of simulations for --shrink.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="Folder of the new run; without it, the run is not kept.")  # fmt: skip
@json_option
@click.pass_context
def replay_command(
    ctx: click.Context,
    folder: Path,
    mode: Literal["sim", "live"] | None,
    number: int | None,
    schedule_file: Path | None,
    shrink: bool,
    runs: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Repeat a recorded run, and report whether the same check fails again.

    \b
    testbed replay results/runs/20250101-120000-star-4-random
    testbed replay results/runs/20250101-120000-star-4-random --shrink --mode sim

    The fates come from the run's log. They come from the seed if the log is incomplete (in namespaces without --fates the
    kernel decides some fates, and does not report them), or if the run has a scenario. Exit code 10: a check or the replay
    has failed, whether as before or otherwise.
    """
    from testbed.controller.replay.replays import minimize, read_repetition, replay_repetition

    if shrink and schedule_file is not None:
        raise click.UsageError(
            "--shrink cannot be combined with --with: it begins with the run's own fates or scenario"
        )
    require_given("--shrink", shrink, ("--runs", is_given(ctx, "runs")))
    original = read_repetition(folder, number or 0)
    minimal = None
    if shrink:
        minimal = minimize(original, runs)
        if not as_json:
            _print_minimal(original, minimal, runs)
        schedule_file = original.minimal_file
    replay_mode = mode or ("live" if original.run.parameters["mode"] == "sim" else "sim")
    result = replay_repetition(original, replay_mode, schedule_file, output)
    if as_json:
        shrunk = {} if minimal is None else {
            "shrunk": {
                "fates": len(minimal.causes), "runs": minimal.trials, "minimal": minimal.minimal, "log": str(schedule_file)
            }
        }  # fmt: skip
        print_json(
            "replay",
            {
                "folder": str(folder), "repetition": original.number, "mode": result.mode, "same": result.reproduced,
                "before": sorted(result.failed_originally), "now": sorted(result.failed), "error": result.error,
                "fates": result.fates, **shrunk,
            },
        )  # fmt: skip
    else:
        _print_result(result)
    ctx.exit(_FAILED if result.failed else 0)


@click.command("check-run", short_help="Check the history of a run again.")
@click.argument("folder", type=click.Path(path_type=Path))
@json_option
@click.pass_context
def check_run_command(ctx: click.Context, folder: Path, as_json: bool) -> None:
    """Check the history of what each program of a run sent, received and was notified of: no loss, no duplicate, order,
    content, errors, progress, recovery. Of active messages: each request is handled once or returned, and each reply matches
    a request. The run must have recorded a history. Exit code 10: a check has failed."""
    from testbed.controller.checkers.runs import recheck
    from testbed.observe.recorded import read_run

    reports = recheck(read_run(folder))
    if as_json:
        print_json("check-run", {"folder": str(folder), "repetitions": [report.to_json() for report in reports]})
    else:
        for number, report in enumerate(reports, 1):
            if len(reports) > 1:
                echo(f"repetition {number}:")
            echo(report.to_text())
    ctx.exit(_FAILED if any(report.failed for report in reports) else 0)


def print_checks(folder: Path) -> None:
    """Print the result of a run's checks on standard error, with the command that repeats a failed run."""
    from testbed.controller.checkers.runs import read_reports
    from testbed.observe.recorded import read_run

    run = read_run(folder)
    reports = read_reports(run)
    for number, report in enumerate(reports, 1):
        if report.failed or report.ambiguities:
            echo(f"checks of repetition {number}:" if len(reports) > 1 else "checks:", err=True)
            echo(_indent(report), err=True)
    if reports and not any(report.failed for report in reports):
        messages = sum(report.message_count for report in reports)
        echo(f"checks: nothing wrong with {messages:,} messages", err=True)
    if run.parameters.get("form") and (run.status == "failed" or any(report.failed for report in reports)):
        mode = "live" if run.parameters["mode"] == "sim" or not _can_simulate(run.parameters["protocol"]) else "sim"
        number = next((index for index, report in enumerate(reports, 1) if report.failed), len(reports))
        option = f" --repetition {number}" if len(reports) > 1 else ""
        echo(f"again in {mode}: testbed replay {shlex.quote(str(folder))}{option} --mode {mode}", err=True)


def _can_simulate(protocol: str) -> bool:
    """Whether the protocol can be simulated: the kernel's protocols exist only in namespaces."""
    from testbed.controller.runs.runner import protocol_of

    try:
        protocol_of(protocol, "sim")
    except UnsupportedError:
        return False
    return True


def _indent(report: Report) -> str:
    return "\n".join(f"  {line}" for line in report.to_text().splitlines())


def _print_minimal(original: Repetition, shrunk: ShrinkResult[str], runs: int) -> None:
    minimality = "each of them is needed" if shrunk.minimal else f"more runs than {runs} might find fewer"
    count = len(shrunk.causes)
    noun = "fate" if original.scenario is None else "fault"
    causes = f"1 {noun} reproduces" if count == 1 else f"{count} {noun}s reproduce"
    echo(
        f"{causes} the failure, found in {shrunk.trials} of at most {runs} runs; {minimality}: {original.minimal_file}"
    )
    for sentence in shrunk.causes[:_MAX_SHOWN]:
        echo(f"  {sentence}")
    if count > _MAX_SHOWN:
        echo(f"  and {count - _MAX_SHOWN} more")


def _print_result(result: ReplayResult) -> None:
    count = "1 fate of the log" if result.fates == 1 else f"{result.fates} fates of the log"
    fates = count if result.fates >= 0 else "fates from the seed"
    applied = f", {result.applied} of them applied" if result.applied >= 0 else ""
    echo(f"failed in the run: {', '.join(sorted(result.failed_originally)) or 'nothing'}")
    echo(f"fails in {result.mode}, with {fates}{applied}: {', '.join(sorted(result.failed)) or 'nothing'}")
    if result.error:
        echo(f"  {_one_line(result.error)}")
    if result.failed_originally and result.failed:
        echo("the same check has failed again" if result.reproduced else "the replay has failed differently")
    elif result.failed_originally:
        echo("the failure was not reproduced")


def _one_line(error: str) -> str:
    """Summarize an error in one line; a traceback by its node and its last line."""
    lines = error.strip().splitlines()
    prefix, is_traceback, _ = lines[0].partition("Traceback (most recent call last)")
    return prefix + lines[-1] if is_traceback else lines[0]
