"""``ci/bench ssam``: round trips compared with EMP's, cells through the relay and in the simulation compared with frames,
and requests where cells are lost."""

import argparse
from collections.abc import Callable, Iterable

from benchmarks.harness import session
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.ssam import measurements, requests
from benchmarks.ssam.measurements import RELAY, SIMULATION, TRIPS
from benchmarks.ssam.requests import REQUESTS
from benchmarks.ssam.targets import targets

SUBJECTS = (TRIPS, RELAY, SIMULATION, REQUESTS)
OUTPUT = REPOSITORY / "results" / "bench-ssam.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "10", "measured repetitions")
    session.add_option(parser, "--count", "10000", "round trips per repetition")
    session.add_option(parser, "--cells", "20000", "cells through the relay per repetition")
    session.add_option(parser, "--requests", "20000", "requests, with 1 %% of the cells lost; 10,000,000 take hours")
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    repeat, progress = int(options.repeat), session.progress
    measures: dict[str, Callable[[], Iterable[Row]]] = {
        TRIPS: lambda: measurements.trips(repeat, int(options.count), progress),
        RELAY: lambda: measurements.relay(repeat, int(options.cells), progress),
        SIMULATION: lambda: measurements.simulation(repeat, progress),
        REQUESTS: lambda: requests.measure(int(options.requests), session.directory),
    }
    session.measure_subjects(options.subjects, measures)
    session.report("SSAM", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("ssam", options.output, lambda session: run(options, session))
