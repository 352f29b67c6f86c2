"""LAM's eight RPI functions on VIA's device."""

from __future__ import annotations

import re

import pytest

from protocols.mpi.constants import ANY_SOURCE, ANY_TAG
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import Envelope
from protocols.mpi.via import rpi
from protocols.mpi.via.endpoint import ViaEndpoint
from protocols.mpi.via.rpi import Kind, Request, Rpi, State
from protocols.via.host import ViaNic, plug
from protocols.via.settings import Settings
from tests.unit.protocols.host_programs import run
from tests.unit.protocols.list_wires import Wires

CONTEXT, TAG = 0, 5
NAMES = ("init", "addprocs", "build", "start", "advance", "destroy", "iprobe", "finalize")


def connectable_ranks() -> tuple[Wires, list[Rpi]]:
    """Return two ranks, which connect when they add each other."""
    wires = Wires(plug(Settings(connect_all=1)), 2)
    hosts = [agent.host for agent in wires.agents]
    assert all(isinstance(host, ViaNic) for host in hosts)
    return wires, [Rpi(Device(ViaEndpoint(host))) for host in hosts if isinstance(host, ViaNic)]


async def connect(rpi: Rpi) -> None:
    await rpi.init()
    await rpi.addprocs([0, 1])


@pytest.mark.parametrize("name", NAMES)
def test_each_function_of_lam_is_named_in_a_docstring_and_in_the_table(name: str) -> None:
    assert re.search(rf"`_rpi_c2c_{name}`", getattr(Rpi, name).__doc__)
    assert f"| `_rpi_c2c_{name}` | `{name}` |" in (rpi.__doc__ or "")


def test_a_request_is_built_started_advanced_and_destroyed() -> None:
    wires, (first, second) = connectable_ranks()
    run(wires, connect(first), connect(second))
    assert all(agent.firmware.counter_values()["connections_made"] == 1 for agent in wires.agents)
    buffer = bytearray(8)

    async def send() -> None:
        request = first.build(Kind.SSEND, 1, CONTEXT, TAG, memoryview(b"hello"))
        assert request.state is State.INIT
        first.start(request)
        assert request.state is State.ACTIVE
        assert await first.advance([request], blocks=False) == []
        assert await first.advance([request], blocks=True) == [request]
        first.destroy(request)
        first.finalize()

    async def receive() -> Request:
        while (probe_result := await second.iprobe(ANY_SOURCE, CONTEXT, ANY_TAG)) is None:
            await second.advance([], blocks=False)
        assert probe_result == Envelope(0, TAG, 5)
        request = second.build(Kind.RECEIVE, ANY_SOURCE, CONTEXT, TAG, memoryview(buffer))
        second.start(request)
        await second.advance([request], blocks=True)
        return request

    _, request = run(wires, send(), receive())
    assert request is not None
    assert (request.state, request.envelope()) == (State.DONE, Envelope(0, TAG, 5))
    assert bytes(buffer[:5]) == b"hello"


def test_a_destroyed_receive_matches_no_message() -> None:
    wires, (first, second) = connectable_ranks()
    run(wires, connect(first), connect(second))
    destroyed, posted = (second.build(Kind.RECEIVE, 0, CONTEXT, TAG, memoryview(bytearray(1))) for _ in range(2))

    async def exchange() -> None:
        second.start(destroyed)
        second.destroy(destroyed)
        second.start(posted)
        first.start(first.build(Kind.SEND, 1, CONTEXT, TAG, memoryview(b"x")))
        await second.advance([posted], blocks=True)

    run(wires, exchange())
    assert bytes(posted.buffer) == b"x"
    assert bytes(destroyed.buffer) == b"\0"


def test_invalid_arguments_are_rejected() -> None:
    _, (first, _) = connectable_ranks()
    with pytest.raises(ValueError, match=r"ranks must be 0 to 1, got \[2\]"):
        first.addprocs([2]).send(None)
    request = first.build(Kind.SEND, 1, CONTEXT, TAG, memoryview(b"x"))
    with pytest.raises(RuntimeError, match="has not been started"):
        request.envelope()
    first.start(request)
    with pytest.raises(RuntimeError, match="was started before"):
        first.start(request)
