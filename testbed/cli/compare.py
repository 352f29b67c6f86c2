"""``compare``: whether runs are better or worse than others, or than a paper; for people, and for CI by the exit code."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from testbed.cli.options import json_option, print_json

if TYPE_CHECKING:
    from testbed.observe.comparing.comparison import Comparison, Measured

_WORSE, _BAD_INPUT = 1, 2
_SHOWN = 60  # measures
_COLOURS = {"worse": "red", "better": "green", "undecided": "yellow"}


@click.command("compare", short_help="Tell whether one run is better or worse than another.")
@click.argument("folders", metavar="A [B]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--threshold", default="5%", show_default=True, metavar="SHARE",
              help="By how much a measure must be worse to matter.")  # fmt: skip
@click.option(
    "--against", type=click.Choice(["paper"]), default=None, help="Compare A with what its protocol's paper says."
)
@click.option(
    "--measure", "measures", multiple=True, metavar="KEY", help="Only this one: p50_ns, or p50; again and again."
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
    """Compare B with A, measure by measure: a run's folder each, or a directory with several runs of the same kind.

    \b
    testbed compare before after
    testbed compare before after --threshold 10% --measure p50
    testbed compare results/runs/20261121-192009-emp-2001-pingpong --against paper

    Repetitions (run --repeat, or several runs) are the samples. A difference counts where it is beyond the threshold and its
    interval excludes that there is none; all intervals hold together at 95 %. Simulations under the same seeds are exact.
    Exit code 0: nothing is worse, 1: something is, 2: bad input, or not comparable.
    """
    from testbed.errors import TestbedError, reason_of
    from testbed.spec.units import UnitError, parse_probability

    if len(folders) != (1 if against else 2):
        raise click.UsageError("say one run with --against paper" if against else "say two runs: A, then B")
    if against and measures:
        raise click.UsageError("--measure goes with two runs: a paper's values are few")
    try:
        share = parse_probability(threshold)
    except UnitError as error:
        raise click.UsageError(f"--threshold: {error}") from error
    try:
        found = _compare(folders, share, measures)
    except TestbedError as error:  # a code of its own would be taken for a regression
        click.echo(f"testbed: {error}", err=True)
        ctx.exit(_BAD_INPUT)
    except OSError as error:
        click.echo(f"testbed: {reason_of(error)}", err=True)
        ctx.exit(_BAD_INPUT)
    if as_json:
        print_json("compare", _document(found))
    else:
        _print(found, paper=against is not None)
    ctx.exit(_WORSE if found.worse else 0)


def _compare(folders: tuple[Path, ...], threshold: float, measures: tuple[str, ...]) -> Comparison:
    if len(folders) == 1:
        from testbed.observe.comparing.against_paper import compare_with_paper

        return compare_with_paper(folders[0], threshold)
    from testbed.observe.comparing.comparison import compare

    return compare(folders[0], folders[1], threshold, measures)


def _print(found: Comparison, *, paper: bool) -> None:
    from testbed.cli.tables import print_table
    from testbed.spec.units import format_probability

    for difference in found.differences:
        click.echo(f"differs: {difference}")
    shown = found.measured[:_SHOWN]
    ours, theirs = ("paper", "ours") if paper else ("A", "B")
    print_table(
        ["", *(() if paper else ("measure",)), ours, theirs, "ratio", "interval", "samples", ""],
        [
            [one.where, *(() if paper else (_measure(one),)), _cell(one, one.ours), _cell(one, one.theirs),
             _factor(one.ratio.value), _interval(one), " and ".join(map(str, one.samples)), one.judgement.value]
            for one in shown
        ],
    )  # fmt: skip
    if len(found.measured) > len(shown):
        click.echo(f"and {len(found.measured) - len(shown):,} more, none of them worse than these; --json has all")
    for note in found.notes:
        click.echo(f"note: {note}")
    counts: dict[str, int] = {}
    for one in found.measured:
        counts[one.judgement.value] = counts.get(one.judgement.value, 0) + 1
    words = ", ".join(f"{count:,} {click.style(word, fg=_COLOURS.get(word))}" for word, count in counts.items())
    click.echo(f"{words}; what differs by {format_probability(found.threshold)} or less is no difference")


def _measure(one: Measured) -> str:
    from testbed.observe.quantities import heading

    return heading(one.measure)


def _cell(one: Measured, value: float) -> str:
    from testbed.observe.quantities import cell

    return f"{value:.4g} {one.measure}" if one.measure in ("us", "Mb/s", "%") else cell(one.measure, value)


def _factor(ratio: float) -> str:
    return "∞" if math.isinf(ratio) else f"{ratio:.3f}"


def _interval(one: Measured) -> str:
    if one.ratio.low is None or one.ratio.high is None:
        return "open"
    return f"{_factor(one.ratio.low)} to {_factor(one.ratio.high)}"


def _document(found: Comparison) -> Mapping[str, object]:
    def number(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    return {
        "threshold": found.threshold,
        "worse": found.worse,
        "differences": list(found.differences),
        "notes": list(found.notes),
        "measures": [
            {"point": {key: str(value) if isinstance(value, bool) else value for key, value in one.point},
             "measure": one.measure, "a": one.ours, "b": one.theirs, "samples": list(one.samples),
             "ratio": number(one.ratio.value), "low": number(one.ratio.low), "high": number(one.ratio.high),
             "judgement": one.judgement.value}
            for one in found.measured
        ],
    }  # fmt: skip
