"""The rows as tables for the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.rows import Row
from benchmarks.targets import Target, ratios


def figure(value: float, unit: str) -> str:
    """A value to three digits, seconds as milliseconds, bytes as kB."""
    if unit == "s":
        return f"{value * 1e3:.3g} ms" if abs(value) < 0.9995 else f"{value:.3g} s"
    if unit == "B":
        return f"{value / 1e3:.3g} kB"
    return f"{value:.3g}{' ' + unit if unit != '1' else ''}"


def star_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Stars: median (least - greatest); ratio of medians (of single rounds)")
    for heading in ("hosts", "what", "by"):
        table.add_column(heading)
    for heading in ("time", "over the floor"):
        table.add_column(heading, justify="right")
    against = {(ratio.contender, ratio.measure, ratio.hosts): ratio for ratio in ratios(rows)}
    stars = sorted((row for row in rows if row.subject == "star"), key=lambda row: (row.hosts, row.measure))
    for number, row in enumerate(stars):
        ratio = against.get((row.contender, row.measure, row.hosts))
        last = number + 1 == len(stars) or stars[number + 1].hosts != row.hosts
        table.add_row(
            str(row.hosts),
            row.measure,
            row.contender,
            spread(row),
            f"{ratio.value:.2f} ({ratio.low:.2f} - {ratio.high:.2f})" if ratio is not None else "",
            end_section=last,
        )
    return table


def spread(row: Row) -> str:
    if row.low == row.high:
        return figure(row.median, row.unit)
    return f"{figure(row.median, row.unit)} ({figure(row.low, row.unit)} - {figure(row.high, row.unit)})"


def other_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Commands, running in a node, footprint: median (least - greatest)")
    for heading in ("by", "what", "hosts", "found"):
        table.add_column(heading, justify="right" if heading in ("hosts", "found") else "left")
    for row in rows:
        if row.subject != "star":
            table.add_row(row.contender, row.measure, str(row.hosts or ""), spread(row))
    return table


def target_table(targets: Sequence[Target]) -> Table:
    table = Table(title="Targets")
    for heading in ("target", "limit", "found", ""):
        table.add_column(heading, justify="right" if heading in ("limit", "found") else "left")
    words = {True: "[green]reached", False: "[red]not reached", None: "[yellow]not measured"}
    for target in targets:
        found = figure(target.found, target.unit) if target.found is not None else ""
        bound = f"{'<' if target.strict else '≤'} {figure(target.limit, target.unit)}"
        table.add_row(target.name, bound, found, words[target.reached])
    return table


def show(console: Console, rows: Sequence[Row], targets: Sequence[Target]) -> None:
    console.print(star_table(rows))
    if any(row.subject != "star" for row in rows):
        console.print(other_table(rows))
    console.print(target_table(targets))
