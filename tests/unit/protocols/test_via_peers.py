"""Peer-to-peer connections of several VIs with one discriminator: every VI has one peer, though requests cross or are
lost."""

from __future__ import annotations

import pytest

from protocols.via.vipl_names import OP_SENDRECV, Result, ViaError, ViState
from protocols.via.virtual_interface import Descriptor, Vi
from tests.unit.protocols.host_programs import run
from tests.unit.protocols.via_nics import NicPair

SETTLE_TIME = 2_000_000_000


def two_vis_each() -> tuple[NicPair, list[list[Vi]]]:
    """Return two NICs with two idle VIs each."""
    pair = NicPair(connected=False)
    others = [
        run(pair.wires, nic.create_vi(memory.ptag, rdma_read=vi.attributes.rdma_read))[0]
        for nic, memory, vi in zip(pair.nics, pair.memory, pair.vis, strict=True)
    ]
    return pair, [[vi, other] for vi, other in zip(pair.vis, others, strict=True)]


@pytest.mark.parametrize("lost", [(node, index) for node in range(2) for index in range(2)])
def test_vis_with_one_discriminator_have_one_peer_each_though_a_request_is_lost(lost: tuple[int, int]) -> None:
    pair, vis = two_vis_each()
    for node, own in enumerate(vis):
        for vi in own:
            vi.connect_peer_request(1 - node, b"same")
    frames = [pair.wires.take(0), pair.wires.take(1)]
    del frames[lost[0]][lost[1]]
    for frame in (*frames[0], *frames[1]):
        pair.wires.deliver(frame)
    pair.wires.elapse(SETTLE_TIME)
    assert [vi.state for own in vis for vi in own] == [ViState.CONNECTED] * 4
    receives = [Descriptor(data=(pair.memory[1].segment(),)) for _ in vis[1]]
    for sender, receiver, descriptor in zip(vis[0], vis[1], receives, strict=True):
        receiver.post_receive(descriptor)
        sender.post_send(Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 8),)))
    pair.wires.elapse(SETTLE_TIME)
    assert [(descriptor.length, descriptor.has_failed) for descriptor in receives] == [(8, False)] * 2


@pytest.mark.parametrize("first", [0, 1])
def test_a_peer_to_peer_request_has_the_number_of_the_connection_that_it_becomes(first: int) -> None:
    """The number lets a program distinguish the request of its present connection from a later one."""
    pair = NicPair(connected=False)
    pair.vis[first].connect_peer_request(1 - first, b"x")
    request = run(pair.wires, pair.nics[1 - first].connect_wait(b"x"))[0]
    run(pair.wires, pair.vis[1 - first].connect_peer(first, b"x"))
    assert (request.is_peer, pair.vis[1 - first].request_number) == (True, request.number)


def test_a_peer_to_peer_request_cannot_be_accepted() -> None:
    pair = NicPair(connected=False)
    pair.vis[0].connect_peer_request(1, b"x")

    async def serve() -> None:
        await pair.vis[1].accept(await pair.nics[1].connect_wait(b"x"))

    with pytest.raises(ViaError) as caught:
        run(pair.wires, serve())
    assert caught.value.result is Result.INVALID_PARAMETER
    assert pair.vis[0].state is ViState.CONNECT_PENDING
