"""The host library: it carries out the sends and receives of MPI's device.

`SoftwareMatchingEndpoint` matches messages to receives by source, context and tag, and `OutgoingQueue` keeps messages for
which no descriptor is free. The host provides the NIC with receive buffers, and assembles messages from the cards received.
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
from .firmware import max_payload


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
        self._free = deque(range(SENDS))  # indices of descriptors
        self._sends: dict[int, tuple[Outgoing, int]] = {}  # by index: the message, and its pinned address
        self._outgoing: OutgoingQueue[Outgoing] = OutgoingQueue(self._post)
        self._partial_messages: dict[int, list[bytes]] = {}  # cards of the message that is arriving, by node
        self._buffers = {index: bytearray(max_payload(adapter)) for index in range(SENDS, COUNT)}  # receive buffers
        self._pinned: dict[int, int] = {}  # addresses of the receive buffers, by index

    def begin(self) -> None:
        """Provide the NIC with receive buffers."""
        for index in self._buffers:
            self._post_buffer(index)

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        if destination == self.rank:
            self.matching.send_to_self(destination, context, tag, data, completion)
        else:
            self._outgoing.put(Outgoing(destination, context, tag, data, completion))
        return True

    def on_completion(self, index: int) -> None:
        returned = self._descriptors.read(index)
        if index < SENDS:
            self._finish_send(index, returned)
            return
        self._memory.unpin(self._pinned[index], returned.length)
        data = bytes(self._buffers[index][: returned.length])
        self._post_buffer(index)
        if returned.outcome == Outcome.DONE:
            self._take_card(returned, data)
        else:
            self._fail_transfers(returned.peer)

    def pending_work(self) -> list[str]:
        in_flight = [message for message, _ in self._sends.values()] + [*self._outgoing.items]
        return [f"the receipts of {len(message.data)} bytes to {message.destination}" for message in in_flight]

    def _post(self, message: Outgoing) -> bool:
        """Pass a message to the NIC. Return False if no descriptor is free, or no memory to pin it: it is tried again when
        a send ends. If no send is pending, a lack of memory fails the message."""
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

    def _finish_send(self, index: int, returned: Descriptor) -> None:
        message, address = self._sends.pop(index)
        self._memory.unpin(address)
        self._free.append(index)
        if returned.outcome == Outcome.DONE:
            message.completion.complete(Envelope(message.destination, message.tag, len(message.data)))
        elif returned.outcome == Outcome.LOST:
            message.completion.fail(_restarted(message.destination))
        else:
            error = MPIError(ERR_OTHER, f"the NIC rejected the descriptor of a message to node {message.destination}")
            message.completion.fail(error)
        self._outgoing.advance()

    def _post_buffer(self, index: int) -> None:
        buffer = memoryview(self._buffers[index])
        self._pinned[index] = address = self._memory.pin_page(buffer, receive=1)
        self._descriptors.write(index, Descriptor(self.rank, len(buffer), address))
        self._nic.ring_doorbell(index, SIZE, 1)

    def _take_card(self, card: Descriptor, data: bytes) -> None:
        parts = self._partial_messages.setdefault(card.peer, [])
        parts.append(data)
        if card.flags & FLAGS_LAST:
            del self._partial_messages[card.peer]
            self.matching.arrive_complete(card.peer, card.context, card.tag, b"".join(parts))

    def _fail_transfers(self, peer: int) -> None:
        """Fail the transfers with a restarted peer, except messages to it: the NIC returns their descriptors."""
        self._partial_messages.pop(peer, None)
        self.matching.fail_transfers(peer, _restarted(peer), sends=())
        self.matching.fail_receives(peer, _restarted(peer))


def _restarted(peer: int) -> MPIError:
    return MPIError(ERR_PROC_FAILED, f"node {peer} has restarted: its last messages may or may not have arrived")
