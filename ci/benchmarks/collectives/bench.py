"""``ci/bench collectives``: Allreduce and Alltoall by size over every protocol, compared with Open MPI on TCP in the same
cluster, and on many ranks in the simulation; Barrier by number of ranks."""

import argparse
from functools import partial

from rich.table import Table

from benchmarks.collectives import measurements
from benchmarks.collectives.measurements import BARRIER, CALLS, LIVE, PROTOCOLS, SIMULATED, volume_of
from benchmarks.collectives.targets import targets
from benchmarks.harness import session, tables
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from testbed.spec.units import format_size

SUBJECTS = (LIVE, SIMULATED, BARRIER)
SIZES = "8,64,512,4096,32768,262144,1048576"
OUTPUT = REPOSITORY / "results" / "bench-collectives.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "3", "repetitions on real frames")
    session.add_option(parser, "--count", "100", "calls of a size per repetition, at most a second")
    session.add_option(parser, "--sizes", SIZES, "bytes of Allreduce's message, and of each of Alltoall's blocks")
    session.add_option(parser, "--ranks", "4,16", "ranks on real frames, each on a node")
    session.add_option(parser, "--simulated-ranks", "256", "ranks in the simulation, a power of two")
    session.add_option(
        parser, "--volume", str(512 << 20), "bytes of a call in the simulation; larger ones are left out"
    )
    session.add_names(parser, "--protocols", tuple(PROTOCOLS), "protocols in the simulation")
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    sizes = [int(size) for size in options.sizes.split(",")]
    simulated_ranks = int(options.simulated_ranks)
    if LIVE in options.subjects:
        numbers = [int(ranks) for ranks in options.ranks.split(",")]
        count, repeat = int(options.count), int(options.repeat)
        live = partial(measurements.live, numbers, sizes, count, repeat, session.directory, session.progress)
        session.attempt(LIVE, live)
    for contender in options.protocols:
        if SIMULATED in options.subjects:
            volume = int(options.volume)
            simulated = partial(measurements.simulated, contender, simulated_ranks, sizes, volume, session.progress)
            session.attempt(f"{SIMULATED}, {contender}", simulated)
        if BARRIER in options.subjects:
            session.attempt(
                f"{BARRIER}, {contender}", partial(measurements.barriers, contender, simulated_ranks, session.progress)
            )
    for ranks in sorted({row.hosts for row in session.rows if row.subject == LIVE}):
        for call in CALLS:
            session.console.print(table(session.rows, LIVE, ranks, call, sizes))
    if SIMULATED in options.subjects:
        for call in CALLS:
            session.console.print(
                table(session.rows, SIMULATED, simulated_ranks, call, sizes, volume=int(options.volume))
            )
    barriers = [row for row in session.rows if row.subject == BARRIER]
    if barriers:
        session.console.print(tables.row_table("Barrier in the simulation", barriers, "ranks"))
    target_list = targets(session.rows)
    session.conclude(target_list)
    session.console.print(tables.target_table(target_list))


def table(rows: list[Row], subject: str, ranks: int, call: str, sizes: list[int], volume: int = 0) -> Table:
    """Return a table of sizes by contenders, with medians of the repetitions' averages. volume: see `--volume`; 0: no
    limit."""
    selected = [row for row in rows if (row.subject, row.hosts, row.measure) == (subject, ranks, call)]
    contenders = list(dict.fromkeys(row.contender for row in rows if (row.subject, row.hosts) == (subject, ranks)))
    left_out = {size: volume_of(call, ranks, size) for size in sizes if 0 < volume < volume_of(call, ranks, size)}
    caption = f"left out: a call moves more than {format_size(volume)} (--volume) in one process" if left_out else None
    result = Table(title=f"{call}, {ranks} ranks, {subject}", caption=caption)
    for heading in ("size", *contenders):
        result.add_column(heading, justify="right")
    cells = {(row.contender, row.settings["size_bytes"]): tables.format_value(row.median, row.unit) for row in selected}
    for size in sizes:
        empty = f"left out: {left_out[size] / (1 << 30):.3g} GiB" if size in left_out else ""
        result.add_row(format_size(size), *(cells.get((contender, size), empty) for contender in contenders))
    return result


def main(options: argparse.Namespace) -> int:
    return session.main("collectives", options.output, lambda session: run(options, session))
