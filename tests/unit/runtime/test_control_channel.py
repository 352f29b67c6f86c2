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
def test_messages_sent_before_a_close_are_received_although_the_closed_end_left_messages_unread(
    receive: Receive,
) -> None:
    near_end, far_end = Channel.pair()
    far_end.send("first", 1)
    near_end.send("never read")
    far_end.close()
    assert receive(near_end) == ("first", 1)
    assert receive(near_end) is None
    assert receive(near_end) is None
    with pytest.raises(ConnectionError):
        near_end.send("to a closed end")
    near_end.close()


def test_an_end_of_another_channel_is_passed_with_a_message() -> None:
    near_end, far_end = Channel.pair()
    passed_peer, passed_end = Channel.pair()
    far_end.send("restart", "n1", passed_end)
    passed_end.close()
    message, end = near_end.receive_with_channel()
    assert message == ("restart", "n1")
    assert end is not None
    passed_peer.send("hello")
    assert end.receive() == ("hello", None)
    for channel in (near_end, far_end, passed_peer, end):
        channel.close()
