"""``ci/bench via``: MPI's round trips compared with EMP's, the reliable provider's stream, frames in the simulation, and
numbered messages where frames are lost."""

import argparse
from collections.abc import Callable, Iterable

from benchmarks.harness import session
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.via import measurements
from benchmarks.via.measurements import NUMBERED, SIMULATION, STREAM, TRIPS
from benchmarks.via.targets import targets

SUBJECTS = (TRIPS, STREAM, SIMULATION, NUMBERED)
OUTPUT = REPOSITORY / "results" / "bench-via.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "10", "measured repetitions")
    session.add_option(parser, "--count", "10000", "round trips per repetition")
    session.add_option(parser, "--messages", "200", "messages of 1 MiB per repetition")
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
        SIMULATION: lambda: measurements.simulation(repeat, progress),
        NUMBERED: lambda: measurements.numbered(int(options.numbered), progress),
    }
    session.measure_subjects(options.subjects, measures)
    session.report("VIA", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("via", options.output, lambda session: run(options, session))
