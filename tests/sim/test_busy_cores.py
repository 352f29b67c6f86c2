"""Contention for cores in the simulation: the effect of a busy program on messages of its own and of another core."""

from __future__ import annotations

import pytest

from tests.live.busy_cores import BUSY, measure, pingpong, poll, run_next_to_busy_rank


def test_a_busy_program_delays_messages_only_of_its_own_core() -> None:
    """A time slice of 1 ms delays a round trip of 50 us, and one of COMB's rounds."""
    measured = measure("sim")
    assert measured["pingpong"][1] > 10 * measured["pingpong"][2]
    assert measured["comb"][1] > measured["comb"][2] + 500_000


@pytest.mark.parametrize("cores", [1, 2])
def test_the_use_of_each_core_is_reported_by_cause(cores: int) -> None:
    usage = run_next_to_busy_rank(pingpong, cores, "sim").usage["a"]
    own_core, other_core = (usage["core"], usage["core"]) if cores == 1 else (usage["core 0"], usage["core 1"])
    assert other_core["compute_ns"] == BUSY
    assert {"agent_ns", "copy_ns", "interrupt_ns", "mpi_ns", "trap_ns"} <= own_core.keys()
    for core in (own_core, other_core):
        total = sum(
            duration
            for cause, duration in core.items()
            if cause not in ("busy_ns", "waited_ns") and cause.endswith("_ns")
        )
        assert total == core["busy_ns"]
    assert ("switch_ns" in own_core) == (cores == 1)


def test_a_polling_program_is_charged_to_its_own_core() -> None:
    result = run_next_to_busy_rank(poll, 2, "sim")
    assert result.usage["a"]["core 0"]["poll_ns"] > 4_000_000
    assert "poll_ns" not in result.usage["a"]["core 1"]
