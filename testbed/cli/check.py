"""Command ``check``: measure links with probes and judge them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from testbed.cli.consoles import echo, json_option, name_option, print_json, to_seconds
from testbed.errors import DescriptionError, Problem

if TYPE_CHECKING:
    from testbed.controller.verdict.verdicts import Finding, Grade, Verdict

_EXIT_CODES = {"degraded": 8, "invalid": 9}
_COLOURS = {"trusted": "green", "undecided": "cyan", "degraded": "yellow", "invalid": "red"}


@click.command("check", short_help="Measure links, and judge the result.")
@click.argument("target", metavar="[LINK|NODE|@TAG|all]", required=False)
@click.option(
    "--seconds",
    callback=to_seconds,
    metavar="SECONDS",
    help="Time of probing; default: as long as the impairments need, 2 to 20.",
)
@name_option
@json_option
@click.pass_context
def check_command(
    ctx: click.Context, target: str | None, seconds: float | None, name: str | None, as_json: bool
) -> None:
    """Measure links with probes and judge them: trusted, degraded or invalid.

    \b
    testbed check                    every direction that is impaired
    testbed check n1                 all links of n1, both directions
    testbed check all --seconds 30   everything, longer: rare losses need many probes

    Delay, jitter, rate, loss and order are compared with the configured values. The report also has the emulator's own
    losses and delays in that time, and how late this machine wakes a sleeping process. Exit code 8: degraded, 9:
    invalid. On a slow machine, TESTBED_SLOW=2.5 multiplies the limits that depend on the machine's speed by 2.5.
    """
    from testbed.cluster.records.state import Store
    from testbed.controller.cluster_check import check
    from testbed.controller.runs.run_options import check_seconds
    from testbed.controller.verdict.thresholds import Table

    if problems := check_seconds("seconds", seconds):
        raise DescriptionError("the check", problems)
    store = Store()
    state = store.choose(name)
    verdict = check(state.name, target, seconds, table=Table(slow=slow_factor()), store=store)
    ctx.exit(print_verdict(state.name, verdict, state.datapaths, as_json))


def print_verdict(cluster: str, verdict: Verdict, datapaths: Mapping[str, str] | None, as_json: bool) -> int:
    """Print the verdict of a check, and return the exit code. datapaths: datapath by link, without direct links; None if
    they are unknown."""
    if as_json:
        print_json("check", {"cluster": cluster, **_document(verdict)})
    else:
        _print(cluster, verdict, datapaths)
    return _EXIT_CODES.get(verdict.grade.value, 0)


def slow_factor() -> float:
    """Return the slow-machine factor from TESTBED_SLOW, 1 by default. Raises DescriptionError."""
    value = os.environ.get("TESTBED_SLOW", "1")
    try:
        factor = float(value)
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1e6:
        raise DescriptionError("the environment", [Problem("TESTBED_SLOW", repr(value), "a factor such as 2.5")])
    return factor


def _document(verdict: Verdict) -> Mapping[str, object]:
    return {
        "grade": verdict.grade.value,
        "seconds": verdict.seconds,
        "slow": verdict.slow,
        "findings": [
            {
                **asdict(finding),
                "grade": finding.grade.value,
                "interval": list(finding.interval) if finding.interval is not None else None,
            }
            for finding in verdict.findings
        ],
        "notes": list(verdict.notes),
    }


def _print(cluster: str, verdict: Verdict, datapaths: Mapping[str, str] | None) -> None:
    """Print a block for each direction, a block for the machine, and the verdict."""
    blocks: dict[tuple[str, str], list[Finding]] = {}
    for finding in verdict.findings:
        blocks.setdefault((finding.link, finding.direction), []).append(finding)
    machine = [finding for (link, _), findings in blocks.items() if not link for finding in findings]
    for (link, direction), findings in blocks.items():
        if link:
            carrier = f", carried by {datapaths.get(link, 'direct')}" if datapaths is not None else ""
            _print_block(f"{link} {direction or 'both ways'}{carrier}", findings)
    if machine:
        _print_block("the machine", machine)
    for note in verdict.notes:
        echo(f"note: {note}")
    slow = f", slow-machine factor {verdict.slow:g}" if verdict.slow != 1 else ""
    echo(f"{cluster} is {_style(verdict.grade)} over {verdict.seconds:.1f} s{slow}{_undecided_count(verdict)}")


def _undecided_count(verdict: Verdict) -> str:
    count = len(verdict.undecided)
    return f", with {count} undecided finding{'s' if count > 1 else ''}" if count else ""


def _print_block(title: str, findings: list[Finding]) -> None:
    from testbed.controller.verdict.verdicts import worst

    echo(f"{title}: {_style(worst(findings))}")
    rows = [
        (finding.what, _value(finding.asked, finding.unit), _value(finding.measured, finding.unit), _interval(finding))
        for finding in findings
    ]
    rows.insert(0, ("", "asked", "measured", "interval"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for finding, row in zip([None, *findings], rows, strict=True):  # None: the headings
        cells = "  ".join(
            cell.ljust(width) if column in (0, 3) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        grade = f"  {_style(finding.grade)}" if finding is not None else ""
        reason = f": {finding.reason}" if finding is not None and finding.reason else ""
        echo(f"   {cells}{grade}{reason}".rstrip())


def _style(grade: Grade) -> str:
    return click.style(grade.value, fg=_COLOURS[grade.value])


def _interval(finding: Finding) -> str:
    if finding.interval is None:
        return ""
    low, high = (_value(end, finding.unit) for end in finding.interval)
    return f"{low} to {high}"


def _value(value: float | None, unit: str) -> str:
    """Format a value with its unit."""
    if value is None:
        return "-"
    match unit:
        case "ns":
            return f"{value / 1e6:.3f} ms"
        case "bit/s":
            return f"{value / 1e6:.4g} Mbit/s"
        case "share":
            return f"{value:.4g}" if value == 0 else f"{value * 100:.4g}%"
        case _:
            return f"{value:,.0f}"
