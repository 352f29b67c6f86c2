"""``ci/bench stacks``: OSU's latency test, by Open MPI on TCP and by testbed's MPI on EMP, between the same nodes."""

import argparse
from collections.abc import Callable
from pathlib import Path

from rich.table import Table

from benchmarks.harness import session, tables
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.stacks import measurements
from benchmarks.stacks.measurements import CPU, HALF, SLEEPING, SPINNING
from testbed import TestbedError

SIZES = ",".join(str(4**power) for power in range(11))  # 1 B to 1 MiB
OUTPUT = REPOSITORY / "results" / "bench-stacks.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "5", "measured repetitions")
    session.add_option(parser, "--count", "1000", "round trips of a size per repetition; a tenth above 8 KiB")
    session.add_option(parser, "--sizes", SIZES, "bytes of a message")
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")
    parser.add_argument("--runs", type=Path, help="a new directory, for each stack's rows as those of a run")


def run(options: argparse.Namespace, session: Session) -> None:
    sizes = [int(size) for size in options.sizes.split(",")]
    try:
        with measurements.two_nodes() as cluster:
            session.attempt(
                "stacks",
                lambda: measurements.round_trips(
                    cluster, session.directory, sizes, int(options.count), int(options.repeat), session.progress
                ),
            )
            if options.runs is not None:
                measurements.write_runs(cluster, session.rows, options.runs)
    except TestbedError as error:
        session.failures.append(str(error))
        return
    show = session.console.print
    show(table("half round trip, polling", session.rows, SPINNING, HALF, tables.format_samples))
    show(table("half round trip, sleeping", session.rows, SLEEPING, HALF, tables.format_samples))
    show(table("processor time of one side per message", session.rows, (*SPINNING, *SLEEPING), CPU, format_median))


def table(title: str, rows: list[Row], stacks: tuple[str, ...], measure: str, cell: Callable[[Row], str]) -> Table:
    """Return a table of sizes by stacks, with medians of the repetitions' medians."""
    result = Table(title=title)
    result.add_column("bytes", justify="right")
    for stack in stacks:
        result.add_column(stack, justify="right")
    cells = {(row.contender, row.settings["size_bytes"]): cell(row) for row in rows if row.measure == measure}
    for size in sorted({size for _, size in cells}):
        result.add_row(f"{size:,}", *(cells.get((stack, size), "") for stack in stacks))
    return result


def format_median(row: Row) -> str:
    return tables.format_value(row.median, row.unit)


def main(options: argparse.Namespace) -> int:
    return session.main("stacks", options.output, lambda session: run(options, session))
