"""Inline NICs: after an exception of the firmware in a doorbell the NIC is idle and usable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from protocols.core.firmware import Agent
from testbed.errors import FirmwareError
from testbed.runtime.nodes.inline_nic import InlineNic
from testbed.runtime.nodes.veth_port import VethPort

if TYPE_CHECKING:
    from protocols.core.firmware import Firmware, Host
    from testbed.kernel.frame_socket import FrameSocket


class Wire:
    """Interface that must not send."""

    def __init__(self) -> None:
        self.socket = self

    def send(self, _frame: bytes) -> None:
        raise AssertionError("nothing is sent")


class FakeCard:
    """Firmware and its host. rung: handled doorbells. actions: what else a doorbell does, by its descriptor."""

    def __init__(self) -> None:
        self.rung: list[int] = []
        self.actions: dict[int, Callable[[], object]] = {}
        wire = cast("FrameSocket", Wire())
        self.nic = InlineNic(VethPort(wire))
        self.nic.attach(Agent(cast("Firmware", self), cast("Host", self)))

    def on_doorbell(self, _now: int, index: int) -> None:
        assert self.nic.busy
        self.rung.append(index)
        if index in self.actions:
            self.actions[index]()

    def on_completion(self, index: int) -> None:
        """Ring two doorbells, as a host library that handles a completion."""
        self.nic.ring_doorbell(index + 1, 0, 0)
        assert self.nic.busy, "the host still handles the completion"
        self.nic.ring_doorbell(index + 2, 0, 0)

    def post_completion(self, index: int) -> None:
        self.nic.post_completion(index)

    def raise_error(self) -> None:
        raise RuntimeError("broken")


def test_an_exception_of_the_firmware_is_raised_by_the_call_and_the_next_doorbell_is_handled() -> None:
    card = FakeCard()
    card.actions[1] = card.raise_error
    with pytest.raises(FirmwareError, match="broken"):
        card.nic.ring_doorbell(1, 0, 0)
    assert not card.nic.busy
    card.nic.ring_doorbell(2, 0, 0)
    assert card.rung == [1, 2]


def test_a_completion_posted_before_an_exception_is_delivered_with_the_next_doorbell() -> None:
    card = FakeCard()

    def post_and_raise() -> None:
        card.post_completion(10)
        assert card.rung == [1], "the firmware is not entered while it runs"
        card.raise_error()

    card.actions[1] = post_and_raise
    with pytest.raises(FirmwareError, match="broken"):
        card.nic.ring_doorbell(1, 0, 0)
    assert card.rung == [1]
    assert not card.nic.busy
    card.nic.ring_doorbell(2, 0, 0)
    assert card.rung == [1, 2, 11, 12]


def test_after_an_error_on_a_completion_the_next_one_is_delivered_with_the_next_doorbell() -> None:
    card = FakeCard()

    def post_two() -> None:
        card.post_completion(10)
        card.post_completion(20)

    card.actions[1] = post_two
    card.actions[11] = card.raise_error
    with pytest.raises(FirmwareError, match="broken"):
        card.nic.ring_doorbell(1, 0, 0)
    assert card.rung == [1, 11]
    assert not card.nic.busy
    card.nic.ring_doorbell(3, 0, 0)
    assert card.rung == [1, 11, 3, 21, 22]
