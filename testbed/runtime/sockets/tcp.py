"""TCP endpoint for MPI: one connection to every other node, matching in user space.

A send is complete when the kernel has taken all of it, so that its buffer may be reused. Unexpected messages are kept.
Payload goes from the kernel directly into the receive's buffer if there is one. Implements `MatchingEndpoint`.
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
from testbed.runtime.sockets.tcp_connections import HEAD, Connection, connected


class TcpEndpoint(SoftwareMatchingEndpoint):
    """The host library. It has no connections before `connect`."""

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
        self._ready: select.epoll

    async def connect(self, loop: Loop, addresses: Sequence[str]) -> None:
        """Connect to all other nodes. Raises TestbedError."""
        self._ready = select.epoll()
        for peer, opened in (await connected(loop, self.rank, addresses)).items():
            self._connections[peer] = self._by_descriptor[opened.fileno()] = Connection(peer, opened, self.matching)
            self._ready.register(opened.fileno(), select.EPOLLIN)
        loop.watch(self._ready.fileno(), self._serve)

    def send(self, destination: int, context: int, tag: int, data: memoryview, completion: SendCompletion) -> bool:
        envelope = Envelope(destination, tag, len(data))
        if destination == self.rank:
            self.matching.send_to_self(destination, context, tag, data, completion)
            self._nic.post_completion(0)
            return True
        connection = self._connections.get(destination)
        if connection is None:
            completion.fail(_gone(destination))
            return True
        was_behind = connection.behind
        try:
            taken = connection.send(HEAD.pack(context, tag, len(data)), data, completion, envelope)
        except OSError:
            completion.fail(_gone(destination))
            self._lose(connection)
            return True
        if taken:
            completion.complete(envelope)
            self._nic.post_completion(0)
        elif not was_behind:
            self._ready.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)
        return True

    def receive(self, source: int, context: int, tag: int, buffer: memoryview, completion: ReceiveCompletion) -> bool:
        if 0 <= source != self.rank and source not in self._connections:
            completion.fail(_gone(source))
            return True
        return super().receive(source, context, tag, buffer, completion)

    def probe(
        self, source: int, context: int, tag: int, wait: bool, claim: bool, completion: Completion[ProbeResult | None]
    ) -> bool:
        if not wait or not 0 <= source != self.rank or source in self._connections:
            return super().probe(source, context, tag, wait, claim, completion)
        left: Completion[ProbeResult | None] = Completion()  # a message left by a peer that is gone
        super().probe(source, context, tag, False, claim, left)
        if left.result() is None:
            completion.fail(_gone(source))
        else:
            completion.complete(left.result())
        return True

    def completed(self, index: int) -> None:
        """Do nothing: the end of a transfer is reported for the run's progress, and known here already."""

    def waiting(self) -> list[str]:
        sentences = [
            f"rank {connection.peer} has {connection.behind} buffers to receive"
            for connection in self._connections.values()
            if connection.behind
        ]
        receives = self.matching.posted_count()
        return [*sentences, f"{receives} receives have found no message"] if receives else sentences

    def _serve(self, _now: int) -> None:
        """Read and write the connections that are ready."""
        for descriptor, events in self._ready.poll(0):
            connection = self._by_descriptor.get(descriptor)
            if connection is None:
                continue
            try:
                if events & select.EPOLLOUT:
                    self._send_on(connection)
                if events & ~select.EPOLLOUT and connection.receive():
                    self._nic.post_completion(0)
            except OSError:
                self._lose(connection)

    def _send_on(self, connection: Connection) -> None:
        ended = connection.send_on()
        if not connection.behind:
            self._ready.modify(connection.socket.fileno(), select.EPOLLIN)
        for completion, envelope in ended:
            completion.complete(envelope)
            self._nic.post_completion(0)

    def _lose(self, connection: Connection) -> None:
        """Close the connection of a peer that has ended; only operations with that peer fail."""
        if self._connections.pop(connection.peer, None) is None:
            return
        del self._by_descriptor[connection.socket.fileno()]
        self._ready.unregister(connection.socket.fileno())
        connection.end(_gone(connection.peer))


def plug(adapter: Adapter, nic: Nic) -> Agent:
    """Make the agent that takes the place of a NIC's."""
    return Agent(NoFirmware(), TcpEndpoint(adapter, nic))


def _gone(rank: int) -> MPIError:
    return MPIError(ERR_PROC_FAILED, f"the connection with rank {rank} has ended")


PROTOCOL = KernelProtocol(plug=plug, ethertype=0, device=Device, connect=TcpEndpoint.connect)
