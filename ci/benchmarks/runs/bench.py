"""``ci/bench runs``: a run's first message, the controller's cost, and a storm on many nodes, which must not leak."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.harness import session
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.runs import first_message, storm
from benchmarks.runs.storm import Storm
from benchmarks.runs.targets import targets

SUBJECTS = ("first", "controller", "storm", "relayed")
OUTPUT = REPOSITORY / "results" / "bench-runs.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "10", "measured runs, to the first message")
    session.add_option(parser, "--nodes", "100", "nodes of the storm")
    session.add_option(parser, "--messages", "200000", "messages of the storm, in total")
    session.add_option(parser, "--seconds", "60", "seconds over which the messages are spread")
    session.add_option(parser, "--every", "1", "seconds between two samples of the storm's processes")
    session.add_option(parser, "--relayed", "20", "nodes of the storm with losses in the relay")
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    repeat, seconds, every, progress = (
        int(options.repeat), float(options.seconds), float(options.every), session.progress,
    )  # fmt: skip

    def run_storm(nodes: int, *, relay: bool) -> Iterable[Row]:
        requested = Storm(nodes, int(options.messages), seconds, every, relay=relay)
        outcome = storm.watch_storm(requested, Path(session.directory), progress)
        return list(storm.rows(requested, outcome))

    measures: dict[str, Callable[[], Iterable[Row]]] = {
        "first": lambda: first_message.first_messages(repeat, progress),
        "controller": lambda: first_message.controllers(10, 5, max(1, repeat // 3), progress),
        "storm": lambda: run_storm(int(options.nodes), relay=False),
        "relayed": lambda: run_storm(int(options.relayed), relay=True),
    }
    session.measure_subjects(options.subjects, measures)
    session.report("Runs", targets)


def main(options: argparse.Namespace) -> int:
    return session.main("runs", options.output, lambda session: run(options, session))
