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


def succeed(pair: EndpointPair, number: int, settings: Settings) -> None:
    """Replace a node's host, which has died, by one without endpoints."""
    wires, memory, commands, counters = pair.wires, HostMemory(), OwnCommands(), Counters()
    wires.incarnations[number] += 1
    adapter = Adapter(number, wires.addresses, 1500, wires.incarnations[number])
    driver = Firmware(adapter, wires.nics[number], memory, commands, settings, codec, counters, {})
    driver.take_over(wires.now, pair.driver(number))
    library = Library(adapter, wires.nics[number], memory, commands, settings, counters)
    wires.nics[number].agent = wires.agents[number] = Agent(driver, library)


def record_lost_connections(pair: EndpointPair, number: int) -> list[Status]:
    """Note why a node's connections end from now on."""
    statuses: list[Status] = []
    pair.ends[number].on_lost = lambda _, status: statuses.append(status)
    return statuses


@pytest.mark.parametrize("first", [0, SEQNUM_MASK - 3])
@pytest.mark.parametrize("victim", [0, 1])
def test_one_that_only_waits_learns_that_its_partners_host_has_died(victim: int, first: int) -> None:
    """Node 0 has requested the connection, and node 1 has answered. The first notices are lost."""
    settings = Settings(first_seqnum=first)
    pair = EndpointPair(settings)
    for _ in range(6):  # numbers advance beyond the wrap
        _, request = pair.receive(4)
        pair.finish(pair.send(b"data"), request)
    pair.elapse(RESEND)
    losses = record_lost_connections(pair, 1 - victim)
    lose = iter([True, True, True, False])
    pair.lose = lambda frame: kind_of(frame) == "NACK_LIB" and next(lose, False)
    succeed(pair, victim, settings)
    pair.elapse(SECOND)
    assert losses == [Status.ENDPOINT_CLOSED]
    assert not partner_of(pair, 1 - victim).is_connected


def test_notices_end_when_the_partner_connects_to_the_next_host_and_a_late_one_ends_no_later_connection() -> None:
    pair, settings = EndpointPair(), Settings()
    late_frames: list[bytes] = []

    def keeps_notices(frame: bytes) -> bool:
        if kind_of(frame) != "NACK_LIB":
            return False
        late_frames.append(frame)
        return True

    pair.lose = keeps_notices
    succeed(pair, 0, settings)
    pair.elapse(RESEND // 2)
    assert late_frames == [], "what is sent again is refused later"
    pair.elapse(RESEND)
    assert len(late_frames) > 1, "repeated"
    pair.lose = lambda _: False
    pair.wires.deliver(late_frames[0])
    pair.ends[0] = pair.library(0).open_endpoint()
    pair.run(pair.ends[1].connect(0))
    losses = record_lost_connections(pair, 1)
    pair.sent.clear()
    for frame in late_frames:
        pair.wires.deliver(frame)
    pair.elapse(10 * SECOND)
    assert "NACK_LIB" not in pair.sent
    assert losses == []
    request = pair.ends[0].irecv(buffer := bytearray(4), 5)
    pair.finish(pair.ends[1].isend([b"data"], pair.to[1], 5), request)
    assert buffer == b"data"


def test_a_partner_that_missed_a_notice_is_notified_by_the_refusal_of_its_message() -> None:
    pair = EndpointPair()
    pair.lose = lambda frame: kind_of(frame) == "NACK_LIB"
    succeed(pair, 0, Settings())
    pair.elapse(60 * SECOND)
    assert pair.sent.count("NACK_LIB") == 9
    losses = record_lost_connections(pair, 1)
    pair.lose = lambda _: False
    pair.ends[1].isend([b"data"], pair.to[1], 5)
    pair.elapse(RESEND)
    assert losses == [Status.ENDPOINT_CLOSED]


def test_partners_of_a_closed_endpoint_are_not_notified() -> None:
    """The source tells them neither."""
    pair = EndpointPair()
    pair.ends[0].close()
    pair.sent.clear()
    succeed(pair, 0, Settings())
    pair.elapse(SECOND)
    assert "NACK_LIB" not in pair.sent


@pytest.mark.requires("interpreted")
def test_nothing_keeps_the_driver_of_a_host_that_has_died() -> None:
    """The driver refers to the host's memory, and a shared NIC's agent does not collect cycles."""
    pair = EndpointPair()
    driver_of_first = weakref.ref(pair.driver(0))
    gc.disable()
    try:
        succeed(pair, 0, Settings())
        assert driver_of_first() is None
        driver_of_second = weakref.ref(pair.driver(0))
        succeed(pair, 0, Settings())
        assert driver_of_second() is None
    finally:
        gc.enable()
