"""Ends of VIA's connections: each side learns of them, whatever is lost."""

from __future__ import annotations

import pytest

from protocols.via.settings import Settings
from protocols.via.vip_descriptors import Segment
from protocols.via.vipl_names import OP_RDMAWRITE, OP_SENDRECV, Done, Result, ViaError, ViState
from protocols.via.virtual_interface import Descriptor
from tests.unit.protocols.host_programs import Program, run
from tests.unit.protocols.via_nics import Two

MILLISECOND = 1_000_000
LONG = 2_000 * MILLISECOND


def is_settled(two: Two) -> bool:
    """Whether no timer runs, and no side is connected to nobody."""
    return two.wires.deadline is None and two.vis[0].state is not ViState.CONNECTED is not two.vis[1].state


@pytest.mark.parametrize("lost", [1, 2, 5])
def test_a_lost_disconnect_comes_again_until_the_peer_has_answered(lost: int) -> None:
    two = Two()
    run(two.wires, two.vis[0].disconnect(), deliver=two.wires.nics[0].sent.clear)
    for _ in range(lost):
        assert two.vis[1].state is ViState.CONNECTED
        two.wires.take(0)
        two.wires.tick()
    two.wires.exchange()
    assert two.vis[1].state is ViState.ERROR
    assert is_settled(two)
    assert two.wires.agents[0].firmware.counter_values()["endings_resent"] == lost


def test_an_end_whose_answer_is_lost_is_told_and_answered_again() -> None:
    two = Two()
    run(two.wires, two.vis[0].disconnect(), deliver=lambda: None)
    two.wires.give(two.wires.take(0)[0])
    two.wires.take(1)
    run(two.wires, two.vis[1].disconnect())
    run(two.wires, *(vi.connect_peer(1 - number, b"again") for number, vi in enumerate(two.vis)))
    two.wires.elapse(LONG)
    assert [vi.state for vi in two.vis] == [ViState.CONNECTED] * 2
    assert two.wires.deadline is None


def test_a_peer_that_only_receives_learns_of_an_error_though_its_frame_is_lost() -> None:
    """The second node's receive is too short for what the first sends; the first loses what it is told of it."""
    two = Two()
    short = Descriptor(data=(two.memory[1].segment(0, 8),))
    two.vis[1].post_receive(short)
    sent = Descriptor(OP_SENDRECV, (two.memory[0].segment(0, 9),))
    two.vis[0].post_send(sent)
    two.wires.give(two.wires.take(0)[0])
    assert short.status & Done.LENGTH_ERROR
    two.wires.take(1)
    two.wires.elapse(LONG)
    assert sent.status & Done.REMOTE_DESC_ERROR
    assert is_settled(two)


def test_the_cause_of_an_error_is_told_again_to_a_peer_that_sends_on() -> None:
    two = Two(Settings(timeout=5 * MILLISECOND))
    target = two.memory[1]
    sent = Descriptor(OP_RDMAWRITE, (two.memory[0].segment(0, 8),), Segment(target.address, target.handle + 9))
    two.vis[0].post_send(sent)
    (write,) = two.wires.take(0)
    two.wires.give(write)
    two.wires.take(1)
    two.wires.give(write)  # as if resent
    two.wires.exchange()
    assert sent.status & Done.RDMA_PROT_ERROR
    assert is_settled(two)


def accepted_unheard(two: Two, timeout: int = 0) -> Program[object]:
    """The second node's VI has accepted the first's request, and the answer is lost. Returns the client's program."""
    client = two.vis[0].connect_request(1, b"x", timeout)

    async def serve() -> None:
        await two.vis[1].accept(await two.nics[1].connect_wait(b"x"))

    async def ask() -> None:
        client.send(None)

    def lose_answers() -> None:
        for frame in two.wires.take(0):
            two.wires.give(frame)
        two.wires.take(1)

    run(two.wires, serve(), ask(), deliver=lose_answers)
    two.wires.take(1)
    assert (two.vis[0].state, two.vis[1].state) == (ViState.CONNECT_PENDING, ViState.CONNECTED)
    return client


@pytest.mark.parametrize("how", ["withdrawn", "expired"])
def test_a_server_whose_answer_is_lost_learns_that_its_client_has_gone(how: str) -> None:
    two = Two(connects=False)
    client = accepted_unheard(two, timeout=4 * MILLISECOND if how == "expired" else 0)
    if how == "withdrawn":
        run(two.wires, two.vis[0].disconnect(), deliver=lambda: two.wires.take(0))
    else:
        two.wires.tick()
        assert two.vis[0].state is ViState.IDLE
        two.wires.take(0)
    client.close()
    two.wires.elapse(LONG)
    assert (two.vis[0].state, two.vis[1].state) == (ViState.IDLE, ViState.ERROR)
    assert is_settled(two)


def test_an_answer_to_a_request_that_was_withdrawn_long_ago_ends_the_servers_connection() -> None:
    two = Two(connects=False)
    request = two.vis[0].connect_request(1, b"x")
    request.send(None)
    (requested,) = two.wires.take(0)
    request.close()

    async def serve() -> None:
        await two.vis[1].accept(await two.nics[1].connect_wait(b"x"))

    async def late() -> None:
        await two.vis[0].disconnect()
        two.wires.exchange()
        two.wires.give(requested)  # it was delayed

    run(two.wires, serve(), late())
    two.wires.elapse(LONG)
    assert two.vis[1].state is ViState.ERROR
    assert is_settled(two)


def test_a_client_whose_server_has_accepted_and_gone_is_refused() -> None:
    two = Two(connects=False)
    client = accepted_unheard(two)
    run(two.wires, two.vis[1].disconnect())
    two.wires.exchange()
    with pytest.raises(ViaError) as caught:
        client.send(None)
    assert caught.value.result is Result.REJECT
    assert is_settled(two)


def test_a_withdrawn_request_is_not_shown_to_a_server() -> None:
    two = Two(connects=False)
    two.vis[0].connect_peer_request(1, b"x")
    two.wires.exchange()
    run(two.wires, two.vis[0].disconnect())
    two.wires.exchange()
    two.vis[1].connect_peer_request(0, b"x")
    two.wires.exchange()
    assert two.vis[1].state is ViState.CONNECT_PENDING


def test_a_lost_rejection_is_repeated_for_the_request_that_comes_again() -> None:
    two = Two(connects=False)
    client = two.vis[0].connect_request(1, b"x")
    client.send(None)

    async def reject() -> None:
        await two.nics[1].reject(await two.nics[1].connect_wait(b"x"))

    def lose_answers() -> None:
        for frame in two.wires.take(0):
            two.wires.give(frame)
        two.wires.take(1)

    run(two.wires, reject(), deliver=lose_answers)
    two.wires.elapse(LONG)
    with pytest.raises(ViaError) as caught:
        client.send(None)
    assert caught.value.result is Result.REJECT


def test_the_end_of_a_connection_to_a_peer_that_has_restarted_is_not_told() -> None:
    two = Two()
    run(two.wires, two.vis[0].disconnect(), deliver=lambda: two.wires.take(0))
    two.wires.restart(1)
    two.wires.elapse(LONG)
    assert two.wires.agents[0].firmware.deadline is None


def test_a_peer_that_is_silent_is_told_no_longer_than_the_provider_waits() -> None:
    two = Two(Settings(give_up=100 * MILLISECOND))
    run(two.wires, two.vis[0].disconnect(), deliver=lambda: two.wires.take(0))
    while two.wires.tick():
        two.wires.take(0)
    assert 100 * MILLISECOND <= two.wires.now <= 300 * MILLISECOND


def test_an_error_right_behind_an_acceptance_leaves_the_vi_in_error() -> None:
    """The program that has accepted goes on only when its VI has been lost: it must not take it for connected."""
    two = Two(connects=False)
    client, server = two.vis[0].connect_request(1, b"x"), two.vis[1]
    completions: list[int] = []

    async def serve() -> Program[None]:
        accepted = server.accept(await two.nics[1].connect_wait(b"x"))
        two.wires.nics[1].post_completion = completions.append  # type: ignore[method-assign,assignment]  # it takes its time
        accepted.send(None)
        return accepted

    async def ask() -> None:
        client.send(None)

    accepted, _ = run(two.wires, serve(), ask())
    two.wires.exchange()
    with pytest.raises(StopIteration):
        client.send(None)
    run(two.wires, two.vis[0].disconnect())
    two.wires.exchange()
    for index in completions:
        two.nics[1].on_completion(index)
    assert accepted is not None
    with pytest.raises(StopIteration):
        accepted.send(None)
    assert server.state is ViState.ERROR


def test_a_vi_that_asks_its_own_nic_for_a_peer_is_not_connected_to_itself() -> None:
    two = Two(connects=False)
    nic, first = two.nics[0], two.vis[0]
    first.connect_peer_request(0, b"x")
    two.wires.exchange()
    assert first.connect_peer_done() is None
    second = run(two.wires, nic.create_vi(two.memory[0].ptag))[0]
    run(two.wires, second.connect_peer(0, b"x"), first.connect_peer_wait())
    posted = Descriptor(data=(two.memory[0].segment(0, 8),))
    second.post_receive(posted)
    two.transfer(Descriptor(OP_SENDRECV, (two.memory[0].segment(8, 8),)))
    assert (posted.is_posted, posted.length) == (False, 8)
