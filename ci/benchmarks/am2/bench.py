"""``ci/bench am2``: round trips beside EMP's, TCP's and those through a crossbar, message rate, bulk messages, and requests
on lossy Myrinet."""

import argparse
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from benchmarks.am2 import measurements, requests
from benchmarks.am2.measurements import BULK, CROSSBAR, RATE, TRIPS, Nodes
from benchmarks.am2.requests import REQUESTS
from benchmarks.am2.targets import targets
from benchmarks.harness import session
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.traffic import Traffic

SUBJECTS = (TRIPS, CROSSBAR, RATE, BULK, REQUESTS)
OUTPUT = REPOSITORY / "results" / "bench-am2.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "10", "measured repetitions")
    session.add_option(parser, "--count", "10000", "round trips per repetition")
    session.add_option(parser, "--messages", "50", "bulk messages of 1 MiB per repetition")
    session.add_option(parser, "--seconds", "2", "seconds of TCP for comparison")
    session.add_option(
        parser, "--requests", "20000", "requests on lossy Myrinet; 10,000,000 take more than half an hour"
    )
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    try:
        traffic = Traffic(session.directory)
    except ContenderError as error:
        session.failures.append(str(error))
        return
    repeat, count, progress = int(options.repeat), int(options.count), session.progress
    messages, seconds = int(options.messages), float(options.seconds)
    with closing(Nodes()) as nodes:
        measures: dict[str, Callable[[], Iterable[Row]]] = {
            TRIPS: lambda: measurements.trips(nodes, traffic, repeat, count, progress),
            CROSSBAR: lambda: measurements.crossbar(nodes, repeat, count // 4, progress),
            RATE: lambda: measurements.rate(nodes, repeat, count, progress),
            BULK: lambda: measurements.bulk(nodes, traffic, repeat, messages, seconds, progress),
            REQUESTS: lambda: requests.measure(int(options.requests), Path(session.directory)),
        }
        session.measure_subjects(options.subjects, measures)
    session.report("AM-II", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("am2", options.output, lambda session: run(options, session))
