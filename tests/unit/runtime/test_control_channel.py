"""Node processes and the process that started them learn when the other side ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from testbed.runtime.nodes.control_channel import Channel

Hear = Callable[[Channel], tuple[str, object] | None]


def heard_with(channel: Channel) -> tuple[str, object] | None:
    said, end = channel.receive_with_channel()
    assert end is None
    return said


@pytest.mark.parametrize("hear", [Channel.receive, heard_with])
def test_words_of_an_end_that_is_gone_can_still_be_heard_though_it_has_not_read_all(hear: Hear) -> None:
    one, other = Channel.pair()
    other.send("first", 1)
    one.send("never read")
    other.close()
    assert hear(one) == ("first", 1)
    assert hear(one) is None
    assert hear(one) is None
    with pytest.raises(ConnectionError):
        one.send("to nobody")
    one.close()


def test_an_end_comes_with_a_word() -> None:
    one, other = Channel.pair()
    ours, theirs = Channel.pair()
    other.send("restart", "n1", theirs)
    theirs.close()
    said, end = one.receive_with_channel()
    assert said == ("restart", "n1")
    assert end is not None
    ours.send("hello")
    assert end.receive() == ("hello", None)
    for channel in (one, other, ours, end):
        channel.close()
