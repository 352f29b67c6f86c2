"""``ci/bench stacks``: OSU's latency test, by Open MPI on TCP and by testbed's MPI on EMP, between the same nodes."""

import argparse

from rich.table import Table

from benchmarks import session, tables
from benchmarks.rows import REPOSITORY, Row
from benchmarks.session import Session
from benchmarks.stacks import measuring
from benchmarks.stacks.measuring import CPU, HALF, SLEEPING, SPINNING
from testbed import TestbedError

SIZES = ",".join(str(4**power) for power in range(11))  # 1 B to 1 MiB
OUTPUT = REPOSITORY / "results" / "bench-stacks.jsonl"


def arguments(parser: argparse.ArgumentParser) -> None:
    session.option(parser, "--repeat", "5", "turns")
    session.option(parser, "--count", "1000", "round trips of a size in a turn; a tenth above 8 KiB")
    session.option(parser, "--sizes", SIZES, "bytes of a message")
    session.option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    sizes = [int(size) for size in options.sizes.split(",")]
    try:
        with measuring.two_nodes() as cluster:
            session.attempt(
                "stacks",
                lambda: measuring.round_trips(
                    cluster, session.directory, sizes, int(options.count), int(options.repeat), session.progress
                ),
            )
    except TestbedError as error:
        session.failures.append(str(error))
        return
    for stacks, how in ((SPINNING, "waiting by looking again and again"), (SLEEPING, "waiting asleep")):
        session.console.print(table(session.rows, stacks, how))


def table(rows: list[Row], stacks: tuple[str, ...], how: str) -> Table:
    """Sizes by stacks: the median of the turns' medians, with their spread, and the processor time beside it."""
    shown = Table(title=f"half a round trip, {how}: median of medians (least - greatest); CPU per message")
    shown.add_column("bytes", justify="right")
    for stack in stacks:
        shown.add_column(stack, justify="right")
    by = {(row.contender, row.measure, row.settings["size_bytes"]): row for row in rows}
    for size in sorted({size for _, _, size in by}):
        cells = [
            f"{tables.spread(by[stack, HALF, size])}; {tables.figure(by[stack, CPU, size].median, 's')}"
            if (stack, HALF, size) in by
            else ""
            for stack in stacks
        ]
        shown.add_row(f"{size:,}", *cells)
    return shown


def main(options: argparse.Namespace) -> int:
    return session.main("stacks", options.output, lambda session: run(options, session))
