"""A process over SSAM has a limited number of connections: messages to further nodes fail with a sentence."""

from __future__ import annotations

from pathlib import Path

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


def test_messages_beyond_the_connections_of_a_process_fail_and_the_others_arrive(tmp_path: Path) -> None:
    cluster = Cluster.star(5, kind="atm")
    run = testbed.run(
        cluster, fan_out, protocol="ssam", mode="sim", firmware={"connections": 2}, output=tmp_path / "run"
    )
    first, *other_results = run.results.values()
    reason = "a process has 2 connections at most (setting connections)"
    assert first == [(rank, ERR_OTHER, f"no connection to node {rank}: {reason}") for rank in (3, 4)]
    assert other_results == [[]] * 4
