"""Node processes and the process that started them learn when the other side ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.runtime.nodes.control_channel import Channel

Receive = Callable[[Channel], tuple[str, object] | None]


def receive_without_channel(channel: Channel) -> tuple[str, object] | None:
    message, end = channel.receive_with_channel()
    assert end is None
    return message


@pytest.mark.parametrize("receive", [Channel.receive, receive_without_channel])
def test_messages_of_a_closed_end_can_be_received_though_it_left_messages_unread(receive: Receive) -> None:
    near, far = Channel.pair()
    far.send("first", 1)
    near.send("never read")
    far.close()
    assert receive(near) == ("first", 1)
    assert receive(near) is None
    assert receive(near) is None
    with pytest.raises(ConnectionError):
        near.send("to a closed end")
    near.close()


def test_an_end_of_another_channel_is_passed_with_a_message() -> None:
    near, far = Channel.pair()
    kept, passed = Channel.pair()
    far.send("restart", "n1", passed)
    passed.close()
    message, end = near.receive_with_channel()
    assert message == ("restart", "n1")
    assert end is not None
    kept.send("hello")
    assert end.receive() == ("hello", None)
    for channel in (near, far, kept, end):
        channel.close()
