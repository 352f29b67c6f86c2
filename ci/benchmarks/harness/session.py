"""Run of a benchmark: its rows, the file to which they are written, and its failures."""

import argparse
import compileall
import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.harness import tables
from benchmarks.harness.contenders import ContenderError
from benchmarks.harness.namespace_teardown import NotSettledError
from benchmarks.harness.rows import REPOSITORY, Row, Store
from benchmarks.harness.targets import Target

PACKAGES = ("testbed", "protocols", "topologies")
WIDTH = 120  # columns of the tables without a terminal


def add_option(parser: argparse.ArgumentParser, name: str, default: str, meaning: str) -> None:
    """Add an option with a default, which its help shows. meaning: help text, in which % is written %%."""
    parser.add_argument(name, default=default, help=f"{meaning} (default: %(default)s)")


def add_subjects(parser: argparse.ArgumentParser, known: Sequence[str]) -> None:
    add_names(parser, "--subjects", known, "what to measure")


def add_names(parser: argparse.ArgumentParser, option: str, known: Sequence[str], meaning: str) -> None:
    """Add an option for some of the known names, separated by commas; all by default."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown name {unknown[0]!r}; known: {', '.join(known)}")
        return names

    parser.add_argument(option, type=parse, default=",".join(known), help=f"{meaning} (default: %(default)s)")


class Session:
    """Rows of one run, each stored at once, so that an interrupted run keeps them. failures: reasons of failed measurements.
    stack: closed at the end of the session. directory: temporary directory of the session."""

    def __init__(self, benchmark: str, output: Path, console: Console) -> None:
        self.console = console
        self.rows: list[Row] = []
        self.failures: list[str] = []
        self.progress: Callable[[str], None] = lambda _: None
        self.stack = contextlib.ExitStack()
        self._store = Store(benchmark, output)

    def __enter__(self) -> "Session":
        self.stack.__enter__()
        self.stack.callback(self._store.close)
        self.directory = Path(self.stack.enter_context(tempfile.TemporaryDirectory(prefix="testbed-bench-")))
        self.progress = self.stack.enter_context(self.console.status("")).update
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def attempt(self, what: str, measure: Callable[[], Iterable[Row]]) -> None:
        """Measure and store the rows; record the reason of a failure."""
        try:
            for row in measure():
                self.add([row])
        except (ContenderError, NotSettledError) as error:
            self.failures.append(f"{what}: {error}")

    def measure_subjects(self, requested: Collection[str], measures: Mapping[str, Callable[[], Iterable[Row]]]) -> None:
        """Measure the requested subjects, in their order."""
        for subject, measure in measures.items():
            if subject in requested:
                self.attempt(subject, measure)

    def add(self, rows: Sequence[Row]) -> None:
        self.rows += rows
        self._store.add(rows)

    def conclude(self, targets: Sequence[Target]) -> None:
        """Store the targets, and whether they are reached."""
        for target in targets:
            self.add_result({"subject": "target", **dataclasses.asdict(target), "reached": target.reached})

    def report(self, title: str, targets: Callable[[Sequence[Row]], Sequence[Target]], hosts: str = "nodes") -> None:
        """Store and show the rows and their targets. hosts: column title of the rows' hosts."""
        target_list = targets(self.rows)
        self.conclude(target_list)
        self.console.print(tables.row_table(title, self.rows, hosts))
        self.console.print(tables.target_table(target_list))

    def add_result(self, result: dict[str, object]) -> None:
        self._store.add_result(result)


def compile_modules(directory: Path = REPOSITORY) -> None:
    """Write the bytecode of the modules of testbed, and let child processes do so: without bytecode a process takes twice
    as long to start, and needs memory to compile."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    for package in PACKAGES:
        compileall.compile_dir(directory / package, quiet=1)


def main(benchmark: str, output: str, run: Callable[[Session], None], root: bool = True) -> int:
    """Run the benchmark; return exit code 0 if everything was measured, whatever the figures, otherwise 1. root: refuse to
    run as another user than root."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    if root and os.geteuid() != 0:
        console.print(f"ci/bench {benchmark} makes network namespaces: run it as root")
        return 1
    compile_modules()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    with Session(benchmark, Path(output), console) as session:
        run(session)
    for failure in session.failures:
        console.print(f"not measured: {failure}", markup=False)
    console.print(f"rows added to {output}", markup=False)
    return 1 if session.failures else 0
