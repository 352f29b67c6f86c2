"""``ci/bench shared``: host -> agent -> host, round trips compared with inline NICs and TCP, many host processes,
torture."""

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "10", "measured repetitions")
    session.add_option(parser, "--count", "10000", "round trips per repetition")
    session.add_option(parser, "--hosts", "50", "host processes on one NIC")
    session.add_option(parser, "--seconds", "10", "seconds for which the host processes send")
    session.add_option(parser, "--messages", "100000", "messages of the torture; 10,000,000 take an hour")
    session.add_option(parser, "--loss", "1%", "loss of the torture's links")
    session.add_option(parser, "--every", "1", "seconds between two kills")
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    repeat, count, hosts, progress = int(options.repeat), int(options.count), int(options.hosts), session.progress
    loss = float(options.loss.removesuffix("%")) / 100
    measures: dict[str, Callable[[], Iterable[Row]]] = {
        "alone": lambda: measurements.agent_trips(repeat, count, progress),
        SPINNING: lambda: measurements.trips(Traffic(session.directory), SPINNING, repeat, count, progress),
        BLOCKING: lambda: measurements.trips(Traffic(session.directory), BLOCKING, repeat, count // 4, progress),
        "hosts": lambda: measurements.costs(hosts, progress),
        "fair": lambda: measurements.fairness(hosts, float(options.seconds), progress),
        "torture": lambda: measurements.torture(int(options.messages), loss, float(options.every), progress),
    }
    session.measure_subjects(options.subjects, measures)
    session.report("shared NICs", targets, "hosts")


def main(options: argparse.Namespace) -> int:
    return session.main("shared", options.output, lambda session: run(options, session))
