"""Open-MX's driver notifies the partners of a dead host's endpoints, which may only wait for messages."""

from __future__ import annotations

import gc
import weakref

import pytest

from protocols.core.firmware import Adapter, Agent
from protocols.core.memory import HostMemory
from protocols.openmx import codec
from protocols.openmx.counters import Counters
from protocols.openmx.endpoint_memory import OwnCommands
from protocols.openmx.firmware import Firmware
from protocols.openmx.host import Library
from protocols.openmx.mx_names import SEQNUM_MASK, Status
from protocols.openmx.settings import Settings
from tests.unit.protocols.openmx_pair import RESEND, EndpointPair, kind_of, partner_of

SECOND = 1_000_000_000


def replace_dead_host(pair: EndpointPair, number: int, settings: Settings) -> None:
    """Replace a node's host, which has died, by a new one without endpoints."""
    wires, memory, commands, counters = pair.wires, HostMemory(), OwnCommands(), Counters()
    wires.incarnations[number] += 1
    adapter = Adapter(number, wires.addresses, 1500, wires.incarnations[number])
    driver = Firmware(adapter, wires.nics[number], memory, commands, settings, codec, counters, {})
    driver.take_over(wires.now, pair.driver(number))
    library = Library(adapter, wires.nics[number], memory, commands, settings, counters)
    wires.nics[number].agent = wires.agents[number] = Agent(driver, library)


def record_lost_connections(pair: EndpointPair, number: int) -> list[Status]:
    """Return a list to which the reason is added whenever a connection of a node ends."""
    statuses: list[Status] = []
    pair.ends[number].on_lost = lambda _, status: statuses.append(status)
    return statuses


@pytest.mark.parametrize("first_seqnum", [0, SEQNUM_MASK - 3])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_partner_that_only_receives_is_notified_of_a_dead_host(victim: int, first_seqnum: int) -> None:
    """Node 0 has requested the connection, and node 1 has answered. The first notices are lost."""
    settings = Settings(first_seqnum=first_seqnum)
    pair = EndpointPair(settings)
    for _ in range(6):  # numbers advance beyond the wrap
        _, request = pair.receive(4)
        pair.finish(pair.send(b"data"), request)
    pair.elapse(RESEND)
    lost_connections = record_lost_connections(pair, 1 - victim)
    losses_of_notices = iter([True, True, True, False])
    pair.is_lost = lambda frame: kind_of(frame) == "NACK_LIB" and next(losses_of_notices, False)
    replace_dead_host(pair, victim, settings)
    pair.elapse(SECOND)
    assert lost_connections == [Status.ENDPOINT_CLOSED]
    assert not partner_of(pair, 1 - victim).is_connected


def test_notices_end_when_the_partner_connects_to_the_next_host_and_a_late_one_ends_no_later_connection() -> None:
    pair, settings = EndpointPair(), Settings()
    late_frames: list[bytes] = []

    def hold_notices(frame: bytes) -> bool:
        if kind_of(frame) != "NACK_LIB":
            return False
        late_frames.append(frame)
        return True

    pair.is_lost = hold_notices
    replace_dead_host(pair, 0, settings)
    pair.elapse(RESEND // 2)
    assert late_frames == [], "resent messages are refused only later"
    pair.elapse(RESEND)
    assert len(late_frames) > 1, "repeated"
    pair.is_lost = lambda _: False
    pair.wires.deliver(late_frames[0])
    pair.ends[0] = pair.library(0).open_endpoint()
    pair.run(pair.ends[1].connect(0))
    lost_connections = record_lost_connections(pair, 1)
    pair.sent.clear()
    for frame in late_frames:
        pair.wires.deliver(frame)
    pair.elapse(10 * SECOND)
    assert "NACK_LIB" not in pair.sent
    assert lost_connections == []
    request = pair.ends[0].irecv(buffer := bytearray(4), 5)
    pair.finish(pair.ends[1].isend([b"data"], pair.partners[1], 5), request)
    assert buffer == b"data"


def test_a_partner_that_missed_a_notice_is_notified_by_the_refusal_of_its_message() -> None:
    pair = EndpointPair()
    pair.is_lost = lambda frame: kind_of(frame) == "NACK_LIB"
    replace_dead_host(pair, 0, Settings())
    pair.elapse(60 * SECOND)
    assert pair.sent.count("NACK_LIB") == 9
    lost_connections = record_lost_connections(pair, 1)
    pair.is_lost = lambda _: False
    pair.ends[1].isend([b"data"], pair.partners[1], 5)
    pair.elapse(RESEND)
    assert lost_connections == [Status.ENDPOINT_CLOSED]


def test_the_refusal_of_a_pull_fails_its_receive_before_the_notice_of_the_dead_host_arrives() -> None:
    pair, pulls = EndpointPair(), list[bytes]()

    def hold_pulls(frame: bytes) -> bool:
        if kind_of(frame) != "PULL":
            return False
        pulls.append(frame)
        return True

    pair.is_lost = hold_pulls
    _, request = pair.receive(40_000)
    pair.send(bytes(40_000))
    pair.deliver_frames()
    lost_connections = record_lost_connections(pair, 1)
    replace_dead_host(pair, 0, Settings())
    pair.wires.deliver(pulls[0])
    pair.deliver_frames()
    assert request.done
    assert request.result().status in (Status.BAD_ENDPOINT, Status.ENDPOINT_CLOSED)
    assert lost_connections == []
    pair.elapse(SECOND)
    assert lost_connections == [Status.ENDPOINT_CLOSED]


def test_partners_of_a_closed_endpoint_are_not_notified() -> None:
    """The source notifies none."""
    pair = EndpointPair()
    pair.ends[0].close()
    pair.sent.clear()
    replace_dead_host(pair, 0, Settings())
    pair.elapse(SECOND)
    assert "NACK_LIB" not in pair.sent


@pytest.mark.requires("interpreted")
def test_the_driver_of_a_dead_host_is_freed_without_a_garbage_collection() -> None:
    """The driver refers to the host's memory, and a shared NIC's agent does not collect cycles."""
    pair = EndpointPair()
    first_driver = weakref.ref(pair.driver(0))
    gc.disable()
    try:
        replace_dead_host(pair, 0, Settings())
        assert first_driver() is None
        second_driver = weakref.ref(pair.driver(0))
        replace_dead_host(pair, 0, Settings())
        assert second_driver() is None
    finally:
        gc.enable()
