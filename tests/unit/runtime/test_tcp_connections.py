"""A TCP connection that ends in the middle of a message."""

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
from testbed.runtime.sockets.tcp_connections import HEADER, Connection

CONNECTION_ENDED = MPIError(ERR_PROC_FAILED, "the connection has ended")
TIMEOUT = 10.0  # s
Ends = tuple[Connection, MatchingQueues, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Yield rank 1's connection, and a plain socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far_socket = socket.create_connection(listener.getsockname())
        near_socket, _ = listener.accept()
    with closing(near_socket), closing(far_socket):
        matching = MatchingQueues()
        yield Connection(1, near_socket, matching), matching, far_socket


def posted_receive(matching: MatchingQueues) -> tuple[bytearray, ReceiveCompletion]:
    buffer, completion = bytearray(100), ReceiveCompletion(1, 7, 100)
    matching.post(0, Receive(1, 7, memoryview(buffer), completion))
    return buffer, completion


def receive_until_end(connection: Connection) -> None:
    while select.select([connection.socket], [], [], TIMEOUT)[0]:
        connection.receive()


def end_within_a_message(connection: Connection, far_socket: socket.socket) -> None:
    """Send 40 of a message's 100 bytes, and close the connection."""
    far_socket.sendall(HEADER.pack(0, 7, 100) + bytes(40))
    far_socket.close()
    with pytest.raises(ConnectionResetError):
        receive_until_end(connection)
    connection.end(CONNECTION_ENDED)


def test_the_receive_of_a_partly_received_message_fails(ends: Ends) -> None:
    connection, matching, far_socket = ends
    _, completion = posted_receive(matching)
    end_within_a_message(connection, far_socket)
    with pytest.raises(MPIError, match="has ended"):
        completion.result()


def test_a_partly_received_unexpected_message_is_discarded(ends: Ends) -> None:
    connection, matching, far_socket = ends
    end_within_a_message(connection, far_socket)
    result: Completion[ProbeResult | None] = Completion()
    matching.probe(1, 0, 7, False, False, result)
    assert result.result() is None


def test_a_complete_message_is_received_after_the_end_of_the_connection(ends: Ends) -> None:
    connection, matching, far_socket = ends
    far_socket.sendall(HEADER.pack(0, 7, 3) + b"abc")
    end_within_a_message(connection, far_socket)
    buffer, completion = posted_receive(matching)
    assert completion.result().length == 3
    assert buffer[:3] == b"abc"
