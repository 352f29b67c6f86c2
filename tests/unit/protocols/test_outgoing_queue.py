"""A queue of items that wait for credits: in order, in parts, and with reentrant calls."""

from __future__ import annotations

import pytest

from protocols.core.outgoing_queue import OutgoingQueue


class Window:
    """Sender of items, which are lists of parts; each part takes a credit."""

    def __init__(self, count: int) -> None:
        self.credits = count
        self.sent: list[str] = []
        self.queue: OutgoingQueue[list[str]] = OutgoingQueue(self.send)

    def send(self, item: list[str]) -> bool:
        while item and self.credits:
            self.credits -= 1
            self.sent.append(item.pop(0))
        return not item

    def grant(self, count: int) -> None:
        self.credits += count
        self.queue.advance()


def test_items_are_sent_in_order_as_credits_return() -> None:
    window = Window(2)
    for item in ("abc", "de", "f"):
        window.queue.put([*item])
    assert "".join(window.sent) == "ab"
    assert window.queue.items[0] == ["c"]
    window.grant(2)
    assert "".join(window.sent) == "abcd"
    window.grant(9)
    assert "".join(window.sent) == "abcdef"
    assert not window.queue.items
    assert window.credits == 7


def test_an_item_queued_during_a_send_follows_it_without_recursion() -> None:
    sent: list[int] = []
    depth = max_depth = 0

    def send(item: int) -> bool:
        nonlocal depth, max_depth
        depth += 1
        max_depth = max(max_depth, depth)
        sent.append(item)
        if item < 5_000:
            queue.put(item + 1)  # as of a send that completes at once, whose program sends the next
        depth -= 1
        return True

    queue: OutgoingQueue[int] = OutgoingQueue(send)
    queue.put(0)
    assert sent == [*range(5_001)]
    assert max_depth == 1


def test_the_owner_may_clear_the_queue_during_a_send() -> None:
    sent: list[str] = []

    def send(item: str) -> bool:
        sent.append(item)
        if item == "last":
            queue.items.clear()
            queue.put("of the next session")
        return True

    queue: OutgoingQueue[str] = OutgoingQueue(send)
    queue.items.extend(["last", "never"])
    queue.advance()
    assert sent == ["last", "of the next session"]
    assert not queue.items


def test_an_item_whose_send_raises_is_sent_by_the_next_advance() -> None:
    is_broken = True

    def send(item: str) -> bool:  # noqa: ARG001
        if is_broken:
            raise OSError
        return True

    queue: OutgoingQueue[str] = OutgoingQueue(send)
    with pytest.raises(OSError, match=r"^$"):
        queue.put("item")
    is_broken = False
    assert [*queue.items] == ["item"]
    queue.advance()
    assert not queue.items
