"""Sends that complete before their messages arrive, and reports of those whose messages are lost."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from protocols.am2.settings import MILLISECOND, SECOND, Settings
from protocols.mpi import ERR_PROC_FAILED, PROC_NULL, Comm, Request, blocking_requests
from protocols.mpi.device import SendCompletion
from protocols.mpi.mpi_errors import MPIError
from protocols.mpi.send_buffer import SendBuffer
from tests.unit.protocols.am2_mpi_nodes import Nodes, error_class_of

FEW_RETRIES = Settings(retries=3, longest_timeout=20 * MILLISECOND)
EVERY_SIZE = pytest.mark.parametrize("size", [40, 20, 3000], ids=["in two words", "short", "in fragments"])
T = TypeVar("T")


def run_without_waiting(call: Coroutine[Any, None, T]) -> T:
    """Return the result of a call that must not wait."""
    with pytest.raises(StopIteration) as stopped:
        call.send(None)
    value: T = stopped.value.value
    return value


def connected_nodes(count: int = 2) -> Nodes:
    """Return nodes; the first has exchanged messages with all others, so that none of its sends waits."""
    nodes = Nodes(count, FEW_RETRIES)
    for peer in range(1, count):
        nodes.exchange(0, peer)
    return nodes


def restart_node(nodes: Nodes, number: int = 1) -> None:
    """Restart a node, which loses the messages in flight to it."""
    nodes.restart(number)
    nodes.wires.elapse(SECOND)


@EVERY_SIZE
def test_a_send_completes_at_once_and_is_confirmed_when_the_receiver_has_answered(size: int) -> None:
    nodes, outcomes = connected_nodes(), []
    send = nodes.send(0, 1, b"x" * size)
    assert isinstance(send, SendCompletion)
    send.on_outcome = outcomes.append
    assert (send.done, send.is_unconfirmed, outcomes) == (True, True, [])
    nodes.wires.elapse(SECOND)  # without a receive
    assert (send.is_unconfirmed, outcomes) == (False, [send])
    assert send.result().length == size


@EVERY_SIZE
def test_a_message_returned_by_a_restarted_node_is_lost(size: int) -> None:
    nodes, outcomes = connected_nodes(), []
    send = nodes.send(0, 1, b"x" * size)
    assert isinstance(send, SendCompletion)
    send.on_outcome = outcomes.append
    restart_node(nodes)
    assert outcomes == [send]
    assert error_class_of(send) == ERR_PROC_FAILED


def test_a_long_message_without_its_last_chunk_is_lost() -> None:
    nodes = connected_nodes()
    send = nodes.send(0, 1, b"x" * 100_000)
    nodes.receive(1, 0, 100_000)
    while not send.done:
        nodes.wires.exchange()
    restart_node(nodes)
    assert error_class_of(send) == ERR_PROC_FAILED


def test_only_unanswered_messages_are_lost() -> None:
    nodes = connected_nodes()
    first = [nodes.send(0, 1, b"1") for _ in range(3)]
    nodes.wires.elapse(SECOND)
    lost_sends = [nodes.send(0, 1, b"2") for _ in range(3)]
    restart_node(nodes)
    nodes.exchange(0, 1)
    last = [nodes.send(0, 1, b"3") for _ in range(3)]
    nodes.wires.elapse(SECOND)
    assert [completion.result().length for completion in (*first, *last)] == [1] * 6
    assert [error_class_of(completion) for completion in lost_sends] == [ERR_PROC_FAILED] * 3


def test_a_message_that_waits_for_a_lost_one_is_lost_too() -> None:
    nodes = connected_nodes()
    receive, _ = nodes.receive(1, 0, 4)
    earlier_send = nodes.send(0, 1, b"here")
    missing_send = nodes.send(0, 1, b"gone")
    early_send = nodes.send(0, 1, b"next")
    nodes.advance(SECOND, lambda frame: b"gone" in frame)  # at every transmission
    assert receive.result().length == earlier_send.result().length == 4
    assert error_class_of(missing_send) == error_class_of(early_send) == ERR_PROC_FAILED
    receive, _ = nodes.receive(1, 0, 4)
    nodes.exchange(0, 1)
    assert not receive.done


def test_the_next_call_to_the_rank_reports_a_lost_send_and_has_no_other_effect() -> None:
    nodes = connected_nodes(3)
    comm, other_comm = Comm(nodes.devices[0]), Comm(nodes.devices[0], 1)
    run_without_waiting(comm.Send(b"lost", 1, 5))
    run_without_waiting(comm.Send(b"lost, too", 1, 6))
    restart_node(nodes)
    run_without_waiting(comm.Send(b"to another rank", 2))
    run_without_waiting(comm.Irecv(bytearray(4), 2))
    run_without_waiting(comm.Irecv(bytearray(4), PROC_NULL))
    run_without_waiting(other_comm.Isend(b"in another communicator", 1))
    with pytest.raises(MPIError, match=r"a send to rank 1, tag 5, 4 bytes, was reported done.*; and 1 more") as raised:
        comm.Isend(b"not sent", 1).send(None)
    assert raised.value.Get_error_class() == ERR_PROC_FAILED
    receive, buffer = nodes.receive(1, 0, 4)
    run_without_waiting(comm.Isend(b"sent", 1))  # a loss is reported once
    nodes.wires.elapse(SECOND)
    assert (receive.result().length, buffer) == (4, b"sent")


CALLS: dict[str, Callable[[Comm], Coroutine[Any, None, object]]] = {
    "Recv": lambda comm: comm.Recv(bytearray(4), 1),
    "Irecv": lambda comm: comm.Irecv(bytearray(4), 1),
    "Recv from any source": lambda comm: comm.Recv(bytearray(4)),
    "recv": lambda comm: comm.recv(source=1),
    "ssend": lambda comm: comm.ssend("not sent", 1),
    "Iprobe": lambda comm: comm.Iprobe(1),
    "Mprobe": lambda comm: comm.Mprobe(1),
    "Barrier": lambda comm: comm.Barrier(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_call_that_may_involve_the_rank_reports_a_lost_send(call: Callable[[Comm], Any]) -> None:
    nodes = connected_nodes()
    comm = Comm(nodes.devices[0])
    run_without_waiting(comm.Send(b"lost", 1))
    restart_node(nodes)
    with pytest.raises(MPIError, match="was reported done, and has failed since"):
        call(comm).send(None)
    assert not comm.lost_sends.unreported


def test_a_waiting_collective_call_reports_its_own_lost_message() -> None:
    nodes = connected_nodes()
    comm = Comm(nodes.devices[0])
    barrier = comm.Barrier()
    pending = barrier.send(None)  # its send is done; it waits for the other rank's message
    nodes.restart(1)
    nodes.wires.elapse(SECOND)
    assert pending.done
    with pytest.raises(MPIError, match="a send to rank 1, tag 0, 0 bytes, was reported done, and has failed since"):
        barrier.send(None)
    assert not comm.lost_sends.unreported


def test_the_start_of_a_persistent_request_reports_a_lost_send() -> None:
    nodes = connected_nodes()
    comm = Comm(nodes.devices[0])
    request = run_without_waiting(comm.Send_init(b"not sent", 1))
    run_without_waiting(comm.Send(b"lost", 1))
    restart_node(nodes)
    with pytest.raises(MPIError, match="was reported done, and has failed since"):
        request.Start().send(None)
    assert not request.active


def test_an_active_request_reports_its_lost_send_and_no_other_call_does() -> None:
    nodes = connected_nodes()
    comm = Comm(nodes.devices[0])
    requests = [run_without_waiting(comm.Isend(b"lost", 1)) for _ in range(2)]
    restart_node(nodes)
    run_without_waiting(comm.Isend(b"sent", 1))
    with pytest.raises(MPIError, match="has restarted"):
        requests[0].Wait().send(None)
    with pytest.raises(MPIError, match="1 of 1 requests have failed"):
        Request.Waitall(requests[1:]).send(None)
    assert not comm.lost_sends.unreported


def test_after_the_wait_for_its_request_the_next_call_reports_a_lost_send() -> None:
    nodes = connected_nodes()
    comm = Comm(nodes.devices[0])
    assert run_without_waiting(run_without_waiting(comm.Isend(b"lost", 1)).Wait())
    restart_node(nodes)
    with pytest.raises(MPIError, match="was reported done"):
        comm.Isend(b"not sent", 1).send(None)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_next_call_reports_a_lost_send_whose_request_was_freed(persistent: bool) -> None:
    nodes = connected_nodes()
    comm = Comm(nodes.devices[0])
    if persistent:
        request = run_without_waiting(comm.Send_init(b"lost", 1))
        run_without_waiting(request.Start())
        request.Free()
    else:
        blocking_requests.Request(run_without_waiting(comm.Isend(b"lost", 1))).Free()
    restart_node(nodes)
    with pytest.raises(MPIError, match="has failed since"):
        run_without_waiting(comm.Send(b"", 1))


def test_a_lost_object_of_two_messages_is_reported_once() -> None:
    nodes = connected_nodes()
    comm = Comm(nodes.devices[0])
    request = run_without_waiting(comm.isend(b"x" * 9000, 1, tag=3))
    restart_node(nodes)
    with pytest.raises(MPIError, match="has restarted"):
        request.wait().send(None)
    assert not comm.lost_sends.unreported


def test_only_the_next_call_to_the_rank_reports_a_failed_buffered_send() -> None:
    nodes = Nodes(3, FEW_RETRIES)
    comm = Comm(nodes.devices[0], send_buffer=SendBuffer())
    run_without_waiting(comm.send("to a silent rank", 1))
    nodes.drop_all_frames(30 * SECOND)
    run_without_waiting(comm.send("to another rank", 2))
    with pytest.raises(MPIError, match=r"to rank 1, tag 0.*acknowledged nothing"):
        comm.recv(source=1).send(None)
    run_without_waiting(comm.send("again", 1))


def test_close_reports_unreported_and_later_losses() -> None:
    nodes, reports = connected_nodes(), []
    comm = Comm(nodes.devices[0])
    run_without_waiting(comm.Isend(b"never waited for", 1))
    restart_node(nodes)
    comm.lost_sends.close(reports.append)
    nodes.exchange(0, 1)
    run_without_waiting(comm.Send(b"the last", 1, 9))
    restart_node(nodes)
    comm.lost_sends.finish()  # no loss is unreported
    assert [sentence.partition(",")[0] for sentence in reports] == ["a send to rank 1"] * 2
    assert "tag 9, 8 bytes, was reported done, and has failed since: node 1" in reports[1]


def test_finish_raises_for_unreported_losses() -> None:
    nodes = connected_nodes()
    comm = Comm(nodes.devices[0])
    run_without_waiting(comm.Send(b"lost", 1))
    restart_node(nodes)
    with pytest.raises(MPIError, match="was reported done"):
        comm.lost_sends.finish()
    comm.lost_sends.finish()
