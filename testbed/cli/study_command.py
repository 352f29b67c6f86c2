"""Command ``study``: many runs over a parameter space, in parallel; an interrupted study can be continued."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from testbed.cli.consoles import echo, json_option, print_json, require_compatible, require_given

if TYPE_CHECKING:
    from testbed.controller.engines import Engine
    from testbed.studies.designs import Parameters
    from testbed.studies.study_file import Study
    from testbed.studies.study_folder import Outcome, StudyFolder

STUDIES = Path("results/studies")
_FAILED, _INVALID, _DEGRADED = 10, 9, 8  # exit codes
_MAX_SHOWN = 60  # points
_MAX_ERRORS = 20  # errors of points, and failed cases of a swarm
_MAX_MEASURES = 5  # columns
_MAX_LENGTH = 300  # characters of a point's error


class _EngineOptions(TypedDict):
    workers: int | None
    scheduler: str | None
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None


@click.command("study", short_help="Run a study: many runs over a space of parameters.")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--continue", "continued", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="Continue the study in this folder: only points without a result are run.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), default=None, metavar="DIR",
              help="The study's folder; by default a new one in results/studies.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 1024), default=None, metavar="N",
              help="Number of parallel runs; default: the processors of this machine.")  # fmt: skip
@click.option("--scheduler", default=None, metavar="ADDRESS",
              help="Run the points by Dask. here: workers on this machine; tls://HOST:PORT: a scheduler's.")  # fmt: skip
@click.option(
    "--tls-ca", type=click.Path(path_type=Path), metavar="FILE", help="Certificate of the scheduler's authority."
)
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE",
              help="Certificate of this client, issued by that authority.")  # fmt: skip
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="Key of this client's certificate.")
@click.option("--retries", type=click.IntRange(0), default=1, show_default=True, metavar="N",
              help="Further attempts if a run in namespaces fails, or a process dies.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the points, but run none.")
@json_option
@click.pass_context
def study_command(
    ctx: click.Context,
    file: Path | None,
    continued: Path | None,
    output: Path | None,
    retries: int,
    dry_run: bool,
    as_json: bool,
    **options: Unpack[_EngineOptions],
) -> None:
    """Run every point of a study's FILE: a grid, a list, or a Latin hypercube of runs, or a swarm of random cases.

    \b
    testbed study loss.toml
    testbed study loss.toml --dry-run
    testbed study swarm.toml --workers 8
    testbed study --continue results/studies/20261121-192009-loss
    testbed study loss.toml --scheduler tls://lab:8786 --tls-ca ca.pem --tls-cert me.pem --tls-key me.key

    Each point is a separate run, whose result is stored when it ends: an interrupted study can be continued.
    Exit code 8: a run was degraded, 9: invalid, 10: a point or one of its checks failed.
    """
    from testbed.studies.study_folder import new_folder, open_folder

    engine = _engine(options)
    if (file is None) == (continued is None):
        raise click.UsageError("give either a study's FILE, or --continue with its folder")
    if continued is not None and (output is not None or dry_run):
        raise click.UsageError("--continue uses the study's folder: omit --output and --dry-run")
    require_compatible(("--dry-run", dry_run), ("--output", output))
    if continued is not None:
        folder, study = open_folder(continued)
    else:
        from testbed.cli.consoles import new_results_folder
        from testbed.studies.point_checks import check_points
        from testbed.studies.study_file import load

        assert file is not None
        study = load(file)
        check_points(study)
        if dry_run:
            _print_points(study, as_json)
            return
        folder = new_folder(output or new_results_folder(STUDIES, study.name), study)
    outcomes = _run(study, folder, engine, retries)
    if as_json:
        print_json("study", _document(study, folder, outcomes))
    else:
        _print(study, outcomes)
        echo(f"results are in {folder.path}")
    ctx.exit(_exit_code(outcomes))


def _engine(options: _EngineOptions) -> Engine:
    scheduler, width = options["scheduler"], options["workers"] or len(os.sched_getaffinity(0))
    require_given(
        "--scheduler tls://HOST:PORT", scheduler not in (None, "here"),
        ("--tls-ca", options["tls_ca"]), ("--tls-cert", options["tls_cert"]), ("--tls-key", options["tls_key"]),
    )  # fmt: skip
    if scheduler is None:
        from testbed.controller.engines import ProcessEngine

        return ProcessEngine(width)  # even with one worker, since a run may kill its process
    from testbed.studies.dask_engine import Certificates, DaskHere, DaskScheduler

    if scheduler == "here":
        return DaskHere(width)
    if options["workers"] is not None:
        raise click.UsageError(f"--workers is for this machine: scheduler {scheduler} has its own workers")
    authority, certificate, key = options["tls_ca"], options["tls_cert"], options["tls_key"]
    if authority is None or certificate is None or key is None:
        raise click.UsageError("--scheduler needs --tls-ca, --tls-cert and --tls-key, for authentication by both sides")
    return DaskScheduler(scheduler, Certificates(authority, certificate, key))


def _run(study: Study, folder: StudyFolder, engine: Engine, retries: int) -> Mapping[int, Outcome]:
    from testbed.cli.progress_display import step_progress
    from testbed.controller.engines import EngineError
    from testbed.runtime.journal import UnwritableError
    from testbed.studies.study_runs import run_study

    with step_progress(f"study {study.name}") as progress:
        try:
            return run_study(study, folder, engine, retries=retries, progress=progress)
        except KeyboardInterrupt:
            echo(f"interrupted: 'testbed study --continue {folder.path}' continues it", err=True)
            raise
        except (EngineError, UnwritableError) as error:
            raise type(error)(f"{error}; 'testbed study --continue {folder.path}' continues it") from error


def _exit_code(outcomes: Mapping[int, Outcome]) -> int:
    verdicts = {outcome.verdict for outcome in outcomes.values()}
    if "failed" in verdicts or not all(outcome.is_done for outcome in outcomes.values()):
        return _FAILED
    if "invalid" in verdicts:
        return _INVALID
    return _DEGRADED if "degraded" in verdicts else 0


def _print_points(study: Study, as_json: bool) -> None:
    from testbed.cli.table_layout import print_table

    if as_json:
        print_json("study-points", {"name": study.name, "points": [dict(point) for point in study.points]})
        return
    print_table(
        ["point", *study.varied],
        [[str(number), *_cells(study, point)] for number, point in enumerate(study.points[:_MAX_SHOWN])],
    )
    if len(study.points) > _MAX_SHOWN:
        echo(f"and {len(study.points) - _MAX_SHOWN:,} more")
    echo(f"{len(study.points):,} points")


def _cells(study: Study, point: Parameters) -> list[str]:
    from testbed.studies.study_folder import varied_values

    return ["" if value is None else str(value) for value in varied_values(study, point).values()]


def _print(study: Study, outcomes: Mapping[int, Outcome]) -> None:
    """Print a line for each point: its varied parameters, the medians of its measures, and its verdict; then the errors of
    failed points and the failed cases of a swarm, on standard error."""
    from testbed.cli.table_layout import print_table
    from testbed.observe.format.quantities import format_value, heading

    # The figures of an invalid run are meaningless.
    figures = {
        number: _medians(outcome) if outcome.verdict != "invalid" else {} for number, outcome in outcomes.items()
    }
    measures = list(dict.fromkeys(key for medians in figures.values() for key in medians))[:_MAX_MEASURES]
    shown = sorted(outcomes)[:_MAX_SHOWN]
    print_table(
        ["point", *study.varied, *(heading(key) for key in measures), ""],
        [
            [str(number), *_cells(study, study.points[number]),
             *(format_value(key, figures[number].get(key)) for key in measures),
             outcomes[number].verdict if outcomes[number].is_done else "no result"]
            for number in shown
        ],
    )  # fmt: skip
    if len(outcomes) > len(shown):
        echo(f"and {len(outcomes) - len(shown):,} more in rows.jsonl")
    failed = [outcome for _, outcome in sorted(outcomes.items()) if not outcome.is_done]
    for outcome in failed[:_MAX_ERRORS]:
        echo(f"point {outcome.point} failed, attempt {outcome.attempt}: {_sentence(outcome.error)}", err=True)
    cases = [row for _, outcome in sorted(outcomes.items()) for row in outcome.rows if "command" in row]
    for row in cases[:_MAX_ERRORS]:
        first_line = str(row["reason"]).partition("\n")[0]
        echo(f"case {row['seed']} failed: {first_line}\n    to repeat it: {row['command']}", err=True)
    if len(cases) > _MAX_ERRORS:
        echo(f"and {len(cases) - _MAX_ERRORS:,} more failed cases in rows.jsonl", err=True)
    if failed:
        more = f"and {len(failed) - _MAX_ERRORS:,} more; " if len(failed) > _MAX_ERRORS else ""
        echo(f"{more}points.jsonl has all errors in full", err=True)


def _sentence(error: str) -> str:
    """Return an error in one line, shortened: its problems, or a program's exception without the traceback."""
    where, traceback, raised = error.partition("Traceback (most recent call last):\n")
    lines = [line for line in raised.splitlines() if not line.startswith(" ")] if traceback else error.splitlines()
    return (where if traceback else "") + "; ".join(line.strip() for line in lines)[:_MAX_LENGTH]


def _medians(outcome: Outcome) -> dict[str, float]:
    """Return the median of each measure over a point's rows."""
    from testbed.observe.comparing.run_samples import is_measure

    values: dict[str, list[float]] = {}
    for row in outcome.rows:
        for key, value in row.items():
            if is_measure(key, value):
                values.setdefault(key, []).append(float(value))
    return {key: median(samples) for key, samples in values.items()}


def _document(study: Study, folder: StudyFolder, outcomes: Mapping[int, Outcome]) -> Mapping[str, object]:
    return {
        "name": study.name,
        "folder": str(folder.path),
        "points": [
            {"point": number, "parameters": dict(study.points[number]), "outcome": outcome.outcome,
             "error": outcome.error, "verdict": outcome.verdict, "attempt": outcome.attempt,
             "seconds": outcome.seconds, "rows": outcome.rows}
            for number, outcome in sorted(outcomes.items())
        ],
    }  # fmt: skip
