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
from protocols.emp.settings import Settings

ANY_TAG: Final = -1

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


class Received(NamedTuple):
    """What a receive has got. length: bytes of the message."""

    source: int
    tag: int
    length: int


_FAILURES: Final = {
    stat.RESTARTED: "node {} has started again: whether the message had arrived is not known",
    stat.GAVE_UP: "node {} has acknowledged nothing for as long as the settings allow",
    stat.ABANDONED: "node {} has given the message up",
    stat.INVALID: "the NIC refused the descriptor",
}


class _Transfer(Completion[Received]):
    """A transfer under way."""

    __slots__ = ("_kind", "_peer", "_tag", "descriptors", "listed", "pinned", "size")

    def __init__(self, kind: int, peer: int, tag: int, size: int, pinned: int, descriptors: int) -> None:
        """size: of its buffer. pinned: the buffer's first address. descriptors: how many it takes."""
        # What the base's does, but for what it is about: that is put together from these, for who asks.
        self.done = False
        self._error = None
        self._callbacks = None
        self._kind = kind
        self._peer = peer
        self._tag = tag
        self.size = size
        self.pinned = pinned
        self.listed = 0  # where the list of its pages is pinned, if it has one
        self.descriptors = descriptors

    @property
    def what(self) -> str:
        verb = "a receive from" if self._kind & stat.RECEIVE else "the send to"
        node = "any node" if self._peer == ANY_SOURCE else f"node {self._peer}"
        return f"{verb} {node}, tag {self._tag}, {self.size} bytes"


class _InPieces(_Transfer):
    """One whose buffer lies in pieces. rest: of all but the first, the address and which byte of the message comes there."""

    __slots__ = ("rest",)

    def __init__(
        self, kind: int, peer: int, tag: int, size: int, rest: list[tuple[int, int]], pinned: int, descriptors: int
    ) -> None:
        super().__init__(kind, peer, tag, size, pinned, descriptors)
        self.rest = rest


class Endpoint:
    """A node's side of its NIC. number: the node's. size: how many nodes there are."""

    def __init__(self, adapter: Adapter, nic: Bell, memory: Pinning, descriptors: Descriptors) -> None:
        self.number = adapter.number
        self.size = len(adapter.addresses)
        self._nic = nic
        self._memory = memory
        self._descriptors = descriptors
        self._used = bytearray(descriptors.count)
        self._next = 0
        self._transfers: dict[int, _Transfer] = {}
        self._probes: dict[int, Completion[Found | None]] = {}

    @property
    def free(self) -> int:
        """Descriptors that no transfer uses."""
        return self._used.count(0)

    @property
    def pinned(self) -> int:
        """Regions of memory that are the NIC's as long as transfers are under way."""
        return len(self._memory)

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
        return self._post_pieces(stat.SEND, destination, tag, pieces)

    def post_receive_pieces(self, source: int, tag: int, pieces: Sequence[memoryview]) -> Completion[Received]:
        """Receive a message into pieces; as `post_receive` and `post_send_pieces`."""
        kind, tag = self._wanted(source, tag)
        return self._post_pieces(kind, source, tag, pieces)

    def post_receive(self, source: int, tag: int, buffer: bytearray | memoryview) -> Completion[Received]:
        """Receive the oldest message from source (or ANY_SOURCE) with that tag; done when it is complete. tag: 32 bits;
        ANY_TAG, or `any_tag` of one, for any of a context.

        Fails with TruncatedError where the message is longer. Raises DescriptorsExhaustedError, and ValueError for a source
        or tag that cannot be.
        """
        kind, tag = self._wanted(source, tag)
        return self._post(kind, source, tag, _writable(buffer))

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
        for index, transfer in self._transfers.items():
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
        transfer = self._transfers.pop(index, None)
        if transfer is None:
            self._answered(index)
            return
        status, _, _, length, peer, tag, _ = unpack_head(self._descriptors.memory, index * SIZE)
        self._memory.unpin(transfer.pinned, length)
        if transfer.descriptors == 1:
            self._used[index] = 0
            if transfer.listed:
                self._memory.unpin(transfer.listed)
                self._unpin_rest(transfer, length)
        else:
            self._used[index : index + transfer.descriptors] = bytes(transfer.descriptors)
            self._unpin_rest(transfer, length)
        received = Received(peer, tag, length)
        if status == stat.DONE:
            transfer.complete(received)
        elif status == stat.TRUNCATED:
            transfer.fail(TruncatedError(received, transfer.size))
        elif status == stat.TAKEN_BACK:
            transfer.fail(TakenBackError(f"{transfer.what}, was taken back"))
        else:
            transfer.fail(EmpError(_FAILURES[status].format(peer)))

    def waiting(self) -> list[str]:
        return [
            *[transfer.what for transfer in self._transfers.values()],
            *[probe.what for probe in self._probes.values()],
        ]

    def _answered(self, index: int) -> None:
        """A probe has its descriptor back."""
        status, _, _, length, peer, tag, _ = unpack_head(self._descriptors.memory, index * SIZE)
        self._used[index] = 0
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

    def _post(self, kind: int, peer: int, tag: int, view: memoryview) -> Completion[Received]:
        size = len(view)
        if size > PAGE:
            return self._post_pages(kind, peer, tag, view)
        index = self._used.find(0, self._next)
        if index < 0:
            index = self._take(1)[1]
        else:
            self._used[index] = 1
            self._next = index + 1
        try:
            address = self._memory.pin_page(view, kind & stat.RECEIVE)
        except MemoryError as error:
            self._used[index] = 0
            raise DescriptorsExhaustedError(str(error)) from error
        self._transfers[index] = transfer = _Transfer(kind, peer, tag, size, address, 1)
        pack_head(self._descriptors.memory, index * SIZE, stat.NIC, kind | stat.ONE_PAGE, size, address, peer, tag, 1)
        self._nic.doorbell(index, SIZE, 1)
        return transfer

    def _post_pages(self, kind: int, peer: int, tag: int, view: memoryview) -> Completion[Received]:
        count = (len(view) + PAGE - 1) // PAGE
        if count > MOST_PAGES:
            raise ValueError(f"a message of {len(view)} bytes: at most {MOST_PAGES} pages")
        taken, index = self._take(chained(count))
        memory, pinned, listed = self._memory, -1, 0
        try:
            pages = memory.pin(view, kind & stat.RECEIVE)
            pinned = pages[0][0]
            if taken == 1:
                listed = memory.pin_page(memoryview(list_of(pages)))
        except MemoryError as error:
            if pinned >= 0:
                memory.unpin(pinned)
            self._used[index : index + taken] = bytes(taken)
            raise DescriptorsExhaustedError(str(error)) from error
        transfer = _Transfer(kind, peer, tag, len(view), pinned, taken)
        self._begin(transfer, index, kind, peer, tag, pages, listed)
        return transfer

    def _post_pieces(self, kind: int, peer: int, tag: int, pieces: Sequence[memoryview]) -> Completion[Received]:
        count = pages_of(map(len, pieces))
        if count > MOST_PAGES:
            raise ValueError(f"{len(pieces)} pieces on {count} pages: at most {MOST_PAGES} pages")
        taken, index = self._take(chained(count))
        memory, pages, parts, size, listed = self._memory, list[Page](), list[tuple[int, int]](), 0, 0
        try:
            for piece in pieces:
                pages += (pinned := memory.pin(piece, kind & stat.RECEIVE))
                parts.append((pinned[0][0], size))
                size += len(piece)
            if taken == 1:
                listed = memory.pin_page(memoryview(list_of(pages)))
        except MemoryError as error:
            for address, _ in parts:
                memory.unpin(address)
            self._used[index : index + taken] = bytes(taken)
            raise DescriptorsExhaustedError(str(error)) from error
        transfer = _InPieces(kind, peer, tag, size, parts[1:], parts[0][0], taken)
        self._begin(transfer, index, kind, peer, tag, pages, listed)
        return transfer

    def _begin(
        self, transfer: _Transfer, index: int, kind: int, peer: int, tag: int, pages: list[Page], listed: int
    ) -> None:
        """Hand over a transfer of several pages. listed: where their list is, if there is one."""
        self._transfers[index] = transfer
        taken = transfer.descriptors
        if taken > 1:
            self._descriptors.write(index, kind | stat.CHAIN, pages, peer, tag)
        else:
            transfer.listed = listed
            self._descriptors.write(index, kind | stat.INDIRECT, [(listed, 0)], peer, tag, stated=len(pages))
        self._nic.doorbell(index, SIZE * taken, len(pages))

    def _unpin_rest(self, transfer: _Transfer, received: int) -> None:
        """All pieces but the first. received: bytes of the message."""
        if isinstance(transfer, _InPieces):
            for address, begin in transfer.rest:
                self._memory.unpin(address, max(0, received - begin))

    def _take(self, count: int) -> tuple[int, int]:
        """So many descriptors, one behind the other, as a chain needs them, or, where no such row is free, one, which
        will do for a list of pages. How many, and the first one's index."""
        used = self._used
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
        raise ValueError("a receive needs a buffer that can be written")
    return view


def any_tag(context: int = 0) -> int:
    """For `post_receive`: any tag of a context (the tag's upper eight bits)."""
    return -(context << 24) - 1


def plug(settings: Settings | None = None, codec: Codec = codec) -> Plug:
    """EMP, for whatever builds NICs. codec: another one than the generated (`protocols.core.scapy_codec`)."""

    def build(adapter: Adapter, nic: Nic) -> Agent:
        own = settings if settings is not None else Settings()
        memory, descriptors = HostMemory(), Descriptors(own.descriptors, adapter.pages_apart)
        firmware = Firmware(adapter, nic, memory, descriptors, own, codec)
        return Agent(firmware, Endpoint(adapter, nic, memory, descriptors))

    return build
