"""TCP endpoint for MPI: one connection to every other node, matching in user space.

A send is complete when the kernel has accepted all of its data, so that its buffer may be reused. Unexpected messages are
buffered. The payload of an expected message is read directly into the buffer of its receive. Implements `MatchingEndpoint`.
"""

from __future__ import annotations

import select
from collections.abc import Sequence

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Nic
from protocols.mpi.device import Device, ProbeResult, ReceiveCompletion, SendCompletion
from protocols.mpi.matching import SoftwareMatchingEndpoint
from protocols.mpi.mpi_errors import ERR_PROC_FAILED, Envelope, MPIError
from testbed.engine.loop import Loop
from testbed.runtime.sockets.protocol import KernelProtocol, NoFirmware
from testbed.runtime.sockets.tcp_connections import HEADER, Connection, connect_all


class TcpEndpoint(SoftwareMatchingEndpoint):
    """The host library of a rank. `connect` must be awaited before messages are sent to other ranks."""

    def __init__(self, adapter: Adapter, nic: Nic) -> None:
        super().__init__()
        self.rank = adapter.number
        self.size = len(adapter.addresses)
        self.contexts = 256
        self.max_tag = (1 << 24) - 1
        self.max_message_size = 1 << 30
        self._nic = nic
        self._connections: dict[int, Connection] = {}
        self._by_descriptor: dict[int, Connection] = {}
        self._epoll: select.epoll

    async def connect(self, loop: Loop, addresses: Sequence[str]) -> None:
        """Connect to all other nodes. addresses: IP addresses by rank. Raises TestbedError."""
        self._epoll = select.epoll()
        for peer, peer_socket in (await connect_all(loop, self.rank, addresses)).items():
            descriptor = peer_socket.fileno()
            self._connections[peer] = self._by_descriptor[descriptor] = Connection(peer, peer_socket, self.matching)
            self._epoll.register(descriptor, select.EPOLLIN)
        loop.watch(self._epoll.fileno(), self._on_ready)

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        envelope = Envelope(destination, tag, len(data))
        if destination == self.rank:
            self.matching.send_to_self(destination, context, tag, data, completion)
            self._nic.post_completion(0)
            return True
        connection = self._connections.get(destination)
        if connection is None:
            completion.fail(_connection_ended(destination))
            return True
        had_unsent = connection.unsent_buffers
        try:
            is_sent = connection.send(HEADER.pack(context, tag, len(data)), data, completion, envelope)
        except OSError:
            completion.fail(_connection_ended(destination))
            self._drop_connection(connection)
            return True
        if is_sent:
            completion.complete(envelope)
            self._nic.post_completion(0)
        elif not had_unsent:
            self._epoll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return True

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        if 0 <= source != self.rank and source not in self._connections:
            completion.fail(_connection_ended(source))
            return True
        return super().receive(source, context, tag, buffer, completion)

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        if not wait or not 0 <= source != self.rank or source in self._connections:
            return super().probe(source, context, tag, wait, claim, completion)
        arrived: Completion[ProbeResult | None] = Completion()  # a message that arrived before the connection ended
        super().probe(source, context, tag, False, claim, arrived)
        if arrived.result() is None:
            completion.fail(_connection_ended(source))
        else:
            completion.complete(arrived.result())
        return True

    def on_completion(self, index: int) -> None:
        """Do nothing: completions are posted only to show the run's progress."""

    def pending_work(self) -> list[str]:
        sentences = [
            f"the kernel has not accepted {connection.unsent_buffers} buffers for rank {connection.peer} yet"
            for connection in self._connections.values()
            if connection.unsent_buffers
        ]
        receives = self.matching.posted_count()
        return [*sentences, f"{receives} receives have found no message"] if receives else sentences

    def _on_ready(self, _now: int) -> None:
        """Read from and write to the connections that are ready."""
        for descriptor, events in self._epoll.poll(0):
            connection = self._by_descriptor.get(descriptor)
            if connection is None:
                continue
            try:
                if events & select.EPOLLOUT:
                    self._continue_sending(connection)
                if events & ~select.EPOLLOUT and connection.receive():
                    self._nic.post_completion(0)
            except OSError:
                self._drop_connection(connection)

    def _continue_sending(self, connection: Connection) -> None:
        completed_sends = connection.continue_sending()
        if not connection.unsent_buffers:
            self._epoll.modify(connection.socket.fileno(), select.EPOLLIN)
        for completion, envelope in completed_sends:
            completion.complete(envelope)
            self._nic.post_completion(0)

    def _drop_connection(self, connection: Connection) -> None:
        """Close the connection to a peer that has ended; only operations with that peer fail."""
        if self._connections.pop(connection.peer, None) is None:
            return
        del self._by_descriptor[connection.socket.fileno()]
        self._epoll.unregister(connection.socket.fileno())
        connection.end(_connection_ended(connection.peer))


def plug(adapter: Adapter, nic: Nic) -> Agent:
    """Make the agent of a rank, whose firmware does nothing."""
    return Agent(NoFirmware(), TcpEndpoint(adapter, nic))


def _connection_ended(rank: int) -> MPIError:
    return MPIError(ERR_PROC_FAILED, f"the connection with rank {rank} has ended")


PROTOCOL = KernelProtocol(plug=plug, ethertype=0, device=Device, connect=TcpEndpoint.connect)
