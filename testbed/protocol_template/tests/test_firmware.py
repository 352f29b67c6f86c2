"""Dialogues of two NICs. A test loses a frame by not delivering it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from postcard.codec import FLAGS_LAST, KIND_CARD, unpack_frame
from postcard.descriptors import SENDS, Descriptor, Descriptors, Outcome
from postcard.firmware import Firmware
from postcard.settings import Settings

from protocols.core.firmware import Adapter
from protocols.core.memory import HostMemory

ADDRESSES = (bytes.fromhex("020000000001"), bytes.fromhex("020000000002"))
RESEND = Settings().resend
MTU = 100
MAX_PAYLOAD = 74


class Message(NamedTuple):
    """A message that the host has received. tag: tag of its last card."""

    tag: int
    data: bytes


class FakeNic:
    """A NIC that records the frames and completions of its firmware, and the memory of its host."""

    def __init__(self, number: int, incarnation: int = 1, buffers: int = 8) -> None:
        """buffers: number of receive buffers."""
        self.frames: list[bytes] = []
        self.returned: dict[int, Descriptor] = {}
        self.number = number
        self.memory = HostMemory()
        self.descriptors = Descriptors()
        adapter = Adapter(number, ADDRESSES, mtu=MTU, incarnation=incarnation)
        self.firmware = Firmware(adapter, self, self.memory, self.descriptors, Settings())
        self.buffers: dict[int, bytearray] = {}
        for index in range(SENDS, SENDS + buffers):
            self.post_buffer(index)

    def dma_read(self, segments: Sequence[memoryview]) -> bytes:
        return b"".join(segments)

    def dma_write(self, target: memoryview, data: bytes | bytearray | memoryview) -> None:
        target[:] = data

    def send(self, frame: bytes | bytearray | memoryview) -> None:
        self.frames.append(bytes(frame))

    def send_later(self, make: Callable[[], bytes]) -> None:
        self.frames.append(make())

    def when_sent(self, then: Callable[[int], object]) -> None:  # noqa: ARG002
        raise AssertionError("no frame waits in this NIC")

    def post_completion(self, index: int) -> None:
        assert index not in self.returned
        self.returned[index] = self.descriptors.read(index)

    def interrupt(self, index: int) -> None:
        self.post_completion(index)

    def post_buffer(self, index: int, now: int = 0, size: int = MAX_PAYLOAD) -> None:
        """Let the host provide a receive buffer."""
        self.buffers[index] = bytearray(size)
        address = self.memory.pin_page(memoryview(self.buffers[index]), receive=1)
        self.descriptors.write(index, Descriptor(0, size, address))
        self.firmware.on_doorbell(now, index)

    def write(self, index: int, data: bytes, now: int = 0, to: int | None = None) -> None:
        """Let the host send a message. to: number of the node; None: the other NIC."""
        address = self.memory.pin_page(memoryview(data))
        peer = 1 - self.number if to is None else to
        self.descriptors.write(index, Descriptor(peer, len(data), address, tag=7))
        self.firmware.on_doorbell(now, index)

    def take_frames(self) -> list[bytes]:
        """Return the frames sent since the last call."""
        frames, self.frames = self.frames, []
        return frames

    @property
    def messages(self) -> list[Message]:
        """Messages received, in order."""
        messages, parts = [], b""
        for index, card in self.returned.items():
            if index >= SENDS and card.outcome == Outcome.DONE:
                parts += self.buffers[index][: card.length]
                if card.flags & FLAGS_LAST:
                    messages.append(Message(card.tag, parts))
                    parts = b""
        return messages

    def outcome(self, index: int) -> int:
        return self.returned[index].outcome


def exchange(first: FakeNic, second: FakeNic, now: int = 0) -> None:
    """Deliver frames between two NICs until neither sends any more."""
    while first.frames or second.frames:
        for sender, receiver in ((first, second), (second, first)):
            for frame in sender.take_frames():
                receiver.firmware.receive(now, frame)


def test_a_long_message_comes_in_cards_one_after_the_other() -> None:
    sender, receiver = FakeNic(0), FakeNic(1)
    message = bytes(range(250))
    sender.write(5, message)
    assert len(sender.frames) == 1
    exchange(sender, receiver)
    assert receiver.messages == [Message(7, message)]
    assert len(receiver.returned) == 4
    assert sender.outcome(5) == Outcome.DONE
    assert sender.firmware.deadline is None


def test_a_lost_receipt_is_sent_again_and_the_message_comes_once() -> None:
    sender, receiver = FakeNic(0), FakeNic(1)
    sender.write(5, b"hello")
    receiver.firmware.receive(0, sender.take_frames()[0])
    receiver.take_frames()  # lost
    assert sender.firmware.deadline == RESEND
    sender.firmware.on_timer(RESEND)
    exchange(sender, receiver, RESEND)
    assert receiver.messages == [Message(7, b"hello")]
    assert sender.outcome(5) == Outcome.DONE


def test_a_card_without_memory_for_it_comes_again() -> None:
    sender, receiver = FakeNic(0), FakeNic(1, buffers=0)
    sender.write(5, b"hello")
    exchange(sender, receiver)
    assert not sender.returned
    receiver.post_buffer(SENDS)
    sender.firmware.on_timer(RESEND)
    exchange(sender, receiver, RESEND)
    assert receiver.messages == [Message(7, b"hello")]


def test_messages_to_a_nic_that_has_restarted_are_lost_and_the_next_one_arrives() -> None:
    sender, receiver = FakeNic(0), FakeNic(1)
    sender.write(5, b"to the former one")
    restarted = FakeNic(1, incarnation=2)
    exchange(sender, restarted)
    assert sender.outcome(5) == Outcome.LOST
    (notice,) = [returned for index, returned in sender.returned.items() if index >= SENDS]
    assert (notice.peer, notice.outcome) == (1, Outcome.LOST)
    assert not restarted.messages
    sender.write(6, b"to the new one")
    exchange(sender, restarted)
    assert restarted.messages == [Message(7, b"to the new one")]
    assert not receiver.returned


def test_a_host_without_memory_for_cards_learns_of_a_restart_before_the_next_card() -> None:
    sender, receiver = FakeNic(0), FakeNic(1, buffers=0)
    sender.write(5, b"from the former one")
    exchange(sender, receiver)
    restarted = FakeNic(0, incarnation=2)
    restarted.write(5, b"from the new one")
    exchange(restarted, receiver)
    assert not receiver.returned
    for index in (SENDS, SENDS + 1):
        receiver.post_buffer(index)
    restarted.firmware.on_timer(RESEND)
    exchange(restarted, receiver, RESEND)
    assert [returned.outcome for returned in receiver.returned.values()] == [Outcome.LOST, Outcome.DONE]
    assert receiver.messages == [Message(7, b"from the new one")]


def test_a_nic_whose_host_has_ended_announces_it_to_a_peer_that_only_receives() -> None:
    former, peer = FakeNic(0), FakeNic(1)
    former.write(5, b"hello")
    exchange(former, peer)
    successor = FakeNic(0, incarnation=2)
    successor.firmware.take_over(former.firmware)
    assert successor.firmware.deadline == 0
    successor.firmware.on_timer(0)
    exchange(successor, peer)
    assert [returned.outcome for returned in peer.returned.values()] == [Outcome.DONE, Outcome.LOST]
    peer.write(6, b"to the next host")
    exchange(peer, successor)
    assert successor.messages == [Message(7, b"to the next host")]
    assert successor.firmware.deadline is None


def test_a_descriptor_with_foreign_memory_or_an_invalid_peer_is_rejected() -> None:
    sender = FakeNic(0)
    sender.descriptors.write(5, Descriptor(1, 10, address=123))
    sender.firmware.on_doorbell(0, 5)
    sender.write(6, b"to a missing node", to=2)
    sender.write(7, b"to itself", to=0)
    sender.post_buffer(SENDS + 20, size=MAX_PAYLOAD - 1)
    assert [sender.outcome(index) for index in (5, 6, 7, SENDS + 20)] == [Outcome.INVALID] * 4
    sender.firmware.on_doorbell(0, 1_000)
    sender.write(8, b"once")
    sender.firmware.on_doorbell(0, 8)  # again
    assert len(sender.frames) == 1


def test_a_card_fills_the_mtu_and_no_more() -> None:
    sender = FakeNic(0)
    sender.write(5, bytes(1_000))
    assert len(sender.frames[0]) == MTU + 14
    assert unpack_frame(sender.frames[0])[2] == KIND_CARD
