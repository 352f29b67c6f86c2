"""Two minimal firmwares for tests of the simulation: one replies to requests, one floods a peer."""

from __future__ import annotations

from collections.abc import Mapping

from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Nic

ETHERTYPE = 0x88B6
HEADER = 14
REQUEST = 1
REPLY = 2


class EchoFirmware:
    """A descriptor is the index of a message in the host's `outgoing`. A request is replied to; its reply completes the
    descriptor. Requests without a reply are resent after `timeout` ns, if that is not 0."""

    def __init__(self, adapter: Adapter, nic: Nic, timeout: int) -> None:
        self._adapter = adapter
        self._nic = nic
        self._timeout = timeout
        self.outgoing: dict[int, tuple[int, bytearray]] = {}
        self.inbox = bytearray(2048)
        self.open: dict[int, int] = {}  # index -> time of its retransmission
        self.frames: list[tuple[int, bytes]] = []
        self.resent = 0

    @property
    def deadline(self) -> int | None:
        return min(self.open.values(), default=None) if self._timeout else None

    def receive(self, now: int, frame: bytes) -> None:
        self.frames.append((now, frame))
        if frame[:6] != self._adapter.address or frame[12:14] != ETHERTYPE.to_bytes(2, "big"):
            return
        index = int.from_bytes(frame[15:19], "big")
        if frame[14] == REQUEST:
            self._nic.send(frame[6:12] + self._adapter.address + frame[12:14] + bytes([REPLY]) + frame[15:])
        elif index in self.open:
            del self.open[index]
            self._nic.dma_write(memoryview(self.inbox)[: len(frame) - 19], frame[19:])
            self._nic.post_completion(index)

    def on_doorbell(self, now: int, index: int) -> None:
        self._send_request(now, index)

    def on_timer(self, now: int) -> None:
        for index in [index for index, deadline in self.open.items() if deadline <= now]:
            self.resent += 1
            self._send_request(now, index)

    def counter_values(self) -> Mapping[str, int]:
        return {"frames": len(self.frames), "resent": self.resent}

    def pending_work(self) -> list[str]:
        return [f"request {index} has no reply" for index in self.open]

    def _send_request(self, now: int, index: int) -> None:
        peer, data = self.outgoing[index]
        self.open[index] = now + self._timeout
        payload = self._nic.dma_read([memoryview(data)])
        head = self._adapter.addresses[peer] + self._adapter.address + ETHERTYPE.to_bytes(2, "big")
        self._nic.send(head + bytes([REQUEST]) + index.to_bytes(4, "big") + payload)


class EchoEndpoint:
    """Host library of the echo firmware: sends requests."""

    def __init__(self, adapter: Adapter, nic: Nic, firmware: EchoFirmware) -> None:
        self.adapter = adapter
        self.firmware = firmware
        self._nic = nic
        self._completions: dict[int, Completion[None]] = {}
        self._next = 0

    def request(self, peer: int, data: bytes) -> Completion[None]:
        """The completion is done when the reply has arrived."""
        index = self._next
        self._next += 1
        self.firmware.outgoing[index] = (peer, bytearray(data))
        completion = self._completions[index] = Completion(f"the reply of node {peer} to request {index}")
        self._nic.ring_doorbell(index, 32, 1)
        return completion

    def on_completion(self, index: int) -> None:
        self._completions.pop(index).complete(None)

    def pending_work(self) -> list[str]:
        return [completion.what for completion in self._completions.values()]


class EchoPlug:
    """Builds the agents, and records their endpoints in the order in which they were built."""

    def __init__(self, timeout: int = 0) -> None:
        self._timeout = timeout
        self.endpoints: list[EchoEndpoint] = []

    def __call__(self, adapter: Adapter, nic: Nic) -> Agent:
        firmware = EchoFirmware(adapter, nic, self._timeout)
        endpoint = EchoEndpoint(adapter, nic, firmware)
        self.endpoints.append(endpoint)
        return Agent(firmware, endpoint)


class FloodFirmware:
    """Firmware that sends a frame to peer n when its host rings n, and counts received frames."""

    __slots__ = ("_frames", "_nic", "received")

    deadline: int | None = None

    def __init__(self, adapter: Adapter, nic: Nic, size: int) -> None:
        own_address, body = adapter.address, ETHERTYPE.to_bytes(2, "big") + bytes(size - HEADER)
        self._frames = (adapter.addresses, own_address + body)
        self._nic = nic
        self.received = 0

    def receive(self, now: int, frame: bytes) -> None:  # noqa: ARG002
        self.received += 1

    def on_doorbell(self, now: int, index: int) -> None:  # noqa: ARG002
        addresses, payload = self._frames
        self._nic.send(addresses[index] + payload)

    def on_timer(self, now: int) -> None:  # noqa: ARG002
        raise AssertionError("firmware without a deadline")

    def counter_values(self) -> Mapping[str, int]:
        return {"received": self.received}

    def pending_work(self) -> list[str]:
        return []


class FloodEndpoint:
    """Host library of the flood firmware."""

    def __init__(self, nic: Nic) -> None:
        self._nic = nic

    def send(self, peer: int) -> None:
        self._nic.ring_doorbell(peer, 0, 0)

    def on_completion(self, index: int) -> None:  # noqa: ARG002
        raise AssertionError("firmware without completions")

    def pending_work(self) -> list[str]:
        return []


def flood(adapter: Adapter, nic: Nic, size: int = 100) -> Agent:
    """Build a flooding agent."""
    return Agent(FloodFirmware(adapter, nic, size), FloodEndpoint(nic))
