"""The host library: sends and receives of programs, as MPI's device asks for them.

`SoftwareMatchingEndpoint` matches messages to receives by source, context and tag, and `OutgoingQueue` keeps messages for
which no descriptor is free. The host gives the NIC memory for cards, and puts a message together of those that come.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from protocols.core.firmware import Adapter, HostActions
from protocols.core.memory import Pinning
from protocols.core.outgoing_queue import OutgoingQueue
from protocols.mpi.device import SendCompletion
from protocols.mpi.matching import CONTEXTS, SoftwareMatchingEndpoint
from protocols.mpi.mpi_errors import ERR_NO_MEM, ERR_OTHER, ERR_PROC_FAILED, Envelope, MPIError

from .codec import FLAGS_LAST
from .descriptors import COUNT, SENDS, SIZE, Descriptor, Descriptors, Outcome
from .firmware import room_of


class Outgoing(NamedTuple):
    """A message to send."""

    destination: int
    context: int
    tag: int
    data: memoryview
    completion: SendCompletion


class Host(SoftwareMatchingEndpoint):
    """The library of one node's program. Implements `protocols.mpi.endpoints.MatchingEndpoint`."""

    contexts = CONTEXTS
    max_tag = (1 << 31) - 1
    max_message_size = 1 << 24

    def __init__(self, adapter: Adapter, nic: HostActions, memory: Pinning, descriptors: Descriptors) -> None:
        super().__init__()
        self.rank: Final = adapter.number
        self.size: Final = len(adapter.addresses)
        self._nic = nic
        self._memory = memory
        self._descriptors = descriptors
        self._free = deque(range(SENDS))  # descriptors
        self._sends: dict[int, tuple[Outgoing, int]] = {}  # by descriptor: the message, and where it is pinned
        self._outgoing: OutgoingQueue[Outgoing] = OutgoingQueue(self._post)
        self._parts: dict[int, list[bytes]] = {}  # of the messages that are arriving, by node
        self._places = {index: bytearray(room_of(adapter)) for index in range(SENDS, COUNT)}  # memory for cards
        self._pinned: dict[int, int] = {}

    def begin(self) -> None:
        """Give the NIC memory for cards."""
        for index in self._places:
            self._give_place(index)

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        if destination == self.rank:
            self.matching.send_to_self(destination, context, tag, data, completion)
        else:
            self._outgoing.put(Outgoing(destination, context, tag, data, completion))
        return True

    def on_completion(self, index: int) -> None:
        returned = self._descriptors.read(index)
        if index < SENDS:
            self._finish(index, returned)
            return
        self._memory.unpin(self._pinned[index], returned.length)
        data = bytes(self._places[index][: returned.length])
        self._give_place(index)
        if returned.outcome == Outcome.DONE:
            self._take_card(returned, data)
        else:
            self._lose(returned.peer)

    def pending_work(self) -> list[str]:
        in_flight = [message for message, _ in self._sends.values()] + [*self._outgoing.items]
        return [f"the receipts of {len(message.data)} bytes to {message.destination}" for message in in_flight]

    def _post(self, message: Outgoing) -> bool:
        """Pass a message to the NIC, if a descriptor is free, and memory to pin it."""
        if not self._free:
            return False
        try:
            address = self._memory.pin_page(message.data)
        except MemoryError as error:
            if self._sends:
                return False
            message.completion.fail(MPIError(ERR_NO_MEM, str(error)))
            return True
        index = self._free.popleft()
        self._sends[index] = message, address
        destination, context, tag, data, _ = message
        self._descriptors.write(index, Descriptor(destination, len(data), address, context, tag))
        self._nic.ring_doorbell(index, SIZE, 1)
        return True

    def _finish(self, index: int, returned: Descriptor) -> None:
        message, address = self._sends.pop(index)
        self._memory.unpin(address)
        self._free.append(index)
        if returned.outcome == Outcome.DONE:
            message.completion.complete(Envelope(message.destination, message.tag, len(message.data)))
        elif returned.outcome == Outcome.LOST:
            message.completion.fail(_restarted(message.destination))
        else:
            message.completion.fail(MPIError(ERR_OTHER, f"the NIC refuses a descriptor for node {message.destination}"))
        self._outgoing.advance()

    def _give_place(self, index: int) -> None:
        place = memoryview(self._places[index])
        self._pinned[index] = address = self._memory.pin_page(place, receive=1)
        self._descriptors.write(index, Descriptor(self.rank, len(place), address))
        self._nic.ring_doorbell(index, SIZE, 1)

    def _take_card(self, card: Descriptor, data: bytes) -> None:
        parts = self._parts.setdefault(card.peer, [])
        parts.append(data)
        if card.flags & FLAGS_LAST:
            del self._parts[card.peer]
            self.matching.arrive_complete(card.peer, card.context, card.tag, b"".join(parts))

    def _lose(self, peer: int) -> None:
        """Fail the transfers with a restarted peer. The NIC returns the messages to it."""
        self._parts.pop(peer, None)
        self.matching.fail_transfers(peer, _restarted(peer), sends=())
        self.matching.fail_receives(peer, _restarted(peer))


def _restarted(peer: int) -> MPIError:
    return MPIError(ERR_PROC_FAILED, f"node {peer} has restarted: whether a message has arrived is not known")
