"""Messages of one collective call: sends and receives of bytes and objects between its communicator's ranks, under a tag
that no other call uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from protocols.core.completion import Completion
from protocols.mpi.constants import ANY_SOURCE
from protocols.mpi.device import Device, SendCompletion, ObjectReceive, pickled, send_object
from protocols.mpi.mailbox import MailboxReceive
from protocols.mpi.mpi_errors import ERR_TRUNCATE, Envelope, MPIError


class Exchange:
    """One collective call at one rank. call: its name, for errors. rank, size: in its communicator.

    Every transfer that is awaited raises MPIError where it fails, and ERR_PROC_FAILED as soon as a rank of the communicator
    is known to be gone (`rank_failures`), or a message that was reported sent to be lost (`LostSends`), for which another rank
    may wait, and this one for that: what the call has begun to receive is cancelled then.
    """

    __slots__ = ("_context", "_device", "_mailbox", "_peer", "_pending", "_tag", "_waits", "call", "rank", "size")

    def __init__(
        self, call: str, device: Device, peer: Callable[[int], int], rank: int, size: int, context: int, tag: int
    ) -> None:
        """peer: converts a rank to the device's. context, tag: of the call's messages."""
        self.call = call
        self.rank = rank
        self.size = size
        self._device = device
        self._mailbox = device.mailbox
        self._peer = peer
        self._context = context
        self._tag = tag
        self._pending: list[Completion[Envelope]] = []  # receives that nobody has waited for yet
        self._waits: Completion[None] | None = None

    # Bytes.

    def begin_send(self, to: int, data: memoryview) -> SendCompletion:
        """Begin a send, for `end`; the data must not change until it is complete."""
        through = self._device if self._mailbox is None else self._mailbox
        return through.send(self._peer(to), self._context, self._tag, data)

    def begin_receive(self, source: int, buffer: memoryview) -> Completion[Envelope]:
        """Begin a receive; `end_receive` awaits it."""
        through = self._device if self._mailbox is None else self._mailbox
        completion = through.receive(self._peer(source), self._context, self._tag, buffer)
        self._pending.append(completion)
        return completion

    async def end_receive(self, source: int, buffer: memoryview, completion: Completion[Envelope]) -> None:
        """Wait for a receive. Raises MPIError (ERR_TRUNCATE) if the message has not the buffer's size."""
        try:
            length = (await self.end(completion)).length
        except MPIError as error:
            if error.error_class != ERR_TRUNCATE:
                raise
            raise self._differs(source, len(buffer), "more") from error
        if length != len(buffer):
            raise self._differs(source, len(buffer), str(length))

    async def end(self, completion: Completion[Envelope]) -> Envelope:
        """Wait for a transfer."""
        if not completion.done:
            waits: Completion[None] = Completion("%s", completion)
            self._waits = waits
            completion.add_callback(partial(_wake, waits))
            calls = self._device.rank_failures.waiting
            calls[self] = None
            try:
                self._check_losses()
                await waits
            except MPIError:
                self._abandon()
                raise
            finally:
                self._waits = None
                del calls[self]
        if completion in self._pending:
            self._pending.remove(completion)
        try:
            return completion.result()
        except MPIError:
            self._abandon()
            raise

    async def send(self, to: int, data: memoryview) -> None:
        await self.end(self.begin_send(to, data))

    async def receive(self, source: int, buffer: memoryview) -> None:
        """Receive exactly the buffer's size. Raises MPIError as `end_receive`."""
        await self.end_receive(source, buffer, self.begin_receive(source, buffer))

    async def receive_all(self, buffers: Mapping[int, memoryview]) -> None:
        """Receive from several ranks, by source, in any order: a NIC that drops messages nobody waits for finds all
        receives posted."""
        receives = {source: self.begin_receive(source, buffer) for source, buffer in buffers.items()}
        for source, completion in receives.items():
            await self.end_receive(source, buffers[source], completion)

    async def swap(self, to: int, data: memoryview, source: int, buffer: memoryview) -> None:
        """Send to one rank and receive from one at once."""
        received = self.begin_receive(source, buffer)
        sent = self.begin_send(to, data)
        await self.end_receive(source, buffer, received)
        await self.end(sent)

    def _differs(self, source: int, expected: int, came: str) -> MPIError:
        return MPIError(
            ERR_TRUNCATE,
            f"{self.call}: rank {self.rank} expects {expected} bytes from rank {source}, which has sent {came}: their "
            "arguments do not fit each other",
        )

    # Objects.

    def begin_send_object(self, to: int, obj: object) -> SendCompletion:
        if self._mailbox is not None:
            return self._mailbox.send(self._peer(to), self._context, self._tag, memoryview(pickled(obj)))
        contexts = self._context, self._context
        return send_object(self._device, self._peer(to), contexts, self._tag, obj)

    async def send_object(self, to: int, obj: object) -> None:
        await self.end(self.begin_send_object(to, obj))

    async def receive_object(self, source: int) -> Any:
        incoming = self._begin_receive_object(source)
        await self.end(incoming.completion)
        return incoming.load()

    async def swap_objects(self, to: int, obj: object, source: int) -> Any:
        """Send an object to one rank and receive one from a rank at once."""
        incoming = self._begin_receive_object(source)
        sent = self.begin_send_object(to, obj)
        await self.end(incoming.completion)
        await self.end(sent)
        return incoming.load()

    def _begin_receive_object(self, source: int) -> ObjectReceive | MailboxReceive:
        incoming: ObjectReceive | MailboxReceive
        if self._mailbox is not None:
            incoming = self._mailbox.receive(self._peer(source), self._context, self._tag, None)
        else:
            incoming = ObjectReceive(self._device, self._peer(source), (self._context, self._context), self._tag)
        self._pending.append(incoming.first)
        return incoming

    # Failures.

    def on_failure(self) -> None:
        """Fail the call, if a rank of the communicator has departed, or a message of its calls is lost."""
        waits = self._waits
        if waits is None or waits.done:
            return
        error = self._device.rank_failures.error(self.call, self.size, self._peer)
        try:
            self._check_losses()
        except MPIError as lost:
            error = error or lost
        if error is not None:
            waits.fail(error)

    def _check_losses(self) -> None:
        if self._device.lost_sends.known:
            self._device.lost_sends.check((self._context,), ANY_SOURCE)

    def _abandon(self) -> None:
        """Cancel the receives: their buffers are the program's again."""
        pending, self._pending = self._pending, []
        for completion in pending:
            if not completion.done:
                self._device.cancel(completion)


def _wake(waits: Completion[None], _: object) -> None:
    if not waits.done:
        waits.complete(None)


def power_below(size: int) -> int:
    """Return the greatest power of two that is not above `size`, which is 1 or more."""
    return 1 << (size.bit_length() - 1)


def parts(total: int, number: int, item: int) -> list[tuple[int, int]]:
    """Cut `total` bytes of items into `number` (begin, end), of as many items each, but for the last ones."""
    step = -(-(total // item) // number) * item
    return [(min(place * step, total), min((place + 1) * step, total)) for place in range(number)]
