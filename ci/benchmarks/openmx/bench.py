"""``ci/bench openmx``: round trips and streams compared with EMP, all-to-all by receive policy, and numbered messages
where frames are lost."""

import argparse
from collections.abc import Callable, Iterable

from benchmarks.harness import session
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.openmx import measurements
from benchmarks.openmx.measurements import ALL_TO_ALL, NUMBERED, STREAM, TRIPS
from benchmarks.openmx.targets import targets

SUBJECTS = (TRIPS, STREAM, ALL_TO_ALL, NUMBERED)
OUTPUT = REPOSITORY / "results" / "bench-openmx.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "10", "measured repetitions")
    session.add_option(parser, "--count", "10000", "round trips per repetition")
    session.add_option(parser, "--messages", "50", "messages of 4 MiB per repetition")
    session.add_option(
        parser, "--numbered", "20000", "numbered messages, with 1 %% of frames lost; 10,000,000 take an hour or more"
    )
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    repeat, progress = int(options.repeat), session.progress
    measures: dict[str, Callable[[], Iterable[Row]]] = {
        TRIPS: lambda: measurements.trips(repeat, int(options.count), progress),
        STREAM: lambda: measurements.streams(repeat, int(options.messages), progress),
        ALL_TO_ALL: lambda: measurements.all_to_all(repeat, progress),
        NUMBERED: lambda: measurements.numbered(int(options.numbered), progress),
    }
    session.measure_subjects(options.subjects, measures)
    session.report("Open-MX", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("openmx", options.output, lambda session: run(options, session))
