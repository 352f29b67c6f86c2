"""EMP's host library: a program posts sends and receives, and awaits them.

The library pins a buffer, has its pages translated, writes a descriptor, and gets it back when the transfer is done
(section 4.2). Until then the buffer belongs to the NIC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Buffer, HostActions, Nic, Plug
from protocols.core.memory import PAGE, HostMemory, Page, Pinning
from protocols.emp import codec
from protocols.emp import descriptors as stat
from protocols.emp.card import Codec
from protocols.emp.descriptors import (
    ANY_SOURCE,
    MAX_PAGES,
    SIZE,
    Descriptors,
    chained,
    list_of,
    pack_head,
    unpack_head,
)
from protocols.emp.firmware import Firmware
from protocols.emp.myrinet import codec as routed_codec
from protocols.emp.settings import Settings, check_unit
from protocols.myrinet.routed_nic import routed_plug

ANY_TAG: Final = -1

_new: Final = tuple.__new__
_DONE: Final = stat.DONE
_READ_ONLY: Final = "a receive needs a buffer that can be written"
_WORD: Final = 4  # bytes written for a doorbell that passes no descriptor


class Received(NamedTuple):
    """Result of a receive. length: bytes of the message."""

    source: int
    tag: int
    length: int


class Transfer(Completion[Received]):
    """A transfer in progress. kind, peer, tag: as in its descriptor; once it is done, peer and tag are its message's.
    size: bytes of its buffer. taken: number of its descriptors. pinned: the addresses of its buffer's segments, with
    their offsets in the message. listed: address of the pinned list of their pages, or 0."""

    __slots__ = ("kind", "listed", "peer", "pinned", "size", "tag", "taken")

    def __init__(
        self, kind: int, peer: int, tag: int, size: int, taken: int, pinned: list[tuple[int, int]], listed: int
    ) -> None:
        # Sets the base's attributes without its description, which `what` formats on demand.
        self.done = False
        self._error = None
        self._callbacks = None
        self.kind = kind
        self.peer = peer
        self.tag = tag
        self.size = size
        self.taken = taken
        self.pinned = pinned
        self.listed = listed

    @property
    def what(self) -> str:
        verb = "a receive from" if self.kind & stat.RECEIVE else "the send to"
        node = "any node" if self.peer == stat.ANY_SOURCE else f"node {self.peer}"
        return f"{verb} {node}, tag {self.tag}, {self.size} bytes"


class EmpError(Exception):
    """A transfer is impossible or has failed."""


class DescriptorsExhaustedError(EmpError):
    """Too few descriptors, or too little memory that the NIC reaches, are free for a transfer: wait until another is
    done."""


class TruncatedError(EmpError):
    """The message is longer than the buffer, which has been filled."""

    def __init__(self, received: Received, size: int) -> None:
        self.received = received
        super().__init__(
            f"the message of {received.length} bytes from node {received.source} (tag {received.tag}) is longer than the "
            f"buffer of {size} bytes"
        )


class ReceiveCancelledError(EmpError):
    """The program has cancelled the receive (`Endpoint.cancel`)."""


class ProbeResult(NamedTuple):
    """Result of a probe. length: bytes of the message. message: its id."""

    source: int
    tag: int
    length: int
    message: int


_FAILURES: Final = {
    stat.RESTARTED: "node {} has restarted: whether the message had arrived is not known",
    stat.GAVE_UP: "node {} has acknowledged nothing within the time limit (give_up)",
    stat.ABANDONED: "node {} has given the message up",
    stat.INVALID: "the NIC refused the descriptor",
}


class Endpoint:
    """A node's access to its NIC. number: the node's number. size: number of nodes."""

    def __init__(self, adapter: Adapter, nic: HostActions, memory: Pinning, descriptors: Descriptors) -> None:
        self.number = adapter.number
        self.size = len(adapter.addresses)
        self._nic = nic
        self._memory = memory
        self._descriptors = descriptors
        self._used = bytearray(descriptors.count)
        self._spare: list[int] = []  # descriptors free for reuse: the last one used is taken first
        self._next = 0
        self._transfers: dict[int, Transfer] = {}
        self._probes: dict[int, Completion[ProbeResult | None]] = {}
        self._commands: dict[int, Completion[None]] = {}

    @property
    def free(self) -> int:
        """Number of unused descriptors."""
        return self._used.count(0) + len(self._spare)

    @property
    def pinned(self) -> int:
        """Number of memory regions that belong to the NIC while transfers are in progress."""
        return len(self._memory)

    def post_send(self, destination: int, tag: int, data: Buffer) -> Completion[Received]:
        """Send a message; done when all of it has been acknowledged. tag: 32 bits.

        Raises DescriptorsExhaustedError, and ValueError for an invalid destination or tag.
        """
        if not 0 <= destination < self.size:
            raise ValueError(f"no node {destination}: there are {self.size}")
        if not 0 <= tag <= 0xFFFF_FFFF:
            raise ValueError(f"a tag of {tag}: 0 to {0xFFFF_FFFF}")
        return self._post(stat.SEND, destination, tag, memoryview(data).cast("B"))

    def post_send_iov(self, destination: int, tag: int, segments: Sequence[memoryview]) -> Completion[Received]:
        """Send a message that lies in two or more segments of bytes, none of them empty; otherwise as `post_send`. Raises
        ValueError if they take more than MAX_PAGES pages (`pages_of`)."""
        return self._post_pages(stat.SEND, destination, tag, segments)

    def post_receive_iov(self, source: int, tag: int, segments: Sequence[memoryview]) -> Completion[Received]:
        """Receive a message into segments; as `post_receive` and `post_send_iov`."""
        kind, tag = self._wanted(source, tag)
        return self._post_pages(kind, source, tag, segments)

    def post_receive(self, source: int, tag: int, buffer: bytearray | memoryview) -> Completion[Received]:
        """Receive the oldest message from source (or ANY_SOURCE) with that tag; done when it is complete. tag: 32 bits,
        ANY_TAG, or `any_tag` of a context for any tag of it.

        Fails with TruncatedError if the message is longer. Raises DescriptorsExhaustedError, and ValueError for an
        invalid source or tag.
        """
        kind = stat.RECEIVE
        if not (0 <= tag <= 0xFFFF_FFFF and 0 <= source < self.size):
            kind, tag = self._wanted(source, tag)
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise ValueError(_READ_ONLY)
        return self._post(kind, source, tag, view)

    def post_standing(self, tag: int, buffer: memoryview) -> Completion[Received]:
        """Receive from any node, as `post_receive`, into a buffer of one page at most. Nobody waits for such a receive, so
        that reports of what is waited for leave it out."""
        return self._post(stat.RECEIVE | stat.STANDING, ANY_SOURCE, tag, buffer)

    def post_claimed(self, found: ProbeResult, buffer: bytearray | memoryview) -> Completion[Received]:
        """Receive a message that a probe has claimed; otherwise as `post_receive`."""
        return self._post(stat.RECEIVE | stat.CLAIMED, found.source, found.message, _writable(buffer))

    def post_probe(
        self, source: int, tag: int, *, wait: bool = True, claim: bool = False
    ) -> Completion[ProbeResult | None]:
        """Find the message that a receive with this source and tag would get now; done when there is one or, without
        wait, at once: None if there is none. claim: reserve that message; `post_claimed` must receive it.

        Raises as `post_receive` does.
        """
        kind, tag = self._wanted(source, tag)
        kind |= stat.PROBE | (stat.WAIT if wait else 0) | (stat.CLAIM if claim else 0)
        index = self._take(1)[1]
        node = "any node" if source == ANY_SOURCE else f"node {source}"
        probe: Completion[ProbeResult | None] = Completion("a message from %s, tag %s", node, tag)
        self._probes[index] = probe
        pack_head(self._descriptors.memory, index * SIZE, stat.NIC, kind, 0, 0, source, tag, 1)
        self._nic.ring_doorbell(index, SIZE, 0)
        return probe

    def post_unit(self, unit: int) -> Completion[None]:
        """Set the frames of a collection, which is acknowledged as a whole, for the sends posted from now on; done when
        the NIC has set it. Section 4.1: 3; section 3.1.2: configurable on the fly.

        It may be called while messages are in flight: these keep their collections. Peers need no setting, since every
        frame names the unit of its message. It applies to this NIC and to messages to all peers, until the next call; a
        host that attaches to a shared NIC begins with the NIC's setting.

        Raises DescriptorsExhaustedError, and ValueError for a unit that is not a whole number from 1 to MAX_UNIT.
        """
        check_unit(unit)
        index = self._take(1)[1]
        self._commands[index] = command = Completion[None]("the NIC to set collections of %s frames", unit)
        self._descriptors.write_unit(index, unit)
        self._nic.ring_doorbell(index, SIZE, 0)
        return command

    def cancel(self, receive: Completion[Received]) -> None:
        """Cancel a receive: it fails with ReceiveCancelledError unless a message has matched it.

        Doorbells above those of the descriptors request this: the host cannot write the descriptor, since the NIC may be
        writing it.
        """
        for index, transfer in self._transfers.items():
            if transfer is receive:
                self._nic.ring_doorbell(self._descriptors.count + index, _WORD, 0)
                return

    async def send(self, destination: int, tag: int, data: Buffer) -> None:
        """Send a message, and wait until it has been acknowledged."""
        await self.post_send(destination, tag, data)

    async def receive(self, source: int, tag: int, buffer: bytearray | memoryview) -> Received:
        """Receive a message, and wait for it."""
        return await self.post_receive(source, tag, buffer)

    def completed(self, index: int) -> bool | None:
        """Handle a returned descriptor. Section 4.2: the host finds in the stat field that the NIC has returned it."""
        transfer = self._transfers.pop(index, None)
        if transfer is None:
            self._answered(index)
            return False
        status, _, _, length, transfer.peer, transfer.tag, _ = unpack_head(self._descriptors.memory, index * SIZE)
        self._release(index, transfer, length)
        received = _new(Received, (transfer.peer, transfer.tag, length))  # skips NamedTuple's Python constructor
        if status == _DONE:
            transfer.complete(received)
        elif status == stat.TRUNCATED:
            transfer.fail(TruncatedError(received, transfer.size))
        elif status == stat.CANCELLED:
            transfer.fail(ReceiveCancelledError(f"{transfer.what}, was cancelled"))
        else:
            transfer.fail(EmpError(_FAILURES[status].format(transfer.peer)))
        return None

    def waiting(self) -> list[str]:
        return [
            *[transfer.what for transfer in self._transfers.values() if not transfer.kind & stat.STANDING],
            *[probe.what for probe in self._probes.values()],
            *[command.what for command in self._commands.values()],
        ]

    def _answered(self, index: int) -> None:
        """Complete a probe or a command, whose descriptor has been returned."""
        status, _, _, length, peer, tag, _ = unpack_head(self._descriptors.memory, index * SIZE)
        self._free(index, 1)
        command = self._commands.pop(index, None)
        if command is not None:
            if status == _DONE:
                command.complete(None)
            else:
                command.fail(EmpError(_FAILURES[status].format(peer)))
            return
        probe = self._probes.pop(index)
        if status == stat.INVALID:
            probe.fail(EmpError(_FAILURES[status]))
        else:
            probe.complete(ProbeResult(peer, tag, length & 0xFFFF_FFFF, length >> 32) if status == stat.FOUND else None)

    def _wanted(self, source: int, tag: int) -> tuple[int, int]:
        """Return a descriptor's kind and tag for messages from a source with a tag. Raises ValueError."""
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
        """Post a transfer; the fast path is a single page, whose address the descriptor contains."""
        size = len(view)
        if size > PAGE:
            return self._post_pages(kind, peer, tag, (view,))
        index = self._spare.pop() if self._spare else self._take(1)[1]
        try:
            address = self._memory.pin_page(view, kind & stat.RECEIVE)
        except MemoryError as error:
            self._free(index, 1)
            raise DescriptorsExhaustedError(str(error)) from error
        self._transfers[index] = transfer = Transfer(kind, peer, tag, size, 1, [(address, 0)], 0)
        pack_head(self._descriptors.memory, index * SIZE, stat.NIC, kind, size, address, peer, tag, 1)
        self._nic.ring_doorbell(index, SIZE, 1)
        return transfer

    def _post_pages(self, kind: int, peer: int, tag: int, segments: Sequence[memoryview]) -> Completion[Received]:
        """Post a transfer of several pages, by a chain of descriptors or a list of pages."""
        count = pages_of(map(len, segments))
        if count > MAX_PAGES:
            raise ValueError(f"{len(segments)} segments on {count} pages: at most {MAX_PAGES} pages")
        taken, index = self._take(chained(count))
        memory, pages, pinned, size, listed = self._memory, list[Page](), list[tuple[int, int]](), 0, 0
        try:
            for segment in segments:
                pages += (places := memory.pin(segment, kind & stat.RECEIVE))
                pinned.append((places[0][0], size))
                size += len(segment)
            if taken == 1 < count:
                listed = memory.pin_page(memoryview(list_of(pages)))
        except MemoryError as error:
            for address, _ in pinned:
                memory.unpin(address)
            self._free(index, taken)
            raise DescriptorsExhaustedError(str(error)) from error
        self._transfers[index] = transfer = Transfer(kind, peer, tag, size, taken, pinned, listed)
        if listed:
            self._descriptors.write(index, kind | stat.INDIRECT, [(listed, 0)], peer, tag, stated=count)
        else:
            self._descriptors.write(index, kind | stat.CHAIN, pages, peer, tag)
        self._nic.ring_doorbell(index, SIZE * taken, count)
        return transfer

    def _release(self, index: int, transfer: Transfer, length: int) -> None:
        """Free everything that a transfer held. length: bytes of its message."""
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
        """Take descriptors: `count` consecutive ones, as a chain needs them, or, if there is no such row, one, which
        suffices for a list of pages. Returns their number and the first one's index."""
        used, spare = self._used, self._spare
        if count == 1 and spare:
            return 1, spare.pop()
        while spare:
            used[spare.pop()] = 0
        for wanted in (count, 1):
            start = used.find(bytes(wanted), self._next)
            if start < 0:
                start = used.find(bytes(wanted))
            if start >= 0:
                used[start : start + wanted] = b"\1" * wanted
                self._next = start + wanted
                return wanted, start
        raise DescriptorsExhaustedError(f"all {len(used)} descriptors are in use: wait for a transfer to be done")


def pages_of(sizes: Iterable[int]) -> int:
    """Return the number of pages of a message whose segments have these sizes in bytes."""
    return sum([(size + PAGE - 1) // PAGE for size in sizes])


def _writable(buffer: bytearray | memoryview) -> memoryview:
    view = memoryview(buffer).cast("B")
    if view.readonly:
        raise ValueError(_READ_ONLY)
    return view


def any_tag(context: int = 0) -> int:
    """Return the wildcard for `post_receive` that matches any tag of a context (the tag's upper eight bits)."""
    return -(context << 24) - 1


def plug(settings: Settings | None = None, codec: Codec = codec, routed_codec: Codec = routed_codec) -> Plug:
    """Make EMP's plug. codec, routed_codec: of Ethernet's and of source-routed networks' frames; they replace the generated
    ones (`protocols.core.scapy_codec`)."""
    return routed_plug(_plug(settings, codec), _plug(settings, routed_codec))


def _plug(settings: Settings | None, codec: Codec) -> Plug:
    def build(adapter: Adapter, nic: Nic) -> Agent:
        own = settings if settings is not None else Settings()
        memory, descriptors = HostMemory(), Descriptors(own.descriptors, adapter.pages_apart)
        firmware = Firmware(adapter, nic, memory, descriptors, own, codec)
        return Agent(firmware, Endpoint(adapter, nic, memory, descriptors))

    return build
