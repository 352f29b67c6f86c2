"""EMP's NICs whose host is gone: how their peers come to know, though it may be lost."""

from __future__ import annotations

from itertools import pairwise

import pytest

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent
from protocols.emp.firmware import Firmware
from protocols.emp.host import EmpError, plug
from protocols.emp.settings import Settings
from protocols.emp.split_driver import Nic, split_driver
from tests.unit.protocols.emp_dialogue import dialogue, hosts, joined_nics, total_counters
from tests.unit.protocols.list_wires import ListNic, Wires

TOLD = ["restarted 0.0"]
MAX = 9


def vacated() -> tuple[Wires, Completion]:
    """NIC 1 has sent half of a message to 0, and its host is gone; the receive of 0."""
    wires, (receiver, sender) = joined_nics()
    half = receiver.post_receive(1, 1, bytearray(10_000))
    sender.post_send(0, 1, bytes(10_000))
    for frame in wires.take(1)[:4]:
        wires.give(frame)
    for frame in wires.take(0):
        wires.give(frame)
    wires.take(1)
    replace(wires, 2)
    return wires, half


class OfOne:
    """A NIC's actions as one with a single host has them."""

    def __init__(self, nic: ListNic) -> None:
        self.dma_read, self.dma_write, self.send, self.when_sent, self.send_later = (
            nic.dma_read,
            nic.dma_write,
            nic.send,
            nic.when_sent,
            nic.send_later,
        )
        self._show = nic.post_completion

    def post_completion(self, host: int, index: int) -> None:
        assert host == 0
        self._show(index)


def replace(wires: Wires, incarnation: int, *, occupied: bool = False) -> None:
    """Replace the firmware of NIC 1 by another: a vacant one, or one of the same incarnation for the next host."""
    former, adapter = wires.agents[1].firmware, Adapter(1, wires.addresses, 1500, incarnation)
    wires.incarnations[1] = incarnation
    if occupied:
        agent = plug()(adapter, wires.nics[1])
        assert isinstance(agent.firmware, Firmware)
        assert isinstance(former, Firmware)
        agent.firmware.succeed(former)
    else:
        shared = split_driver().nic(adapter, OfOne(wires.nics[1]))
        assert isinstance(shared, Nic)
        assert isinstance(former, Firmware)
        shared.firmware = former
        shared.detach(wires.now, 0, incarnation)
        agent = Agent(shared.firmware, wires.agents[1].host)
    wires.agents[1] = wires.nics[1].agent = agent


def announced(wires: Wires) -> list[bytes]:
    """Return the frames that NIC 1 sends at its next deadline."""
    assert wires.tick()
    return wires.take(1)


def failed(half: Completion) -> bool:
    if half.done:
        with pytest.raises(EmpError, match="node 1 has restarted"):
            half.result()
    return half.done


def test_a_peer_that_only_waits_to_receive_is_told_at_once() -> None:
    wires, half = vacated()
    frames = announced(wires)
    assert dialogue(frames) == TOLD
    assert wires.now == 0
    wires.give(frames[0])
    assert failed(half)


@pytest.mark.parametrize("lost", [1, 4, MAX - 1])
def test_what_is_lost_is_said_again(lost: int) -> None:
    wires, half = vacated()
    for _ in range(lost):
        assert dialogue(announced(wires)) == TOLD
    assert not half.done
    wires.give(announced(wires)[0])
    assert failed(half)


def test_it_is_said_ever_more_rarely_and_not_for_ever() -> None:
    wires, _ = vacated()
    times = []
    while wires.tick():
        times += [wires.now] * len(wires.take(1))
    assert len(times) == MAX
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == Settings().longest_timeout


def test_who_has_missed_all_of_it_learns_it_by_what_it_sends_next() -> None:
    wires, half = vacated()
    while wires.tick():
        wires.take(1)
    assert not half.done
    sent = hosts(wires)[0].post_send(1, 1, b"are you there?")
    wires.exchange()
    assert failed(half)
    with pytest.raises(EmpError, match="node 1 has restarted"):
        sent.result()
    assert total_counters(wires, 0, "restarts") == 1


def test_a_peer_that_shows_that_it_knows_is_not_told_again() -> None:
    wires, half = vacated()
    wires.give(announced(wires)[0])
    assert failed(half)
    hosts(wires)[0].post_send(1, 1, b"to the next one")
    for frame in wires.take(0):
        wires.give(frame)
    for agent in wires.agents[1:]:
        assert agent.firmware.deadline is None


def test_the_next_host_goes_on_telling() -> None:
    wires, half = vacated()
    announced(wires)  # and it is lost
    replace(wires, 2, occupied=True)
    wires.give(announced(wires)[0])
    assert failed(half)
    buffer = bytearray(5)
    receive = wires.agents[1].host.post_receive(0, 1, buffer)  # type: ignore[attr-defined]  # an EMP host library
    hosts(wires)[0].post_send(1, 1, b"hello")
    wires.exchange()
    assert receive.done
    assert buffer == b"hello"
    assert total_counters(wires, 0, "restarts") == 1


@pytest.mark.parametrize("announces", [True, False])
def test_the_next_host_does_not_hear_of_peers_that_have_started_again_before_it_came(announces: bool) -> None:
    wires, _ = vacated()
    while wires.tick() and not announces:
        wires.take(1)
    wires.take(1)
    wires.restart(0)
    replace(wires, 2, occupied=True)
    buffer = bytearray(5)
    receive = hosts(wires)[0].post_receive(1, 1, buffer)
    sent = wires.agents[1].host.post_send(0, 1, b"hello")  # type: ignore[attr-defined]  # an EMP host library
    wires.exchange()
    wires.elapse(Settings().longest_timeout)
    assert sent.done
    sent.result()
    assert receive.done
    assert buffer == b"hello"
    assert total_counters(wires, 1, "restarts") == 0
