"""Mutants: a protocol with one mistake, patched in during a test, which a search must find.

A search that finds nothing is evidence only if it finds a mistake that is known to be there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import pytest

SEARCHES = 5 if os.environ.get("TESTBED_LONG") else 2
"""Number of searches for a mutant, each with other seeds: one search could be lucky."""


@dataclass(frozen=True)
class Mutant:
    """name: a short one, for the test's id. mistake: in a sentence. apply: patches the protocol so that it makes the
    mistake."""

    name: str
    mistake: str
    apply: Callable[[pytest.MonkeyPatch], None]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Found:
    """Failing case. cases: number of cases tried. complaint: the first line of its error."""

    cases: int
    seed: int
    complaint: str


@dataclass(frozen=True)
class SearchResult:
    """Results of the repeated searches for one mutant."""

    mutant: Mutant
    finds: tuple[Found, ...]

    @property
    def median(self) -> float:
        """Median number of cases until the mistake is found."""
        return median(find.cases for find in self.finds)

    def __str__(self) -> str:
        counts, first = [find.cases for find in self.finds], self.finds[0]
        return (
            f"{self.mutant} ({self.mutant.mistake}): found within {self.median:g} cases ({min(counts)} to {max(counts)}), "
            f"as by seed {first.seed}: {first.complaint}"
        )


def find(mutant: Mutant, trial: Callable[[int], object], first_seed: int, max_cases: int) -> Found:
    """Try seeds until one shows the mistake.

    AssertionError if `max_cases` seeds show nothing, or if the case fails without the mistake too. trial: runs
    the case of a seed, and raises AssertionError for a violation.
    """
    result = _first_found(mutant, trial, first_seed, max_cases)
    trial(result.seed)
    return result


def _first_found(mutant: Mutant, trial: Callable[[int], object], first_seed: int, max_cases: int) -> Found:
    with pytest.MonkeyPatch.context() as patch:
        mutant.apply(patch)
        for cases, seed in enumerate(range(first_seed, first_seed + max_cases), 1):
            try:
                trial(seed)
            except AssertionError as error:
                return Found(cases, seed, str(error).partition("\n")[0][:100])
    raise AssertionError(f"{max_cases} cases from seed {first_seed} on do not find that {mutant.mistake}")


def search_repeatedly(mutant: Mutant, trial: Callable[[int], object], first_seed: int, max_cases: int) -> SearchResult:
    """Repeat the search SEARCHES times, each with `max_cases` other seeds."""
    return SearchResult(
        mutant, tuple([find(mutant, trial, first_seed + search * max_cases, max_cases) for search in range(SEARCHES)])
    )
