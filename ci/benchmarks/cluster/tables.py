"""Rows of stars as a table for the terminal."""

from collections.abc import Sequence

from rich.table import Table

from benchmarks.cluster.targets import ratios
from benchmarks.harness.rows import Row
from benchmarks.harness.tables import format_samples


def star_table(rows: Sequence[Row]) -> Table:
    table = Table(title="Stars: median (minimum - maximum); ratio of medians (of single rounds)")
    for heading in ("hosts", "measure", "contender"):
        table.add_column(heading)
    for heading in ("time", "over the floor"):
        table.add_column(heading, justify="right")
    ratio_of = {(ratio.contender, ratio.measure, ratio.hosts): ratio for ratio in ratios(rows)}
    stars = sorted((row for row in rows if row.subject == "star"), key=lambda row: (row.hosts, row.measure))
    for number, row in enumerate(stars):
        ratio = ratio_of.get((row.contender, row.measure, row.hosts))
        is_last = number + 1 == len(stars) or stars[number + 1].hosts != row.hosts
        table.add_row(
            str(row.hosts),
            row.measure,
            row.contender,
            format_samples(row),
            f"{ratio.value:.2f} ({ratio.low:.2f} - {ratio.high:.2f})" if ratio is not None else "",
            end_section=is_last,
        )
    return table
