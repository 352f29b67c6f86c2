"""The paper of LAM/MPI over VIA compared with the simulation: calibrated rows, predictions with their errors, and
relations."""

from __future__ import annotations

from dataclasses import replace

import pytest

import testbed
from protocols.core.host_work import COPY, INTERRUPT
from protocols.core.profile import SECOND, Cost, Profile
from protocols.mpi.via.endpoint import MPI
from protocols.via import tcp_costs
from protocols.via.card import AGENT
from protocols.via.profile import LAM_VIA_2000, WORK
from testbed.controller.papers.reproduction import Reproduction, reproduce
from testbed.engine.server import transfer_time
from testbed.errors import DescriptionError
from testbed.observe.comparing.paper_shapes import Compared
from testbed.observe.comparing.scores import MAX_CALIBRATION_ERROR
from testbed.observe.paper_files import paper_of, parse
from testbed.spec.loader import load
from testbed.spec.resolver import resolve
from tests.sim.documented_rows import rows_that_differ


@pytest.fixture(scope="module")
def via() -> Reproduction:
    return reproduce("via")


def test_the_documentation_lists_these_rows(via: Reproduction) -> None:
    assert rows_that_differ(via) == []


def with_work(**costs: Cost) -> Profile:
    return replace(LAM_VIA_2000, name="another", work={**WORK, **costs})


def rows_of(reproduction: Reproduction, table: str) -> list[Compared]:
    return [row for row in reproduction.rows if row.row.table == table]


def test_calibrated_rows_relations_and_the_crossing_are_reproduced(via: Reproduction) -> None:
    assert via.failures == []
    calibrated = [row for row in via.rows if row.calibrated]
    assert via.paper.constants < len(calibrated) <= 3
    assert all(abs(row.error) <= MAX_CALIBRATION_ERROR for row in calibrated)


def test_table_1_is_complete_and_its_calibrated_rows_are_adjacent(via: Reproduction) -> None:
    assert {table: len(rows_of(via, table)) for table in via.errors} == {
        "": 1, "VIA, remote": 16, "VIA, local": 16, "TCP, remote": 16, "TCP, local": 16,
    }  # fmt: skip
    sizes = [row.row.where["size_bytes"] for row in rows_of(via, "VIA, remote")]
    calibrated_indices = [index for index, row in enumerate(rows_of(via, "VIA, remote")) if row.calibrated]
    assert sizes == list(tcp_costs.SIZES)
    assert calibrated_indices[-1] - calibrated_indices[0] == 1


def test_the_errors_of_predictions_are_summarized_by_table(via: Reproduction) -> None:
    for table, errors in via.errors.items():
        predicted = sorted(abs(row.error) for row in rows_of(via, table) if not row.calibrated)
        assert errors.rows == len(predicted)
        assert errors.worst == predicted[-1]
        assert sum(error <= errors.median for error in predicted) * 2 >= len(predicted)
        assert sum(error > errors.p90 for error in predicted) <= len(predicted) / 10


@pytest.mark.parametrize(
    ("kind", "cost"),
    [(INTERRUPT, Cost(54_000)), (MPI, Cost(4_500)), (AGENT, Cost(8_000))],
    ids=["interrupt", "mpi", "agent"],
)
def test_calibrated_rows_fail_with_another_cost_of_the_host(kind: str, cost: Cost) -> None:
    changed = reproduce("via", profile=with_work(**{kind: cost}), runs=["remote", "local"])
    assert any("it is calibrated" in sentence for sentence in changed.failures)


def test_without_copies_vias_cost_per_byte_is_not_above_tcps() -> None:
    without_copies = reproduce("via", profile=with_work(**{COPY: Cost(0, 1 << 60, 1 << 60)}), runs=["remote", "tcp"])
    assert any(sentence.startswith("VIA costs more for each byte") for sentence in without_copies.failures)


def test_tcp_is_computed_for_the_wire_of_the_papers_cluster() -> None:
    """VIA's frames include their check sequence of 4 bytes, TCP's do not."""
    link = resolve(load("lam-via-2000").description).links[0].forward
    assert (link.rate, link.overhead + 4, link.minimum_frame - 4, link.delay) == (
        tcp_costs.WIRE_RATE, tcp_costs.WIRE_OVERHEAD, tcp_costs.MIN_FRAME, tcp_costs.LINK_DELAY,
    )  # fmt: skip


def test_each_further_segment_over_tcp_takes_its_time_on_the_wire() -> None:
    """In a pipeline, each further segment takes the time of the slowest stage, the wire."""
    sizes = (tcp_costs.SEGMENT_SIZE * 10, tcp_costs.SEGMENT_SIZE * 30)
    short_time, long_time = [row["p50_ns"] for row in tcp_costs.rows(LAM_VIA_2000, sizes) if not row["local"]]
    wire = (
        (tcp_costs.HEADERS_SIZE + tcp_costs.SEGMENT_SIZE + tcp_costs.WIRE_OVERHEAD) * 8 * SECOND // tcp_costs.WIRE_RATE
    )
    assert isinstance(short_time, int)
    assert isinstance(long_time, int)
    assert long_time - short_time == 20 * wire


def test_a_column_of_a_paper_with_too_few_values_is_rejected() -> None:
    assert paper_of("via").runs["tcp"].model
    lines = [
        *(f'{key} = "t"' for key in ("title", "authors", "published", "cluster", "profile")), "constants = 0",
        "[run.r]", 'model = "module:function"', "[[column]]",
        *(f'{key} = "t"' for key in ("name", "source", "meaning", "take", "by")), 'unit = "us"', 'run = "r"',
        "at = [1, 2]", "paper = [1]",
    ]  # fmt: skip
    with pytest.raises(DescriptionError, match="as many as in 'at', 2"):
        parse("\n".join(lines), "a paper")


def test_a_message_between_ranks_of_a_node_costs_one_copy_and_two_traps_but_no_interrupt() -> None:
    """MPI would add two copies, into registered memory and out of the RDMA area. Each of a message's two doorbells, for the
    receive and for the send descriptor, is a trap."""
    size, count = 1_024, 10
    result = testbed.run(
        "lam-via-2000", "via-pingpong", protocol="via", mode="sim", profile=LAM_VIA_2000, ranks_per_node=2,
        firmware={"reliability": 1}, settings={"sizes": str(size), "count": count},
    )  # fmt: skip
    core_usage = [result.usage["n1"][core] for core in ("core 0", "core 1")]
    messages = 2 * (count + 1)
    assert sum(core["copy_ns"] for core in core_usage) == messages * transfer_time(size, WORK[COPY].same_rate)
    assert sum(core["agent_ns"] for core in core_usage) == messages * 2 * WORK[AGENT].fixed
    assert all("interrupt_ns" not in core for core in core_usage)
