"""What MPI asks of a host library, and the queues before it. MPICH, which EMP's own MPI was, calls it a device.

A host library that matches messages (`MatchingEndpoint`) sends and receives messages by rank, context and tag as long as
it has descriptors. `Device` lets a program begin as many as it likes: what finds no descriptor waits for one. Sends wait
behind sends and receives behind receives, so each kind is begun in the program's order, which keeps matching in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from protocols.core.completion import Completion
from protocols.mpi.errors import ERR_NO_MEM, Envelope, MPIError


class MatchingEndpoint(Protocol):
    """A node's side of a NIC that matches.

    A message goes to the oldest receive that was begun for its context, for its source or ANY_SOURCE and for its tag or
    ANY_TAG; a receive takes the oldest such message; two messages of one sender in one context never overtake each
    other in this. Node 0..size - 1 is rank 0..size - 1 of all; a node may send to itself.

    contexts: how many, from 0 on: a receive, also one for any tag, gets messages of its own context only. most_tag: tags
    go from 0 to that. most_bytes: of a message.

    `send` and `receive` return False, and have done nothing, while descriptors are short for that transfer; the device
    tries again when another transfer of its own is over. Neither kind may take all descriptors, or two programs that
    first send, or first receive, a lot could not go on. Otherwise they complete `completion` some time, at once too, or
    fail it with an MPIError:

    - ERR_TRUNCATE: the message was longer than the buffer, which is full; the envelope says what it was. The sender does
      not notice.
    - ERR_PROC_FAILED: the peer has restarted, has given up or does not answer. Whether a message sent has arrived is not
      known; a buffer received into may hold a part.

    They may be called from a completion's callback. Ranks, tags and lengths have been checked.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def contexts(self) -> int: ...

    @property
    def most_tag(self) -> int: ...

    @property
    def most_bytes(self) -> int: ...

    def send(self, destination: int, context: int, tag: int, data: memoryview, over: Completion[Envelope]) -> bool:
        """Done when the buffer may be used again; the envelope's source is then the destination."""
        ...

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, over: Completion[Envelope]) -> bool:
        """Done when a message has been received. source: or ANY_SOURCE. tag: or ANY_TAG."""
        ...


Transfer = tuple[int, int, int, memoryview, Completion[Envelope]]
"""What begins one: peer, context, tag, buffer, completion."""

Begin = Callable[[int, int, int, memoryview, Completion[Envelope]], bool]


class Device:
    """A node's endpoint with queues before it; all of the node's communicators share one."""

    __slots__ = (
        "_continuation", "_endpoint", "_pumping", "_receives", "_sends", "_under_way", "contexts", "most_bytes", "most_tag",
        "rank", "size",
    )  # fmt: skip

    def __init__(self, endpoint: MatchingEndpoint) -> None:
        self._endpoint = endpoint
        self.rank = endpoint.rank
        self.size = endpoint.size
        self.contexts = endpoint.contexts
        self.most_tag = endpoint.most_tag
        self.most_bytes = endpoint.most_bytes
        self._sends: deque[Transfer] = deque()  # what waits for a descriptor
        self._receives: deque[Transfer] = deque()
        self._under_way = 0
        self._pumping = False
        self._continuation = 0

    def send(self, destination: int, context: int, tag: int, data: memoryview) -> Completion[Envelope]:
        """Begin a send, or let it wait for its turn."""
        over: Completion[Envelope] = Completion(f"a send to rank {destination}, tag {tag}, {len(data)} bytes")
        return self._begin(self._sends, self._endpoint.send, (destination, context, tag, data, over))

    def receive(self, source: int, context: int, tag: int, buffer: memoryview) -> Completion[Envelope]:
        """Begin a receive, or let it wait for its turn. source: or ANY_SOURCE. tag: or ANY_TAG."""
        who = f"rank {source}" if source >= 0 else "any rank"
        which = f"tag {tag}" if tag >= 0 else "any tag"
        over: Completion[Envelope] = Completion(f"a receive from {who}, {which}, {len(buffer)} bytes")
        # No message is longer than most_bytes, and no descriptor needs to be.
        transfer = (source, context, tag, buffer[: self.most_bytes], over)
        return self._begin(self._receives, self._endpoint.receive, transfer)

    def next_continuation(self) -> int:
        """A tag for a message that belongs to another one: not used by this node for as long as tags last."""
        self._continuation = self._continuation + 1 & self.most_tag
        return self._continuation

    def waiting(self) -> list[str]:
        """A sentence for each transfer that waits for a descriptor."""
        return [
            f"{transfer[4].what}: no descriptor is free"
            for queue in (self._sends, self._receives)
            for transfer in queue
        ]

    def _begin(self, queue: deque[Transfer], begin: Begin, transfer: Transfer) -> Completion[Envelope]:
        if queue or not self._begun(begin, transfer):
            queue.append(transfer)
            if not self._under_way:
                self._pump()
        return transfer[4]

    def _begun(self, begin: Begin, transfer: Transfer) -> bool:
        self._under_way += 1
        if begin(*transfer):
            transfer[4].add_callback(self._ended)
            return True
        self._under_way -= 1
        return False

    def _ended(self, _: Completion[Envelope]) -> None:
        self._under_way -= 1
        if self._sends or self._receives:
            self._pump()

    def _pump(self) -> None:
        """Begin what can be begun. A transfer that is over as soon as it is begun calls this again, from within: then the
        loop that runs goes on, and no chain of such transfers grows the stack."""
        if self._pumping:
            return
        self._pumping = True
        try:
            again = True
            while again:
                again = False
                for queue, begin in ((self._sends, self._endpoint.send), (self._receives, self._endpoint.receive)):
                    while queue and self._begun(begin, queue[0]):
                        queue.popleft()
                        again = True
                    if queue and not self._under_way:
                        over = queue.popleft()[4]
                        over.fail(MPIError(ERR_NO_MEM, f"{over.what}: the NIC has not that many descriptors"))
                        again = True
        finally:
            self._pumping = False
