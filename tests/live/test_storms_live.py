"""Random restarts in namespaces cause no false failures: three seeds in CI, thirty with TESTBED_LONG=1."""

from __future__ import annotations

import os

import pytest

from tests.sim import storms

LONG = bool(os.environ.get("TESTBED_LONG"))
SEEDS = range(30) if LONG else (0, 3, 6)  # churn over EMP, repeats over AM-II, an aborted run over EMP


@pytest.mark.requires("root")
@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("seed", SEEDS)
def test_random_restarts_cause_no_false_violation(seed: int) -> None:
    storms.run(storms.draw(seed, milliseconds=800), "live")
