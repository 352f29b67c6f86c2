"""The limit of connections of a process over SSAM: messages to further nodes fail with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

import testbed
from protocols.mpi.mpi_errors import ERR_OTHER, MPIError
from testbed import Cluster
from testbed.workloads.form import Comm, Node


async def fan_out(comm: Comm, node: Node) -> list[tuple[int, int, str]]:
    """Rank 0 sends to all others and returns the errors; ranks 1 and 2 receive."""
    del node
    errors = []
    if comm.rank == 0:
        for rank in range(1, comm.size):
            try:
                await comm.Send(bytes([rank]), rank, 7)
            except MPIError as error:
                errors.append((rank, error.Get_error_class(), str(error)))
    elif comm.rank <= 2:
        await comm.Recv(bytearray(1), 0, 7)
    return errors


@pytest.mark.parametrize(("connections", "firmware"), [(2, {"connections": 2}), (32, None)])
def test_messages_beyond_the_connections_of_a_process_fail_and_the_others_arrive(
    connections: int, firmware: dict[str, object] | None, tmp_path: Path
) -> None:
    """The paper has 32 connections (figure 1)."""
    cluster = Cluster.star(connections + 3, kind="atm")
    run = testbed.run(cluster, fan_out, protocol="ssam", mode="sim", firmware=firmware, output=tmp_path / "run")
    first, *other_results = run.results.values()
    reason = f"a process has {connections} connections at most (setting connections)"
    unconnected = (connections + 1, connections + 2)
    assert first == [(rank, ERR_OTHER, f"no connection to node {rank}: {reason}") for rank in unconnected]
    assert other_results == [[]] * (connections + 2)
