"""Programs that poll with `Test` in the simulation: time advances, and endless polling is reported."""

from __future__ import annotations

import pytest

from protocols.emp.host import Endpoint, plug
from protocols.mpi import emp as mpi
from protocols.mpi.comm import Comm
from testbed.sim.sim_node import SimNode
from testbed.sim.simulation import Simulation, StalledError
from testbed.spec.model import Description


async def exchange_by_test(endpoint: Endpoint, node: SimNode) -> tuple[bytes, int]:
    """Send and receive, and test both requests until they are complete."""
    comm = Comm(mpi.device(endpoint))
    buffer = bytearray(4)
    receive = await comm.Irecv(buffer, 1 - comm.rank, tag=1)
    send = await comm.Isend(node.name.encode().ljust(4), 1 - comm.rank, tag=1)
    while not await receive.Test():
        pass
    while not await send.Test():
        pass
    return bytes(buffer), node.now()


async def exchange_by_wait(endpoint: Endpoint, node: SimNode) -> tuple[bytes, int]:
    comm = Comm(mpi.device(endpoint))
    buffer = bytearray(4)
    receive = await comm.Irecv(buffer, 1 - comm.rank, tag=1)
    send = await comm.Isend(node.name.encode().ljust(4), 1 - comm.rank, tag=1)
    await receive.Wait()
    await send.Wait()
    return bytes(buffer), node.now()


async def poll_forever(endpoint: Endpoint, _node: SimNode) -> None:
    receive = await Comm(mpi.device(endpoint)).Irecv(bytearray(4), 1, tag=9)
    while not await receive.Test():
        pass


@pytest.mark.parametrize("loss", ["0%", "20%"])
def test_polling_and_waiting_programs_complete_at_the_same_time(loss: str) -> None:
    results = []
    for program in (exchange_by_test, exchange_by_wait):
        with Simulation(Description.back_to_back(delay="1ms", loss=loss, seed=3), plug()) as simulation:
            tasks = [simulation.spawn(name, program) for name in simulation.nodes]
            simulation.run(timeout=60_000_000_000)
            results.append([task.result() for task in tasks])
    assert results[0] == results[1]
    assert [buffer for buffer, _ in results[0]] == [b"n2  ", b"n1  "]


def test_a_program_that_polls_forever_is_reported_with_its_line() -> None:
    with Simulation(Description.back_to_back(), plug()) as simulation:
        simulation.spawn("n1", poll_forever)
        with pytest.raises(
            StalledError,
            match=r"no event is pending(.|\n)*poll_forever on n1 polls, at .*_polling\.py:\d+ in poll_forever",
        ):
            simulation.run()
        assert any("a receive from node 1" in sentence for sentence in simulation.pending_work())


def test_a_program_that_polls_forever_is_reported_at_the_timeout() -> None:
    with Simulation(Description.back_to_back(), plug()) as simulation:
        simulation.spawn("n1", poll_forever)
        with pytest.raises(StalledError, match="poll_forever on n1"):
            simulation.run(timeout=10**15)
