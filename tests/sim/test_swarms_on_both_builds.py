"""Cases of all swarms in this process, compiled where its build is, and in another one on the sources: the counters are
equal. On the interpreted build this compares two processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from protocols.core.compiled_build import INTERPRETED, build
from testbed.controller.conformance.trials import Swarm, Violation
from tests.sim import request_swarm

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 0
CASES = 1_000 if LONG else 8
MODULES = ("swarm", "am2_swarm", "openmx_swarm", "via_swarm", "via_verbs_swarm", "via_connection_swarm", "storms")
REQUESTS = "requests over "
SWARMS = (*MODULES, *(f"{REQUESTS}{protocol}" for protocol in request_swarm.SWARMS))
BY_SOURCES = """
import sys
from tests.sim.source_modules import use_sources
use_sources()
import json
from protocols.core.compiled_build import build
from tests.sim.test_swarms_on_both_builds import outcomes
print(json.dumps({"build": build(), "outcomes": outcomes(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))}))
"""


def outcomes(name: str, first: int, count: int) -> list[str]:
    """Run a swarm's cases; return the counters of each, or its violation."""
    swarm: Swarm[Any] = (
        request_swarm.SWARMS[name.removeprefix(REQUESTS)]
        if name.startswith(REQUESTS)
        else import_module(f"tests.sim.{name}").SWARM
    )
    return [outcome(swarm, seed) for seed in range(first, first + count)]


def outcome(swarm: Swarm[Any], seed: int) -> str:
    try:
        return str(sorted(swarm.trial(seed).items()))
    except Violation as violation:
        return f"violation: {violation}"


@pytest.mark.parametrize("name", SWARMS)
@pytest.mark.timeout(3600 if LONG else 120)
def test_the_cases_of_a_swarm_have_equal_outcomes_on_both_builds(
    name: str, record_property: Callable[[str, object], None]
) -> None:
    command = [sys.executable, "-c", BY_SOURCES, name, str(FIRST), str(CASES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        here = outcomes(name, FIRST, CASES)
        text, _ = process.communicate()
    assert process.returncode == 0
    by_sources = json.loads(text)
    assert by_sources["build"] == INTERPRETED
    assert by_sources["outcomes"] == here
    record_property("note", f"{name}: {CASES} cases, {build()} and {INTERPRETED}, from seed {FIRST} on")
