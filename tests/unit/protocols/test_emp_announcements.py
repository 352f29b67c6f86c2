"""EMP's announcements: a NIC whose host has ended notifies its peers, and repeats lost notifications."""

from __future__ import annotations

from itertools import pairwise

import pytest

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent
from protocols.emp.firmware import Firmware
from protocols.emp.host import EmpError, plug
from protocols.emp.settings import Settings
from protocols.emp.split_driver import Nic, split_driver
from tests.unit.protocols.emp_dialogue import counter_of, dialogue, hosts, joined_nics
from tests.unit.protocols.list_wires import ListNic, Wires

ANNOUNCEMENT = ["restarted 0.0"]
MAX_ANNOUNCEMENTS = 9


def nics_after_detach() -> tuple[Wires, Completion]:
    """Return two NICs, and the receive of NIC 0: NIC 1 lost its host after it had sent half of the message."""
    wires, (receiver, sender) = joined_nics()
    receive = receiver.post_receive(1, 1, bytearray(10_000))
    sender.post_send(0, 1, bytes(10_000))
    for frame in wires.take(1)[:4]:
        wires.deliver(frame)
    wires.deliver_from(0)
    wires.take(1)
    replace_firmware(wires, 2)
    return wires, receive


class SingleHostActions:
    """`SharedActions` of a NIC with a single host."""

    def __init__(self, nic: ListNic) -> None:
        self.dma_read, self.dma_write, self.send, self.when_sent, self.send_later = (
            nic.dma_read,
            nic.dma_write,
            nic.send,
            nic.when_sent,
            nic.send_later,
        )
        self._post_completion = nic.post_completion

    def post_completion(self, host: int, index: int) -> None:
        assert host == 0
        self._post_completion(index)


def replace_firmware(wires: Wires, incarnation: int, *, is_slot_occupied: bool = False) -> None:
    """Replace the firmware of NIC 1: by one without a host, or by one of the same incarnation for the next host."""
    former_firmware, adapter = wires.agents[1].firmware, Adapter(1, wires.addresses, 1500, incarnation)
    wires.incarnations[1] = incarnation
    if is_slot_occupied:
        agent = plug()(adapter, wires.nics[1])
        assert isinstance(agent.firmware, Firmware)
        assert isinstance(former_firmware, Firmware)
        agent.firmware.take_over(former_firmware)
    else:
        split_nic = split_driver().nic(adapter, SingleHostActions(wires.nics[1]))
        assert isinstance(split_nic, Nic)
        assert isinstance(former_firmware, Firmware)
        split_nic.firmware = former_firmware
        split_nic.detach(wires.now, 0, incarnation)
        agent = Agent(split_nic.firmware, wires.agents[1].host)
    wires.agents[1] = wires.nics[1].agent = agent


def next_announcements(wires: Wires) -> list[bytes]:
    """Return the frames that NIC 1 sends at its next deadline."""
    assert wires.tick()
    return wires.take(1)


def has_failed(receive: Completion) -> bool:
    if receive.done:
        with pytest.raises(EmpError, match="node 1 has restarted"):
            receive.result()
    return receive.done


def test_a_peer_that_only_receives_is_notified_at_once() -> None:
    wires, receive = nics_after_detach()
    frames = next_announcements(wires)
    assert dialogue(frames) == ANNOUNCEMENT
    assert wires.now == 0
    wires.deliver(frames[0])
    assert has_failed(receive)


@pytest.mark.parametrize("lost_count", [1, 4, MAX_ANNOUNCEMENTS - 1])
def test_a_lost_announcement_is_repeated(lost_count: int) -> None:
    wires, receive = nics_after_detach()
    for _ in range(lost_count):
        assert dialogue(next_announcements(wires)) == ANNOUNCEMENT
    assert not receive.done
    wires.deliver(next_announcements(wires)[0])
    assert has_failed(receive)


def test_announcements_are_repeated_with_growing_intervals_and_then_stop() -> None:
    wires, _ = nics_after_detach()
    announce_times = []
    while wires.tick():
        announce_times += [wires.now] * len(wires.take(1))
    assert len(announce_times) == MAX_ANNOUNCEMENTS
    gaps = [later - earlier for earlier, later in pairwise(announce_times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == Settings().longest_timeout


def test_a_peer_that_missed_all_announcements_is_notified_of_the_restart_at_its_next_send() -> None:
    wires, receive = nics_after_detach()
    while wires.tick():
        wires.take(1)
    assert not receive.done
    send = hosts(wires)[0].post_send(1, 1, b"next")
    wires.exchange()
    assert has_failed(receive)
    with pytest.raises(EmpError, match="node 1 has restarted"):
        send.result()
    assert counter_of(wires, 0, "restarts") == 1


def test_a_peer_that_uses_the_new_incarnation_is_not_notified_again() -> None:
    wires, receive = nics_after_detach()
    wires.deliver(next_announcements(wires)[0])
    assert has_failed(receive)
    hosts(wires)[0].post_send(1, 1, b"next")
    wires.deliver_from(0)
    for agent in wires.agents[1:]:
        assert agent.firmware.deadline is None


def test_announcements_continue_when_the_next_host_attaches() -> None:
    wires, receive = nics_after_detach()
    next_announcements(wires)  # lost
    replace_firmware(wires, 2, is_slot_occupied=True)
    wires.deliver(next_announcements(wires)[0])
    assert has_failed(receive)
    buffer = bytearray(5)
    receive = wires.agents[1].host.post_receive(0, 1, buffer)  # type: ignore[attr-defined]  # an EMP host library
    hosts(wires)[0].post_send(1, 1, b"hello")
    wires.exchange()
    assert receive.done
    assert buffer == b"hello"
    assert counter_of(wires, 0, "restarts") == 1


@pytest.mark.parametrize("announces", [True, False])
def test_restarts_of_peers_before_a_host_attaches_are_not_reported_to_it(announces: bool) -> None:
    wires, _ = nics_after_detach()
    while wires.tick() and not announces:
        wires.take(1)
    wires.take(1)
    wires.restart(0)
    replace_firmware(wires, 2, is_slot_occupied=True)
    buffer = bytearray(5)
    receive = hosts(wires)[0].post_receive(1, 1, buffer)
    send = wires.agents[1].host.post_send(0, 1, b"hello")  # type: ignore[attr-defined]  # an EMP host library
    wires.exchange()
    wires.elapse(Settings().longest_timeout)
    assert send.done
    send.result()
    assert receive.done
    assert buffer == b"hello"
    assert counter_of(wires, 1, "restarts") == 0
