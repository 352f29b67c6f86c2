"""Cases by the thousand: each drawn from its seed alone, run on all processors, tallied; one that fails is run again by one
command, and shrunk.
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


class Violation(AssertionError):  # noqa: N818  # it is no error of ours
    """A promise of the protocol is broken."""


@contextmanager
def judged() -> Iterator[None]:
    """Raise an error of firmware or host library as a Violation; one that a check has raised within a NIC stays as it
    is."""
    try:
        yield
    except Violation:
        raise
    except FirmwareError as error:
        raise error.__cause__ if isinstance(error.__cause__, Violation) else Violation(str(error)) from error
    except Exception as error:  # a host library that a program calls may raise anything
        raise Violation(f"a call has raised {type(error).__name__}:\n{program_traceback(error)}") from error


@dataclass(frozen=True, slots=True)
class Tally:
    """Totals of many cases: how many ran, which failed and why, and their counters."""

    cases: int
    failed: dict[int, str]
    rows: Counter[str]


def fewer(items: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    """Yield the items without a half of them, without a quarter, and so on, and without one."""
    step = len(items) // 2
    while step:
        for at in range(0, len(items), step):
            yield items[:at] + items[at + step :]
        step //= 2


def without_one(items: tuple[Item, ...]) -> Iterator[tuple[Item, ...]]:
    """Yield the items without each of them."""
    for at in range(len(items)):
        yield items[:at] + items[at + 1 :]


@dataclass(frozen=True, slots=True)
class Swarm(Generic[Case]):
    """command: repeats a case, given its seed. draw: makes the case of a seed. run: returns counters, raises Violation.
    smaller: yields reduced cases, the largest reductions first."""

    command: str
    draw: Callable[[int], Case]
    run: Callable[[Case], Counter[str]]
    smaller: Callable[[Case], Iterator[Case]]

    def trial(self, seed: int) -> Counter[str]:
        """Draw a case and run it. Raises Violation."""
        return self.run(self.draw(seed))

    def replay(self, seed: int) -> str:
        """The one command that runs a case again."""
        return f"{self.command} {seed}"

    def verdict(self, case: Case) -> str:
        """Run a case; return its violation, empty if there is none."""
        try:
            self.run(case)
        except Violation as violation:
            return str(violation) or "something"
        return ""

    def many(self, seeds: Iterable[int], chunk: int = 50) -> Tally:
        """These cases, on all processors."""
        wanted = list(seeds)
        parts = [wanted[at : at + chunk] for at in range(0, len(wanted), chunk)]
        failed: dict[int, str] = {}
        rows: Counter[str] = Counter()
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for tally in pool.map(partial(_some, self.trial), parts):
                failed |= tally.failed
                rows.update(tally.rows)
        return Tally(len(wanted), failed, rows)

    def shrink(self, case: Case, attempts: int = 400) -> Case:
        """A case that fails like this one and is smaller. One for which that holds of itself."""
        smallest, left = case, attempts
        progress = True
        while progress and left > 0:
            progress = False
            for candidate in self.smaller(smallest):
                left -= 1
                if self.verdict(candidate):
                    smallest, progress = candidate, True
                    break
                if left <= 0:
                    break
        return smallest

    def main(self, arguments: Sequence[str]) -> int:
        """Run one seed and shrink it if it fails, or with two arguments run the seeds of that range."""
        if len(arguments) == 2:
            tally = self.many(range(int(arguments[0]), int(arguments[1])))
            for row, count in sorted(tally.rows.items()):
                print_line(f"{count:>12,}  {row}")
            for seed, why in tally.failed.items():
                print_line(f"{self.replay(seed)}: {why}")
            print_line(f"{tally.cases} cases, {len(tally.failed)} failed")
            return bool(tally.failed)
        case = self.draw(int(arguments[0]))
        why = self.verdict(case)
        print_line(why or "nothing wrong")
        if why:
            least = self.shrink(case)
            print_line(f"\nshrunk to\n{least}\n{self.verdict(least)}")
        return bool(why)


def _some(trial: Callable[[int], Counter[str]], seeds: Sequence[int]) -> Tally:
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
