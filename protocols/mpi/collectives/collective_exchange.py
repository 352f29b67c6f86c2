"""Messages of one collective call: sends and receives of bytes and objects between its communicator's ranks, under a tag
that no other call uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protocols.core.completion import Completion
from protocols.mpi.device import Device, Dispatch, Incoming, send_object
from protocols.mpi.mpi_errors import ERR_TRUNCATE, Envelope, MPIError


class Exchange:
    """One collective call at one rank. call: its name, for errors. rank, size: in its communicator."""

    __slots__ = ("_context", "_device", "_peer", "_tag", "call", "rank", "size")

    def __init__(
        self, call: str, device: Device, peer: Callable[[int], int], rank: int, size: int, context: int, tag: int
    ) -> None:
        """peer: converts a rank to the device's. context, tag: of the call's messages."""
        self.call = call
        self.rank = rank
        self.size = size
        self._device = device
        self._peer = peer
        self._context = context
        self._tag = tag

    # Bytes.

    def begin_send(self, to: int, data: memoryview) -> Dispatch:
        """Begin a send; the data must not change until it is complete."""
        return self._device.send(self._peer(to), self._context, self._tag, data)

    def begin_receive(self, source: int, buffer: memoryview) -> Completion[Envelope]:
        """Begin a receive; `end_receive` awaits it."""
        return self._device.receive(self._peer(source), self._context, self._tag, buffer)

    async def end_receive(self, source: int, buffer: memoryview, over: Completion[Envelope]) -> None:
        """Wait for a receive. Raises MPIError (ERR_TRUNCATE) if the message has not the buffer's size."""
        try:
            length = (await over).length
        except MPIError as error:
            if error.error_class != ERR_TRUNCATE:
                raise
            raise self._differs(source, len(buffer), "more") from error
        if length != len(buffer):
            raise self._differs(source, len(buffer), str(length))

    async def send(self, to: int, data: memoryview) -> None:
        await self.begin_send(to, data)

    async def receive(self, source: int, buffer: memoryview) -> None:
        """Receive exactly the buffer's size. Raises MPIError as `end_receive`."""
        await self.end_receive(source, buffer, self.begin_receive(source, buffer))

    async def receive_all(self, buffers: Mapping[int, memoryview]) -> None:
        """Receive from several ranks, by source, in any order: a NIC that drops messages nobody waits for finds all
        receives posted."""
        receives = {source: self.begin_receive(source, buffer) for source, buffer in buffers.items()}
        for source, over in receives.items():
            await self.end_receive(source, buffers[source], over)

    async def swap(self, to: int, data: memoryview, source: int, buffer: memoryview) -> None:
        """Send to one rank and receive from one at once."""
        received = self.begin_receive(source, buffer)
        sent = self.begin_send(to, data)
        await self.end_receive(source, buffer, received)
        await sent

    def _differs(self, source: int, expected: int, came: str) -> MPIError:
        return MPIError(
            ERR_TRUNCATE,
            f"{self.call}: rank {self.rank} expects {expected} bytes from rank {source}, which has sent {came}: their "
            "arguments do not fit each other",
        )

    # Objects.

    def begin_send_object(self, to: int, obj: object) -> Dispatch:
        contexts = self._context, self._context
        return send_object(self._device, self._peer(to), contexts, self._tag, obj)

    async def send_object(self, to: int, obj: object) -> None:
        await self.begin_send_object(to, obj)

    async def receive_object(self, source: int) -> Any:
        incoming = self._begin_receive_object(source)
        await incoming.over
        return incoming.load()

    async def swap_objects(self, to: int, obj: object, source: int) -> Any:
        """Send an object to one rank and receive one from a rank at once."""
        incoming = self._begin_receive_object(source)
        sent = self.begin_send_object(to, obj)
        await incoming.over
        await sent
        return incoming.load()

    def _begin_receive_object(self, source: int) -> Incoming:
        return Incoming(self._device, self._peer(source), (self._context, self._context), self._tag)


def power_below(size: int) -> int:
    """Return the greatest power of two that is not above `size`, which is 1 or more."""
    return 1 << (size.bit_length() - 1)


def parts(total: int, number: int, item: int) -> list[tuple[int, int]]:
    """Cut `total` bytes of items into `number` (begin, end), of as many items each, but for the last ones."""
    step = -(-(total // item) // number) * item
    return [(min(place * step, total), min((place + 1) * step, total)) for place in range(number)]
