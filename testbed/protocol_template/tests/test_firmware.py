"""Two NICs in a dialogue: a frame is lost by leaving it out."""

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
ROOM = 74


class Message(NamedTuple):
    """A message that the host has got. tag: tag of its last card."""

    tag: int
    data: bytes


class Card:
    """A NIC that keeps what its firmware does, and its host."""

    def __init__(self, number: int, incarnation: int = 1, places: int = 8) -> None:
        """places: memory for so many cards."""
        self.frames: list[bytes] = []
        self.returned: dict[int, Descriptor] = {}
        self.number = number
        self.memory = HostMemory()
        self.descriptors = Descriptors()
        adapter = Adapter(number, ADDRESSES, mtu=MTU, incarnation=incarnation)
        self.firmware = Firmware(adapter, self, self.memory, self.descriptors, Settings())
        self.places: dict[int, bytearray] = {}
        for index in range(SENDS, SENDS + places):
            self.give_place(index)

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

    def give_place(self, index: int, now: int = 0, size: int = ROOM) -> None:
        """Let the host give memory for a card."""
        self.places[index] = bytearray(size)
        address = self.memory.pin_page(memoryview(self.places[index]), receive=1)
        self.descriptors.write(index, Descriptor(0, size, address))
        self.firmware.on_doorbell(now, index)

    def write(self, index: int, data: bytes, now: int = 0, to: int | None = None) -> None:
        """Let the host send a message, to the other NIC if no other node is named."""
        address = self.memory.pin_page(memoryview(data))
        peer = 1 - self.number if to is None else to
        self.descriptors.write(index, Descriptor(peer, len(data), address, tag=7))
        self.firmware.on_doorbell(now, index)

    def take(self) -> list[bytes]:
        """Return the frames sent so far."""
        frames, self.frames = self.frames, []
        return frames

    @property
    def messages(self) -> list[Message]:
        """Messages received, in order."""
        messages, parts = [], b""
        for index, card in self.returned.items():
            if index >= SENDS and card.outcome == Outcome.DONE:
                parts += self.places[index][: card.length]
                if card.flags & FLAGS_LAST:
                    messages.append(Message(card.tag, parts))
                    parts = b""
        return messages

    def outcome(self, index: int) -> int:
        return self.returned[index].outcome


def exchange(one: Card, other: Card, now: int = 0) -> None:
    """Deliver frames until there are none."""
    while one.frames or other.frames:
        for sender, receiver in ((one, other), (other, one)):
            for frame in sender.take():
                receiver.firmware.receive(now, frame)


def test_a_long_message_comes_in_cards_one_after_the_other() -> None:
    sender, receiver = Card(0), Card(1)
    message = bytes(range(250))
    sender.write(5, message)
    assert len(sender.frames) == 1
    exchange(sender, receiver)
    assert receiver.messages == [Message(7, message)]
    assert len(receiver.returned) == 4
    assert sender.outcome(5) == Outcome.DONE
    assert sender.firmware.deadline is None


def test_a_lost_receipt_is_sent_again_and_the_message_comes_once() -> None:
    sender, receiver = Card(0), Card(1)
    sender.write(5, b"hello")
    receiver.firmware.receive(0, sender.take()[0])
    receiver.take()  # lost
    assert sender.firmware.deadline == RESEND
    sender.firmware.on_timer(RESEND)
    exchange(sender, receiver, RESEND)
    assert receiver.messages == [Message(7, b"hello")]
    assert sender.outcome(5) == Outcome.DONE


def test_a_card_without_memory_for_it_comes_again() -> None:
    sender, receiver = Card(0), Card(1, places=0)
    sender.write(5, b"hello")
    exchange(sender, receiver)
    assert not sender.returned
    receiver.give_place(SENDS)
    sender.firmware.on_timer(RESEND)
    exchange(sender, receiver, RESEND)
    assert receiver.messages == [Message(7, b"hello")]


def test_letters_to_a_nic_that_has_restarted_are_lost_and_the_next_one_arrives() -> None:
    sender, receiver = Card(0), Card(1)
    sender.write(5, b"to the former one")
    again = Card(1, incarnation=2)
    exchange(sender, again)
    assert sender.outcome(5) == Outcome.LOST
    (notice,) = [returned for index, returned in sender.returned.items() if index >= SENDS]
    assert (notice.peer, notice.outcome) == (1, Outcome.LOST)
    assert not again.messages
    sender.write(6, b"to the new one")
    exchange(sender, again)
    assert again.messages == [Message(7, b"to the new one")]
    assert not receiver.returned


def test_a_host_without_memory_for_cards_learns_of_a_restart_before_the_next_card() -> None:
    sender, receiver = Card(0), Card(1, places=0)
    sender.write(5, b"from the former one")
    exchange(sender, receiver)
    again = Card(0, incarnation=2)
    again.write(5, b"from the new one")
    exchange(again, receiver)
    assert not receiver.returned
    for index in (SENDS, SENDS + 1):
        receiver.give_place(index)
    again.firmware.on_timer(RESEND)
    exchange(again, receiver, RESEND)
    assert [returned.outcome for returned in receiver.returned.values()] == [Outcome.LOST, Outcome.DONE]
    assert receiver.messages == [Message(7, b"from the new one")]


def test_a_nic_whose_host_has_ended_tells_its_peers_who_then_only_receive() -> None:
    former, peer = Card(0), Card(1)
    former.write(5, b"hello")
    exchange(former, peer)
    successor = Card(0, incarnation=2)
    successor.firmware.take_over(former.firmware)
    assert successor.firmware.deadline == 0
    successor.firmware.on_timer(0)
    exchange(successor, peer)
    assert [returned.outcome for returned in peer.returned.values()] == [Outcome.DONE, Outcome.LOST]
    peer.write(6, b"to the next host")
    exchange(peer, successor)
    assert successor.messages == [Message(7, b"to the next host")]
    assert successor.firmware.deadline is None


def test_a_descriptor_that_names_foreign_memory_or_no_peer_is_refused() -> None:
    sender = Card(0)
    sender.descriptors.write(5, Descriptor(1, 10, address=123))
    sender.firmware.on_doorbell(0, 5)
    sender.write(6, b"to a missing node", to=2)
    sender.write(7, b"to itself", to=0)
    sender.give_place(SENDS + 20, size=ROOM - 1)
    assert [sender.outcome(index) for index in (5, 6, 7, SENDS + 20)] == [Outcome.INVALID] * 4
    sender.firmware.on_doorbell(0, 1_000)
    sender.write(8, b"once")
    sender.firmware.on_doorbell(0, 8)  # again
    assert len(sender.frames) == 1


def test_a_card_fills_the_mtu_and_no_more() -> None:
    sender = Card(0)
    sender.write(5, bytes(1_000))
    assert len(sender.frames[0]) == MTU + 14
    assert unpack_frame(sender.frames[0])[2] == KIND_CARD
