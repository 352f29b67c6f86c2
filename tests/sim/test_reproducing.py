"""EMP's paper compared with the simulation: its rows and shapes are reproduced, but not with a changed profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from protocols.core.profile import Profile
from protocols.emp.host import Endpoint, plug
from protocols.emp.profile import EMP_2001
from testbed.cli.main import testbed as command
from testbed.controller.papers.reproduction import Reproduction, reproduce
from testbed.engine.server import transfer_time
from testbed.errors import NotFoundError, UnsupportedError
from testbed.observe.comparing.scores import MAX_CALIBRATION_ERROR
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation
from testbed.spec.loader import load
from tests.sim.documented_rows import rows_that_differ

MILLISECOND = 1_000_000


@pytest.fixture(scope="module")
def emp() -> Reproduction:
    return reproduce("emp")


def test_the_documentation_lists_these_rows(emp: Reproduction) -> None:
    assert rows_that_differ(emp) == []


def profile_with_doubled(*keys: str) -> Profile:
    return replace(EMP_2001, name="doubled", **{key: 2 * getattr(EMP_2001, key) for key in keys})


def test_calibrated_rows_and_shapes_are_reproduced(emp: Reproduction) -> None:
    assert emp.failures == []
    assert all(shape.holds for shape in emp.shapes)
    assert len(emp.shapes) == 5
    calibrated = [row for row in emp.rows if row.calibrated]
    assert emp.paper.constants < len(calibrated) <= 3
    assert all(abs(comparison.error) <= MAX_CALIBRATION_ERROR for comparison in calibrated)


def test_all_rows_are_listed_and_most_of_them_are_predicted(emp: Reproduction) -> None:
    assert len(emp.rows) == 11
    predicted = [abs(row.error) for row in emp.rows if not row.calibrated]
    assert len(predicted) == 8
    assert emp.overall is not None
    assert sum(error <= emp.overall.median for error in predicted) == 4
    assert emp.overall.rows == len(predicted)
    assert emp.overall.worst == max(predicted)


def test_every_row_names_the_source_of_its_value(emp: Reproduction) -> None:
    assert all(row.row.source and row.row.meaning for row in emp.rows)
    assert all(shape.shape.source for shape in emp.shapes)
    table = {row.row.name: row.row.others for row in emp.rows if row.row.others}
    assert table["Table 2, total"] == {"TCP": 266, "GM": 190}
    for system in ("TCP", "GM"):  # the paper's sums, up to its rounding
        parts = [other_systems[system] for name, other_systems in table.items() if name != "Table 2, total"]
        assert sum(parts) == pytest.approx(table["Table 2, total"][system], abs=1)


@pytest.mark.parametrize(
    "keys",
    [("receive", "stored"), ("ring", "tick", "fetched", "sent"), ("store",)],
    ids=["receive path", "other events", "DMA set-up"],
)
def test_a_profile_with_doubled_constants_does_not_reproduce_the_latency(keys: tuple[str, ...]) -> None:
    reproduction = reproduce("emp", profile=profile_with_doubled(*keys), runs=["latency"])
    assert any("latency, 4 B" in sentence for sentence in reproduction.failures)


def test_a_host_that_is_slow_to_notice_completions_breaks_the_shape_of_figure_6() -> None:
    """The host's work for completed descriptors then has to wait for the program's computation."""
    reproduction = reproduce("emp", profile=replace(EMP_2001, name="busy host", notice=30_000), runs=["calls"])
    broken = [shape.shape.name for shape in reproduction.shapes if not shape.holds]
    assert any(name.startswith("Figure 6") for name in broken)
    assert any("the wait" in name for name in broken)


def test_the_command_exits_with_10_if_a_row_is_not_reproduced(tmp_path: Path) -> None:
    file = tmp_path / "slow.toml"
    file.write_text('like = "emp-2001"\nreceive = "11us"\n')
    arguments = ["reproduce", "emp", "--profile", str(file), "--run", "latency", "--output", str(tmp_path / "points")]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 10
    assert "not reproduced: latency, 4 B" in result.output
    assert "errors of the predicted rows" in result.output
    assert "profile slow" in result.output


def test_live_mode_and_systems_without_a_paper_are_rejected() -> None:
    with pytest.raises(UnsupportedError, match="needs mode sim or dilated, got live: profiles give costs"):
        reproduce("emp", mode="live")
    with pytest.raises(NotFoundError, match=r"tcp has no paper to compare with; am2, emp, openmx, ssam, via have one"):
        reproduce("tcp")


def test_the_papers_own_numbers_contradict_the_time_of_its_isend(emp: Reproduction) -> None:
    """A page is mapped in less than 1 us (section 3.2), and 10 kB have two more pages than the 4 kB that are sent at
    880 Mb/s; see docs/protocols/emp.md."""
    paper = {row.row.name: row.row.paper for row in emp.rows}
    page_time = 4096 * 8 / paper["bandwidth, 4 KB"]
    assert page_time + 2 < 40 < paper["Table 2, MPI_Isend"]
    assert paper["latency, 4 B"] < paper["Table 2, MPI_Isend"]
    measured = {row.row.name: row.ours for row in emp.rows}
    assert measured["Table 2, MPI_Isend"] == measured["Table 2, MPI_Irecv"] < paper["Table 2, MPI_Irecv"]


@pytest.mark.parametrize("size", [4, 1500])
def test_a_frame_through_idle_nics_takes_the_sum_of_its_components(size: int) -> None:
    profile = EMP_2001

    async def receive(endpoint: Endpoint, node: SimNode) -> int:
        await endpoint.receive(0, 1, bytearray(size))
        return node.now()

    async def send(endpoint: Endpoint, node: SimNode) -> None:
        await node.sleep(MILLISECOND)
        await endpoint.send(1, 1, bytes(size))

    with Simulation(load("emp-2001").description, plug(), profile=profile) as simulation:
        arrival = simulation.spawn("n2", receive)
        simulation.spawn("n1", send)
        simulation.run()
    posting = profile.post + profile.translate + transfer_time(20, profile.write_rate) + profile.ring
    moving = 1_000 + -(-size // 512) * 121 + transfer_time(size, 64 * 66_000_000)  # over the bus, on either side
    wire = 8 * (14 + 28 + 16 + size + 24)  # Ethernet's header, EMP's two, the data; check sequence, preamble and gap
    storing = profile.receive + moving + profile.stored + profile.notice
    assert arrival.result() == MILLISECOND + posting + moving + profile.fetched + wire + storing
