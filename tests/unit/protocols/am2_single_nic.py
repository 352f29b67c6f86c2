"""AM-II's firmware alone: the test acts as its host, which writes pages, and as its only peer, which sends frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from protocols.am2 import codec
from protocols.am2 import page as layout
from protocols.am2.firmware import Firmware
from protocols.am2.nic_memory import NO_ENDPOINT, NicMemory
from protocols.am2.settings import Settings
from protocols.am2.transport import MESSAGE_HEADER_SIZE, build_answer, build_message, frame_prefix
from protocols.core.firmware import Adapter, Buffer

ADDRESSES = (b"\2\0\0\0\0\1", b"\2\0\0\0\0\2")
TAG = 9
"""Tag of all endpoints."""

_CHANNEL_FIELDS = ("channel", "generation", "sequence", "stamp")
_MESSAGE_FIELDS = (
    "kind", "dst", "src", "reason", "source", "destination", "sender", "receiver", *_CHANNEL_FIELDS, "form", "flags",
    "handler", "arguments", "origin", "endpoint", "tag", "message", "offset", "total", "payload",
)  # fmt: skip
"""Fields of `codec.unpack_message`, after the kind."""
_ANSWER_FIELDS = (
    "dst",
    "src",
    "kind",
    "reason",
    "source",
    "destination",
    "sender",
    "receiver",
    *_CHANNEL_FIELDS,
    "payload",
)
"""Fields of `codec.unpack_answer`."""


class SentMessage(NamedTuple):
    """Packet of a message. origin: the sending endpoint. message: its number. offset: offset of the packet's data."""

    kind: int
    channel: int
    generation: int
    sequence: int
    stamp: int
    origin: int
    message: int
    offset: int


class SentAnswer(NamedTuple):
    """Acknowledgement (ACK) or refusal (NACK) of a packet."""

    kind: int
    reason: int
    channel: int
    generation: int
    sequence: int
    stamp: int

    @property
    def verdict(self) -> tuple[int, int]:
        return self.kind, self.reason


class Entry(NamedTuple):
    """Entry of a page's slot, without arguments."""

    owner: int
    status: int
    node: int
    length: int
    address: int
    incarnation: int
    form: int
    flags: int
    handler: int
    arguments: int
    origin: int
    endpoint: int
    tag: int
    message: int
    offset: int
    total: int


def read_entry(page: memoryview, slot: int) -> Entry:
    return Entry(*layout.READ_ENTRY(page, layout.SLOT_OFFSETS[slot]))


class SingleNic:
    """The NIC of node 0. holds_frames: the NIC reports that its frames wait in it, until
    `transmit_held_frames`. sent: frames. notifications: completions and interrupts, (endpoint, subject). peer: known
    incarnation of node 1; 0: none."""

    def __init__(
        self, settings: Settings | None = None, incarnation: int = 1, peer: int = 1, *, routed: bool = False
    ) -> None:
        nic_settings = settings or Settings()
        self.now = 0
        self.sent: list[bytes] = []
        self.notifications: list[tuple[int, int]] = []
        self.holds_frames = False
        self._callbacks: list[Callable[[int], object]] = []
        self.memory = NicMemory(nic_settings.frames)
        adapter = Adapter(0, ADDRESSES, incarnation=incarnation, routed=routed)
        self.firmware = Firmware(adapter, self, self.memory, nic_settings)
        if peer:
            self.introduce(peer)

    # `FirmwareActions`.

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        return b"".join(segments)

    def send(self, frame: Buffer) -> bool:
        self.sent.append(bytes(frame))
        return self.holds_frames

    def when_sent(self, callback: Callable[[int], object]) -> None:
        assert self.holds_frames
        self._callbacks.append(callback)

    def transmit_held_frames(self) -> None:
        """Report that all frames have left the NIC."""
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self.now)

    def send_later(self, make: Callable[[], bytes]) -> None:
        self.sent.append(make())

    def dma_write(self, target: memoryview, data: Buffer) -> None:
        target[:] = data

    def post_completion(self, index: int) -> None:
        self.notifications.append((index >> layout.SUBJECT_BITS, index & layout.SUBJECT_MASK))

    interrupt = post_completion

    # The host.

    def ring_doorbell(self, endpoint: int, subject: int) -> None:
        self.firmware.on_doorbell(self.now, endpoint << layout.SUBJECT_BITS | subject)

    def create(self, endpoint: int, *, load: bool = True) -> None:
        page = memoryview(bytearray(layout.SIZE))
        layout.set_tag(page, TAG)
        self.memory.backing_pages[endpoint] = page
        self.ring_doorbell(endpoint, layout.CREATE)
        if load:
            self.load(endpoint)
            self.notifications.clear()

    def load(self, endpoint: int) -> None:
        frame = self.memory.bound_endpoints.index(NO_ENDPOINT)
        self.memory.bound_endpoints[frame] = endpoint
        self.memory.frames[frame][:] = self.memory.backing_pages[endpoint]
        self.ring_doorbell(endpoint, layout.LOAD)

    def page(self, endpoint: int) -> memoryview:
        """Return a resident endpoint's frame."""
        return self.memory.frames[self.memory.bound_endpoints.index(endpoint)]

    def write(self, endpoint: int, slot: int = 0, *arguments: int, form: int = 0, data: int = 0) -> None:
        """Write a message for endpoint 3 of node 1. data: number of bytes, from the beginning of the endpoint's region."""
        page = self.page(endpoint)
        total = data if form == codec.FORM_BULK else 0
        layout.WRITE_ENTRY[len(arguments)](
            page, layout.SLOT_OFFSETS[slot], layout.READY, 0, 1, data, 0, 0, form, slot >> 4, 1, len(arguments), endpoint, 3,
            TAG, slot + 100, 0, total, *arguments,
        )  # fmt: skip

    def request(self, endpoint: int, slot: int = 0, *arguments: int, form: int = 0, data: int = 0) -> None:
        self.write(endpoint, slot, *arguments, form=form, data=data)
        self.ring_doorbell(endpoint, slot)

    def owner(self, endpoint: int, slot: int) -> int:
        return self.page(endpoint)[layout.SLOT_OFFSETS[slot]]

    # The peer.

    def take_packets(self) -> list[SentMessage | SentAnswer]:
        """Return and clear the sent packets."""
        packets: list[SentMessage | SentAnswer] = []
        for frame in self.sent:
            if codec.kind_of(frame) == codec.KIND_MESSAGE:
                values = dict(
                    zip(_MESSAGE_FIELDS, (codec.KIND_MESSAGE, *codec.unpack_message(frame[:-1])), strict=True)
                )
                packets.append(SentMessage(*[values[name] for name in SentMessage._fields]))
            else:
                values = dict(zip(_ANSWER_FIELDS, codec.unpack_answer(frame[:-1]), strict=True))
                packets.append(SentAnswer(*[values[name] for name in SentAnswer._fields]))
        self.sent.clear()
        return packets

    def introduce(self, incarnation: int) -> None:
        """Receive a packet in which the peer announces its incarnation."""
        prefix = frame_prefix(ADDRESSES[0], ADDRESSES[1], codec.KIND_NACK, codec.REASON_RESTARTED, 1, 0, incarnation, 1)
        self.firmware.receive(self.now, build_answer(prefix, 0, 0, 0, 1, b""))

    def answer(self, packet: SentMessage, reason: int = 0, *, stamp: int | None = None) -> None:
        """Receive the peer's answer to a message's packet. stamp: stamp of the answer; None: the packet's."""
        kind = codec.KIND_NACK if reason else codec.KIND_ACK
        prefix = frame_prefix(ADDRESSES[0], ADDRESSES[1], kind, reason, 1, 0, 1, 1)
        echoed_stamp = packet.stamp if stamp is None else stamp
        frame = build_answer(prefix, packet.channel, packet.generation, packet.sequence, echoed_stamp, b"")
        self.firmware.receive(self.now, frame)

    def receive_message(
        self,
        endpoint: int,
        *arguments: int,
        channel: int = 0,
        sequence: int = 0,
        stamp: int = 1,
        tag: int = TAG,
        form: int = 0,
        data: bytes = b"",
        total: int = 0,
        offset: int = 0,
        sender: int = 1,
        receiver: int = 1,
        message: int = 1,
        reply: bool = False,
    ) -> list[SentMessage | SentAnswer]:
        """Receive a message's packet from endpoint 3 of node 1; return the answer."""
        prefix = frame_prefix(ADDRESSES[0], ADDRESSES[1], codec.KIND_MESSAGE, 0, 1, 0, sender, receiver)
        frame = codec.pack_message(
            ADDRESSES[0], ADDRESSES[1], 0, 1, 0, sender, receiver, channel, 0, sequence, stamp, form, int(reply), 1,
            len(arguments), 3, endpoint, tag, message, offset, total,
            b"".join(word.to_bytes(4, "big") for word in arguments) + data,
        )  # fmt: skip
        body = frame[codec.ANSWER_SIZE :]
        assert len(body) >= MESSAGE_HEADER_SIZE
        self.firmware.receive(self.now, build_message(prefix, channel, 0, sequence, stamp, b"", body))
        return self.take_packets()

    def elapse(self, span: int) -> None:
        """Let `span` nanoseconds pass."""
        end = self.now + span
        while (deadline := self.firmware.deadline) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.firmware.on_timer(self.now)
        self.now = end

    def counter(self, name: str) -> int:
        return self.firmware.counter_values()[name]
