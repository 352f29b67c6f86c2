"""NICs whose timers fire late, as on a busy machine, still pass the swarms' cases. With TESTBED_LONG=1 there are more
cases, with random seeds.
"""

from __future__ import annotations

import os
import random

import pytest

from testbed.controller.conformance.trials import Swarm
from testbed.engine import failures
from testbed.nic.immediate import ImmediateNic
from tests.sim import (
    am2_swarm,
    openmx_swarm,
    request_swarm,
    swarm,
    via_connection_swarm,
    via_swarm,
    via_verbs_swarm,
)

LONG = bool(os.environ.get("TESTBED_LONG"))
FIRST = random.SystemRandom().randrange(2**40) if LONG else 60  # seed 64 of AM-II once stopped a NIC's timers
DELAYS = (0, 0, 0, 1_000, 50_000)  # ns
LONG_DELAY_PROBABILITY = 0.0005
MAX_DELAY = 300_000_000
"""Maximum delay, in ns, of the few timers with a long one."""
SWARMS = {
    "emp": (swarm.SWARM, 10), "am2": (am2_swarm.SWARM, 6), "mpi on via": (via_swarm.SWARM, 10),
    "via": (via_verbs_swarm.SWARM, 20), "connections of via": (via_connection_swarm.SWARM, 20),
    "openmx": (openmx_swarm.SWARM, 20), "requests on am2": (request_swarm.SWARMS["am2"], 1),
    "requests on ssam": (request_swarm.SWARMS["ssam"], 1),
}  # fmt: skip
"""Swarms, and the number of cases that CI runs; the long mode runs a hundred times as many."""


@pytest.mark.requires("interpreted")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SWARMS)
def test_every_case_passes_with_late_timers(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: pytest.RecordProperty
) -> None:
    cases: Swarm
    cases, count = SWARMS[name]
    if LONG:
        count *= 100
    source = random.Random()

    def schedule_late(nic: ImmediateNic) -> None:
        deadline = nic._firmware.deadline
        if deadline is None:
            return
        when = max(deadline, nic.handled_at)
        if deadline > nic.handled_at:
            when += source.randrange(MAX_DELAY) if source.random() < LONG_DELAY_PROBABILITY else source.choice(DELAYS)
        if when < nic._wake_time:
            nic._wake_time = when
            nic._loop.at(when, nic._on_wake_up)

    monkeypatch.setattr(ImmediateNic, "_schedule_deadline", schedule_late)
    monkeypatch.setattr(failures, "MAX_TIMER_CALLS", 50)
    for seed in range(FIRST, FIRST + count):
        source.seed(seed)
        cases.run(cases.draw(seed))
    record_property("note", f"late timers, {name}: {count:,} cases from seed {FIRST} on")
