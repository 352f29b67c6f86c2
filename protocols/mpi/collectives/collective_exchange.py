"""Messages of one collective call: sends and receives of bytes and objects between the ranks of its communicator, with a
tag that no other call uses."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from protocols.core.completion import Completion
from protocols.mpi.constants import ANY_SOURCE
from protocols.mpi.device import Device, ObjectReceive, SendCompletion, pickle_object, pickler, send_object
from protocols.mpi.mailbox import MailboxReceive
from protocols.mpi.mpi_errors import ERR_TRUNCATE, Envelope, MPIError


class Exchange:
    """One collective call at one rank. call: its name, for errors. rank: this rank in the communicator. size: the
    communicator's number of ranks.

    Awaited transfers raise the MPIError with which they fail. They raise ERR_PROC_FAILED as soon as a rank of the
    communicator has failed (`rank_failures`), or the message of a completed send turns out to be lost (`LostSends`), since
    other ranks may wait for that message, and this rank for them. Then all receives of the call are cancelled.
    """

    __slots__ = ("_context", "_device", "_device_rank", "_mailbox", "_pending", "_tag", "_wait", "call", "rank", "size")

    def __init__(
        self, call: str, device: Device, device_rank: Callable[[int], int], rank: int, size: int, context: int, tag: int
    ) -> None:
        """device_rank: converts a rank of the communicator to the device's. context, tag: context and tag of the call's
        messages."""
        self.call = call
        self.rank = rank
        self.size = size
        self._device = device
        self._mailbox = device.mailbox
        self._device_rank = device_rank
        self._context = context
        self._tag = tag
        self._pending: list[Completion[Envelope]] = []  # receives that have not been awaited yet
        self._wait: Completion[None] | None = None

    @property
    def max_transfers(self) -> int:
        """Maximum sends, and maximum receives, that a rank should have in progress at once. With a mailbox, a peer then
        has a slot for each of their offers and grants."""
        return self.size if self._mailbox is None else max(1, self._device.mailbox_slots // 2)

    # Bytes.

    def begin_send(self, destination: int, data: memoryview) -> SendCompletion:
        """Begin a send, which `wait_for` awaits; the data must not change until the send is complete."""
        transport = self._device if self._mailbox is None else self._mailbox
        return transport.send(self._device_rank(destination), self._context, self._tag, data)

    def begin_receive(self, source: int, buffer: memoryview) -> Completion[Envelope]:
        """Begin a receive; `end_receive` awaits it."""
        transport = self._device if self._mailbox is None else self._mailbox
        completion = transport.receive(self._device_rank(source), self._context, self._tag, buffer)
        self._pending.append(completion)
        return completion

    async def end_receive(self, source: int, buffer: memoryview, completion: Completion[Envelope]) -> None:
        """Wait for a receive. Raises MPIError (ERR_TRUNCATE) if the message does not have the buffer's size."""
        try:
            length = (await self.wait_for(completion)).length
        except MPIError as error:
            if error.error_class != ERR_TRUNCATE:
                raise
            raise self._size_mismatch(source, len(buffer), "more") from error
        if length != len(buffer):
            raise self._size_mismatch(source, len(buffer), str(length))

    async def wait_for(self, completion: Completion[Envelope]) -> Envelope:
        """Wait for a transfer, and return its envelope. If it or the call fails, cancel the pending receives of the call."""
        if not completion.done:
            wait: Completion[None] = Completion("%s", completion)
            self._wait = wait
            completion.add_callback(partial(_complete, wait))
            pending_calls = self._device.rank_failures.pending_calls
            pending_calls[self] = None
            try:
                self._check_lost_sends()
                await wait
            except MPIError:
                self._cancel_pending()
                raise
            finally:
                self._wait = None
                del pending_calls[self]
        if completion in self._pending:
            self._pending.remove(completion)
        try:
            return completion.result()
        except MPIError:
            self._cancel_pending()
            raise

    async def send(self, destination: int, data: memoryview) -> None:
        await self.wait_for(self.begin_send(destination, data))

    async def receive(self, source: int, buffer: memoryview) -> None:
        """Receive a message of exactly the buffer's size. Raises MPIError as `end_receive`."""
        await self.end_receive(source, buffer, self.begin_receive(source, buffer))

    async def receive_all(self, buffers: Mapping[int, memoryview]) -> None:
        """Receive from several ranks, in any order. buffers: by source. All receives are posted at once, for NICs that drop
        messages without a receive."""
        receives = {source: self.begin_receive(source, buffer) for source, buffer in buffers.items()}
        for source, completion in receives.items():
            await self.end_receive(source, buffers[source], completion)

    async def sendrecv(self, destination: int, data: memoryview, source: int, buffer: memoryview) -> None:
        """Send to a rank and receive from a rank concurrently."""
        receive = self.begin_receive(source, buffer)
        send = self.begin_send(destination, data)
        await self.end_receive(source, buffer, receive)
        await self.wait_for(send)

    def _size_mismatch(self, source: int, expected: int, received: str) -> MPIError:
        return MPIError(
            ERR_TRUNCATE,
            f"{self.call}: rank {self.rank} expects {expected} bytes from rank {source}, which has sent {received}: the "
            "arguments of these ranks do not agree",
        )

    # Objects.

    def begin_send_object(self, destination: int, obj: object) -> SendCompletion:
        if self._mailbox is not None:
            return self._mailbox.send(
                self._device_rank(destination), self._context, self._tag, memoryview(pickle_object(obj))
            )
        contexts = self._context, self._context
        return send_object(self._device, self._device_rank(destination), contexts, self._tag, obj)

    async def send_object(self, destination: int, obj: object) -> None:
        await self.wait_for(self.begin_send_object(destination, obj))

    async def receive_object(self, source: int) -> Any:
        incoming = self.begin_receive_object(source)
        await self.wait_for(incoming.completion)
        return self.load(source, incoming)

    async def sendrecv_objects(self, destination: int, obj: object, source: int) -> Any:
        """Send an object to a rank and receive one from a rank concurrently."""
        incoming = self.begin_receive_object(source)
        send = self.begin_send_object(destination, obj)
        await self.wait_for(incoming.completion)
        await self.wait_for(send)
        return self.load(source, incoming)

    def load(self, source: int, incoming: ObjectReceive | MailboxReceive) -> Any:
        """Unpickle a received object. Raises the exceptions of unpickling, and MPIError (ERR_TRUNCATE) if the message is not
        a pickle, since its sender has made another call."""
        try:
            return pickler.loads(incoming.data)
        except (pickle.UnpicklingError, EOFError):
            raise MPIError(
                ERR_TRUNCATE,
                f"{self.call}: rank {self.rank} expects an object from rank {source}, which has sent {len(incoming.data)} "
                "bytes that are not an object: the calls of these ranks do not agree",
            ) from None

    def begin_receive_object(self, source: int) -> ObjectReceive | MailboxReceive:
        incoming: ObjectReceive | MailboxReceive
        if self._mailbox is not None:
            incoming = self._mailbox.receive(self._device_rank(source), self._context, self._tag, None)
        else:
            incoming = ObjectReceive(self._device, self._device_rank(source), (self._context, self._context), self._tag)
        self._pending.append(incoming.first_receive)
        return incoming

    # Failures.

    def on_failure(self) -> None:
        """Fail the call if a rank of the communicator has failed, or a message of its calls is lost."""
        wait = self._wait
        if wait is None or wait.done:
            return
        error = self._device.rank_failures.error(self.call, self.size, self._device_rank)
        try:
            self._check_lost_sends()
        except MPIError as loss:
            error = error or loss
        if error is not None:
            wait.fail(error)

    def _check_lost_sends(self) -> None:
        if self._device.lost_sends.unreported:
            self._device.lost_sends.check((self._context,), ANY_SOURCE)

    def _cancel_pending(self) -> None:
        """Cancel the pending receives, so that the program may reuse their buffers."""
        pending, self._pending = self._pending, []
        for completion in pending:
            if not completion.done:
                self._device.cancel(completion)


def _complete(wait: Completion[None], _: object) -> None:
    if not wait.done:
        wait.complete(None)


def floor_power_of_two(size: int) -> int:
    """Return the greatest power of two that is at most `size`, which is 1 or more."""
    return 1 << (size.bit_length() - 1)


def split_evenly(total: int, count: int, item: int) -> list[tuple[int, int]]:
    """Divide `total` bytes into `count` parts of whole items, of equal size except for shorter or empty parts at the end.
    item: bytes of an item. Returns the bounds (begin, end) of each part."""
    part_size = -(-(total // item) // count) * item
    return [(min(index * part_size, total), min((index + 1) * part_size, total)) for index in range(count)]
