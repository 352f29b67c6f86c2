"""``ci/bench shared``: host -> agent -> host, round trips beside inline NICs and TCP, many host processes, torture."""

import argparse
from collections.abc import Callable, Iterable

from benchmarks.harness import session
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.traffic import Traffic
from benchmarks.shared import measurements
from benchmarks.shared.measurements import BLOCKING, SPINNING
from benchmarks.shared.targets import targets

SUBJECTS = ("alone", SPINNING, BLOCKING, "hosts", "fair", "torture")
OUTPUT = REPOSITORY / "results" / "bench-shared.jsonl"


def arguments(parser: argparse.ArgumentParser) -> None:
    session.option(parser, "--repeat", "10", "turns that count")
    session.option(parser, "--count", "10000", "round trips of a turn")
    session.option(parser, "--hosts", "50", "host processes on one NIC")
    session.option(parser, "--seconds", "10", "for which they send")
    session.option(parser, "--messages", "100000", "of the torture; 10,000,000 take an hour")
    session.option(parser, "--loss", "1%", "beside it")
    session.option(parser, "--every", "1", "seconds between two kills")
    session.subjects(parser, SUBJECTS)
    session.option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    repeat, count, hosts, progress = int(options.repeat), int(options.count), int(options.hosts), session.progress
    loss = float(options.loss.removesuffix("%")) / 100
    measures: dict[str, Callable[[], Iterable[Row]]] = {
        "alone": lambda: measurements.alones(repeat, count, progress),
        SPINNING: lambda: measurements.trips(Traffic(session.directory), SPINNING, repeat, count, progress),
        BLOCKING: lambda: measurements.trips(Traffic(session.directory), BLOCKING, repeat, count // 4, progress),
        "hosts": lambda: measurements.costs(hosts, progress),
        "fair": lambda: measurements.fairness(hosts, float(options.seconds), progress),
        "torture": lambda: measurements.tortured(int(options.messages), loss, float(options.every), progress),
    }
    session.each(options.subjects, measures)
    session.report("shared NICs", targets, "hosts")


def main(options: argparse.Namespace) -> int:
    return session.main("shared", options.output, lambda session: run(options, session))
