"""Two VIA NICs joined by lists, with one connection."""

from __future__ import annotations

from typing import cast

import pytest

from protocols.core.firmware import FIRST
from protocols.via.host import ViaNic, plug
from protocols.via.settings import Settings
from protocols.via.vip_descriptors import Memory
from protocols.via.vipl_names import Reliability, Result, ViaError
from protocols.via.virtual_interface import Descriptor, Vi
from tests.unit.protocols.host_programs import Program, T, run
from tests.unit.protocols.list_wires import Wires


class NicPair:
    """Two NICs with a connected VI and 4,096 bytes of registered memory each; the second's permits RDMA."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        connected: bool = True,
        level: Reliability | None = None,
        incarnation: int = FIRST,
    ) -> None:
        self._level = level
        self.wires = Wires(plug(settings), 2, incarnation=incarnation)
        self.nics = [cast(ViaNic, agent.host) for agent in self.wires.agents]
        self.buffers = [memoryview(bytearray(4096)) for _ in range(2)]
        self.memory: list[Memory] = []
        self.vis: list[Vi] = []
        for nic, view in zip(self.nics, self.buffers, strict=True):
            memory, vi = run(self.wires, self._prepare(nic, view))[0]
            self.memory.append(memory)
            self.vis.append(vi)
        if connected:
            run(self.wires, *(vi.connect_peer(1 - number, b"test") for number, vi in enumerate(self.vis)))

    async def _prepare(self, nic: ViaNic, view: memoryview) -> tuple[Memory, Vi]:
        ptag = await nic.create_ptag()
        allows_rdma = nic.number == 1
        level = self._level or nic.reliability
        can_read = allows_rdma and level is not Reliability.UNRELIABLE
        memory = await nic.register(view, ptag, rdma_write=allows_rdma, rdma_read=can_read)
        return memory, await nic.create_vi(ptag, level, rdma_read=can_read)

    def transfer(self, descriptor: Descriptor) -> Descriptor:
        """Post a send at the first NIC, and deliver all frames."""
        self.vis[0].post_send(descriptor)
        self.wires.exchange()
        return descriptor


def result_of(pair: NicPair, *programs: Program[T]) -> Result:
    """Run programs, one of which fails; return its result code."""
    with pytest.raises(ViaError) as caught:
        run(pair.wires, *programs)
    return caught.value.result


def register_memory(pair: NicPair, number: int, size: int = 64, *, write: bool = True, read: bool = False) -> Memory:
    """Register further memory of a node with its VI's protection tag."""
    nic, ptag = pair.nics[number], pair.memory[number].ptag
    buffer = memoryview(bytearray(size))
    return run(pair.wires, nic.register(buffer, ptag, rdma_write=write, rdma_read=read))[0]


def post_receive(pair: NicPair, size: int = 4096) -> Descriptor:
    """Post a receive at the second node."""
    descriptor = Descriptor(data=(pair.memory[1].segment(0, size),))
    pair.vis[1].post_receive(descriptor)
    return descriptor
