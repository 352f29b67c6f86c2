"""A minimal protocol: send and receive messages of up to one frame.

A frame: Ethernet header, sender's number (1 byte), length (2 bytes), the message, padding. A received
message goes into the oldest posted buffer, or is queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Nic

ETHERTYPE = 0x88B6  # IEEE 802 local experimental EtherType 2
_HEADER = 17
MAGIC = 0x5A


class EchoFirmware:
    def __init__(self, adapter: Adapter, nic: Nic) -> None:
        self.deadline: int | None = None
        self.ticks = 0
        self.received: deque[tuple[int, bytes]] = deque()
        self.to_send: dict[int, tuple[int, bytes]] = {}
        self.buffers: deque[tuple[int, memoryview]] = deque()
        self.filled: dict[int, tuple[int, int]] = {}
        self._adapter = adapter
        self._nic = nic
        self._counts = {"sent": 0, "received": 0, "garbage": 0, "inside": 0}
        self._inside = False

    def receive(self, _now: int, frame: bytes) -> None:
        self._enter()
        length = int.from_bytes(frame[15:17], "big")
        if (
            frame[:6] != self._adapter.address
            or len(frame) < _HEADER + length
            or frame[14] >= len(self._adapter.addresses)
            or frame[59:60] != bytes([MAGIC])
        ):
            self._counts["garbage"] += 1
        else:
            self._counts["received"] += 1
            self.received.append((frame[14], frame[_HEADER : _HEADER + length]))
            self._match()
        self._inside = False

    def on_doorbell(self, _now: int, index: int) -> None:
        self._enter()
        if index in self.to_send:
            destination, message = self.to_send.pop(index)
            header = self._adapter.addresses[destination] + self._adapter.address + ETHERTYPE.to_bytes(2, "big")
            frame = header + bytes([self._adapter.number]) + len(message).to_bytes(2, "big") + message
            self._counts["sent"] += 1
            self._nic.send(frame.ljust(59, b"\0") + bytes([MAGIC]))
            self.filled[index] = (self._adapter.number, len(message))
            self._nic.post_completion(index)
        else:
            self._match()
        self._inside = False

    def on_timer(self, _now: int) -> None:
        self.deadline = None
        self.ticks += 1

    def counter_values(self) -> Mapping[str, int]:
        return self._counts

    def pending_work(self) -> list[str]:
        return [f"{len(self.buffers)} buffers wait for a message"] if self.buffers else []

    def _enter(self) -> None:
        """Count calls during another call, which must not happen."""
        self._counts["inside"] += self._inside
        self._inside = True

    def _match(self) -> None:
        while self.received and self.buffers:
            sender, message = self.received.popleft()
            index, buffer = self.buffers.popleft()
            self._nic.dma_write(buffer[: len(message)], message)
            self.filled[index] = (sender, len(message))
            self._nic.post_completion(index)


class EchoEndpoint:
    """again: number of receives that are posted within the completion of another one, as some host libraries do."""

    def __init__(self, nic: Nic, firmware: EchoFirmware) -> None:
        self.again = 0
        self.came = 0
        self._nic = nic
        self._firmware = firmware
        self._next = 0
        self._open: dict[int, Completion[tuple[int, int]]] = {}

    def send(self, destination: int, message: bytes) -> Completion[tuple[int, int]]:
        index, completion = self._begin(f"a send to node {destination}")
        self._firmware.to_send[index] = (destination, message)
        self._nic.ring_doorbell(index, len(message), 0)
        return completion

    def receive(self, buffer: bytearray) -> Completion[tuple[int, int]]:
        index, completion = self._begin("a message")
        self._firmware.buffers.append((index, memoryview(buffer)))
        self._nic.ring_doorbell(index, 16, 1)
        return completion

    def on_completion(self, index: int) -> None:
        filled = self._firmware.filled.pop(index)
        if self.again and filled[0] != 0xFF:
            self.again -= 1
            self.came += 1
            self.receive(bytearray(64))
        self._open.pop(index).complete(filled)

    def pending_work(self) -> list[str]:
        return [completion.what for completion in self._open.values()]

    def _begin(self, what: str) -> tuple[int, Completion[tuple[int, int]]]:
        self._next += 1
        completion: Completion[tuple[int, int]] = Completion(what)
        self._open[self._next] = completion
        return self._next, completion


def plug(adapter: Adapter, nic: Nic) -> Agent:
    firmware = EchoFirmware(adapter, nic)
    return Agent(firmware, EchoEndpoint(nic, firmware))
