"""EMP's host library: a program posts sends and receives, and awaits them.

The library pins a buffer, has its pages translated, writes a descriptor, and gets it back when the transfer is done
(section 4.2). A buffer belongs to the NIC until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Bell, Buffer, Nic, Plug
from protocols.core.memory import PAGE, HostMemory, Page, Pinning
from protocols.emp import codec
from protocols.emp import descriptors as stat
from protocols.emp.card import Codec
from protocols.emp.descriptors import (
    ANY_SOURCE,
    MOST_PAGES,
    SIZE,
    Descriptors,
    chained,
    list_of,
    pack_head,
    unpack_head,
)
from protocols.emp.firmware import Firmware
from protocols.emp.host_transfers import Received as Received
from protocols.emp.host_transfers import Transfer, Written
from protocols.emp.settings import Settings

ANY_TAG: Final = -1

_new: Final = tuple.__new__
_DONE: Final = stat.DONE
_READ_ONLY: Final = "a receive needs a buffer that can be written"
_WORD: Final = 4  # bytes of a doorbell that has no descriptor behind it


class EmpError(Exception):
    """A transfer that cannot be, or has failed."""


class DescriptorsExhaustedError(EmpError):
    """So many of the NIC's descriptors, or so much of the memory that it reaches, are in use that there is nothing left for
    a transfer: wait for another to be done."""


class TruncatedError(EmpError):
    """The message was longer than the buffer, which has been filled."""

    def __init__(self, received: Received, size: int) -> None:
        self.received = received
        super().__init__(
            f"the message of {received.length} bytes from node {received.source} (tag {received.tag}) is longer than the "
            f"buffer of {size} bytes"
        )


class TakenBackError(EmpError):
    """A receive that its program has taken back (`Endpoint.take_back`)."""


class Found(NamedTuple):
    """What a probe has found. length: bytes of the message. message: its id."""

    source: int
    tag: int
    length: int
    message: int


_FAILURES: Final = {
    stat.RESTARTED: "node {} has started again: whether the message had arrived is not known",
    stat.GAVE_UP: "node {} has acknowledged nothing for as long as the settings allow",
    stat.ABANDONED: "node {} has given the message up",
    stat.INVALID: "the NIC refused the descriptor",
}


class Endpoint:
    """A node's side of its NIC. number: the node's. size: how many nodes there are."""

    def __init__(self, adapter: Adapter, nic: Bell, memory: Pinning, descriptors: Descriptors) -> None:
        self.number = adapter.number
        self.size = len(adapter.addresses)
        self._nic = nic
        self._memory = memory
        self._descriptors = descriptors
        self._used = bytearray(descriptors.count)
        self._spare: list[int] = []  # of those, the ones that no transfer uses: the next takes what the last one had
        self._next = 0
        self._handed = descriptors.handed
        self._written: dict[int, Written] = {}
        self._probes: dict[int, Completion[Found | None]] = {}

    @property
    def free(self) -> int:
        """Descriptors that no transfer uses."""
        return self._used.count(0) + len(self._spare)

    @property
    def pinned(self) -> int:
        """Regions of memory that are the NIC's as long as transfers are under way."""
        return len(self._memory) + len(self._handed or ())

    def post_send(self, destination: int, tag: int, data: Buffer) -> Completion[Received]:
        """Send a message; done when all of it has been acknowledged. tag: 32 bits.

        Raises DescriptorsExhaustedError, and ValueError for a destination or tag that cannot be.
        """
        if not 0 <= destination < self.size:
            raise ValueError(f"no node {destination}: there are {self.size}")
        if not 0 <= tag <= 0xFFFF_FFFF:
            raise ValueError(f"a tag of {tag}: 0 to {0xFFFF_FFFF}")
        return self._post(stat.SEND, destination, tag, memoryview(data).cast("B"))

    def post_send_pieces(self, destination: int, tag: int, pieces: Sequence[memoryview]) -> Completion[Received]:
        """Send a message that lies in pieces, of bytes, two at least and none empty; as `post_send`. ValueError where they
        take more than MOST_PAGES pages (`pages_of`)."""
        return self._write(stat.SEND, destination, tag, pieces)

    def post_receive_pieces(self, source: int, tag: int, pieces: Sequence[memoryview]) -> Completion[Received]:
        """Receive a message into pieces; as `post_receive` and `post_send_pieces`."""
        kind, tag = self._wanted(source, tag)
        return self._write(kind, source, tag, pieces)

    def post_receive(self, source: int, tag: int, buffer: bytearray | memoryview) -> Completion[Received]:
        """Receive the oldest message from source (or ANY_SOURCE) with that tag; done when it is complete. tag: 32 bits;
        ANY_TAG, or `any_tag` of one, for any of a context.

        Fails with TruncatedError where the message is longer. Raises DescriptorsExhaustedError, and ValueError for a source
        or tag that cannot be.
        """
        kind = stat.RECEIVE
        if not (0 <= tag <= 0xFFFF_FFFF and 0 <= source < self.size):
            kind, tag = self._wanted(source, tag)
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise ValueError(_READ_ONLY)
        return self._post(kind, source, tag, view)

    def post_claimed(self, found: Found, buffer: bytearray | memoryview) -> Completion[Received]:
        """Receive a message that a probe has claimed; as `post_receive`."""
        return self._post(stat.RECEIVE | stat.CLAIMED, found.source, found.message, _writable(buffer))

    def post_probe(self, source: int, tag: int, *, wait: bool = True, claim: bool = False) -> Completion[Found | None]:
        """Ask which message a receive with this source and tag would get now; done when there is one or, unless wait, when
        the NIC has looked: None. claim: nobody else gets that message any more, and `post_claimed` must receive it.

        Raises as `post_receive` does.
        """
        kind, tag = self._wanted(source, tag)
        kind |= stat.PROBE | (stat.WAIT if wait else 0) | (stat.CLAIM if claim else 0)
        index = self._take(1)[1]
        node = "any node" if source == ANY_SOURCE else f"node {source}"
        probe: Completion[Found | None] = Completion("a message from %s, tag %s", node, tag)
        self._probes[index] = probe
        pack_head(self._descriptors.memory, index * SIZE, stat.NIC, kind, 0, 0, source, tag, 1)
        self._nic.doorbell(index, SIZE, 0)
        return probe

    def take_back(self, receive: Completion[Received]) -> None:
        """Have a receive's descriptor back: unless it has a message already, it fails with TakenBackError.

        The doorbells behind those of all descriptors are for that: the NIC may be writing into the descriptor itself.
        """
        for index, transfer in self._under_way():
            if transfer is receive:
                self._nic.doorbell(self._descriptors.count + index, _WORD, 0)
                return

    async def send(self, destination: int, tag: int, data: Buffer) -> None:
        """Send a message, and wait until it has been acknowledged."""
        await self.post_send(destination, tag, data)

    async def receive(self, source: int, tag: int, buffer: bytearray | memoryview) -> Received:
        """Receive a message, and wait for it."""
        return await self.post_receive(source, tag, buffer)

    def completed(self, index: int) -> None:
        """Section 4.2: the host finds in the stat field that it has a descriptor back."""
        handed = self._handed
        if handed is not None and (transfer := handed.pop(index, None)) is not None:
            self._spare.append(index)
            del transfer.span
        elif (written := self._written.pop(index, None)) is not None:
            self._read(index, written)
            transfer = written
        else:
            self._answered(index)
            return
        received = _new(Received, (transfer.peer, transfer.tag, transfer.length))  # skips a call that NamedTuple makes
        status = transfer.status
        if status == _DONE:
            transfer.complete(received)
        elif status == stat.TRUNCATED:
            transfer.fail(TruncatedError(received, transfer.size))
        elif status == stat.TAKEN_BACK:
            transfer.fail(TakenBackError(f"{transfer.what}, was taken back"))
        else:
            transfer.fail(EmpError(_FAILURES[status].format(transfer.peer)))

    def waiting(self) -> list[str]:
        return [
            *[transfer.what for _, transfer in self._under_way()],
            *[probe.what for probe in self._probes.values()],
        ]

    def _answered(self, index: int) -> None:
        """A probe has its descriptor back."""
        status, _, _, length, peer, tag, _ = unpack_head(self._descriptors.memory, index * SIZE)
        self._free(index, 1)
        probe = self._probes.pop(index)
        if status == stat.INVALID:
            probe.fail(EmpError(_FAILURES[status]))
        else:
            probe.complete(Found(peer, tag, length & 0xFFFF_FFFF, length >> 32) if status == stat.FOUND else None)

    def _wanted(self, source: int, tag: int) -> tuple[int, int]:
        """A descriptor's kind and tag for messages from there with that tag. Raises ValueError."""
        if source != ANY_SOURCE and not 0 <= source < self.size:
            raise ValueError(f"no node {source}: there are {self.size}")
        kind = stat.RECEIVE
        if tag < 0:
            kind |= stat.ANY_TAG
            tag = -tag - 1
        if tag > 0xFFFF_FFFF:
            raise ValueError(f"a tag of {tag}: 0 to {0xFFFF_FFFF}")
        return kind, tag

    def _under_way(self) -> list[tuple[int, Transfer]]:
        return [*(self._handed or {}).items(), *self._written.items()]

    def _post(self, kind: int, peer: int, tag: int, view: memoryview) -> Completion[Received]:
        size, handed = len(view), self._handed
        if handed is None or size > PAGE:
            return self._write(kind, peer, tag, [view])
        spare = self._spare
        index = spare.pop() if spare else self._take(1)[1]
        handed[index] = transfer = Transfer(kind, peer, tag, size)
        transfer.span = view
        self._nic.doorbell(index, SIZE, 1)
        return transfer

    def _write(self, kind: int, peer: int, tag: int, pieces: Sequence[memoryview]) -> Completion[Received]:
        """Hand over a transfer by descriptors."""
        count = pages_of(map(len, pieces)) or 1
        if count > MOST_PAGES:
            raise ValueError(f"{len(pieces)} pieces on {count} pages: at most {MOST_PAGES} pages")
        taken, index = self._take(chained(count))
        memory, pages, pinned, size, listed = self._memory, list[Page](), list[tuple[int, int]](), 0, 0
        try:
            for piece in pieces:
                pages += (places := memory.pin(piece, kind & stat.RECEIVE))
                pinned.append((places[0][0], size))
                size += len(piece)
            if taken == 1 < count:
                listed = memory.pin_page(memoryview(list_of(pages)))
        except MemoryError as error:
            for address, _ in pinned:
                memory.unpin(address)
            self._free(index, taken)
            raise DescriptorsExhaustedError(str(error)) from error
        self._written[index] = transfer = Written(kind, peer, tag, size, taken, pinned, listed)
        if listed:
            self._descriptors.write(index, kind | stat.INDIRECT, [(listed, 0)], peer, tag, stated=count)
        else:
            self._descriptors.write(index, kind | (stat.CHAIN if taken > 1 else stat.ONE_PAGE), pages, peer, tag)
        self._nic.doorbell(index, SIZE * taken, count)
        return transfer

    def _read(self, index: int, transfer: Written) -> None:
        """What the NIC has written into a descriptor. All that the transfer had is free."""
        status, _, _, length, peer, tag, _ = unpack_head(self._descriptors.memory, index * SIZE)
        transfer.status, transfer.length, transfer.peer, transfer.tag = status, length, peer, tag
        for address, begin in transfer.pinned:
            self._memory.unpin(address, max(0, length - begin))
        if transfer.listed:
            self._memory.unpin(transfer.listed)
        self._free(index, transfer.taken)

    def _free(self, index: int, count: int) -> None:
        if count == 1:
            self._spare.append(index)
        else:
            self._used[index : index + count] = bytes(count)

    def _take(self, count: int) -> tuple[int, int]:
        """So many descriptors, one behind the other, as a chain needs them, or, where no such row is free, one, which
        will do for a list of pages. How many, and the first one's index."""
        used, spare = self._used, self._spare
        if count == 1 and spare:
            return 1, spare.pop()
        while spare:
            used[spare.pop()] = 0
        for wanted in (count, 1):
            place = used.find(bytes(wanted), self._next)
            if place < 0:
                place = used.find(bytes(wanted))
            if place >= 0:
                used[place : place + wanted] = b"\1" * wanted
                self._next = place + wanted
                return wanted, place
        raise DescriptorsExhaustedError(f"all {len(used)} descriptors are in use: wait for a transfer to be done")


def pages_of(sizes: Iterable[int]) -> int:
    """How many pages a message's pieces are on, of so many bytes each."""
    return sum([(size + PAGE - 1) // PAGE for size in sizes])


def _writable(buffer: bytearray | memoryview) -> memoryview:
    view = memoryview(buffer).cast("B")
    if view.readonly:
        raise ValueError(_READ_ONLY)
    return view


def any_tag(context: int = 0) -> int:
    """For `post_receive`: any tag of a context (the tag's upper eight bits)."""
    return -(context << 24) - 1


def plug(settings: Settings | None = None, codec: Codec = codec) -> Plug:
    """EMP, for whatever builds NICs. codec: another one than the generated (`protocols.core.scapy_codec`)."""

    def build(adapter: Adapter, nic: Nic) -> Agent:
        own = settings if settings is not None else Settings()
        memory, descriptors = HostMemory(), Descriptors(own.descriptors, adapter.pages_apart, handed={})
        firmware = Firmware(adapter, nic, memory, descriptors, own, codec)
        return Agent(firmware, Endpoint(adapter, nic, memory, descriptors))

    return build
