"""State that the firmware's modules share: the NIC's VIs, registered memory and peers, and completions to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from protocols.core import peers
from protocols.core.firmware import Adapter, Buffer, FirmwareActions
from protocols.core.host_work import HostWork, host_work
from protocols.core.memory import DmaMemory, Scatter, Span, UnpinnedError
from protocols.core.timers import Timers
from protocols.via import states
from protocols.via.codec import FRAME_SIZE, REMOTE_SIZE, TYPE_ERROR, TYPE_RDMA_READ, TYPE_RDMA_WRITE, TYPE_SEND
from protocols.via.counters import Counters
from protocols.via.settings import Settings
from protocols.via.vip_descriptors import Command, Op, Segment, Slots
from protocols.via.vipl_names import AsyncError, Done, Result

AGENT: Final = "agent"
"""Work on the host (`protocols.core.host_work`): the kernel agent handles a frame to send, or a received frame."""
REGISTER: Final = "register"
"""Work on the host: the kernel agent pins memory and adds its pages to a table, or removes them."""

_ETHERNET_SIZE: Final = 14  # bytes of the Ethernet header
_CHECK_SIZE: Final = 4  # bytes of the CRC-32 behind a frame's payload
RDMA_WRITE_ENABLED: Final = 1
"""Attribute of registered memory and of VIs: peers may write it by RDMA."""
RDMA_READ_ENABLED: Final = 2
"""Attribute of registered memory and of VIs: peers may read it by RDMA."""
WRITABLE: Final = 4
"""Attribute of registered memory: the NIC may write it. The program's own memory may be read-only."""
COMPLETED: Final = {
    TYPE_SEND: 0,
    TYPE_RDMA_WRITE: Done.COMPLETED_RDMA_WRITE,
    TYPE_RDMA_READ: Done.COMPLETED_RDMA_READ,
}
"""Operation bits of a send descriptor's status, by frame type."""
_MAX_ERRORS: Final = 256
"""Maximum number of asynchronous errors queued for the host; further errors are dropped."""


class Codec(Protocol):
    """Converter between fields and frames: `protocols.via.codec`, or Scapy on `protocols.via.frames`."""

    @property
    def pack_frame(self) -> Callable[..., bytes]: ...

    @property
    def pack_remote(self) -> Callable[..., bytes]: ...

    @property
    def pack_connection(self) -> Callable[..., bytes]: ...

    @property
    def pack_read(self) -> Callable[..., bytes]: ...

    def type_of(self, raw: Buffer) -> int: ...

    def unpack_frame(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_remote(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_read(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]: ...

    def unpack_connection(
        self, raw: Buffer
    ) -> tuple[bytes, bytes, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, Buffer]: ...


class ViolationError(Exception):
    """A segment is not registered memory, or the VI may not access it in this way."""


class Region:
    """Registered memory. attributes: RDMA_WRITE_ENABLED, RDMA_READ_ENABLED, WRITABLE."""

    __slots__ = ("address", "attributes", "ptag", "size")

    def __init__(self, address: int, size: int, ptag: int, attributes: int) -> None:
        self.address = address
        self.size = size
        self.ptag = ptag
        self.attributes = attributes


class Target:
    """Destination of a message that is being received. remote: start of the remote segment, for RDMA.
    registration_epoch: value of `Card.registration_epoch` when the access was checked."""

    __slots__ = ("buffer", "message", "registration_epoch", "remote", "total")

    def __init__(
        self,
        message: int,
        total: int,
        remote: Segment | None,
        registration_epoch: int,
        buffer: Span,
    ) -> None:
        self.message = message
        self.total = total
        self.remote = remote
        self.registration_epoch = registration_epoch
        self.buffer = buffer

    def is_of(self, message: int, total: int, remote: Segment | None, registration_epoch: int) -> bool:
        """Whether a frame with these values belongs to the message, and the checked access is still valid."""
        if message != self.message or total != self.total or registration_epoch != self.registration_epoch:
            return False
        own = self.remote
        if own is None or remote is None:
            return own is None and remote is None
        return own.address == remote.address and own.handle == remote.handle


class Outgoing:
    """A message of a send queue, or the response to an RDMA Read.

    kind: frame type. slot: slot of the descriptor, -1 for a response. number: number of the message in the connection; for a
    response that of the RDMA Read. segments: the data, `length` bytes. sent_bytes: bytes in frames so far. last: sequence
    number of the last frame; None until that frame is sent. received_bytes: received bytes of an RDMA Read. is_finished:
    True, except for an RDMA Read whose data has not arrived. registration_epoch: value of `Card.registration_epoch` when
    the access to the segments was checked.
    """

    __slots__ = (
        "control", "immediate", "is_finished", "kind", "last", "length", "number", "received_bytes", "registration_epoch",
        "remote", "segments", "sent_bytes", "slot", "span",
    )  # fmt: skip

    def __init__(
        self,
        kind: int,
        slot: int,
        control: int,
        immediate: int,
        remote: Segment | None,
        segments: Sequence[Segment],
        span: Span,
        registration_epoch: int,
    ) -> None:
        self.kind = kind
        self.registration_epoch = registration_epoch
        self.slot = slot
        self.control = control
        self.immediate = immediate
        self.remote = remote
        self.segments = segments
        self.span = span
        self.length = len(span)
        self.sent_bytes = 0
        self.number = 0
        self.last: int | None = None
        self.received_bytes = 0
        self.is_finished = kind != TYPE_RDMA_READ


class Vi:
    """State of a virtual interface in the NIC.

    session: number of the current connection or request, unique on this NIC. peer, peer_vi, peer_session: remote end of
    the connection. attributes: RDMA_WRITE_ENABLED, RDMA_READ_ENABLED. connect_slot: slot of the pending connect or
    accept command, -1 without one. discriminator, step: discriminator and step of the connection request. expires: time at
    which the request fails, or 0. retries: consecutive retransmissions.
    """

    __slots__ = (
        "attributes",
        "connect_slot",
        "discriminator",
        "expected",
        "expires",
        "frames_to_acknowledge",
        "is_gap_reported",
        "max_transfer",
        "next_message",
        "next_sequence",
        "number",
        "peer",
        "peer_session",
        "peer_vi",
        "progress_time",
        "ptag",
        "queue",
        "read_count",
        "receives",
        "reliability",
        "replies",
        "resent_from",
        "retries",
        "session",
        "state",
        "step",
        "stored_bytes",
        "target",
        "unacknowledged",
        "unsent",
    )  # fmt: skip

    def __init__(self, number: int, ptag: int, reliability: int, max_transfer: int, attributes: int) -> None:
        self.number: Final = number
        self.ptag = ptag
        self.reliability = reliability
        self.max_transfer = max_transfer
        self.attributes = attributes
        self.state = states.IDLE
        self.session = 0
        self.receives: deque[int] = deque()  # slots
        self.connect_slot = -1
        self.discriminator = b""
        self.step = 0
        self.expires = 0
        self.reset(None, 0, 0)

    def reset(self, peer: peers.Peer | None, vi: int, session: int) -> None:
        """Set the remote end, and reset the state of the connection."""
        self.peer = peer
        self.peer_vi = vi
        self.peer_session = session
        self.queue: deque[Outgoing] = deque()  # messages not yet completed
        self.unsent: deque[Outgoing] = deque()  # messages with frames still to send
        self.replies: deque[Outgoing] = deque()  # responses to the peer's RDMA Reads, with frames still to send
        self.read_count = 0  # number of RDMA Reads in progress
        self.next_sequence = 0  # sequence number of the next frame
        self.next_message = 0  # number of the next message
        self.unacknowledged: deque[tuple[int, bytes]] = deque()  # sequence number, frame
        self.resent_from = -1  # missing frame for which the receiver's report caused the last retransmission; -1: none
        self.retries = 0
        self.progress_time = 0  # of the last acknowledgement, or when the oldest unacknowledged frame was sent
        self.expected = 0  # sequence number of the next frame to accept
        self.frames_to_acknowledge = 0  # number of frames received since the last acknowledgement
        self.is_gap_reported = False
        self.target: Target | None = None  # message being received
        self.stored_bytes = 0  # of this message


class Card:
    """One NIC's VIs, memory, counters and peers, and its actions."""

    def __init__(
        self,
        adapter: Adapter,
        nic: FirmwareActions,
        memory: DmaMemory,
        slots: Slots,
        settings: Settings,
        codec: Codec,
    ) -> None:
        self.number: Final = adapter.number
        self.nodes: Final = len(adapter.addresses)
        self.address: Final = adapter.address
        self.incarnation: Final = adapter.incarnation
        self.nic: Final = nic
        self.work: Final[HostWork] = host_work(nic)
        self.memory: Final = memory
        self.slots: Final = slots
        self.settings: Final = settings
        self.codec: Final = codec
        self.counters: Final = Counters()
        self.max_send: Final = adapter.mtu - (FRAME_SIZE - _ETHERNET_SIZE) - _CHECK_SIZE
        """Maximum payload of a frame of a Send, in bytes."""
        self.max_remote: Final = adapter.mtu - (REMOTE_SIZE - _ETHERNET_SIZE) - _CHECK_SIZE
        """Maximum payload of a frame of an RDMA Write, in bytes."""
        if self.max_remote < 1:
            raise ValueError(f"MTU of VIA must be {adapter.mtu - self.max_remote + 1} bytes or more, got {adapter.mtu}")
        self.timers: Final[Timers[int]] = Timers()
        """Keys: twice a VI's number for its connection request, plus 1 for its unacknowledged frames; ~slot for the
        time-out of a command; `pending_disconnects.DISCONNECT_TIMERS` plus a session for the end of a connection."""
        self.state = states.NIC.initial
        self.vis: Final[dict[int, Vi]] = {}
        self.regions: Final[dict[int, Region]] = {}
        self.ptags: Final[set[int]] = set()
        self.registration_epoch = 0
        """Number of changes of registered memory and protection tags. A checked access is valid until the next
        change."""
        self.in_use: Final = bytearray(slots.count)
        """Flags of the slots that the NIC is using. Doorbells for them are ignored."""
        self.peers: Final[peers.Peers[peers.Peer, None]] = peers.Peers(
            adapter, nic, partial(_make_peer, adapter.addresses), presumes_first=True
        )
        self.returned: Final[deque[int]] = deque()
        """Slots of completed descriptors and commands whose completions have not been posted to the host yet."""
        self._is_returning = False
        self._errors: deque[tuple[AsyncError, int]] = deque()
        self._error_slot = -1
        self._session = 0

    # States.

    def step(self, event: str) -> None:
        """Apply an event to the NIC's state table."""
        row = states.NIC.row(self.state, event)
        self.state = row.next_state
        self._count(row.counters)

    def step_vi(self, vi: Vi, event: str) -> None:
        """Apply an event to a VI's state table."""
        row = states.VI.row(vi.state, event)
        vi.state = row.next_state
        self._count(row.counters)

    def _count(self, names: Sequence[str]) -> None:
        for name in names:
            setattr(self.counters, name, getattr(self.counters, name) + 1)

    def next_session(self) -> int:
        """Return a number for a new connection."""
        self._session = self._session + 1 & 0xFFFF_FFFF or 1
        return self._session

    # Memory.

    def view_region(self, ptag: int, segment: Segment, length: int, access: int = 0) -> memoryview:
        """Return a view of registered memory. access: RDMA_WRITE_ENABLED or RDMA_READ_ENABLED for an access by a peer,
        WRITABLE to receive. Raises ViolationError unless the memory is registered with this protection tag, contains the
        segment, and permits the access."""
        address = segment.address
        region = self.regions.get(segment.handle)
        if (
            region is None
            or region.ptag != ptag
            or ptag not in self.ptags
            or region.attributes & access != access
            or address < region.address
            or address + length > region.address + region.size
        ):
            raise ViolationError
        try:
            return self.memory.view(address, length)
        except UnpinnedError as error:
            raise ViolationError from error

    def span(self, ptag: int, segments: Sequence[Segment], access: int = 0) -> Span:
        """Return the memory of a descriptor's segments. access: as for `view_region`. Raises ViolationError."""
        if len(segments) == 1 and segments[0].length:
            return self.view_region(ptag, segments[0], segments[0].length, access)
        return Scatter(
            [self.view_region(ptag, segment, segment.length, access) for segment in segments if segment.length]
        )

    # Completions to the host.

    def finish(self, slot: int, status: int, length: int = 0, immediate: int = 0) -> None:
        """Complete a descriptor."""
        self.in_use[slot] = 0
        self.slots.finish(slot, status, length, immediate)
        self.returned.append(slot)

    def answer(self, slot: int, result: Result, command: Command) -> None:
        """Complete a command with its result."""
        self.in_use[slot] = 0
        self.slots.write_command(slot, command._replace(status=result))
        self.returned.append(slot)

    def expire(self, slot: int) -> None:
        """Complete a command whose time-out has expired."""
        self.answer(slot, Result.TIMEOUT, self.slots.read_command(slot))

    def report(self, error: AsyncError, vi: int) -> None:
        """Report an asynchronous error."""
        if len(self._errors) < _MAX_ERRORS:
            self._errors.append((error, vi))
            self._deliver_error()

    def await_error(self, slot: int) -> None:
        """Complete this command with the next asynchronous error."""
        self._error_slot = slot
        self._deliver_error()

    def _deliver_error(self) -> None:
        if self._error_slot >= 0 and self._errors:
            error, vi = self._errors.popleft()
            slot, self._error_slot = self._error_slot, -1
            is_broken = vi in self.vis and self.vis[vi].state == states.ERROR
            self.answer(slot, Result.SUCCESS, Command(Op.NEXT_ERROR, vi=vi, number=is_broken, value=error))

    def post_returned(self) -> None:
        """Post the completions of returned slots to the host. The host may ring a doorbell meanwhile, which re-enters the
        firmware: the firmware's state is consistent, and the outer call posts what the doorbell returns."""
        if self._is_returning:
            return
        self._is_returning = True
        try:
            while self.returned:
                self.nic.post_completion(self.returned.popleft())
        finally:
            self._is_returning = False

    # Frames.

    def send_frame(self, vi: Vi, kind: int, flags: int, sequence: int) -> None:
        """Send a frame without data to the remote end of a VI, with low priority."""
        peer = vi.peer
        assert peer is not None
        peer.send_later(
            partial(
                self.codec.pack_frame, peer.address, self.address, kind, flags, self.incarnation, peer.incarnation,
                vi.peer_vi, vi.peer_session, vi.number, vi.session, sequence, 0, 0, 0, 0,
            )
        )  # fmt: skip

    def send_unconnected(self, peer: peers.Peer, vi: int, session: int) -> None:
        """Send an error frame to a peer whose connection does not exist on this NIC. vi, session: the peer's end."""
        self._send_error(peer, peer.incarnation, vi, session, int(Done.TRANSPORT_ERROR))

    def announce(self, number: int, incarnation: int) -> None:
        """Announce this NIC's incarnation to a peer. incarnation: the peer's."""
        self._send_error(self.peers.peer(number), incarnation, 0, 0, 0)

    def _send_error(self, peer: peers.Peer, incarnation: int, vi: int, session: int, cause: int) -> None:
        peer.send_later(
            partial(
                self.codec.pack_frame, peer.address, self.address, TYPE_ERROR, 0, self.incarnation, incarnation, vi,
                session, 0, 0, 0, 0, cause, 0, 0,
            )
        )  # fmt: skip

    def flush(self, vi: Vi, oldest_status: int = 0) -> None:
        """Complete all descriptors of a VI as flushed. oldest_status: error bits of the oldest send descriptor; 0: it is
        flushed like the others."""
        queue, receives = vi.queue, vi.receives
        vi.queue, vi.unsent, vi.receives = deque(), deque(), deque()
        vi.replies.clear()
        for outgoing in queue:
            error = oldest_status or Done.DESC_FLUSHED_ERROR
            self.finish(outgoing.slot, Done.DONE | error | COMPLETED[outgoing.kind])
            oldest_status = 0
        for slot in receives:
            self.finish(slot, Done.DONE | Done.DESC_FLUSHED_ERROR | Done.COMPLETED_RECEIVE)
        self.timers.cancel(vi.number << 1 | 1)


def _make_peer(
    addresses: Sequence[bytes], number: int, incarnation: int, send: peers.Send, send_later: peers.SendLater
) -> peers.Peer:
    """Make a peer. A function without the card, so that peers do not keep it alive: see `Peers.admit`."""
    return peers.Peer(number, addresses[number], incarnation, send, send_later)
