"""MPI's matching by a library: for host libraries whose NIC or kernel does not match messages by source and tag.

Two queues for each context, as in every MPI: receives that have been begun and found no message, and messages that have
come and found no receive (MPI 4.1, section 3.5: in order, by source and tag, wildcards only in receives).
"""

from __future__ import annotations

from protocols.core.completion import Completion
from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.errors import ERR_TRUNCATE, Envelope, MPIError


class Receive:
    """One that has been begun."""

    __slots__ = ("buffer", "over", "source", "tag")

    def __init__(self, source: int, tag: int, buffer: memoryview, over: Completion[Envelope]) -> None:
        self.source = source
        self.tag = tag
        self.buffer = buffer
        self.over = over


class Arrival:
    """A message that comes. place: where its bytes go; those that it has no room for are thrown away. It may find its
    receive while it still comes."""

    __slots__ = ("done", "length", "place", "receive", "source", "tag")

    def __init__(self, source: int, tag: int, length: int) -> None:
        self.source = source
        self.tag = tag
        self.length = length
        self.place: memoryview
        self.receive: Receive | None = None
        self.done = False


class Matching:
    """The queues of one node."""

    __slots__ = ("_begun", "_unexpected")

    def __init__(self) -> None:
        self._begun: dict[int, list[Receive]] = {}
        self._unexpected: dict[int, list[Arrival]] = {}

    def begin(self, context: int, receive: Receive) -> None:
        """A receive takes the oldest message that fits, or waits."""
        arrivals = self._unexpected.get(context)
        if arrivals:
            for place, arrival in enumerate(arrivals):
                if receive.source in (ANY_SOURCE, arrival.source) and receive.tag in (ANY_TAG, arrival.tag):
                    del arrivals[place]
                    arrival.receive = receive
                    if arrival.done:
                        self._finish(arrival)
                    return
        self._begun.setdefault(context, []).append(receive)

    def arrive(self, source: int, context: int, tag: int, length: int) -> Arrival:
        """A message begins to come; it goes to the oldest receive that fits, or is kept. Its bytes are put into `place`,
        then `arrived` is called."""
        arrival = Arrival(source, tag, length)
        begun = self._begun.get(context)
        if begun:
            for place, receive in enumerate(begun):
                if receive.source in (ANY_SOURCE, source) and receive.tag in (ANY_TAG, tag):
                    del begun[place]
                    arrival.receive = receive
                    arrival.place = receive.buffer[:length]
                    return arrival
        arrival.place = memoryview(bytearray(length))
        self._unexpected.setdefault(context, []).append(arrival)
        return arrival

    def arrived(self, arrival: Arrival) -> bool:
        """All of it is there; whether a receive is over with that."""
        arrival.done = True
        if arrival.receive is None:
            return False
        self._finish(arrival)
        return True

    def fail(self, source: int, error: MPIError) -> None:
        """What waits for this source, and for it alone, fails: it will not send any more."""
        for begun in self._begun.values():
            failed = [receive for receive in begun if receive.source == source]
            begun[:] = [receive for receive in begun if receive.source != source]
            for receive in failed:
                receive.over.fail(error)

    def waiting(self) -> int:
        """How many receives have been begun and found nothing."""
        return sum(len(begun) for begun in self._begun.values())

    def _finish(self, arrival: Arrival) -> None:
        receive = arrival.receive
        assert receive is not None
        size = len(receive.buffer)
        if arrival.length and arrival.place.obj is not receive.buffer.obj:  # it was kept first
            receive.buffer[: arrival.length] = arrival.place[:size]
        if arrival.length > size:
            what = f"a message of {arrival.length} bytes from rank {arrival.source}, tag {arrival.tag},"
            message = f"{what} for a buffer of {size} bytes"
            receive.over.fail(MPIError(ERR_TRUNCATE, message, Envelope(arrival.source, arrival.tag, size)))
        else:
            receive.over.complete(Envelope(arrival.source, arrival.tag, arrival.length))
