"""MPI devices on AM-II, used without communicators; nodes may restart, and frames be dropped."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protocols.am2.settings import SECOND, Settings
from protocols.core.completion import Completion
from protocols.mpi import am2
from protocols.mpi.am2.endpoint import Am2Endpoint
from protocols.mpi.device import ReceiveCompletion
from protocols.mpi.mpi_errors import Envelope, MPIError
from tests.unit.protocols.mpi_devices import Am2Ranks


class Nodes:
    """MPI nodes on AM-II's NICs. ranks: their communicators; wires: the network below."""

    def __init__(self, count: int = 2, settings: Settings | None = None) -> None:
        self.ranks = Am2Ranks(count, settings)
        self.wires = self.ranks.wires
        self.devices = self.ranks.devices

    def endpoint(self, number: int) -> Am2Endpoint:
        endpoint = self.devices[number]._endpoint
        assert isinstance(endpoint, Am2Endpoint)
        return endpoint

    def send(self, source: int, destination: int, data: bytes, *, tag: int = 0) -> Completion[Envelope]:
        return self.devices[source].send(destination, 0, tag, memoryview(data))

    def receive(self, node: int, source: int, size: int, *, tag: int = 0) -> tuple[ReceiveCompletion, bytearray]:
        buffer = bytearray(size)
        return self.devices[node].receive(source, 0, tag, memoryview(buffer)), buffer

    def restart(self, number: int) -> None:
        """Restart a node: its NIC, and its program's device."""
        self.wires.restart(number)
        self.devices[number] = am2.device(self.wires.agents[number].host)  # type: ignore[arg-type]

    def advance(self, span: int, is_lost: Callable[[bytes], bool]) -> None:
        """Let `span` nanoseconds pass; frames for which `is_lost` is true are dropped."""
        end = self.wires.now + span
        while True:
            while frames := [frame for nic in range(len(self.devices)) for frame in self.wires.take(nic)]:
                for frame in frames:
                    if not is_lost(frame):
                        self.wires.deliver(frame)
            deadline = self.wires.deadline
            if deadline is None or deadline > end:
                break
            self.wires.tick()
        self.wires.now = end

    def drop_all_frames(self, span: int) -> None:
        """Let `span` nanoseconds pass in which no frame arrives."""
        self.advance(span, lambda _: True)

    def exchange(self, first: int, second: int) -> None:
        """Send a message from each node to the other, so that both know each other's session."""
        for source, destination in ((first, second), (second, first)):
            receive, buffer = self.receive(destination, source, 5, tag=99)
            send = self.send(source, destination, b"hello", tag=99)
            self.wires.elapse(SECOND)
            assert send.result().length == 5
            assert receive.result() == Envelope(source, 99, 5)
            assert buffer == b"hello"


def error_class_of(completion: Completion[Envelope]) -> int:
    """Return the error class of a failed transfer."""
    with pytest.raises(MPIError) as raised:
        completion.result()
    return raised.value.Get_error_class()
