"""EMP's host library: a program posts sends and receives, and awaits them.

The library pins a buffer, has its pages translated, writes a descriptor, and gets it back when the transfer is done
(section 4.2). Until then the buffer belongs to the NIC.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Buffer, Host, HostActions, Nic, Plug
from protocols.core.memory import PAGE, HostMemory, Page, Pinning
from protocols.emp import codec
from protocols.emp import descriptors as stat
from protocols.emp.card import Codec
from protocols.emp.descriptors import (
    ANY_SOURCE,
    MAX_PAGES,
    SIZE,
    Descriptors,
    chain_length,
    pack_head,
    pack_page_list,
    unpack_result,
)
from protocols.emp.firmware import Firmware
from protocols.emp.myrinet import codec as routed_codec
from protocols.emp.settings import Settings, check_unit
from protocols.myrinet.routed_nic import routed_plug

ANY_TAG: Final = -1

_new_tuple: Final = tuple.__new__
_DONE: Final = stat.DONE
_READ_ONLY: Final = "a receive needs a writable buffer, got a read-only one"
_WORD_SIZE: Final = 4  # bytes written for a doorbell that passes no descriptor


class ReceiveResult(NamedTuple):
    """Result of a receive, or of a send, whose source is then the destination. length: bytes of the message."""

    source: int
    tag: int
    length: int


class Transfer(Completion[ReceiveResult]):
    """A transfer in progress. kind, peer, tag: as in its descriptor; once it is done, peer and tag are its message's.
    size: bytes of its buffer. address: where its buffer, or the first segment of it, is pinned. descriptor_count: number of
    its descriptors. later_segments: for each further segment, its pinned address and its offset in the message. page_list:
    address of the pinned list of pages, or 0."""

    __slots__ = ("address", "descriptor_count", "kind", "later_segments", "page_list", "peer", "size", "tag")

    def __init__(
        self,
        kind: int,
        peer: int,
        tag: int,
        size: int,
        address: int,
        descriptor_count: int = 1,
        later_segments: Sequence[tuple[int, int]] = (),
        page_list: int = 0,
    ) -> None:
        # Sets the base's attributes without a description, which `what` formats on demand.
        self.done = False
        self._error = None
        self._callbacks = None
        self.kind = kind
        self.peer = peer
        self.tag = tag
        self.size = size
        self.address = address
        self.descriptor_count = descriptor_count
        self.later_segments = later_segments
        self.page_list = page_list

    @property
    def what(self) -> str:
        operation = "a receive from" if self.kind & stat.RECEIVE else "the send to"
        node = "any node" if self.peer == stat.ANY_SOURCE else f"node {self.peer}"
        return f"{operation} {node}, {_describe_tag(self.kind, self.tag)}, {self.size} bytes"


class EmpError(Exception):
    """A transfer cannot be posted, or has failed."""


class DescriptorsExhaustedError(EmpError):
    """Too few descriptors, or too little memory that the NIC can access, are free for a transfer: wait until another one
    is done."""


class TruncatedError(EmpError):
    """The message is longer than the buffer, which has been filled."""

    def __init__(self, received: ReceiveResult, size: int) -> None:
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
    stat.CRASHED: "node {} has crashed: the rest of its message will not come",
    stat.GAVE_UP: "node {} has acknowledged nothing within the time limit (give_up)",
    stat.ABANDONED: "node {} has given the message up",
    stat.INVALID: "the NIC refused the descriptor",
}


class Endpoint(Host):
    """A node's access to its NIC. number: the node's number. size: number of nodes."""

    def __init__(self, adapter: Adapter, nic: HostActions, memory: Pinning, descriptors: Descriptors) -> None:
        self.number = adapter.number
        self.size = len(adapter.addresses)
        self._nic = nic
        self._memory = memory
        self._descriptors = descriptors
        self._is_allocated = bytearray(descriptors.count)  # by descriptor; also set for those in _recently_freed
        self._recently_freed: list[int] = []  # descriptors for reuse, the last one freed first
        self._search_from = 0  # where the search for consecutive descriptors begins
        self._transfers: dict[int, Transfer] = {}
        self._probes: dict[int, Completion[ProbeResult | None]] = {}
        self._commands: dict[int, Completion[None]] = {}

    @property
    def free_descriptors(self) -> int:
        """Number of unused descriptors."""
        return self._is_allocated.count(0) + len(self._recently_freed)

    @property
    def pinned(self) -> int:
        """Number of pinned memory regions: the NIC accesses them while transfers are in progress."""
        return len(self._memory)

    def post_send(self, destination: int, tag: int, data: Buffer) -> Completion[ReceiveResult]:
        """Post a send; its completion is done when the peer has acknowledged the message. tag: 32 bits.

        Raises DescriptorsExhaustedError, and ValueError for an invalid destination or tag, or for more than MAX_PAGES pages.
        """
        self._check_send(destination, tag)
        return self._post(stat.SEND, destination, tag, memoryview(data).cast("B"))

    def post_send_iov(self, destination: int, tag: int, segments: Sequence[memoryview]) -> Completion[ReceiveResult]:
        """Post a send of two or more segments of bytes, none of them empty, as one message; otherwise as `post_send`. Each
        segment begins a page (`page_count`)."""
        self._check_send(destination, tag)
        return self._post_pages(stat.SEND, destination, tag, segments)

    def post_receive_iov(self, source: int, tag: int, segments: Sequence[memoryview]) -> Completion[ReceiveResult]:
        """Post a receive into two or more segments, none of them empty; otherwise as `post_receive`."""
        kind, tag = self._encode_match(source, tag)
        if any(segment.readonly for segment in segments):
            raise ValueError(_READ_ONLY)
        return self._post_pages(kind, source, tag, segments)

    def post_receive(self, source: int, tag: int, buffer: bytearray | memoryview) -> Completion[ReceiveResult]:
        """Post a receive for the oldest message from source (or ANY_SOURCE) with that tag; its completion is done when the
        message is complete. tag: 32 bits, ANY_TAG, or `any_tag(context)` for any tag of a context.

        The completion fails with TruncatedError if the message is longer than the buffer. Raises
        DescriptorsExhaustedError, and ValueError for an invalid source or tag, a read-only buffer, or more than MAX_PAGES
        pages.
        """
        kind = stat.RECEIVE
        if not (0 <= tag <= 0xFFFF_FFFF and 0 <= source < self.size):
            kind, tag = self._encode_match(source, tag)
        view = memoryview(buffer).cast("B")
        if view.readonly:
            raise ValueError(_READ_ONLY)
        return self._post(kind, source, tag, view)

    def post_standing(self, tag: int, buffer: memoryview) -> Completion[ReceiveResult]:
        """Post a standing receive from any node, into a writable buffer of one page at most. tag: 32 bits. No program
        waits for the receive, so `pending_work` does not report it. Raises DescriptorsExhaustedError."""
        return self._post(stat.RECEIVE | stat.STANDING, ANY_SOURCE, tag, buffer)

    def post_claimed(self, probed: ProbeResult, buffer: bytearray | memoryview) -> Completion[ReceiveResult]:
        """Post a receive for a message that a probe has claimed; otherwise as `post_receive`."""
        return self._post(stat.RECEIVE | stat.CLAIMED, probed.source, probed.message, _writable(buffer))

    def post_probe(
        self, source: int, tag: int, *, wait: bool = True, claim: bool = False
    ) -> Completion[ProbeResult | None]:
        """Post a probe for the message that a receive with this source and tag would get. wait: the completion is done when
        there is such a message; without it, at once, with None if there is none. claim: reserve the message, which
        `post_claimed` must receive.

        Raises DescriptorsExhaustedError, and ValueError for an invalid source or tag.
        """
        kind, tag = self._encode_match(source, tag)
        kind |= stat.PROBE | (stat.WAIT if wait else 0) | (stat.CLAIM if claim else 0)
        _, index = self._allocate(1)
        node = "any node" if source == ANY_SOURCE else f"node {source}"
        probe: Completion[ProbeResult | None] = Completion("a message from %s, %s", node, _describe_tag(kind, tag))
        self._probes[index] = probe
        pack_head(self._descriptors.memory, index * SIZE, stat.NIC, kind, 0, 0, source, tag, 1)
        self._nic.ring_doorbell(index, SIZE, 0)
        return probe

    def post_unit(self, unit: int) -> Completion[None]:
        """Set the number of frames per collection, the unit of acknowledgement, for later sends. The completion is done when
        the NIC has set it. Section 4.1: 3; section 3.1.2: configurable on the fly.

        Messages in flight keep their collections. Peers need no setting, since every frame names the unit of its
        message. The unit applies to messages of this NIC to all peers, until the next call; a host that attaches to a
        shared NIC begins with the NIC's setting.

        Raises DescriptorsExhaustedError, and ValueError for a unit that is not a whole number from 1 to MAX_UNIT.
        """
        check_unit(unit)
        _, index = self._allocate(1)
        self._commands[index] = command = Completion[None]("the NIC to set collections of %s frames", unit)
        self._descriptors.write_unit(index, unit)
        self._nic.ring_doorbell(index, SIZE, 0)
        return command

    def cancel(self, receive: Completion[ReceiveResult]) -> None:
        """Cancel a receive: its completion fails with ReceiveCancelledError unless a message has matched the receive.

        A doorbell above those of the descriptors requests the cancellation: the host cannot write the descriptor, since
        the NIC may be writing it.
        """
        for index, transfer in self._transfers.items():
            if transfer is receive:
                self._nic.ring_doorbell(self._descriptors.count + index, _WORD_SIZE, 0)
                return

    def report_crash(self, peer: int) -> None:
        """Report that a node's program has crashed, which this NIC cannot detect. Receives that have matched an incomplete
        message from the node fail, its messages without a receive are dropped, and no other message from it matches a
        receive until it has restarted. Other receives, and sends to it, wait for its restart."""
        if 0 <= peer < self.size and peer != self.number:
            self._nic.ring_doorbell(2 * self._descriptors.count + peer, _WORD_SIZE, 0)

    async def send(self, destination: int, tag: int, data: Buffer) -> None:
        """Send a message, and wait until the peer has acknowledged it; otherwise as `post_send`."""
        await self.post_send(destination, tag, data)

    async def receive(self, source: int, tag: int, buffer: bytearray | memoryview) -> ReceiveResult:
        """Receive a message, and wait until it is complete; otherwise as `post_receive`."""
        return await self.post_receive(source, tag, buffer)

    def on_completion(self, index: int) -> bool | None:
        """Handle a returned descriptor. Section 4.2: the host finds in the stat field that the NIC has returned it."""
        transfer = self._transfers.pop(index, None)
        if transfer is None:
            self._complete_query(index)
            return False
        returned: stat.Result = unpack_result(self._descriptors.memory, index * SIZE)
        status, length, transfer.peer, transfer.tag = returned
        self._release(index, transfer, length)
        # Skips NamedTuple's constructor, which is interpreted.
        result = _new_tuple(ReceiveResult, (transfer.peer, transfer.tag, length))
        if status == _DONE:
            transfer.complete(result)
        elif status == stat.TRUNCATED:
            transfer.fail(TruncatedError(result, transfer.size))
        elif status == stat.CANCELLED:
            transfer.fail(ReceiveCancelledError(f"{transfer.what}, was cancelled"))
        else:
            transfer.fail(EmpError(_FAILURES[status].format(transfer.peer)))
        return None

    def pending_work(self) -> list[str]:
        return [
            *[transfer.what for transfer in self._transfers.values() if not transfer.kind & stat.STANDING],
            *[probe.what for probe in self._probes.values()],
            *[command.what for command in self._commands.values()],
        ]

    def _complete_query(self, index: int) -> None:
        """Complete the probe or command whose descriptor has been returned."""
        status, length, peer, tag = unpack_result(self._descriptors.memory, index * SIZE)
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
            probe.complete(
                ProbeResult(peer, tag, length & 0xFFFF_FFFF, length >> 32) if status == stat.MESSAGE_FOUND else None
            )

    def _check_send(self, destination: int, tag: int) -> None:
        """Raise ValueError for an invalid destination or tag."""
        if not 0 <= destination < self.size:
            raise ValueError(f"destination must be 0 to {self.size - 1}, got {destination}")
        if not 0 <= tag <= 0xFFFF_FFFF:
            raise ValueError(f"tag must be 0 to {0xFFFF_FFFF}, got {tag}")

    def _encode_match(self, source: int, tag: int) -> tuple[int, int]:
        """Return the kind and tag of the descriptor of a receive or probe. tag: as for `post_receive`. Raises ValueError for
        an invalid source or tag."""
        if source != ANY_SOURCE and not 0 <= source < self.size:
            raise ValueError(f"source must be 0 to {self.size - 1}, or ANY_SOURCE, got {source}")
        kind = stat.RECEIVE
        if tag < 0:
            kind |= stat.ANY_TAG
            tag = -tag - 1
        if tag > 0xFFFF_FFFF:
            raise ValueError(f"tag must be 0 to {0xFFFF_FFFF}, got {tag}")
        return kind, tag

    def _post(self, kind: int, peer: int, tag: int, view: memoryview) -> Completion[ReceiveResult]:
        """Post a transfer; the fast path is a single page, whose address the descriptor contains."""
        size = len(view)
        if size > PAGE:
            return self._post_pages(kind, peer, tag, (view,))
        index = self._recently_freed.pop() if self._recently_freed else self._allocate(1)[1]
        try:
            address = self._memory.pin_page(view, kind & stat.RECEIVE)
        except MemoryError as error:
            self._free(index, 1)
            raise DescriptorsExhaustedError(str(error)) from error
        self._transfers[index] = transfer = Transfer(kind, peer, tag, size, address)
        pack_head(self._descriptors.memory, index * SIZE, stat.NIC, kind, size, address, peer, tag, 1)
        self._nic.ring_doorbell(index, SIZE, 1)
        return transfer

    def _post_pages(self, kind: int, peer: int, tag: int, segments: Sequence[memoryview]) -> Completion[ReceiveResult]:
        """Post a transfer of several pages, by a chain of descriptors or a list of pages."""
        count = page_count(map(len, segments))
        if count > MAX_PAGES:
            raise ValueError(f"a message must have at most {MAX_PAGES} pages, got {count} in {len(segments)} segments")
        descriptor_count, index = self._allocate(chain_length(count))
        memory, pages, pinned_segments, size, page_list = self._memory, list[Page](), list[tuple[int, int]](), 0, 0
        try:
            for segment in segments:
                pages += (segment_pages := memory.pin(segment, kind & stat.RECEIVE))
                pinned_segments.append((segment_pages[0][0], size))
                size += len(segment)
            if descriptor_count == 1 < count:
                page_list = memory.pin_page(memoryview(pack_page_list(pages)))
        except MemoryError as error:
            for address, _ in pinned_segments:
                memory.unpin(address)
            self._free(index, descriptor_count)
            raise DescriptorsExhaustedError(str(error)) from error
        (address, _), *later_segments = pinned_segments
        transfer = Transfer(kind, peer, tag, size, address, descriptor_count, later_segments, page_list)
        self._transfers[index] = transfer
        if page_list:
            self._descriptors.write(index, kind | stat.INDIRECT, [(page_list, 0)], peer, tag, page_count=count)
        else:
            self._descriptors.write(index, kind | stat.CHAIN, pages, peer, tag)
        self._nic.ring_doorbell(index, SIZE * descriptor_count, count)
        return transfer

    def _release(self, index: int, transfer: Transfer, length: int) -> None:
        """Free the pinned memory and the descriptors of a transfer. length: bytes of its message."""
        memory = self._memory
        memory.unpin(transfer.address, length)
        for address, begin in transfer.later_segments:
            memory.unpin(address, max(0, length - begin))
        if transfer.page_list:
            memory.unpin(transfer.page_list)
        self._free(index, transfer.descriptor_count)

    def _free(self, index: int, count: int) -> None:
        if count == 1:
            self._recently_freed.append(index)
        else:
            self._is_allocated[index : index + count] = bytes(count)

    def _allocate(self, count: int) -> tuple[int, int]:
        """Allocate `count` consecutive descriptors, as a chain needs them, or, if there are none, a single descriptor, which
        suffices for a list of pages. Returns their number, and the index of the first one. Raises
        DescriptorsExhaustedError."""
        is_allocated, recently_freed = self._is_allocated, self._recently_freed
        if count == 1 and recently_freed:
            return 1, recently_freed.pop()
        while recently_freed:
            is_allocated[recently_freed.pop()] = 0
        for length in (count, 1):
            start = is_allocated.find(bytes(length), self._search_from)
            if start < 0:
                start = is_allocated.find(bytes(length))
            if start >= 0:
                is_allocated[start : start + length] = b"\1" * length
                self._search_from = start + length
                return length, start
        raise DescriptorsExhaustedError(
            f"all {len(is_allocated)} descriptors are in use: wait for a transfer to be done"
        )


def _describe_tag(kind: int, tag: int) -> str:
    """Describe the tag of a descriptor. kind: the descriptor's."""
    return "any tag" if kind & stat.ANY_TAG else f"tag {tag}"


def page_count(sizes: Iterable[int]) -> int:
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
    """Make EMP's plug. codec, routed_codec: converters of frames on Ethernet and on source-routed networks, in place of the
    generated ones (see `protocols.core.scapy_codec`)."""
    return routed_plug(_plug(settings, codec), _plug(settings, routed_codec))


def _plug(settings: Settings | None, codec: Codec) -> Plug:
    def build(adapter: Adapter, nic: Nic) -> Agent:
        nic_settings = settings if settings is not None else Settings()
        memory, descriptors = HostMemory(), Descriptors(nic_settings.descriptors, adapter.pages_apart)
        firmware = Firmware(adapter, nic, memory, descriptors, nic_settings, codec)
        return Agent(firmware, Endpoint(adapter, nic, memory, descriptors))

    return build
