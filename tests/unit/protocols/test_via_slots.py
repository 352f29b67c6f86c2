"""MPI over VIA on a NIC with few slots: they limit a rank's connections, and messages wait for slots."""

from __future__ import annotations

from typing import cast

import pytest

from protocols.mpi.comm import Comm
from protocols.mpi.device import Device
from protocols.mpi.mpi_errors import MPIError
from protocols.mpi.via.endpoint import ViaEndpoint
from protocols.via.host import ViaNic, plug
from protocols.via.settings import Settings
from protocols.via.vip_descriptors import MAX_VIS
from tests.unit.protocols.host_programs import run
from tests.unit.protocols.list_wires import Wires

SLOTS = 64
CONNECTIONS = (SLOTS - 16) // 9
"""Each takes 8 slots of receives and one of its requests; 16 are for commands."""
RANK_COUNT = 9


class Ranks:
    """Ranks on list wires. slots: slots of each NIC."""

    def __init__(self, size: int = RANK_COUNT, **settings: int) -> None:
        self.wires = Wires(
            plug(Settings(**{"slots": SLOTS, "depth": 8, "area": 2_048, "buffer": 512, **settings})), size
        )
        self.endpoints = [ViaEndpoint(cast(ViaNic, agent.host)) for agent in self.wires.agents]
        self.devices = [Device(endpoint) for endpoint in self.endpoints]
        self.comms = [Comm(device) for device in self.devices]


async def try_send(comm: Comm, peer: int) -> str:
    """Send to a peer; return the error, if any."""
    try:
        await comm.Ssend(b"data", peer, 1)
    except MPIError as error:
        return str(error)
    return ""


async def receive_text(comm: Comm, peer: int) -> str:
    await comm.Recv(buffer := bytearray(4), peer, 1)
    return bytes(buffer).decode()


def test_a_connection_beyond_the_slots_fails_with_an_error_that_names_the_setting() -> None:
    ranks = Ranks()
    sends = [try_send(ranks.comms[0], peer) for peer in range(1, RANK_COUNT)]
    receives = [receive_text(ranks.comms[peer], 0) for peer in range(1, CONNECTIONS + 1)]
    results = run(ranks.wires, *sends, *receives)
    assert results[:CONNECTIONS] == [""] * CONNECTIONS
    assert results[RANK_COUNT - 1 :] == ["data"] * CONNECTIONS
    for peer, error in enumerate(results[CONNECTIONS : RANK_COUNT - 1], CONNECTIONS + 1):
        assert f"rank {peer} cannot be connected: the NIC's 64 slots suffice for 5 connections" in error
        assert "slots=" in error


def test_a_connection_request_beyond_the_slots_is_rejected() -> None:
    ranks = Ranks()
    run(ranks.wires, *(try_send(ranks.comms[0], peer) for peer in range(1, CONNECTIONS + 1)),
        *(receive_text(ranks.comms[peer], 0) for peer in range(1, CONNECTIONS + 1)))  # fmt: skip
    [error] = run(ranks.wires, try_send(ranks.comms[RANK_COUNT - 1], 0))
    assert "rank 0 cannot be connected" in error
    assert "slots=" in error
    assert run(ranks.wires, try_send(ranks.comms[0], 1), receive_text(ranks.comms[1], 0)) == ["", "data"]


def test_all_connections_are_lost_at_once_and_restored() -> None:
    """Their disconnects need slots, one after the other, while sends occupy most."""
    ranks = Ranks(CONNECTIONS + 1)
    peers = range(1, CONNECTIONS + 1)
    endpoint, comm = ranks.endpoints[0], ranks.comms[0]
    run(
        ranks.wires,
        *(try_send(comm, peer) for peer in peers),
        *(receive_text(ranks.comms[peer], 0) for peer in peers),
    )

    async def flood(peer: int) -> None:
        for number in range(20):
            await comm.Isend(bytes(400), peer, 100 + number)

    run(ranks.wires, *(flood(peer) for peer in peers), deliver=lambda: None)
    host = cast(ViaNic, ranks.wires.agents[0].host)
    assert host.free_descriptors < 12
    for pair in list(endpoint.pairs.values()):
        endpoint._end_connection(pair, "is lost")
    ranks.wires.exchange()
    assert endpoint.pairs == {}
    assert host.free_descriptors == SLOTS - 2
    assert host.registered == 0
    results = run(
        ranks.wires,
        *(try_send(comm, peer) for peer in peers),
        *(receive_text(ranks.comms[peer], 0) for peer in peers),
    )
    assert results == [""] * CONNECTIONS + ["data"] * CONNECTIONS


@pytest.mark.parametrize("register_from", [0, 100])
def test_messages_to_all_ranks_at_once_wait_for_slots_and_arrive(register_from: int) -> None:
    ranks = Ranks(CONNECTIONS + 1, register_from=register_from)
    count, size = 30, 300

    async def exchange(comm: Comm) -> bool:
        peers = [rank for rank in range(comm.size) if rank != comm.rank]
        buffers = {(rank, number): bytearray(size) for rank in peers for number in range(count)}
        receives = [await comm.Irecv(buffer, rank, number) for (rank, number), buffer in buffers.items()]
        sends = [await comm.Isend(bytes([comm.rank, number] * (size // 2)), rank, number) for rank, number in buffers]
        for request in (*receives, *sends):
            await request.Wait()
        return all(buffer == bytes([rank, number] * (size // 2)) for (rank, number), buffer in buffers.items())

    assert run(ranks.wires, *(exchange(comm) for comm in ranks.comms)) == [True] * (CONNECTIONS + 1)


def test_a_later_message_to_a_rank_beyond_the_slots_fails_too() -> None:
    """The connection fails at once, with the message that needs it."""
    ranks = Ranks()
    run(ranks.wires, *(try_send(ranks.comms[0], peer) for peer in range(1, CONNECTIONS + 1)),
        *(receive_text(ranks.comms[peer], 0) for peer in range(1, CONNECTIONS + 1)))  # fmt: skip

    async def send() -> None:
        await ranks.comms[0].Send(b"data", RANK_COUNT - 1, 1)

    with pytest.raises(MPIError, match="cannot be connected: the NIC's 64 slots suffice for 5 connections"):
        run(ranks.wires, send())


def test_too_few_slots_for_a_connection_are_an_error() -> None:
    ranks = Ranks(2, slots=8)
    [error] = run(ranks.wires, try_send(ranks.comms[0], 1))
    assert "cannot be connected: the NIC's 8 slots suffice for 0 connections" in error


def test_a_connection_that_cannot_be_opened_leaves_no_registered_memory() -> None:
    ranks = Ranks(2)
    host = cast(ViaNic, ranks.wires.agents[0].host)
    [vi] = run(ranks.wires, host.create_vi(1))
    host._vis |= dict.fromkeys(range(MAX_VIS), vi)
    for _ in range(3):
        [error] = run(ranks.wires, try_send(ranks.comms[0], 1))
        assert f"rank 1 cannot be connected: all {MAX_VIS} VIs exist" in error
        assert host.registered == 0
    host._vis = {vi.number: vi}
    assert run(ranks.wires, try_send(ranks.comms[0], 1), receive_text(ranks.comms[1], 0)) == ["", "data"]


def test_messages_are_sent_in_parts_no_longer_than_a_transfer_of_the_provider() -> None:
    ranks = Ranks(2, max_transfer=64)
    data, buffer = bytes(range(250)), bytearray(250)

    async def send() -> None:
        await ranks.comms[0].Send(data, 1, 1)

    async def receive() -> None:
        await ranks.comms[1].Recv(buffer, 0, 1)

    run(ranks.wires, send(), receive())
    assert bytes(buffer) == data


def test_a_provider_with_transfers_too_short_for_mpi_is_an_error() -> None:
    ranks = Ranks(2, max_transfer=63)
    [error] = run(ranks.wires, try_send(ranks.comms[0], 1))
    assert "rank 1 cannot be connected: max_transfer must be 64 or more, got 63" in error
