"""Rows and targets as tables for the terminal."""

from collections.abc import Sequence

from rich.table import Table

from benchmarks.harness.rows import Row
from benchmarks.harness.targets import Target


def format_value(value: float, unit: str) -> str:
    """Format a value to three digits: seconds as milliseconds or microseconds, bytes as kB, bit/s as Gbit/s."""
    if unit == "s":
        if abs(value) < 0.9995e-3:
            return f"{value * 1e6:.3g} us"
        return f"{value * 1e3:.3g} ms" if abs(value) < 0.9995 else f"{value:.3g} s"
    if unit == "B":
        return f"{value / 1e3:.3g} kB"
    if unit == "bit/s":
        return f"{value / 1e9:.3g} Gbit/s"
    if unit == "1/s":
        return f"{value:,.0f}/s"
    return f"{value:.3g}{' ' + unit if unit != '1' else ''}"


def format_samples(row: Row) -> str:
    """Format a row's median, with the range of its samples in parentheses."""
    if row.low == row.high:
        return format_value(row.median, row.unit)
    return (
        f"{format_value(row.median, row.unit)} ({format_value(row.low, row.unit)} - {format_value(row.high, row.unit)})"
    )


def row_table(title: str, rows: Sequence[Row], hosts: str = "hosts") -> Table:
    """Return a table of the rows. hosts: heading of the column with the number of hosts."""
    table = Table(title=f"{title}: median (minimum - maximum)")
    for heading in ("contender", "measure", hosts, "measured"):
        table.add_column(heading, justify="right" if heading in (hosts, "measured") else "left")
    for number, row in enumerate(rows):
        is_last = number + 1 == len(rows) or rows[number + 1].subject != row.subject
        table.add_row(row.contender, row.measure, str(row.hosts or ""), format_samples(row), end_section=is_last)
    return table


def target_table(targets: Sequence[Target]) -> Table:
    table = Table(title="Targets")
    for heading in ("target", "limit", "measured", ""):
        table.add_column(heading, justify="right" if heading in ("limit", "measured") else "left")
    verdicts = {True: "[green]reached", False: "[red]not reached", None: "[yellow]not measured"}
    for target in targets:
        measured = format_value(target.measured, target.unit) if target.measured is not None else ""
        sign = "≥" if target.is_minimum else "<" if target.strict else "≤"
        bound = f"{sign} {format_value(target.limit, target.unit)}"
        table.add_row(target.name, bound, measured, verdicts[target.reached])
    return table
