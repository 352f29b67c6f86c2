"""Two NICs in a dialogue: a frame is lost by leaving it out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from postcard.codec import KIND_CARD, unpack_frame
from postcard.firmware import NEWS, Departure, Firmware, Letter, Message
from postcard.settings import Settings

from protocols.core.firmware import Adapter

ADDRESSES = (bytes.fromhex("020000000001"), bytes.fromhex("020000000002"))
RESEND = Settings().resend
MTU = 100


class Card:
    """A NIC that keeps what its firmware does."""

    def __init__(self, number: int, incarnation: int = 1) -> None:
        self.frames: list[bytes] = []
        self.completions: list[int] = []
        self.number = number
        adapter = Adapter(number, ADDRESSES, mtu=MTU, incarnation=incarnation)
        self.firmware = Firmware(adapter, self, Settings())

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
        self.completions.append(index)

    def interrupt(self, index: int) -> None:
        self.completions.append(index)

    def write(self, index: int, data: bytes, now: int = 0) -> None:
        """Let the host send a message to the other NIC."""
        self.firmware.letters[index] = Letter(index, 1 - self.number, 0, 7, memoryview(data))
        self.firmware.on_doorbell(now, index)

    def take(self) -> list[bytes]:
        """Return the frames sent so far."""
        frames, self.frames = self.frames, []
        return frames


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
    assert list(receiver.firmware.inbox) == [Message(0, 0, 7, message)]
    assert (receiver.completions, sender.completions) == ([NEWS], [5])
    assert sender.firmware.deadline is None


def test_a_lost_receipt_is_sent_again_and_the_message_comes_once() -> None:
    sender, receiver = Card(0), Card(1)
    sender.write(5, b"hello")
    receiver.firmware.receive(0, sender.take()[0])
    receiver.take()  # lost
    assert sender.firmware.deadline == RESEND
    sender.firmware.on_timer(RESEND)
    exchange(sender, receiver, RESEND)
    assert len(receiver.firmware.inbox) == 1
    assert sender.completions == [5]


def test_letters_to_a_nic_that_has_restarted_are_lost_and_the_next_one_arrives() -> None:
    sender, receiver = Card(0), Card(1)
    sender.write(5, b"to the former one")
    again = Card(1, incarnation=2)
    exchange(sender, again)
    assert list(sender.firmware.inbox) == [Departure(1)]
    assert not again.firmware.inbox
    sender.write(6, b"to the new one")
    exchange(sender, again)
    assert [news[3] for news in again.firmware.inbox if isinstance(news, Message)] == [b"to the new one"]
    assert not receiver.completions


def test_a_card_fills_the_mtu_and_no_more() -> None:
    sender = Card(0)
    sender.write(5, bytes(1_000))
    assert len(sender.frames[0]) == MTU + 14
    assert unpack_frame(sender.frames[0])[2] == KIND_CARD
