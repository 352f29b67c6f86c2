"""The host library: sends and receives of programs, as MPI's device asks for them.

`MatchingByLibrary` matches messages to receives by source, context and tag.
"""

from __future__ import annotations

from typing import Final

from protocols.core.firmware import Adapter, HostActions
from protocols.mpi.device import Dispatch
from protocols.mpi.matching import CONTEXTS, MatchingByLibrary
from protocols.mpi.mpi_errors import ERR_PROC_FAILED, Envelope, MPIError

from .firmware import NEWS, Departure, Firmware, Letter

DESCRIPTOR: Final = 24
"""Bytes of a descriptor, which the host writes over the bus."""


class Host(MatchingByLibrary):
    """The library of one node's program. Implements `protocols.mpi.endpoints.MatchingEndpoint`."""

    contexts = CONTEXTS
    max_tag = (1 << 31) - 1
    max_message_size = 1 << 24

    def __init__(self, adapter: Adapter, nic: HostActions, firmware: Firmware) -> None:
        super().__init__()
        self.rank: Final = adapter.number
        self.size: Final = len(adapter.addresses)
        self._nic = nic
        self._firmware = firmware
        self._sends: dict[int, tuple[Dispatch, Envelope]] = {}
        self._next = 0

    def send(self, destination: int, context: int, tag: int, data: memoryview, over: Dispatch) -> bool:
        self._next += 1
        self._sends[self._next] = over, Envelope(destination, tag, len(data))
        self._firmware.letters[self._next] = Letter(self._next, destination, context, tag, data)
        self._nic.ring_doorbell(self._next, DESCRIPTOR, 1)
        return True

    def completed(self, index: int) -> None:
        if index != NEWS:
            over, envelope = self._sends.pop(index)
            over.complete(envelope)
            return
        news = self._firmware.inbox.popleft()
        if isinstance(news, Departure):
            self._fail(news.peer)
            return
        self.matching.arrive_whole(news.source, news.context, news.tag, news.data)

    def waiting(self) -> list[str]:
        return [f"the receipts of {envelope.length} bytes to {envelope.source}" for _, envelope in self._sends.values()]

    def _fail(self, peer: int) -> None:
        """End what is under way with a peer that has restarted."""
        error = MPIError(ERR_PROC_FAILED, f"node {peer} has restarted: whether a message has arrived is not known")
        lost = [
            index
            for index, (_, envelope) in self._sends.items()
            if envelope.source == peer and index not in self._firmware.letters
        ]
        self.matching.fail_transfers(peer, error, [self._sends.pop(index)[0] for index in lost])
        self.matching.fail_receives(peer, error)
