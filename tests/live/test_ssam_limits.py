"""Limits of SSAM on live ATM: the depth of the adapter's input FIFO, and cells that the relay cannot carry in time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import testbed
from protocols.mpi.comm import Comm
from testbed import Cluster
from testbed.workloads.form import Node

pytestmark = [pytest.mark.requires("root"), pytest.mark.usefixtures("machine"), pytest.mark.timeout(120)]

MESSAGES = 20


async def inattentive(comm: Comm, node: Node) -> None:
    """Rank 0 does not poll while the others send."""
    await node.barrier()
    if comm.rank == 0:
        time.sleep(0.2)
        for source in range(1, comm.size):
            for number in range(MESSAGES):
                into = bytearray(300)
                await comm.Recv(into, source, number)
                assert into == bytes([number]) * 300
    else:
        requests = [await comm.Isend(bytes([number]) * 300, 0, number) for number in range(MESSAGES)]
        for request in requests:
            await request.Wait()


@pytest.mark.parametrize(("cells", "overruns"), [(10, True), (292, False)])
def test_cells_beyond_the_input_fifo_are_lost_by_the_model_alone_and_no_message_is(
    cells: int, overruns: bool, tmp_path: Path
) -> None:
    """Two senders have up to 64 cells in flight."""
    cluster = Cluster.star(3, kind="atm", rate="140mbit", overhead=2)
    result = testbed.run(
        cluster, inattentive, protocol="ssam", firmware={"input_fifo": cells}, output=tmp_path / "run"
    )  # fmt: skip
    assert (result.counters["n1"]["overruns"] > 0) is overruns
    assert result.counters["n2"]["overruns"] == 0
    lost = {finding.what: finding.measured for finding in result.verdict.findings if finding.what.endswith(" lost")}
    assert lost.get("NIC lost") == 0, "the emulator lost none"
    assert lost.get("relay lost", 0) == 0
