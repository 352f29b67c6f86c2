"""Command ``compare``: compare runs with each other or with a paper; its exit code is for CI."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import echo, json_option, print_json

if TYPE_CHECKING:
    from testbed.observe.comparing.comparison import ComparedMeasure, Comparison

_WORSE, _BAD_INPUT = 1, 2  # exit codes
_MAX_SHOWN = 60  # measures
_COLOURS = {"worse": "red", "better": "green", "undecided": "yellow"}


@click.command("compare", short_help="Compare two runs: is the second one better or worse?")
@click.argument("folders", metavar="A [B]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--threshold", default="5%", show_default=True, metavar="SHARE",
              help="Minimum regression that counts.")  # fmt: skip
@click.option("--against", type=click.Choice(["paper"]), default=None, help="Compare A with its protocol's paper.")
@click.option(
    "--measure", "measures", multiple=True, metavar="KEY", help="Only this measure: p50_ns, or p50; repeatable."
)
@json_option
@click.pass_context
def compare_command(
    ctx: click.Context,
    folders: tuple[Path, ...],
    threshold: str,
    against: str | None,
    measures: tuple[str, ...],
    as_json: bool,
) -> None:
    """Compare B with A, measure by measure. A and B are each the folder of a run, a directory with several runs of the same
    workload, settings, protocol and mode, or the folder of a study; studies are compared point by point.

    \b
    testbed compare before after
    testbed compare before after --threshold 10% --measure p50
    testbed compare results/runs/20261121-192009-emp-2001-pingpong --against paper

    Repetitions (run --repeat, or several runs) are the samples. A difference counts if it exceeds the threshold and the
    interval of the ratio excludes 1; all intervals hold simultaneously at 95 %. Simulations with equal seeds are exact.
    Exit code 0: nothing is worse, 1: something is worse, 2: bad input, or not comparable.
    """
    from testbed.errors import TestbedError, reason_of
    from testbed.spec.units import UnitError, parse_probability

    if len(folders) != (1 if against else 2):
        raise click.UsageError("--against paper takes one run" if against else "give two runs: A, then B")
    if against and measures:
        raise click.UsageError("--measure cannot be combined with --against")
    try:
        share = parse_probability(threshold)
    except UnitError as error:
        raise click.UsageError(f"--threshold: {error}") from error
    try:
        comparison = _compare(folders, share, measures)
    except TestbedError as error:  # the error's exit code could mean a regression
        echo(f"testbed: {error}", err=True)
        ctx.exit(_BAD_INPUT)
    except OSError as error:
        echo(f"testbed: {reason_of(error)}", err=True)
        ctx.exit(_BAD_INPUT)
    if as_json:
        print_json("compare", _document(comparison))
    else:
        _print(comparison, paper=against is not None)
    ctx.exit(_WORSE if comparison.has_worse else 0)


def _compare(folders: tuple[Path, ...], threshold: float, measures: tuple[str, ...]) -> Comparison:
    studies = [folder for folder in folders if (folder / "study.json").exists()]
    if len(studies) == 2:
        from testbed.studies.study_samples import compare_studies

        return compare_studies(folders[0], folders[1], threshold, measures)
    if studies:
        from testbed.observe.comparing.run_samples import NotComparableError

        raise NotComparableError(
            f"{studies[0]} is the folder of a study, which can be compared only with another study"
        )
    if len(folders) == 1:
        from testbed.observe.comparing.against_paper import compare_with_paper

        return compare_with_paper(folders[0], threshold)
    from testbed.observe.comparing.comparison import compare

    return compare(folders[0], folders[1], threshold, measures)


def _print(comparison: Comparison, *, paper: bool) -> None:
    from testbed.cli.table_layout import print_table
    from testbed.spec.units import format_probability

    for difference in comparison.differences:
        echo(f"differs: {difference}")
    shown = comparison.measures[:_MAX_SHOWN]
    heading_a, heading_b = ("paper", "ours") if paper else ("A", "B")
    print_table(
        ["", *(() if paper else ("measure",)), heading_a, heading_b, "ratio", "interval", "samples", ""],
        [
            [measure.where, *(() if paper else (_measure(measure),)), _cell(measure, measure.baseline),
             _cell(measure, measure.candidate), _ratio(measure.ratio.value), _interval(measure),
             " and ".join(map(str, measure.samples)), measure.judgement.value]
            for measure in shown
        ],
    )  # fmt: skip
    if len(comparison.measures) > len(shown):
        echo(f"and {len(comparison.measures) - len(shown):,} more; --json lists all")
    for note in comparison.notes:
        echo(f"note: {note}")
    counts: dict[str, int] = {}
    for measure in comparison.measures:
        counts[measure.judgement.value] = counts.get(measure.judgement.value, 0) + 1
    totals = ", ".join(f"{count:,} {click.style(name, fg=_COLOURS.get(name))}" for name, count in counts.items())
    echo(f"{totals}; differences of {format_probability(comparison.threshold)} or less do not count")


def _measure(measure: ComparedMeasure) -> str:
    from testbed.observe.format.quantities import heading

    return heading(measure.measure)


def _cell(measure: ComparedMeasure, value: float) -> str:
    from testbed.observe.format.quantities import format_value

    return (
        f"{value:.4g} {measure.measure}"
        if measure.measure in ("us", "Mb/s", "%")
        else format_value(measure.measure, value)
    )


def _ratio(ratio: float) -> str:
    return "∞" if math.isinf(ratio) else f"{ratio:.3f}"


def _interval(measure: ComparedMeasure) -> str:
    if measure.ratio.low is None or measure.ratio.high is None:
        return "too few samples"
    return f"{_ratio(measure.ratio.low)} to {_ratio(measure.ratio.high)}"


def _document(comparison: Comparison) -> Mapping[str, object]:
    def number(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    return {
        "threshold": comparison.threshold,
        "worse": comparison.has_worse,
        "differences": list(comparison.differences),
        "notes": list(comparison.notes),
        "measures": [
            {"point": {key: str(value) if isinstance(value, bool) else value for key, value in measure.point},
             "measure": measure.measure, "a": measure.baseline, "b": measure.candidate, "samples": list(measure.samples),
             "ratio": number(measure.ratio.value), "low": number(measure.ratio.low), "high": number(measure.ratio.high),
             "judgement": measure.judgement.value}
            for measure in comparison.measures
        ],
    }  # fmt: skip
