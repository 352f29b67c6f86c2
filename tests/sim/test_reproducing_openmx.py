"""The Open-MX multiqueue paper compared with the simulation: calibrated rows, predictions with their errors, and relations.

CI computes the runs of 0 bytes, of one pair of 4 MiB, and around the rendezvous; TESTBED_LONG=1 all of them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import testbed
from protocols.core.host_work import INTERRUPT, RETURN, WAKE
from protocols.core.profile import Profile
from protocols.openmx.driver_endpoint import LOOKUP
from protocols.openmx.endpoint import EVENT
from protocols.openmx.profile import OPENMX_2009, OPENMX_2009_ROUND_ROBIN, OPENMX_2009_SINGLE, WORK
from protocols.openmx.protocol import PROTOCOL
from testbed.controller.papers.reproduction import Reproduction, reproduce
from testbed.controller.runs.profiles import profile_of
from testbed.controller.runs.runner import RunResult
from testbed.errors import DescriptionError
from testbed.observe.comparing.scores import MAX_CALIBRATION_ERROR
from testbed.observe.paper_files import paper_of
from testbed.spec.layout import Layout
from testbed.spec.loader import load
from testbed.spec.resolver import resolve
from tests.sim.documented_rows import rows_that_differ

LONG = bool(os.environ.get("TESTBED_LONG"))
RUNS = [
    name for name in paper_of("openmx").runs if LONG or name.endswith(("-sc", "-cache", "-sp", "-op", "idle", "steps"))
]
PAIR = ["single-cache-long", "single-cache-ioat", "multi-cache-ioat"]


@pytest.fixture(scope="module")
def openmx() -> Reproduction:
    return reproduce("openmx", runs=RUNS if LONG else [*RUNS, *PAIR])


def test_the_documentation_lists_these_rows(openmx: Reproduction) -> None:
    assert rows_that_differ(openmx) == []


def test_calibrated_rows_and_relations_are_reproduced(openmx: Reproduction) -> None:
    assert openmx.failures == []
    calibrated = [row for row in openmx.rows if row.calibrated]
    assert openmx.paper.constants < len(calibrated) <= 3
    assert all(abs(row.error) <= MAX_CALIBRATION_ERROR for row in calibrated)


def test_the_rows_are_exactly_the_published_values_of_table_1() -> None:
    rows = paper_of("openmx").rows
    tables = [row.table for row in rows]
    assert {table: tables.count(table) for table in tables} == {"0 B": 8, "4 MB": 9, "4 MB with I/OAT": 9}
    assert not [row for row in rows if row.name.startswith("0 B, round robin")], "the paper has no such value"


def test_the_median_error_of_predictions_is_below_ten_percent(openmx: Reproduction) -> None:
    assert openmx.overall is not None
    assert openmx.overall.median < 0.1


def latency(profile: Profile, layout: Layout | str = "openmx-2009", **firmware: int) -> tuple[int, RunResult]:
    """Return half a round trip of 0 bytes, in ns, and the run."""
    result = testbed.run(
        layout, "pingpong", protocol="openmx", mode="sim", profile=profile, firmware=firmware,
        settings={"sizes": (0,), "count": 10},
    )  # fmt: skip
    return int(result.rows[0]["p50_ns"]), result


@pytest.mark.parametrize("kind", [INTERRUPT, RETURN, LOOKUP, EVENT])
def test_each_cost_of_the_receive_path_adds_to_the_latency(kind: str) -> None:
    work = {**WORK, kind: replace(WORK[kind], fixed=WORK[kind].fixed + 1_000)}
    assert latency(replace(OPENMX_2009, work=work))[0] >= latency(OPENMX_2009)[0] + 900


def interrupt_times(profile: Profile, ranks: int, **options: object) -> dict[str, float]:
    """Return the nanoseconds of interrupts on each core of node n1 during an exchange among all ranks."""
    result = testbed.run(
        "openmx-2009", "random", protocol="openmx", mode="sim", profile=profile, ranks_per_node=ranks, seed=1,
        settings={"messages": 30, "largest": 60_000}, firmware=options or None,
    )  # fmt: skip
    return {core: usage.get("interrupt_ns", 0) for core, usage in result.usage["n1"].items() if core.startswith("core")}


def test_each_steering_policy_interrupts_its_cores() -> None:
    single_queue, round_robin, multiqueue = (
        interrupt_times(profile, 4) for profile in (OPENMX_2009_SINGLE, OPENMX_2009_ROUND_ROBIN, OPENMX_2009)
    )
    assert {core for core, interrupt_time in single_queue.items() if interrupt_time} == {"core 0"}
    assert all(round_robin.values())
    assert max(round_robin.values()) < 1.5 * min(round_robin.values())
    assert {core for core, interrupt_time in multiqueue.items() if interrupt_time} == {
        "core 0",
        "core 1",
        "core 2",
        "core 3",
    }


def test_a_program_moves_to_the_core_of_its_queue_unless_it_opts_out() -> None:
    """Rank 0 of each node is placed on core 7; frames for its endpoint 0 interrupt core 0."""
    layout = resolve(load("openmx-2009").description)
    layout = replace(layout, nodes=tuple([replace(node, ranks=(7,)) for node in layout.nodes]))

    def busy_cores(migrate: int) -> set[str]:
        _, result = latency(OPENMX_2009, layout, migrate=migrate)
        return {core for core, usage in result.usage["n1"].items() if usage.get("event_ns", 0)}

    assert busy_cores(1) == {"core 0"}
    assert busy_cores(0) == {"core 7"}


def test_busy_waiting_saves_the_cost_of_waking_up_a_core() -> None:
    waiting_latency, _ = latency(OPENMX_2009)
    sleeping, _ = latency(replace(OPENMX_2009, busy_waiting=False))
    assert sleeping == waiting_latency + WORK[WAKE].fixed


def test_coalescing_reduces_the_time_of_interrupts() -> None:
    coalesced = replace(OPENMX_2009, coalescing=20_000)
    assert sum(interrupt_times(coalesced, 2).values()) < sum(interrupt_times(OPENMX_2009, 2).values())


def test_a_profile_sets_steering_and_coalescing(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('like = "openmx-2009"\nsteering = "myri10ge"\ncoalescing = "10us"\nround_robin = true\n')
    profile = profile_of(file, PROTOCOL)
    assert (profile.steering, profile.coalescing, profile.round_robin) == ("myri10ge", 10_000, True)
    file.write_text('like = "openmx-2009"\nsteering = "endpint"\n')
    with pytest.raises(DescriptionError, match=r"unknown hash 'endpint'.*did you mean 'endpoint'"):
        profile_of(file, PROTOCOL)


def test_options_queues_and_steering_override_the_profile() -> None:
    for queues, steering, cores in (
        (2, "", {"core 0", "core 1"}),
        (1, "round-robin", {f"core {n}" for n in range(8)}),
    ):
        result = testbed.run(
            "openmx-2009", "random", protocol="openmx", mode="sim", profile="openmx-2009", ranks_per_node=4, seed=1,
            settings={"messages": 30, "largest": 60_000}, queues=queues, steering=steering,
        )  # fmt: skip
        assert {core for core, usage in result.usage["n1"].items() if usage.get("interrupt_ns")} == cores


def test_all_to_all_saturates_a_single_core_that_takes_all_interrupts() -> None:
    """Section 4.5: "the load on this core becomes the limiting factor"."""

    def shares(profile: Profile, migrate: int) -> list[float]:
        """Return the share of time that each core of a node is busy, from core 0 on."""
        result = testbed.run(
            "openmx-2009", "imb", protocol="openmx", mode="sim", profile=profile, ranks_per_node=8,
            firmware={"migrate": migrate},
            settings={"benchmarks": ("Alltoall",), "sizes": (16_384,), "count": 2, "least_ranks": 16},
        )  # fmt: skip
        return [result.usage["n1"][f"core {core}"]["share"] for core in range(8)]

    first, *other_shares = shares(OPENMX_2009_SINGLE, migrate=0)
    assert first > 0.95
    assert max(other_shares) < first / 2
    assert max(shares(OPENMX_2009, migrate=1)) < 0.95
