"""Swarms of random cases, each drawn from a seed. Cases run on all processors. A failing case is shrunk, and a command
repeats it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from testbed.engine.tracebacks import program_traceback
from testbed.errors import FirmwareError

Case = TypeVar("Case")
Item = TypeVar("Item")


class Violation(AssertionError):  # noqa: N818  # an error of the checked protocol
    """A check of a protocol failed."""


@contextmanager
def errors_as_violations() -> Iterator[None]:
    """Raise errors of firmware or host library as a Violation. A Violation that a check raised within a NIC is raised
    unchanged."""
    try:
        yield
    except Violation:
        raise
    except FirmwareError as error:
        raise error.__cause__ if isinstance(error.__cause__, Violation) else Violation(str(error)) from error
    except Exception as error:  # a host library may raise anything
        raise Violation(f"a call raised {type(error).__name__}:\n{program_traceback(error)}") from error


@dataclass(frozen=True, slots=True)
class Tally:
    """Totals of many cases. cases: number of cases. failed: reasons by seed. rows: sums of the cases' counters."""

    cases: int
    failed: dict[int, str]
    rows: Counter[str]


def fewer(items: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    """Yield the items without each half, without each quarter, and so on, down to without each single item."""
    step = len(items) // 2
    while step:
        for start in range(0, len(items), step):
            yield items[:start] + items[start + step :]
        step //= 2


def without_one(items: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    """Yield the items without each single item."""
    for index in range(len(items)):
        yield items[:index] + items[index + 1 :]


@dataclass(frozen=True, slots=True)
class Swarm(Generic[Case]):
    """A swarm of cases. command: repeats a case; the seed is appended. draw: draws the case of a seed. run: runs a case,
    returns counters, raises Violation. smaller: yields reduced cases, the largest reductions first."""

    command: str
    draw: Callable[[int], Case]
    run: Callable[[Case], Counter[str]]
    smaller: Callable[[Case], Iterator[Case]]

    def trial(self, seed: int) -> Counter[str]:
        """Draw a case and run it. Raises Violation."""
        return self.run(self.draw(seed))

    def replay(self, seed: int) -> str:
        """Return the command that repeats a case."""
        return f"{self.command} {seed}"

    def verdict(self, case: Case) -> str:
        """Run a case; return its violation as text, empty if there is none."""
        try:
            self.run(case)
        except Violation as violation:
            return str(violation) or "a violation without a message"
        return ""

    def run_many(self, seeds: Iterable[int], chunk: int = 50) -> Tally:
        """Run the cases of these seeds on all processors. chunk: number of cases that a process runs at a time."""
        all_seeds = list(seeds)
        chunks = [all_seeds[start : start + chunk] for start in range(0, len(all_seeds), chunk)]
        failed: dict[int, str] = {}
        rows: Counter[str] = Counter()
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for tally in pool.map(partial(run_seeds, self.trial), chunks):
                failed |= tally.failed
                rows.update(tally.rows)
        return Tally(len(all_seeds), failed, rows)

    def shrink(self, case: Case, attempts: int = 400) -> Case:
        """Return a smaller case that fails, too, or the case itself. attempts: maximum number of cases that are run."""
        smallest, remaining = case, attempts
        progress = True
        while progress and remaining > 0:
            progress = False
            for candidate in self.smaller(smallest):
                remaining -= 1
                if self.verdict(candidate):
                    smallest, progress = candidate, True
                    break
                if remaining <= 0:
                    break
        return smallest

    def main(self, arguments: Sequence[str]) -> int:
        """Run a command line: one seed, whose case is shrunk if it fails, or the first and last (exclusive) seed of a range.
        Return the exit code."""
        if len(arguments) == 2:
            tally = self.run_many(range(int(arguments[0]), int(arguments[1])))
            for row, count in sorted(tally.rows.items()):
                print_line(f"{count:>12,}  {row}")
            for seed, reason in tally.failed.items():
                print_line(f"{self.replay(seed)}: {reason}")
            print_line(f"{tally.cases} cases, {len(tally.failed)} failed")
            return bool(tally.failed)
        case = self.draw(int(arguments[0]))
        violation = self.verdict(case)
        print_line(violation or "no violation")
        if violation:
            smallest = self.shrink(case)
            print_line(f"\nshrunk to\n{smallest}\n{self.verdict(smallest)}")
        return bool(violation)


def run_seeds(trial: Callable[[int], Counter[str]], seeds: Sequence[int]) -> Tally:
    """Run the cases of these seeds one after the other."""
    failed: dict[int, str] = {}
    rows: Counter[str] = Counter()
    for seed in seeds:
        try:
            rows.update(trial(seed))
        except Violation as violation:
            failed[seed] = str(violation)
    return Tally(len(seeds), failed, rows)


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
