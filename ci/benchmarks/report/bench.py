"""``ci/bench report``: duration and memory of `testbed report` for a run with many rows or messages, and size of the
page."""

import argparse
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.harness import command_timing, session
from benchmarks.harness.rows import REPOSITORY, Row
from benchmarks.harness.session import Session
from benchmarks.harness.targets import Target
from benchmarks.report.synthetic_runs import with_histories, with_rows

SUBJECTS = ("rows", "histories")
OUTPUT = REPOSITORY / "results" / "bench-report.jsonl"
TIME, SIZE, MEMORY = "time of the command", "size of the page", "memory at most"
SECONDS, BYTES = 10.0, 5_000_000.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    session.add_option(parser, "--repeat", "3", "reports of each run")
    session.add_option(parser, "--nodes", "100", "nodes of the runs")
    session.add_option(parser, "--rows", "1000000", "rows of the run that writes a row for each message")
    session.add_option(parser, "--messages", "250000", "messages of the run with histories, each with four events")
    session.add_subjects(parser, SUBJECTS)
    session.add_option(parser, "--output", str(OUTPUT), "rows are added to this file")


def run(options: argparse.Namespace, session: Session) -> None:
    nodes, repeat = int(options.nodes), int(options.repeat)
    makers: dict[str, Callable[[Path], Path]] = {
        "rows": lambda folder: with_rows(folder, nodes, int(options.rows)),
        "histories": lambda folder: with_histories(folder, nodes, int(options.messages)),
    }
    counts = {"rows": int(options.rows), "histories": int(options.messages)}
    for subject in SUBJECTS:
        if subject in options.subjects:
            session.progress(f"{subject}: synthetic run")
            folder = makers[subject](session.directory / subject)
            session.progress(f"{subject}: reports")
            settings = {"count": counts[subject], "reports": repeat}
            session.attempt(subject, lambda: _reports(subject, folder, nodes, repeat, settings))  # noqa: B023
    session.report("Reports", _targets)


def _targets(rows: Sequence[Row]) -> list[Target]:
    return [
        Target(f"{row.subject}: {row.measure}", limit, row.unit, row.median, strict=True)
        for row in rows
        if (limit := {TIME: SECONDS, SIZE: BYTES}.get(row.measure)) is not None
    ]


def _reports(subject: str, folder: Path, nodes: int, repeat: int, settings: dict[str, int]) -> Iterable[Row]:
    """Measure `testbed report` from its start to its end."""
    page = folder.parent / f"{subject}.html"
    seconds, memory = [], []
    for _ in range(repeat):
        start = time.monotonic()
        command = [*command_timing.command(), "report", str(folder), "-o", str(page)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        seconds.append(time.monotonic() - start)
        memory.append(1024.0 * used.ru_maxrss)
    yield Row(subject, "testbed", TIME, nodes, "s", tuple(seconds), settings)
    yield Row(subject, "testbed", MEMORY, nodes, "B", tuple(memory), settings)
    yield Row(subject, "testbed", SIZE, nodes, "B", (float(page.stat().st_size),), settings)


def main(options: argparse.Namespace) -> int:
    return session.main("report", options.output, lambda session: run(options, session))
