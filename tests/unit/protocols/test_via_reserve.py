"""Reserved receive descriptors of MPI over VIA: ranks that run out of credit in both directions, while
one of them does not see its completions, continue when it does."""

from __future__ import annotations

from typing import cast

import pytest

from protocols.mpi.comm import Comm
from protocols.mpi.device import Device
from protocols.mpi.via import rdma_pairs
from protocols.mpi.via.endpoint import ViaEndpoint
from protocols.via.host import ViaNic, plug
from protocols.via.settings import Settings
from tests.unit.protocols.host_programs import StuckError, run
from tests.unit.protocols.list_wires import Wires

pytestmark = [pytest.mark.requires("interpreted")]

MESSAGES = 40
SIZE = 200


class WithheldCompletions:
    """Withholds a NIC's completions until its peer has used all its credit."""

    def __init__(self, wires: Wires, number: int) -> None:
        self._wires = wires
        self._nic = wires.nics[number]
        self._held: list[int] = []
        self._nic.post_completion = self._held.append  # type: ignore[method-assign,assignment]

    def deliver(self) -> None:
        self._wires.exchange()
        if self._held:
            del self._nic.post_completion
            held, self._held = self._held, []
            for index in held:
                self._nic.post_completion(index)


def run_exchange(reserve: int, patch: pytest.MonkeyPatch) -> tuple[list[bool], int]:
    """Return which ranks have received all messages, and how often a message found no descriptor."""
    patch.setattr(rdma_pairs, "RESERVE", reserve)
    wires = Wires(plug(Settings(connect_all=1, depth=8, area=8_192, buffer=2_048)), 2)
    devices = [Device(ViaEndpoint(cast(ViaNic, agent.host))) for agent in wires.agents]
    run(wires, *(device.connect() for device in devices))
    withheld = WithheldCompletions(wires, 1)

    async def exchange(device: Device) -> bool:
        comm, peer = Comm(device), 1 - device.rank
        buffers = [bytearray(SIZE) for _ in range(MESSAGES)]
        receives = [await comm.Irecv(buffer, peer, number) for number, buffer in enumerate(buffers)]
        sends = [await comm.Isend(bytes([number]) * SIZE, peer, number) for number in range(MESSAGES)]
        for request in (*receives, *sends):
            await request.Wait()
        return all(buffer == bytes([number]) * SIZE for number, buffer in enumerate(buffers))

    results = run(wires, *(exchange(device) for device in devices), deliver=withheld.deliver)
    counters = [agent.firmware.counter_values() for agent in wires.agents]
    return results, sum(values["receive_queue_empty"] + values["connections_lost"] for values in counters)


def test_ranks_out_of_credit_in_both_directions_do_not_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_exchange(rdma_pairs.RESERVE, monkeypatch) == ([True, True], 0)


def test_ranks_out_of_credit_deadlock_without_the_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StuckError):
        run_exchange(0, monkeypatch)
