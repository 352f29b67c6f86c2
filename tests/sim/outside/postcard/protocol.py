"""Postcard: one message per frame, one at a time to each peer, retransmitted until its receipt."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from postcard.frames import ETHERTYPE, HEAD, LETTER, RECEIPT
from protocols.core.completion import Completion
from protocols.core.firmware import Adapter, Agent, Nic
from protocols.core.protocol import Protocol
from protocols.mpi.device import Device
from protocols.mpi.matching import MatchingByLibrary
from protocols.mpi.mpi_errors import Envelope

AGAIN = 5_000_000  # ns
INBOX = -1  # shown to the host: something is in its inbox


class Firmware:
    """letters: descriptor -> peer and frame without a number; inbox: messages received for the host."""

    ethertype = ETHERTYPE

    def __init__(self, adapter: Adapter, nic: Nic) -> None:
        self.letters: dict[int, tuple[int, int, int, bytes]] = {}
        self.inbox: deque[tuple[int, int, int, bytes]] = deque()
        self._adapter, self._nic = adapter, nic
        self._waiting: dict[int, deque[int]] = {}
        self._due: dict[int, int] = {}
        self._sent = [0] * len(adapter.addresses)
        self._expected = [0] * len(adapter.addresses)
        self._again = 0

    @property
    def deadline(self) -> int | None:
        return min(self._due.values(), default=None)

    def on_doorbell(self, now: int, index: int) -> None:
        peer = self.letters[index][0]
        self._waiting.setdefault(peer, deque()).append(index)
        if peer not in self._due:
            self._send(now, peer)

    def on_timer(self, now: int) -> None:
        for peer in [peer for peer, due in self._due.items() if due <= now]:
            self._again += 1
            self._send(now, peer)

    def receive(self, now: int, frame: bytes) -> None:
        if len(frame) < HEAD.size or frame[:6] != self._adapter.address:  # a switch floods what it has not learnt
            return
        _, _, _, kind, peer, number, context, tag, length = HEAD.unpack_from(frame)
        if kind == LETTER and peer < len(self._expected):
            self._put(RECEIPT, peer, number, 0, 0, b"")
            if number == self._expected[peer]:
                self._expected[peer] += 1
                self.inbox.append((peer, context, tag, frame[HEAD.size : HEAD.size + length]))
                self._nic.post_completion(INBOX)
        elif kind == RECEIPT and peer in self._due and number == self._sent[peer]:
            self._sent[peer] += 1
            index = self._waiting[peer].popleft()
            del self._due[peer], self.letters[index]
            if self._waiting[peer]:
                self._send(now, peer)
            self._nic.post_completion(index)

    def counted(self) -> Mapping[str, int]:
        return {"sent_again": self._again}

    def waiting(self) -> list[str]:
        return [f"a receipt from node {peer}" for peer in self._due]

    def _send(self, now: int, peer: int) -> None:
        _, context, tag, data = self.letters[self._waiting[peer][0]]
        self._due[peer] = now + AGAIN
        self._put(LETTER, peer, self._sent[peer], context, tag, data)

    def _put(self, kind: int, peer: int, number: int, context: int, tag: int, data: bytes) -> None:
        own, to = self._adapter.address, self._adapter.addresses[peer]
        head = HEAD.pack(to, own, self.ethertype, kind, self._adapter.number, number, context, tag, len(data))
        self._nic.send((head + data).ljust(60, b"\0"))


class Host(MatchingByLibrary):
    """The library: what MPI's device asks of an endpoint."""

    contexts, max_tag, max_message_size = 256, 0xFFFF, 1400

    def __init__(self, adapter: Adapter, nic: Nic, firmware: Firmware) -> None:
        self.rank, self.size = adapter.number, len(adapter.addresses)
        super().__init__()
        self._nic, self._firmware = nic, firmware
        self._sends: dict[int, tuple[Completion[Envelope], Envelope]] = {}
        self._next = 0

    def send(self, destination: int, context: int, tag: int, data: memoryview, over: Completion[Envelope]) -> bool:
        self._next += 1
        self._sends[self._next] = over, Envelope(destination, tag, len(data))
        self._firmware.letters[self._next] = destination, context, tag, bytes(data)
        self._nic.ring_doorbell(self._next, len(data), 1)
        return True

    def completed(self, index: int) -> None:
        if index != INBOX:
            over, envelope = self._sends.pop(index)
            over.complete(envelope)
            return
        source, context, tag, data = self._firmware.inbox.popleft()
        arrival = self.matching.arrive(source, context, tag, len(data))
        arrival.place[:] = data[: len(arrival.place)]
        self.matching.arrived(arrival)

    def waiting(self) -> list[str]:
        return [f"the receipt of letter {index}" for index in self._sends]


def plug(adapter: Adapter, nic: Nic) -> Agent:
    firmware = Firmware(adapter, nic)
    return Agent(firmware, Host(adapter, nic, firmware))


PROTOCOL = Protocol(plug, ETHERTYPE, Device)
