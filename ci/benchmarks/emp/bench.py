"""``ci/bench emp``: round trips spinning and blocking, streams, numbered messages, and a hundred node processes."""

import argparse
from collections.abc import Callable, Iterable
from contextlib import closing

from benchmarks.emp import measurements
from benchmarks.emp.measurements import BLOCKING, SPINNING, Nodes
from benchmarks.emp.targets import targets
from benchmarks.harness import session
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.traffic import Traffic

SUBJECTS = (SPINNING, BLOCKING, "stream", "count", "nodes")
OUTPUT = REPOSITORY / "results" / "bench-emp.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "10", "measured repetitions")
    session.add_option(parser, "--count", "10000", "round trips per repetition")
    session.add_option(parser, "--messages", "200", "messages of 1 MiB per repetition")
    session.add_option(parser, "--small", "100000", "numbered messages of 4 bytes")
    session.add_option(parser, "--nodes", "100", "node processes at once")
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    try:
        traffic = Traffic(session.directory)
    except ContenderError as error:
        session.failures.append(str(error))
        return
    repeat, count, progress = int(options.repeat), int(options.count), session.progress
    with closing(Nodes()) as nodes:
        measures: dict[str, Callable[[], Iterable[Row]]] = {
            SPINNING: lambda: measurements.trips(nodes, traffic, SPINNING, repeat, count, progress),
            BLOCKING: lambda: measurements.trips(nodes, traffic, BLOCKING, repeat, count // 4, progress),
            "stream": lambda: measurements.streams(nodes, repeat, int(options.messages), progress),
            "count": lambda: measurements.measure_messages(nodes, int(options.small), progress),
            "nodes": lambda: measurements.many(nodes, int(options.nodes), repeat, progress),
        }
        session.measure_subjects(options.subjects, measures)
    session.report("EMP", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("emp", options.output, lambda session: run(options, session))
