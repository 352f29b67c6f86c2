"""Disconnects and errors of VIA's connections: both sides are notified, whatever frames are lost."""

from __future__ import annotations

import pytest

from protocols.via.settings import Settings
from protocols.via.vip_descriptors import Segment
from protocols.via.vipl_names import OP_RDMAWRITE, OP_SENDRECV, Done, Result, ViaError, ViState
from protocols.via.virtual_interface import Descriptor
from tests.unit.protocols.host_programs import Program, run
from tests.unit.protocols.via_nics import NicPair

MILLISECOND = 1_000_000
SETTLE_TIME = 2_000 * MILLISECOND


def is_settled(pair: NicPair) -> bool:
    """Return whether no timer runs and neither VI is connected."""
    return pair.wires.deadline is None and pair.vis[0].state is not ViState.CONNECTED is not pair.vis[1].state


@pytest.mark.parametrize("lost_count", [1, 2, 5])
def test_a_lost_disconnect_is_resent_until_the_peer_has_answered(lost_count: int) -> None:
    pair = NicPair()
    run(pair.wires, pair.vis[0].disconnect(), deliver=pair.wires.nics[0].sent.clear)
    for _ in range(lost_count):
        assert pair.vis[1].state is ViState.CONNECTED
        pair.wires.take(0)
        pair.wires.tick()
    pair.wires.exchange()
    assert pair.vis[1].state is ViState.ERROR
    assert is_settled(pair)
    assert pair.wires.agents[0].firmware.counter_values()["endings_resent"] == lost_count


def test_a_disconnect_whose_answer_is_lost_is_repeated_and_answered_again() -> None:
    pair = NicPair()
    run(pair.wires, pair.vis[0].disconnect(), deliver=lambda: None)
    pair.wires.deliver(pair.wires.take(0)[0])
    pair.wires.take(1)
    run(pair.wires, pair.vis[1].disconnect())
    run(pair.wires, *(vi.connect_peer(1 - number, b"again") for number, vi in enumerate(pair.vis)))
    pair.wires.elapse(SETTLE_TIME)
    assert [vi.state for vi in pair.vis] == [ViState.CONNECTED] * 2
    assert pair.wires.deadline is None


def test_a_peer_is_notified_of_an_error_though_the_notification_is_lost() -> None:
    """The second node's receive is too short for the first one's send; the notification to the first one is lost."""
    pair = NicPair()
    short_receive = Descriptor(data=(pair.memory[1].segment(0, 8),))
    pair.vis[1].post_receive(short_receive)
    send = Descriptor(OP_SENDRECV, (pair.memory[0].segment(0, 9),))
    pair.vis[0].post_send(send)
    pair.wires.deliver(pair.wires.take(0)[0])
    assert short_receive.status & Done.LENGTH_ERROR
    pair.wires.take(1)
    pair.wires.elapse(SETTLE_TIME)
    assert send.status & Done.REMOTE_DESC_ERROR
    assert is_settled(pair)


def test_the_cause_of_an_error_is_repeated_to_a_peer_that_continues_to_send() -> None:
    pair = NicPair(Settings(timeout=5 * MILLISECOND))
    target = pair.memory[1]
    send = Descriptor(OP_RDMAWRITE, (pair.memory[0].segment(0, 8),), Segment(target.address, target.handle + 9))
    pair.vis[0].post_send(send)
    (write,) = pair.wires.take(0)
    pair.wires.deliver(write)
    pair.wires.take(1)
    pair.wires.deliver(write)  # as if resent
    pair.wires.exchange()
    assert send.status & Done.RDMA_PROT_ERROR
    assert is_settled(pair)


def accept_with_lost_answer(pair: NicPair, timeout: int = 0) -> Program[object]:
    """Let the second node's VI accept the first's request, and lose the answer; return the client's program."""
    client = pair.vis[0].connect_request(1, b"x", timeout)

    async def serve() -> None:
        await pair.vis[1].accept(await pair.nics[1].connect_wait(b"x"))

    async def connect() -> None:
        client.send(None)

    def lose_answers() -> None:
        pair.wires.deliver_from(0)
        pair.wires.take(1)

    run(pair.wires, serve(), connect(), deliver=lose_answers)
    pair.wires.take(1)
    assert (pair.vis[0].state, pair.vis[1].state) == (ViState.CONNECT_PENDING, ViState.CONNECTED)
    return client


@pytest.mark.parametrize("ending", ["withdrawn", "expired"])
def test_a_server_whose_answer_is_lost_is_notified_that_its_client_has_ended(ending: str) -> None:
    pair = NicPair(connected=False)
    client = accept_with_lost_answer(pair, timeout=4 * MILLISECOND if ending == "expired" else 0)
    if ending == "withdrawn":
        run(pair.wires, pair.vis[0].disconnect(), deliver=lambda: pair.wires.take(0))
    else:
        pair.wires.tick()
        assert pair.vis[0].state is ViState.IDLE
        pair.wires.take(0)
    client.close()
    pair.wires.elapse(SETTLE_TIME)
    assert (pair.vis[0].state, pair.vis[1].state) == (ViState.IDLE, ViState.ERROR)
    assert is_settled(pair)


def test_an_answer_to_a_request_that_was_withdrawn_long_ago_ends_the_servers_connection() -> None:
    pair = NicPair(connected=False)
    request = pair.vis[0].connect_request(1, b"x")
    request.send(None)
    (request_frame,) = pair.wires.take(0)
    request.close()

    async def serve() -> None:
        await pair.vis[1].accept(await pair.nics[1].connect_wait(b"x"))

    async def answer_late() -> None:
        await pair.vis[0].disconnect()
        pair.wires.exchange()
        pair.wires.deliver(request_frame)  # delayed

    run(pair.wires, serve(), answer_late())
    pair.wires.elapse(SETTLE_TIME)
    assert pair.vis[1].state is ViState.ERROR
    assert is_settled(pair)


def test_a_client_whose_server_has_accepted_and_disconnected_is_refused() -> None:
    pair = NicPair(connected=False)
    client = accept_with_lost_answer(pair)
    run(pair.wires, pair.vis[1].disconnect())
    pair.wires.exchange()
    with pytest.raises(ViaError) as caught:
        client.send(None)
    assert caught.value.result is Result.REJECT
    assert is_settled(pair)


def test_a_withdrawn_request_is_not_shown_to_a_server() -> None:
    pair = NicPair(connected=False)
    pair.vis[0].connect_peer_request(1, b"x")
    pair.wires.exchange()
    run(pair.wires, pair.vis[0].disconnect())
    pair.wires.exchange()
    pair.vis[1].connect_peer_request(0, b"x")
    pair.wires.exchange()
    assert pair.vis[1].state is ViState.CONNECT_PENDING


def test_a_lost_rejection_is_repeated_for_the_resent_request() -> None:
    pair = NicPair(connected=False)
    client = pair.vis[0].connect_request(1, b"x")
    client.send(None)

    async def reject() -> None:
        await pair.nics[1].reject(await pair.nics[1].connect_wait(b"x"))

    def lose_answers() -> None:
        pair.wires.deliver_from(0)
        pair.wires.take(1)

    run(pair.wires, reject(), deliver=lose_answers)
    pair.wires.elapse(SETTLE_TIME)
    with pytest.raises(ViaError) as caught:
        client.send(None)
    assert caught.value.result is Result.REJECT


def test_the_end_of_a_connection_to_a_restarted_peer_is_not_announced() -> None:
    pair = NicPair()
    run(pair.wires, pair.vis[0].disconnect(), deliver=lambda: pair.wires.take(0))
    pair.wires.restart(1)
    pair.wires.elapse(SETTLE_TIME)
    assert pair.wires.agents[0].firmware.deadline is None


def test_a_disconnect_of_a_silent_peer_is_given_up_after_the_providers_time() -> None:
    pair = NicPair(Settings(give_up=100 * MILLISECOND))
    run(pair.wires, pair.vis[0].disconnect(), deliver=lambda: pair.wires.take(0))
    while pair.wires.tick():
        pair.wires.take(0)
    assert 100 * MILLISECOND <= pair.wires.now <= 300 * MILLISECOND


def test_an_error_right_after_an_acceptance_leaves_the_vi_in_error() -> None:
    """The accepting program continues only when its VI has been lost: it must not treat it as connected."""
    pair = NicPair(connected=False)
    client, server = pair.vis[0].connect_request(1, b"x"), pair.vis[1]
    completions: list[int] = []

    async def serve() -> Program[None]:
        accepted = server.accept(await pair.nics[1].connect_wait(b"x"))
        pair.wires.nics[1].post_completion = completions.append  # type: ignore[method-assign,assignment]  # handled later
        accepted.send(None)
        return accepted

    async def connect() -> None:
        client.send(None)

    accepted, _ = run(pair.wires, serve(), connect())
    pair.wires.exchange()
    with pytest.raises(StopIteration):
        client.send(None)
    run(pair.wires, pair.vis[0].disconnect())
    pair.wires.exchange()
    for index in completions:
        pair.nics[1].on_completion(index)
    assert accepted is not None
    with pytest.raises(StopIteration):
        accepted.send(None)
    assert server.state is ViState.ERROR


def test_a_vi_that_requests_a_peer_of_its_own_nic_is_not_connected_to_itself() -> None:
    pair = NicPair(connected=False)
    nic, first = pair.nics[0], pair.vis[0]
    first.connect_peer_request(0, b"x")
    pair.wires.exchange()
    assert first.connect_peer_done() is None
    second = run(pair.wires, nic.create_vi(pair.memory[0].ptag))[0]
    run(pair.wires, second.connect_peer(0, b"x"), first.connect_peer_wait())
    posted_receive = Descriptor(data=(pair.memory[0].segment(0, 8),))
    second.post_receive(posted_receive)
    pair.transfer(Descriptor(OP_SENDRECV, (pair.memory[0].segment(8, 8),)))
    assert (posted_receive.is_posted, posted_receive.length) == (False, 8)
