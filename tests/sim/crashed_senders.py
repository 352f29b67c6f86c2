"""Runs of a master that receives from any source, and of workers of which one crashes in the middle of its message."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import testbed
from protocols.mpi import ANY_SOURCE, Comm
from protocols.mpi.mpi_errors import MPIError
from protocols.mpi.mpi_status import Status
from testbed import Cluster, Scenario
from testbed.spec.fault_models import Crash
from testbed.workloads.form import Node

_MILLISECOND: Final = 1_000_000
_SIZE: Final = 400_000
"""Bytes of a message: at 10 Mbit/s, 320 ms."""
CRASH_TIME: Final = 150 * _MILLISECOND

Received = tuple[str, int, int]
"""Result of a receive: why it failed, or empty; the error class, or its source; when it ended, in ns."""


async def program(comm: Comm, node: Node) -> list[Received]:
    """Let rank 0 receive two messages, and ranks 1 and 2 send one each. Rank 1 crashes while it sends; rank 2 sends when the
    first receive has matched rank 1's message."""
    if comm.rank:
        await node.sleep((comm.rank - 1) * 2 * CRASH_TIME)
        await comm.Send(bytes([comm.rank]) * _SIZE, 0)
        return []
    received: list[Received] = []
    for _ in range(2):
        buffer, status = bytearray(_SIZE), Status()
        try:
            await comm.Recv(buffer, ANY_SOURCE, status=status)
        except MPIError as error:
            received.append((str(error), error.Get_error_class(), node.now()))
        else:
            assert buffer == bytes([status.Get_source()]) * _SIZE
            received.append(("", status.Get_source(), node.now()))
    return received


def failed_receives(folder: Path, cluster: Cluster, crash_time: int, **options: Any) -> int:
    """Run `stream`, and crash rank 1 at a time, ns; return the number of receives that failed."""
    scenario = Scenario(name="crash", faults=(Crash(on="n2", at=f"{crash_time}ns"),))
    result = testbed.run(cluster, stream, scenario=scenario, output=folder, timeout=60.0, check=True, **options)
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    failures: int = result.results["n1"]
    return failures


def received_by_master(folder: Path, cluster: Cluster, **options: Any) -> list[Received]:
    """Run the program; return the master's receives."""
    scenario = Scenario(name="crash", faults=(Crash(on="n2", at=f"{CRASH_TIME}ns"),))
    result = testbed.run(
        cluster, program, scenario=scenario, output=folder / "run", timeout=20.0, check=True, **options
    )
    assert result.checks is not None
    assert result.checks.passed, result.checks.to_text()
    received: list[Received] = result.results["n1"]
    return received


_SIZES: Final = (40, 5_000, 60_000)
_ROUNDS: Final = 8


async def stream(comm: Comm, node: Node) -> int:
    """Let all other ranks stream messages of several sizes to rank 0, which receives them from any source; rank 1 crashes.
    Rank 0 returns the number of its failed receives when it has received all messages of the others."""
    del node
    if comm.rank:
        for number in range(_ROUNDS * len(_SIZES)):
            await comm.Send(bytes([comm.rank]) * _SIZES[number % len(_SIZES)], 0)
        return 0
    missing = (comm.size - 2) * _ROUNDS * len(_SIZES)
    failures = 0
    while missing:
        buffer, status = bytearray(max(_SIZES)), Status()
        try:
            await comm.Recv(buffer, ANY_SOURCE, status=status)
        except MPIError:
            failures += 1
        else:
            source, count = status.Get_source(), status.Get_count()
            assert buffer[:count] == bytes([source]) * count
            missing -= source != 1
    return failures
