"""Messages on a TCP connection that ends in the middle of one."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from protocols.core.completion import Completion
from protocols.mpi.device import ProbeResult, ReceiveCompletion
from protocols.mpi.matching import MatchingQueues, Receive
from protocols.mpi.mpi_errors import ERR_PROC_FAILED, MPIError
from testbed.runtime.sockets.tcp_connections import HEAD, Connection

GONE = MPIError(ERR_PROC_FAILED, "the connection has ended")
TIMEOUT = 10.0  # s
Ends = tuple[Connection, MatchingQueues, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Yield rank 1's connection, and a plain socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        far = socket.create_connection(listening.getsockname())
        near, _ = listening.accept()
    with closing(near), closing(far):
        matching = MatchingQueues()
        yield Connection(1, near, matching), matching, far


def begun(matching: MatchingQueues) -> tuple[bytearray, ReceiveCompletion]:
    buffer, completion = bytearray(100), ReceiveCompletion(1, 7, 100)
    matching.post(0, Receive(1, 7, memoryview(buffer), completion))
    return buffer, completion


def read_to_the_end(connection: Connection) -> None:
    while select.select([connection.socket], [], [], TIMEOUT)[0]:
        connection.receive()


def cut(connection: Connection, far: socket.socket) -> None:
    """40 of a message's 100 bytes come, and the end."""
    far.sendall(HEAD.pack(0, 7, 100) + bytes(40))
    far.close()
    with pytest.raises(ConnectionResetError):
        read_to_the_end(connection)
    connection.end(GONE)


def test_a_receive_that_has_half_of_its_message_fails(ends: Ends) -> None:
    connection, matching, far = ends
    _, completion = begun(matching)
    cut(connection, far)
    with pytest.raises(MPIError, match="has ended"):
        completion.result()


def test_half_a_message_that_nobody_has_received_is_nobodys(ends: Ends) -> None:
    connection, matching, far = ends
    cut(connection, far)
    found: Completion[ProbeResult | None] = Completion()
    matching.probe(1, 0, 7, False, False, found)
    assert found.result() is None


def test_a_whole_message_that_came_before_the_end_is_received_after_it(ends: Ends) -> None:
    connection, matching, far = ends
    far.sendall(HEAD.pack(0, 7, 3) + b"abc")
    cut(connection, far)
    buffer, completion = begun(matching)
    assert completion.result().length == 3
    assert buffer[:3] == b"abc"
