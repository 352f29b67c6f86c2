"""Mutants: a protocol with one mistake, put in while a test runs, which the random schedules must find.

A schedule that finds no mistake when there is one proves nothing when there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Mutant:
    """mistake: in a sentence. put_in: replaces methods of the protocol by ones that make it."""

    mistake: str
    put_in: Callable[[pytest.MonkeyPatch], None]

    def __str__(self) -> str:
        return self.mistake


@dataclass(frozen=True)
class Found:
    """cases: how many it took. seed: of the one that found it. complaint: what it said."""

    cases: int
    seed: int
    complaint: str


def found(mutant: Mutant, trial: Callable[[int], object], first_seed: int, most: int) -> Found:
    """Try one seed after another until one finds the mistake. AssertionError if as many as `most` find nothing.

    trial: raises AssertionError where the protocol does wrong.
    """
    with pytest.MonkeyPatch.context() as patch:
        mutant.put_in(patch)
        for cases, seed in enumerate(range(first_seed, first_seed + most), 1):
            try:
                trial(seed)
            except AssertionError as error:
                return Found(cases, seed, str(error).partition("\n")[0][:200])
    raise AssertionError(f"{most} cases from seed {first_seed} on do not find that {mutant}")
